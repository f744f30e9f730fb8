package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Quotas calls the quota admin API (DESIGN §5).
type Quotas struct{ *caller }

// NewQuotas makes a client of the service at baseURL, with an admin's or a viewer's token.
func NewQuotas(baseURL, token string, opts ...Option) *Quotas {
	return &Quotas{newCaller(baseURL, token, opts)}
}

// Close drops kept connections.
func (q *Quotas) Close() { q.close() }

// Quota is what a user may use now.
type Quota struct {
	UserID string `json:"user_id"`
	tier.Quota
}

// QuotaChange replaces a user's quota. What is omitted comes from the tier; 0 is unlimited.
type QuotaChange struct {
	Tier      string `json:"tier,omitempty"`
	OrgID     string `json:"org_id,omitempty"`
	Suspended bool   `json:"suspended,omitempty"`
	tier.Overrides
	IfVersion *int64 `json:"-"` // change only if this is still the version, else 412
}

// Unlimited is a change to the enterprise tier with no limit at all.
func Unlimited() QuotaChange {
	return QuotaChange{Tier: tier.Enterprise, Overrides: tier.Overrides{RPMLimit: new(int64(0)), TPMLimit: new(int64(0)), TPDLimit: new(int64(0)),
		ConcurrentLimit: new(int64(0)), MaxContext: new(int64(0)), AllowedModels: &[]string{}}}
}

// GetQuota reads a user's effective quota. Nobody is unknown: a user without one has the free tier's.
func (q *Quotas) GetQuota(ctx context.Context, userID string) (Quota, error) {
	var out Quota
	_, err := q.call(ctx, http.MethodGet, "/internal/quota/"+url.PathEscape(userID), nil, nil, &out)
	return out, err
}

// PutQuota changes a user's quota. Once it has answered, every check that starts afterwards is decided by the new one.
func (q *Quotas) PutQuota(ctx context.Context, userID string, c QuotaChange) (Quota, error) {
	var out Quota
	_, err := q.call(ctx, http.MethodPut, "/internal/quota/"+url.PathEscape(userID), ifMatch(c.IfVersion), c, &out)
	return out, err
}

// TierChange replaces the defaults of a tier.
type TierChange struct {
	RPMLimit        int64          `json:"rpm_limit"`
	TPMLimit        int64          `json:"tpm_limit"`
	TPDLimit        int64          `json:"tpd_limit"`
	ConcurrentLimit int64          `json:"concurrent_limit"`
	Priority        int64          `json:"priority"`
	AllowedModels   []string       `json:"allowed_models"`
	MaxContext      int64          `json:"max_context"`
	RedisAway       tier.RedisAway `json:"redis_away"`
	IfVersion       *int64         `json:"-"`
}

// GetTier reads a tier of the catalogue.
func (q *Quotas) GetTier(ctx context.Context, name string) (tier.Tier, error) {
	var out tier.Tier
	_, err := q.call(ctx, http.MethodGet, "/internal/tiers/"+url.PathEscape(name), nil, nil, &out)
	return out, err
}

// PutTier changes a tier, or adds one.
func (q *Quotas) PutTier(ctx context.Context, name string, c TierChange) (tier.Tier, error) {
	var out tier.Tier
	_, err := q.call(ctx, http.MethodPut, "/internal/tiers/"+url.PathEscape(name), ifMatch(c.IfVersion), c, &out)
	return out, err
}

func ifMatch(version *int64) http.Header {
	if version == nil {
		return nil
	}
	return http.Header{"If-Match": {`"` + strconv.FormatInt(*version, 10) + `"`}}
}
