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

// Quota is what a user may use now. After a change, Propagation is "done", or "pending" while Redis can't be told of it.
type Quota struct {
	UserID string `json:"user_id"`
	tier.Quota
	Overrides   tier.Overrides `json:"overrides"`
	Propagation string         `json:"propagation,omitempty"`
}

// QuotaChange states the whole set of a user's own limits: an omitted one is the tier's again, 0 is unlimited. Tier, OrgID and Suspended
// stay as they are where omitted; an empty OrgID leaves the org.
type QuotaChange struct {
	Tier      string  `json:"tier,omitempty"`
	OrgID     *string `json:"org_id,omitempty"`
	Suspended *bool   `json:"suspended,omitempty"`
	Reason    string  `json:"reason,omitempty"` // for the history
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
	err := q.call(ctx, http.MethodGet, "/internal/quota/"+url.PathEscape(userID), nil, nil, &out)
	return out, err
}

// PutQuota changes a user's quota. Once it has answered with Propagation "done", every check that starts is decided by the new one.
func (q *Quotas) PutQuota(ctx context.Context, userID string, c QuotaChange) (Quota, error) {
	var out Quota
	err := q.call(ctx, http.MethodPut, "/internal/quota/"+url.PathEscape(userID), ifMatch(c.IfVersion), c, &out)
	return out, err
}

// TierChange replaces the defaults of a tier.
type TierChange struct {
	RPMLimit        int64              `json:"rpm_limit"`
	TPMLimit        int64              `json:"tpm_limit"`
	TPDLimit        int64              `json:"tpd_limit"`
	ConcurrentLimit int64              `json:"concurrent_limit"`
	Priority        int64              `json:"priority"`
	AllowedModels   []string           `json:"allowed_models"`
	MaxContext      int64              `json:"max_context"`
	RedisAway       tier.RedisAway     `json:"redis_away"`
	Limits          []tier.Limit       `json:"limits,omitempty"`
	ModelLimits     []tier.ModelLimits `json:"model_limits,omitempty"`
	Reason          string             `json:"reason,omitempty"`
	IfVersion       *int64             `json:"-"`
}

// Tiers reads the catalogue, the lowest priority first.
func (q *Quotas) Tiers(ctx context.Context) ([]tier.Tier, error) {
	var out struct {
		Tiers []tier.Tier `json:"tiers"`
	}
	err := q.call(ctx, http.MethodGet, "/internal/tiers", nil, nil, &out)
	return out.Tiers, err
}

// GetTier reads a tier of the catalogue.
func (q *Quotas) GetTier(ctx context.Context, name string) (tier.Tier, error) {
	var out tier.Tier
	err := q.call(ctx, http.MethodGet, "/internal/tiers/"+url.PathEscape(name), nil, nil, &out)
	return out, err
}

// ChangedTier is a tier after a change.
type ChangedTier struct {
	tier.Tier
	Propagation string `json:"propagation"`
}

// PutTier changes a tier, or adds one.
func (q *Quotas) PutTier(ctx context.Context, name string, c TierChange) (ChangedTier, error) {
	var out ChangedTier
	err := q.call(ctx, http.MethodPut, "/internal/tiers/"+url.PathEscape(name), ifMatch(c.IfVersion), c, &out)
	return out, err
}

func ifMatch(version *int64) http.Header {
	if version == nil {
		return nil
	}
	return http.Header{"If-Match": {`"` + strconv.FormatInt(*version, 10) + `"`}}
}
