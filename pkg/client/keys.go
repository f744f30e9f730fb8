package client

import (
	"context"
	"maps"
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
	Suspended bool   `json:"suspended,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Once      string `json:"-"` // an Idempotency-Key: the same call again within a day gets the first one's answer, secret included
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
	UpdatedAt   time.Time  `json:"updated_at"`
	Secret      string     `json:"secret,omitempty"`
	Propagation string     `json:"propagation,omitempty"`
}

// CreateKey makes a key. Without Once, one that was made by a call without an answer is of no use to anybody: its secret is lost. Make another.
func (q *Quotas) CreateKey(ctx context.Context, k NewKey) (Key, error) {
	var out Key
	err := q.call(ctx, http.MethodPost, "/internal/api-keys", onceKey(k.Once), k, &out)
	return out, err
}

// KeyChange goes with a rotation or a revocation.
type KeyChange struct {
	Reason    string `json:"reason,omitempty"` // for the history
	IfVersion *int64 `json:"-"`                // change only if this is still the version, else 412
	Once      string `json:"-"`                // of a rotation, as in NewKey
}

// RotateKey gives a key another secret.
func (q *Quotas) RotateKey(ctx context.Context, id string, c KeyChange) (Key, error) {
	var out Key
	h := onceKey(c.Once)
	maps.Copy(h, ifMatch(c.IfVersion))
	err := q.call(ctx, http.MethodPost, "/internal/api-keys/"+url.PathEscape(id)+"/rotate", h, c, &out)
	return out, err
}

// RevokeKey refuses a key for good. Once it has answered with Propagation "done", every check that starts is refused.
func (q *Quotas) RevokeKey(ctx context.Context, id string, c KeyChange) (Key, error) {
	var out Key
	err := q.call(ctx, http.MethodDelete, "/internal/api-keys/"+url.PathEscape(id), ifMatch(c.IfVersion), c, &out)
	return out, err
}

// KeyQuota is what limits a key itself; what limits its owner comes on top.
type KeyQuota struct {
	ID     string `json:"api_key_id"`
	UserID string `json:"user_id"` // the owner, if it is a user
	tier.Quota
	Overrides   tier.Overrides `json:"overrides"`
	Propagation string         `json:"propagation,omitempty"`
}

// KeyQuotaChange states the whole set of a key's own limits, as QuotaChange does. Tier is for keys that an org owns.
type KeyQuotaChange struct {
	Tier      string `json:"tier,omitempty"`
	Suspended *bool  `json:"suspended,omitempty"`
	Reason    string `json:"reason,omitempty"`
	tier.Overrides
	IfVersion *int64 `json:"-"`
}

// GetKeyQuota reads a key's quota.
func (q *Quotas) GetKeyQuota(ctx context.Context, id string) (KeyQuota, error) {
	var out KeyQuota
	err := q.call(ctx, http.MethodGet, "/internal/api-keys/"+url.PathEscape(id)+"/quota", nil, nil, &out)
	return out, err
}

// KeyQuotaAt reads what a key's quota was at an instant.
func (q *Quotas) KeyQuotaAt(ctx context.Context, id string, at time.Time) (KeyQuota, error) {
	var out KeyQuota
	err := q.call(ctx, http.MethodGet, "/internal/api-keys/"+url.PathEscape(id)+"/quota"+atQuery(at), nil, nil, &out)
	return out, err
}

// PutKeyQuota changes a key's quota.
func (q *Quotas) PutKeyQuota(ctx context.Context, id string, c KeyQuotaChange) (KeyQuota, error) {
	var out KeyQuota
	err := q.call(ctx, http.MethodPut, "/internal/api-keys/"+url.PathEscape(id)+"/quota", ifMatch(c.IfVersion), c, &out)
	return out, err
}
