package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

func TestCheckAnswersAsTheDesignSays(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", RPMLimit: 40, TPMLimit: 40000, TPDLimit: 500000, ConcurrentLimit: 3, Version: 7})
	resp := call{method: "POST", path: "/internal/rate-limit/check", body: `{"user_id":"u1","model":"grok-2","estimated_tokens":150,"request_id":"01890a5d-ac96-774b-bcce-b302099a8057"}`}.do(t, w)
	got := read[map[string]any](t, resp, 200)
	var want map[string]any
	_ = json.Unmarshal([]byte(`{"allowed":true,"request_id":"01890a5d-ac96-774b-bcce-b302099a8057","model":"grok-2","reserved_tokens":150,"lease_ms":600000,
		"retry_after_ms":0,"reason":"","scope":"",
		"limit":{"requests":40,"tokens_1m":40000,"tokens_1d":500000,"concurrent":3},
		"remaining":{"requests":39,"tokens_1m":39850,"tokens_1d":499850,"concurrent":2},
		"reset_at":{"requests":"2026-01-01T12:00:01.500Z","tokens_1m":"2026-01-01T12:00:00.225Z","tokens_1d":"2026-01-01T12:00:25.920Z"},
		"headers":{"X-RateLimit-Limit-Requests":"40","X-RateLimit-Remaining-Requests":"39","X-RateLimit-Reset-Requests":"2026-01-01T12:00:01.500Z",
		"X-RateLimit-Limit-Tokens-1m":"40000","X-RateLimit-Remaining-Tokens-1m":"39850","X-RateLimit-Reset-Tokens-1m":"2026-01-01T12:00:00.225Z",
		"X-RateLimit-Limit-Tokens-1d":"500000","X-RateLimit-Remaining-Tokens-1d":"499850","X-RateLimit-Reset-Tokens-1d":"2026-01-01T12:00:25.920Z",
		"X-RateLimit-Limit-Concurrent":"3","X-RateLimit-Remaining-Concurrent":"2"},"quota_version":7,"degraded":false}`), &want)
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if len(w.rejections)+len(w.usage) != 0 {
		t.Error("an allowed check left an event")
	}
}

func TestUnlimitedDimensionIsNullAndSendsNoHeader(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "enterprise", RPMLimit: 5})
	a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":1000000000000}`)
	if !a.Allowed || a.Limit["tokens_1m"] != nil || a.Remaining["tokens_1d"] != nil || a.ResetAt["tokens_1d"] != nil || a.Limit["concurrent"] != nil || len(a.Headers) != 3 {
		t.Errorf("%+v", a)
	}
	if _, ok := a.Limit["tokens_1d"]; !ok {
		t.Error("an unlimited dimension is missing instead of null")
	}
	if id := a.RequestID; id.Version() != 7 {
		t.Errorf("a made request id has version %d", id.Version())
	}
}

// Case B01, over HTTP and for every reason of a refusal.
func TestRefusedRequestChangesNoCounter(t *testing.T) {
	plus := tier.Quota{Tier: "plus", RPMLimit: 3, TPMLimit: 1000, TPDLimit: 1500, ConcurrentLimit: 2, MaxContext: 100_000, AllowedModels: []string{"grok-2"}}
	for reason, c := range map[string]struct {
		before, body string
		change       func(*tier.Quota)
		scope        string
		wait         bool
	}{
		"rpm":               {before: "10 10 10", body: `"model":"grok-2","estimated_tokens":1`, change: func(q *tier.Quota) { q.ConcurrentLimit = 0 }, scope: "user", wait: true},
		"tpm":               {before: "900", body: `"model":"grok-2","estimated_tokens":200`, scope: "user", wait: true},
		"tpd":               {before: "900", body: `"model":"grok-2","estimated_tokens":1000`, change: func(q *tier.Quota) { q.TPMLimit = 100_000 }, scope: "user", wait: true},
		"concurrent":        {before: "10 10", body: `"model":"grok-2","estimated_tokens":1`, scope: "user", wait: true},
		"request_too_large": {body: `"model":"grok-2","estimated_tokens":1001`, scope: "user"},
		"model_not_allowed": {body: `"model":"grok-9","estimated_tokens":1`},
		"context_too_long":  {body: `"model":"grok-2","input_tokens":99000,"max_output_tokens":1001,"reserve":"input"`},
		"suspended":         {body: `"model":"grok-9","estimated_tokens":1`, change: func(q *tier.Quota) { q.Suspended = true }},
	} {
		t.Run(reason, func(t *testing.T) {
			w, q := newWorld(t), plus
			if c.change != nil {
				c.change(&q)
			}
			w.sell("user:u1", q)
			for _, tokens := range strings.Fields(c.before) {
				if a := w.check(t, fmt.Sprintf(`{"user_id":"u1","model":"grok-2","estimated_tokens":%s}`, tokens)); !a.Allowed {
					t.Fatalf("refused: %s", a.Reason)
				}
			}
			before := w.status(t, "user/u1")
			id := uuid.New()
			for range 5 {
				a := w.check(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,%s}`, id, c.body))
				if a.Allowed || a.Reason != reason || a.Scope != c.scope || (a.RetryAfterMS > 0) != c.wait || a.ReservedTokens != 0 {
					t.Fatalf("%+v", a)
				}
				if fmt.Sprint(text(a.rooms)) != fmt.Sprint(text(before.rooms)) {
					t.Errorf("the refusal tells another room than the status:\n%v\n%v", text(a.rooms), text(before.rooms))
				}
			}
			if after := w.status(t, "user/u1"); fmt.Sprint(text(after.rooms)) != fmt.Sprint(text(before.rooms)) || after.InFlight != before.InFlight {
				t.Errorf("a refusal changed a counter:\n%v\n%v", text(before.rooms), text(after.rooms))
			}
			if len(w.rejections) != 5 {
				t.Fatalf("%d events for 5 refusals", len(w.rejections))
			}
			for _, r := range w.rejections {
				if err := r.Validate(); err != nil {
					t.Error(err)
				}
				if r.EventID != usage.EventID(subject.Subject{Kind: subject.User, ID: "u1"}, id, usage.KindRejection) || r.Reason != reason || r.Scope != c.scope ||
					r.Outcome != usage.Rejected || r.Reservation != "" || r.Tier != "plus" || r.Region != "eu" || r.Instance != "i1" || time.Time(r.Timestamp) != w.now {
					t.Errorf("%+v", r)
				}
			}
			w.check(t, fmt.Sprintf(`{"user_id":"u1","dry_run":true,%s}`, c.body))
			if len(w.rejections) != 5 {
				t.Error("a dry run left an event")
			}
		})
	}
}

func TestDryRunReservesNothing(t *testing.T) {
	w := newWorld(t)
	before := w.status(t, "user/u1")
	a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":100,"dry_run":true}`)
	if !a.Allowed || a.ReservedTokens != 0 || n(a.Remaining["tokens_1m"]) != 39900 {
		t.Errorf("%+v", a)
	}
	if after := w.status(t, "user/u1"); fmt.Sprint(text(after.rooms)) != fmt.Sprint(text(before.rooms)) {
		t.Error("a dry run changed a counter")
	}
}

func TestRepeatedCheckIsChargedOnce(t *testing.T) {
	w := newWorld(t)
	body := `{"user_id":"u1","model":"m","estimated_tokens":100,"request_id":"01890A5D-AC96-774B-BCCE-B302099A8057"}`
	one, two := w.check(t, body), w.check(t, strings.ToLower(body))
	if !two.Allowed || one.RequestID != two.RequestID || n(two.Remaining["tokens_1m"]) != 39900 || n(two.Remaining["requests"]) != 39 || n(two.Remaining["concurrent"]) != 2 {
		t.Errorf("%+v", two)
	}
}

func TestInputReservationLeavesTheOutputToTheStream(t *testing.T) {
	w := newWorld(t)
	a := w.check(t, `{"user_id":"u1","model":"m","input_tokens":100,"max_output_tokens":500,"reserve":"input"}`)
	if a.ReservedTokens != 100 || n(a.Remaining["tokens_1m"]) != 39900 {
		t.Errorf("%+v", a)
	}
}

// A user at its limit is let in by the first check after the change was published, though the quota that was read is old.
func TestUpgradeHoldsOnTheVeryNextCheck(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "free", RPMLimit: 1, Version: 1})
	w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":1}`)
	if a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":1}`); a.Reason != "rpm" {
		t.Fatalf("%+v", a)
	}
	stale, fresh := w.quotas["user:u1"], tier.Quota{Tier: "plus", RPMLimit: 40, Version: 2}
	w.limiter.Publish("user:u1", 2)
	e := decide.New(staleOnce{stale, fresh}, w.limiter, w, decide.Options{Now: w.clock})
	a, err := e.Check(t.Context(), decide.Request{Subject: subject.Subject{Kind: subject.User, ID: "u1"}, RequestID: uuid.New(), Model: "m"})
	if err != nil || !a.Allowed || a.QuotaVersion != 2 {
		t.Errorf("%+v %v", a, err)
	}
}

func TestLiftedSuspensionHoldsOnTheVeryNextCheckAndStatus(t *testing.T) {
	w := newWorld(t)
	w.limiter.Publish("user:u1", 2)
	e := decide.New(staleOnce{tier.Quota{Tier: "plus", Suspended: true, Version: 1}, tier.Quota{Tier: "plus", Version: 2}}, w.limiter, w, decide.Options{Now: w.clock})
	sub := subject.Subject{Kind: subject.User, ID: "u1"}
	if a, err := e.Check(t.Context(), decide.Request{Subject: sub, RequestID: uuid.New(), Model: "m"}); err != nil || !a.Allowed {
		t.Errorf("%+v %v", a, err)
	}
	if st, err := e.Status(t.Context(), sub); err != nil || st.Suspended || st.QuotaVersion != 2 {
		t.Errorf("%+v %v", st, err)
	}
}

func TestQuotaThatStaysOldIsGivenUp(t *testing.T) {
	w := newWorld(t)
	w.limiter.Publish("tier:plus", 9)
	read[problem.Problem](t, call{method: "POST", path: "/internal/rate-limit/check", body: `{"user_id":"u1","model":"m","estimated_tokens":1}`}.do(t, w), 503)
}

// staleOnce gives an old quota until it is refused.
type staleOnce struct{ old, fresh tier.Quota }

func planOf(s subject.Subject, q tier.Quota) (tier.Plan, error) {
	q.Subject = s
	return tier.PlanOf(q, tier.Pool{}), nil
}

func (s staleOnce) Get(_ context.Context, u subject.Subject) (tier.Plan, error) {
	return planOf(u, s.old)
}
func (s staleOnce) Reload(_ context.Context, u subject.Subject, _ tier.Plan) (tier.Plan, error) {
	return planOf(u, s.fresh)
}

func TestStatusTakesIDsWithSlashes(t *testing.T) {
	w := newWorld(t)
	w.check(t, `{"user_id":"a/b@c+d","model":"m","estimated_tokens":100}`)
	if st := w.status(t, "user/a%2Fb@c+d"); st.UserID != "a/b@c+d" || st.InFlight != 1 || n(st.Remaining["tokens_1m"]) != 39900 || st.Tier != "plus" {
		t.Errorf("%+v", st)
	}
	for _, bad := range []string{"a%20b", "a:b", "a%00b", strings.Repeat("x", 129)} {
		read[problem.Problem](t, call{method: "GET", path: "/internal/rate-limit/status/user/" + bad}.do(t, w), 400)
	}
}

// Case B56: waiting as told always succeeds.
func TestWaitingRetryAfterAlwaysSucceeds(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", RPMLimit: 7, TPMLimit: 1000})
	waits := 0
	for i := range 200 {
		body := fmt.Sprintf(`{"user_id":"u1","model":"m","estimated_tokens":%d}`, 1+(i*37)%250)
		a := w.check(t, body)
		if !a.Allowed {
			waits++
			w.wait(time.Duration(a.RetryAfterMS-1) * time.Millisecond)
			if early := w.check(t, body); early.Allowed {
				t.Fatal("the wait was longer than needed")
			}
			w.wait(time.Millisecond)
			if a = w.check(t, body); !a.Allowed {
				t.Fatalf("refused after the advised wait: %+v", a)
			}
		}
	}
	if waits < 50 {
		t.Errorf("only %d waits", waits)
	}
}

// What a key may do is what it and its user may both do; the reason names no scope.
func TestKeyIsNarrowedByItsUser(t *testing.T) {
	key, user := subject.Subject{Kind: subject.APIKey, ID: "k1"}, subject.Subject{Kind: subject.User, ID: "u1"}
	for name, c := range map[string]struct {
		key, user tier.Quota
		reason    string
	}{
		"both allow":         {reason: ""},
		"the user's models":  {user: tier.Quota{AllowedModels: []string{"other"}}, reason: "model_not_allowed"},
		"the key's models":   {key: tier.Quota{AllowedModels: []string{"other"}}, reason: "model_not_allowed"},
		"the user's context": {key: tier.Quota{MaxContext: 100}, user: tier.Quota{MaxContext: 9}, reason: "context_too_long"},
		"the key's context":  {key: tier.Quota{MaxContext: 9}, user: tier.Quota{MaxContext: 100}, reason: "context_too_long"},
		"a suspended user":   {user: tier.Quota{Suspended: true}, reason: "suspended"},
		"a suspended key":    {key: tier.Quota{Suspended: true}, reason: "suspended"},
	} {
		w := newWorld(t)
		c.key.Subject, c.user.Subject, c.user.Tier = key, user, "plus"
		w.plan(tier.Plan{Subject: key, Quotas: []tier.Quota{c.key, c.user}, OrgID: "acme", Pool: tier.NoPool("acme")})
		a := w.check(t, `{"api_key_id":"k1","model":"grok-2","estimated_tokens":10}`)
		if a.Allowed != (c.reason == "") || a.Reason != c.reason || a.Scope != "" {
			t.Errorf("%s: %+v", name, a)
		}
		if st := w.status(t, "api_key/k1"); st.Tier != "plus" || st.OrgID != "acme" || st.APIKeyID != "k1" || st.Suspended != (c.reason == "suspended") {
			t.Errorf("%s: %+v", name, st)
		}
		for _, r := range w.rejections {
			if r.APIKeyID != "k1" || r.UserID != "u1" || r.OrgID != "acme" || r.Tier != "plus" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}
