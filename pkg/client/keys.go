package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// NewKey states a key. Exactly one of UserID and OrgID, the owner, is given; Tier is for keys of orgs.
type NewKey struct {
	UserID string `json:"user_id,omitempty"`
	OrgID  string `json:"org_id,omitempty"`
	Name   string `json:"name,omitempty"`
	Tier   string `json:"tier,omitempty"`
	tier.Overrides
	Reason string `json:"reason,omitempty"`
	Once   string `json:"-"` // an Idempotency-Key: the same call again within a day gets the first one's answer, secret included
}

// Key is an API key. Secret is there only in the answer that made it.
type Key struct {
	ID          string     `json:"api_key_id"`
	UserID      string     `json:"user_id"`
	OrgID       string     `json:"org_id"`
	Name        string     `json:"name"`
	Prefix      string     `json:"prefix"`
	Suspended   bool       `json:"suspended"`
	Rotations   int64      `json:"rotations"`
	CreatedAt   time.Time  `json:"created_at"`
	RotatedAt   *time.Time `json:"rotated_at"`
	RevokedAt   *time.Time `json:"revoked_at"`
	Version     int64      `json:"version"`
	Secret      string     `json:"secret"`
	Propagation string     `json:"propagation"`
}

// CreateKey makes a key. Without Once, one that was made by a call without an answer is of no use to anybody: its secret is lost. Make another.
func (q *Quotas) CreateKey(ctx context.Context, k NewKey) (Key, error) {
	var out Key
	err := q.call(ctx, http.MethodPost, "/internal/api-keys", onceKey(k.Once), k, &out)
	return out, err
}

// RotateKey gives a key another secret.
func (q *Quotas) RotateKey(ctx context.Context, id string) (Key, error) {
	return q.RotateKeyOnce(ctx, id, "")
}

// RotateKeyOnce is RotateKey with an Idempotency-Key: the same call again within a day gets the first one's answer, secret included.
func (q *Quotas) RotateKeyOnce(ctx context.Context, id, once string) (Key, error) {
	var out Key
	err := q.call(ctx, http.MethodPost, "/internal/api-keys/"+url.PathEscape(id)+"/rotate", onceKey(once), nil, &out)
	return out, err
}

// RevokeKey refuses a key for good. Once it has answered with Propagation "done", every check that starts is refused.
func (q *Quotas) RevokeKey(ctx context.Context, id string) (Key, error) {
	var out Key
	err := q.call(ctx, http.MethodDelete, "/internal/api-keys/"+url.PathEscape(id), nil, nil, &out)
	return out, err
}

// Pool is what all of an org share. 0 is unlimited; Shards 0 is 1, TimeZone "" is UTC.
type Pool struct {
	RPMLimit        int64        `json:"rpm_limit"`
	TPMLimit        int64        `json:"tpm_limit"`
	TPDLimit        int64        `json:"tpd_limit"`
	ConcurrentLimit int64        `json:"concurrent_limit"`
	Limits          []tier.Limit `json:"limits,omitempty"`
	Shards          int64        `json:"shards,omitempty"`
	TimeZone        string       `json:"time_zone,omitempty"`
}

// PutOrg states an org's pool, completely.
func (q *Quotas) PutOrg(ctx context.Context, orgID string, p Pool) error {
	return q.call(ctx, http.MethodPut, "/internal/orgs/"+url.PathEscape(orgID)+"/quota", nil, p, nil)
}
