package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Org is an org and its pool, which all of it share. 0 is unlimited. Version 0: nobody has ever set the pool.
type Org struct {
	ID              string       `json:"org_id"`
	RPMLimit        int64        `json:"rpm_limit"`
	TPMLimit        int64        `json:"tpm_limit"`
	TPDLimit        int64        `json:"tpd_limit"`
	ConcurrentLimit int64        `json:"concurrent_limit"`
	Limits          []tier.Limit `json:"limits"`
	Shards          int64        `json:"shards"`
	TimeZone        string       `json:"time_zone"` // of the org's days and invoices
	Version         int64        `json:"version"`
	UpdatedAt       *time.Time   `json:"updated_at"`
	Propagation     string       `json:"propagation,omitempty"`
}

// Pool states an org's pool, completely: what is left out is unlimited. Shards 0 is 1, TimeZone "" is UTC.
type Pool struct {
	RPMLimit        int64        `json:"rpm_limit"`
	TPMLimit        int64        `json:"tpm_limit"`
	TPDLimit        int64        `json:"tpd_limit"`
	ConcurrentLimit int64        `json:"concurrent_limit"`
	Limits          []tier.Limit `json:"limits,omitempty"`
	Shards          int64        `json:"shards,omitempty"`
	TimeZone        string       `json:"time_zone,omitempty"`
	Reason          string       `json:"reason,omitempty"` // for the history
	IfVersion       *int64       `json:"-"`                // change only if this is still the version, else 412
}

// ListOrgs lists orgs in the order of their ids: all that have or had a pool, a user or a key.
func (q *Quotas) ListOrgs(ctx context.Context, p Page) (orgs []Org, next string, err error) {
	var out struct {
		Orgs []Org  `json:"orgs"`
		Next string `json:"next_cursor"`
	}
	err = q.call(ctx, http.MethodGet, "/internal/orgs"+p.query(nil), nil, nil, &out)
	return out.Orgs, out.Next, err
}

func orgPath(orgID string) string { return "/internal/orgs/" + url.PathEscape(orgID) + "/quota" }

// GetOrg reads an org's pool.
func (q *Quotas) GetOrg(ctx context.Context, orgID string) (Org, error) {
	var out Org
	err := q.call(ctx, http.MethodGet, orgPath(orgID), nil, nil, &out)
	return out, err
}

// OrgAt reads what an org's pool was at an instant.
func (q *Quotas) OrgAt(ctx context.Context, orgID string, at time.Time) (Org, error) {
	var out Org
	err := q.call(ctx, http.MethodGet, orgPath(orgID)+atQuery(at), nil, nil, &out)
	return out, err
}

// PutOrg states an org's pool.
func (q *Quotas) PutOrg(ctx context.Context, orgID string, p Pool) (Org, error) {
	var out Org
	err := q.call(ctx, http.MethodPut, orgPath(orgID), ifMatch(p.IfVersion), p, &out)
	return out, err
}

// DeleteOrg lifts an org's pool. ifVersion, if not nil: only if this is still the version, else 412.
func (q *Quotas) DeleteOrg(ctx context.Context, orgID string, ifVersion *int64) (Org, error) {
	var out Org
	err := q.call(ctx, http.MethodDelete, orgPath(orgID), ifMatch(ifVersion), nil, &out)
	return out, err
}
