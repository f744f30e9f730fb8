package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/quotalog"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Page asks for a part of a list. Limit 0 is the service's default of 100, 1000 is the most; Cursor is the next cursor of the page before.
type Page struct {
	Limit  int
	Cursor string
}

func (p Page) query(filters url.Values) string {
	q := url.Values{}
	for name, v := range filters {
		if len(v) > 0 && v[0] != "" {
			q[name] = v
		}
	}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// onceKey is the header that makes a POST safe to repeat for a day: the same call again with the same key gets the first one's answer. Without a
// key of the caller's it gets one of its own, for net/http may send it twice when a kept connection was dead.
func onceKey(key string) http.Header {
	if key == "" {
		key = rand.Text()
	}
	return http.Header{"Idempotency-Key": {key}}
}

// ListQuotas lists users that have a quota of their own, in the order of their ids; orgID and tierName choose, "" is any. next is "" on the
// last page.
func (q *Quotas) ListQuotas(ctx context.Context, orgID, tierName string, p Page) (quotas []Quota, next string, err error) {
	var out struct {
		Quotas []Quota `json:"quotas"`
		Next   string  `json:"next_cursor"`
	}
	err = q.call(ctx, http.MethodGet, "/internal/quotas"+p.query(url.Values{"org_id": {orgID}, "tier": {tierName}}), nil, nil, &out)
	return out.Quotas, out.Next, err
}

// ListKeys lists keys in the order of their ids, revoked ones included: of a user, or owned by an org.
func (q *Quotas) ListKeys(ctx context.Context, userID, orgID string, p Page) (keys []Key, next string, err error) {
	var out struct {
		Keys []Key  `json:"api_keys"`
		Next string `json:"next_cursor"`
	}
	err = q.call(ctx, http.MethodGet, "/internal/api-keys"+p.query(url.Values{"user_id": {userID}, "org_id": {orgID}}), nil, nil, &out)
	return out.Keys, out.Next, err
}

// GetKey reads a key.
func (q *Quotas) GetKey(ctx context.Context, id string) (Key, error) {
	var out Key
	err := q.call(ctx, http.MethodGet, "/internal/api-keys/"+url.PathEscape(id), nil, nil, &out)
	return out, err
}

func atQuery(at time.Time) string { return "?at=" + url.QueryEscape(at.UTC().Format(time.RFC3339Nano)) }

// QuotaAt reads what a user's quota was at an instant, by its tier as it was then.
func (q *Quotas) QuotaAt(ctx context.Context, userID string, at time.Time) (Quota, error) {
	var out Quota
	err := q.call(ctx, http.MethodGet, "/internal/quota/"+url.PathEscape(userID)+atQuery(at), nil, nil, &out)
	return out, err
}

// QuotaEvent is one change: Before and After are the own limits that were stored; nil is none.
type QuotaEvent struct {
	Version int64           `json:"version"`
	At      time.Time       `json:"at"`
	Actor   string          `json:"actor"`
	Reason  string          `json:"reason"`
	Before  *quotalog.State `json:"before"`
	After   *quotalog.State `json:"after"`
}

// UserEvents reads who changed a user's quota, oldest first.
func (q *Quotas) UserEvents(ctx context.Context, userID string, p Page) ([]QuotaEvent, string, error) {
	return q.events(ctx, "/internal/quota/"+url.PathEscape(userID)+"/events", p)
}

// KeyEvents reads who changed a key, oldest first.
func (q *Quotas) KeyEvents(ctx context.Context, id string, p Page) ([]QuotaEvent, string, error) {
	return q.events(ctx, "/internal/api-keys/"+url.PathEscape(id)+"/events", p)
}

// OrgEvents reads who changed an org's pool, oldest first.
func (q *Quotas) OrgEvents(ctx context.Context, orgID string, p Page) ([]QuotaEvent, string, error) {
	return q.events(ctx, "/internal/orgs/"+url.PathEscape(orgID)+"/quota/events", p)
}

func (q *Quotas) events(ctx context.Context, path string, p Page) ([]QuotaEvent, string, error) {
	var out struct {
		Events []QuotaEvent `json:"events"`
		Next   string       `json:"next_cursor"`
	}
	err := q.call(ctx, http.MethodGet, path+p.query(nil), nil, nil, &out)
	return out.Events, out.Next, err
}

// TierEvent is one change of a tier. Of Before and After neither version nor updated_at is told. Before is nil for the first.
type TierEvent struct {
	Version int64      `json:"version"`
	At      time.Time  `json:"at"`
	Actor   string     `json:"actor"`
	Reason  string     `json:"reason"`
	Before  *tier.Tier `json:"before"`
	After   *tier.Tier `json:"after"`
}

// TierEvents reads who changed a tier, oldest first.
func (q *Quotas) TierEvents(ctx context.Context, name string, p Page) ([]TierEvent, string, error) {
	var out struct {
		Events []TierEvent `json:"events"`
		Next   string      `json:"next_cursor"`
	}
	err := q.call(ctx, http.MethodGet, "/internal/tiers/"+url.PathEscape(name)+"/events"+p.query(nil), nil, nil, &out)
	return out.Events, out.Next, err
}

// NewAdminToken states a token of the admin API. OrgID is for auth.OrgAdmin only; ExpiresAt nil is never. Once, if not "", makes the call safe to
// repeat.
type NewAdminToken struct {
	Name      string     `json:"name"`
	Role      auth.Role  `json:"role"`
	OrgID     string     `json:"org_id,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Once      string     `json:"-"`
}

// AdminToken is a token of the admin API. Token, the secret itself, is there only in the answer that made it.
type AdminToken struct {
	Name      string     `json:"name"`
	Role      auth.Role  `json:"role"`
	OrgID     string     `json:"org_id"`
	CreatedBy string     `json:"created_by"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at"`
	RevokedBy string     `json:"revoked_by"`
	RevokedAt *time.Time `json:"revoked_at"`
	Token     string     `json:"token,omitempty"`
}

// CreateAdminToken makes a token. Its name stands for it in histories and is never used again (409).
func (q *Quotas) CreateAdminToken(ctx context.Context, n NewAdminToken) (AdminToken, error) {
	var out AdminToken
	err := q.call(ctx, http.MethodPost, "/internal/admin-tokens", onceKey(n.Once), n, &out)
	return out, err
}

// ListAdminTokens lists tokens in the order of their names, expired and revoked ones included.
func (q *Quotas) ListAdminTokens(ctx context.Context, p Page) (tokens []AdminToken, next string, err error) {
	var out struct {
		Tokens []AdminToken `json:"admin_tokens"`
		Next   string       `json:"next_cursor"`
	}
	err = q.call(ctx, http.MethodGet, "/internal/admin-tokens"+p.query(nil), nil, nil, &out)
	return out.Tokens, out.Next, err
}

// RevokeAdminToken refuses a token from the next call on.
func (q *Quotas) RevokeAdminToken(ctx context.Context, name string) (AdminToken, error) {
	var out AdminToken
	err := q.call(ctx, http.MethodDelete, "/internal/admin-tokens/"+url.PathEscape(name), nil, nil, &out)
	return out, err
}

// Refusal is a row of the audit log: attempts of one kind within five seconds. Method, Path and RequestID are the first one's.
type Refusal struct {
	ID        int64     `json:"id"`
	Instance  string    `json:"instance"`
	Reason    string    `json:"reason"`
	Actor     string    `json:"actor"`
	Address   string    `json:"address"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	RequestID string    `json:"request_id"`
	Attempts  int64     `json:"attempts"`
	FirstAt   time.Time `json:"first_at"`
	LastAt    time.Time `json:"last_at"`
}

// ListRefusals lists who tried what without the right, the newest first.
func (q *Quotas) ListRefusals(ctx context.Context, p Page) (refusals []Refusal, next string, err error) {
	var out struct {
		Refusals []Refusal `json:"refusals"`
		Next     string    `json:"next_cursor"`
	}
	err = q.call(ctx, http.MethodGet, "/internal/refusals"+p.query(nil), nil, nil, &out)
	return out.Refusals, out.Next, err
}
