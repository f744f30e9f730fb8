package client_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// asked is what one call sent.
type asked struct {
	Call, Body, IfMatch string
	Once                bool // an Idempotency-Key came
}

// ask makes one call against a service that answers with a text, and gives what was sent and what was made of the answer.
func ask(t *testing.T, answer string, call func(ctx context.Context, q *client.Quotas) (any, error)) (sent asked, got any) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body) // an empty body differs from what is wanted
		sent = asked{r.Method + " " + r.URL.RequestURI(), string(b), r.Header.Get("If-Match"), r.Header.Get("Idempotency-Key") != ""}
		_, _ = io.WriteString(w, answer)
	}))
	defer srv.Close()
	got, err := call(t.Context(), client.NewQuotas(srv.URL, "adm"))
	if err != nil {
		t.Fatal(err)
	}
	return sent, got
}

const bookText = `{"model":"a/b","version":3,"in_force":null,"prices":[{"valid_from":"2026-01-01T00:00:00.000Z","currency":"USD","input_per_million":"3",
	"cached_input_per_million":"0.75","output_per_million":"15","version":2,"actor":"ann","reason":"spring","updated_at":"2025-12-20T09:00:00.123Z"}]}`

var (
	newYear  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	usd      = price.Amounts{Currency: "USD", Input: "3", CachedInput: "0.75", Output: "15"}
	fullBook = client.PriceBook{Model: "a/b", Version: 3, Prices: []client.Price{{ValidFrom: newYear, Amounts: usd, Version: 2, Actor: "ann", Reason: "spring",
		UpdatedAt: time.Date(2025, 12, 20, 9, 0, 0, 123e6, time.UTC)}}}
	third = int64(3)
)

// Every call is the one of schemas/openapi/quota.yaml, with ids percent-encoded, and its whole answer arrives.
func TestAdminCallsSendAndReadTheContract(t *testing.T) {
	type page struct {
		Items any
		Next  string
	}
	for name, c := range map[string]struct {
		answer string
		call   func(ctx context.Context, q *client.Quotas) (any, error)
		sent   asked
		want   any
	}{
		"the price book": {`{"models":[` + bookText + `]}`, func(ctx context.Context, q *client.Quotas) (any, error) { return q.ListPrices(ctx) },
			asked{Call: "GET /internal/prices"}, []client.PriceBook{fullBook}},
		"a model's prices": {bookText, func(ctx context.Context, q *client.Quotas) (any, error) { return q.GetPrices(ctx, "a/b") },
			asked{Call: "GET /internal/prices/a%2Fb"}, fullBook},
		"a price": {bookText, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.PutPrice(ctx, "a/b", client.PriceChange{Input: "3", Output: "15", ValidFrom: &newYear, Reason: "spring", IfVersion: &third})
		}, asked{"PUT /internal/prices/a%2Fb", `{"input_per_million":"3","output_per_million":"15","valid_from":"2026-01-01T00:00:00Z","reason":"spring"}`, `"3"`, false}, fullBook},
		"a price in full": {bookText, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.PutPrice(ctx, "a/b", client.PriceChange{Input: "3", CachedInput: "0.75", Output: "15", Currency: "EUR"})
		}, asked{Call: "PUT /internal/prices/a%2Fb", Body: `{"input_per_million":"3","cached_input_per_million":"0.75","output_per_million":"15","currency":"EUR"}`}, fullBook},
		"the history of prices": {`{"events":[{"version":2,"valid_from":"2026-01-01T00:00:00.000Z","at":"2025-12-20T09:00:00.123Z","actor":"ann","reason":"spring","before":null,
			"after":{"currency":"USD","input_per_million":"3","cached_input_per_million":"0.75","output_per_million":"15"}}],"next_cursor":"c2"}`,
			func(ctx context.Context, q *client.Quotas) (any, error) {
				events, next, err := q.PriceEvents(ctx, "a/b", client.Page{Limit: 1, Cursor: "c1"})
				return page{events, next}, err
			}, asked{Call: "GET /internal/prices/a%2Fb/events?cursor=c1&limit=1"},
			page{[]client.PriceEvent{{Version: 2, ValidFrom: newYear, At: fullBook.Prices[0].UpdatedAt, Actor: "ann", Reason: "spring", After: usd}}, "c2"}},
		"a key's quota": {`{"api_key_id":"k1","user_id":"u1","org_id":"","tier":"","rpm_limit":5,"overrides":{"rpm_limit":5},"version":3}`,
			func(ctx context.Context, q *client.Quotas) (any, error) { return q.GetKeyQuota(ctx, "k1") },
			asked{Call: "GET /internal/api-keys/k1/quota"},
			client.KeyQuota{ID: "k1", UserID: "u1", Quota: tier.Quota{RPMLimit: 5, Version: 3}, Overrides: tier.Overrides{RPMLimit: new(int64(5))}}},
		"a key's quota as it was": {`{"api_key_id":"k1","version":1}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.KeyQuotaAt(ctx, "k1", newYear.In(time.FixedZone("", 3600)))
		}, asked{Call: "GET /internal/api-keys/k1/quota?at=2026-01-01T00%3A00%3A00Z"}, client.KeyQuota{ID: "k1", Quota: tier.Quota{Version: 1}}},
		"another quota for a key": {`{"api_key_id":"k1","version":4,"propagation":"done"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.PutKeyQuota(ctx, "k1", client.KeyQuotaChange{Tier: "api", Suspended: new(false), Reason: "paid", Overrides: tier.Overrides{TPMLimit: new(int64(0))}, IfVersion: &third})
		}, asked{"PUT /internal/api-keys/k1/quota", `{"tier":"api","suspended":false,"reason":"paid","tpm_limit":0}`, `"3"`, false},
			client.KeyQuota{ID: "k1", Quota: tier.Quota{Version: 4}, Propagation: "done"}},
		"a key's rotation": {`{"api_key_id":"k1","rotations":1,"version":4,"secret":"tg-NEW","propagation":"pending"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.RotateKey(ctx, "k1", client.KeyChange{Reason: "leaked", IfVersion: &third})
		}, asked{"POST /internal/api-keys/k1/rotate", `{"reason":"leaked"}`, `"3"`, true}, client.Key{ID: "k1", Rotations: 1, Version: 4, Secret: "tg-NEW", Propagation: "pending"}},
		"a key's revocation": {`{"api_key_id":"k1","suspended":true,"version":5}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.RevokeKey(ctx, "k1", client.KeyChange{Reason: "left", IfVersion: &third})
		}, asked{"DELETE /internal/api-keys/k1", `{"reason":"left"}`, `"3"`, false}, client.Key{ID: "k1", Suspended: true, Version: 5}},
		"the orgs": {`{"orgs":[{"org_id":"acme","time_zone":"Europe/Berlin","updated_at":null}],"next_cursor":""}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			orgs, next, err := q.ListOrgs(ctx, client.Page{})
			return page{orgs, next}, err
		}, asked{Call: "GET /internal/orgs"}, page{[]client.Org{{ID: "acme", TimeZone: "Europe/Berlin"}}, ""}},
		"an org": {`{"org_id":"acme","tpm_limit":7,"shards":2,"version":3}`, func(ctx context.Context, q *client.Quotas) (any, error) { return q.GetOrg(ctx, "acme") },
			asked{Call: "GET /internal/orgs/acme/quota"}, client.Org{ID: "acme", TPMLimit: 7, Shards: 2, Version: 3}},
		"an org as it was": {`{"org_id":"acme"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.OrgAt(ctx, "acme", newYear.Add(time.Millisecond))
		}, asked{Call: "GET /internal/orgs/acme/quota?at=2026-01-01T00%3A00%3A00.001Z"}, client.Org{ID: "acme"}},
		"an org's pool": {`{"org_id":"acme","version":4,"propagation":"done"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.PutOrg(ctx, "acme", client.Pool{TPMLimit: 7, Limits: []tier.Limit{{Counts: "requests", Window: "1d", Capacity: 9}}, TimeZone: "Europe/Berlin", Reason: "grew", IfVersion: &third})
		}, asked{"PUT /internal/orgs/acme/quota", `{"rpm_limit":0,"tpm_limit":7,"tpd_limit":0,"concurrent_limit":0,"limits":[{"counts":"requests","window":"1d","capacity":9}],` +
			`"time_zone":"Europe/Berlin","reason":"grew"}`, `"3"`, false}, client.Org{ID: "acme", Version: 4, Propagation: "done"}},
		"an org's pool lifted": {`{"org_id":"acme","version":5}`, func(ctx context.Context, q *client.Quotas) (any, error) { return q.DeleteOrg(ctx, "acme", &third) },
			asked{"DELETE /internal/orgs/acme/quota", "", `"3"`, false}, client.Org{ID: "acme", Version: 5}},
		"an org's history": {`{"events":[],"next_cursor":"c"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			events, next, err := q.OrgEvents(ctx, "acme", client.Page{Limit: 5})
			return page{events, next}, err
		}, asked{Call: "GET /internal/orgs/acme/quota/events?limit=5"}, page{[]client.QuotaEvent{}, "c"}},
		"users of an org": {`{"quotas":[{"user_id":"u1"}],"next_cursor":"c"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			quotas, next, err := q.ListQuotas(ctx, "acme", "", client.Page{})
			return page{quotas, next}, err
		}, asked{Call: "GET /internal/quotas?org_id=acme"}, page{[]client.Quota{{UserID: "u1"}}, "c"}},
		"an admin token": {`{"name":"it","role":"org-admin","org_id":"acme","token":"tg-admin-X"}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			return q.CreateAdminToken(ctx, client.NewAdminToken{Name: "it", Role: auth.OrgAdmin, OrgID: "acme", ExpiresAt: &newYear})
		}, asked{"POST /internal/admin-tokens", `{"name":"it","role":"org-admin","org_id":"acme","expires_at":"2026-01-01T00:00:00Z"}`, "", true},
			client.AdminToken{Name: "it", Role: auth.OrgAdmin, OrgID: "acme", Token: "tg-admin-X"}},
		"a token's end": {`{"name":"it","revoked_by":"ann"}`, func(ctx context.Context, q *client.Quotas) (any, error) { return q.RevokeAdminToken(ctx, "it") },
			asked{Call: "DELETE /internal/admin-tokens/it"}, client.AdminToken{Name: "it", RevokedBy: "ann"}},
		"refused attempts": {`{"refusals":[{"id":9,"reason":"forbidden","attempts":2}],"next_cursor":""}`, func(ctx context.Context, q *client.Quotas) (any, error) {
			refusals, next, err := q.ListRefusals(ctx, client.Page{Limit: 1})
			return page{refusals, next}, err
		}, asked{Call: "GET /internal/refusals?limit=1"}, page{[]client.Refusal{{ID: 9, Reason: "forbidden", Attempts: 2}}, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			sent, got := ask(t, c.answer, c.call)
			if sent != c.sent {
				t.Errorf("sent %+v, want %+v", sent, c.sent)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A POST that is sent again under the same key is the same call to the service, whatever became of the first answer.
func TestAKeyIsMadeUnderTheCallersIdempotencyKey(t *testing.T) {
	var keys []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		_ = json.NewEncoder(w).Encode(client.Key{ID: "k1"}) // the caller sees a failure
	}))
	defer srv.Close()
	q := client.NewQuotas(srv.URL, "adm")
	for _, once := range []string{"mine", "mine", "", ""} {
		if _, err := q.CreateKey(t.Context(), client.NewKey{UserID: "u1", Once: once}); err != nil {
			t.Fatal(err)
		}
		if _, err := q.RotateKey(t.Context(), "k1", client.KeyChange{Once: once}); err != nil {
			t.Fatal(err)
		}
	}
	if keys[0] != "mine" || keys[1] != "mine" || keys[2] != "mine" || keys[3] != "mine" {
		t.Errorf("the caller's key is not sent: %q", keys)
	}
	own := map[string]bool{}
	for _, k := range keys[4:] {
		own[k] = true
	}
	if len(own) != 4 || own[""] {
		t.Errorf("calls without a key need one of their own each: %q", keys[4:])
	}
}

func TestTheAnswerHookGetsWhatCame(t *testing.T) {
	const text = `{"model":"grok-2","version":1,"of a later version":true}`
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	defer srv.Close()
	var came []string
	q := client.NewQuotas(srv.URL, "adm", client.WithAnswerHook(func(b []byte) { came = append(came, string(b)) }))
	if _, err := q.GetPrices(t.Context(), "grok-2"); err != nil || len(came) != 1 || came[0] != text {
		t.Errorf("%v, %q", err, came)
	}
	status = http.StatusNotFound
	if _, err := q.GetPrices(t.Context(), "grok-2"); err == nil || len(came) != 1 {
		t.Errorf("a refusal is an error and no answer: %v, %q", err, came)
	}
}

// A kept connection that dies under a call is another matter for a guarded change: sent again, it would lose the race against itself.
func TestOnlyAnUnguardedChangeIsSentAgainOnADeadConnection(t *testing.T) {
	for name, c := range map[string]struct {
		version *int64
		puts    int32
	}{"unguarded": {nil, 2}, "guarded": {&third, 1}} {
		var puts atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && puts.Add(1) == 1 {
				if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
					_ = conn.Close()
				}
				return
			}
			_, _ = io.WriteString(w, `{"user_id":"u1"}`)
		}))
		q := client.NewQuotas(srv.URL, "adm", client.WithConnections(1))
		if _, err := q.GetQuota(t.Context(), "u1"); err != nil { // the connection is kept
			t.Fatal(err)
		}
		_, err := q.PutQuota(t.Context(), "u1", client.QuotaChange{IfVersion: c.version})
		if (err != nil) != (c.puts == 1) || puts.Load() != c.puts {
			t.Errorf("%s: %d PUTs, %v", name, puts.Load(), err)
		}
		srv.Close()
	}
}
