package app

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// publish does what the quota service does before it answers.
func (b *backends) publish(t *testing.T, fences []pgquota.Fence, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fences {
		if err := redisfence.Publish(t.Context(), b.rdb, f.Shards, redisfence.Change{Name: f.Name, Version: f.Version}); err != nil {
			t.Fatal(err)
		}
		if err := b.quotas.MarkFenced(context.WithoutCancel(t.Context()), []int64{f.ID}); err != nil {
			t.Fatal(err)
		}
	}
}

// unlimited are overrides that leave only what own states.
func unlimited(own tier.Overrides) tier.Overrides {
	for _, p := range []**int64{&own.RPMLimit, &own.TPMLimit, &own.TPDLimit, &own.ConcurrentLimit, &own.MaxContext} {
		if *p == nil {
			*p = ptr(0)
		}
	}
	if own.AllowedModels == nil {
		own.AllowedModels = &[]string{}
	}
	return own
}

// user sells to a user in an org exactly what own states.
func (b *backends) user(t *testing.T, id, org string, own tier.Overrides) {
	t.Helper()
	res, err := b.quotas.PutQuota(t.Context(), pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: id}, OrgID: &org, Own: unlimited(own), Actor: "test"})
	b.publish(t, res.Fences, err)
}

// key makes a key of a user, or of an org where user is "".
func (b *backends) key(t *testing.T, id, user, org string, own tier.Overrides) {
	t.Helper()
	if user == "" {
		own = unlimited(own)
	}
	res, err := b.quotas.CreateKey(t.Context(), pgquota.NewKey{ID: id, UserID: user, OrgID: org, Secret: pgquota.SecretOf("tg-" + uuid.NewString()), Own: own, Actor: "test"})
	b.publish(t, res.Fences, err)
}

func (b *backends) keyQuota(t *testing.T, id string, own tier.Overrides) {
	t.Helper()
	res, err := b.quotas.PutQuota(t.Context(), pgquota.Change{Subject: subject.Subject{Kind: subject.APIKey, ID: id}, Own: own, Actor: "test"})
	b.publish(t, res.Fences, err)
}

func (b *backends) org(t *testing.T, p tier.Pool) {
	t.Helper()
	if p.Shards == 0 {
		p.Shards = 1
	}
	p.TimeZone = tier.UTC
	res, err := b.quotas.PutOrg(t.Context(), pgquota.OrgChange{Pool: p, Actor: "test"})
	b.publish(t, res.Fences, err)
}

// ask checks for a subject, "user_id":"u1" say.
func (s *service) ask(who, model string, tokens int) map[string]any {
	s.t.Helper()
	code, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{%s,"model":%q,"estimated_tokens":%d}`, who, model, tokens))
	if code != 200 {
		s.t.Fatalf("check: %d %v", code, v)
	}
	return v
}

// admits checks until a refusal and wants it after n, by a scope.
func (s *service) admits(who, model string, tokens, n int, reason, scope string) {
	s.t.Helper()
	for i := range n + 1 {
		v := s.ask(who, model, tokens)
		if i < n && v["allowed"] != true {
			s.t.Fatalf("%s: number %d of %d was refused: %v", who, i+1, n, v)
		}
		if i == n && (v["allowed"] != false || v["reason"] != reason || v["scope"] != scope) {
			s.t.Fatalf("%s: after %d: %v, want %s by the %s", who, n, v, reason, scope)
		}
	}
}

// Case B51, then its whole kind: of every two levels, whichever is the tighter one refuses and is named.
func TestB51TightestLevelOfTheHierarchyWins(t *testing.T) {
	b := start(t, broker(t).Brokers())
	s := run(t, b.config())

	b.org(t, tier.Pool{OrgID: "O", TPMLimit: 1000})
	b.user(t, "U", "O", tier.Overrides{TPMLimit: ptr(300)})
	b.user(t, "V", "O", tier.Overrides{})
	b.key(t, "K", "U", "", tier.Overrides{TPMLimit: ptr(600)})
	b.key(t, "K2", "U", "", tier.Overrides{})
	s.admits(`"api_key_id":"K"`, "grok-2", 100, 3, "tpm", "user")
	s.admits(`"api_key_id":"K2"`, "grok-2", 100, 0, "tpm", "user")
	s.admits(`"user_id":"V"`, "grok-2", 100, 7, "tpm", "org")

	levels := []string{"key", "user", "model", "org"}
	for i, tight := range levels {
		for j, loose := range levels {
			if i == j {
				continue
			}
			id := fmt.Sprintf("%s-%s", tight, loose)
			most := func(level string) *int64 {
				switch level {
				case tight:
					return ptr(300)
				case loose:
					return ptr(600)
				}
				return ptr(0)
			}
			b.org(t, tier.Pool{OrgID: id, TPMLimit: *most("org")})
			own := tier.Overrides{TPMLimit: most("user")}
			own.ModelLimits = &[]tier.ModelLimits{{Group: "big", Models: []string{"grok-4"}, TPMLimit: *most("model")}}
			b.user(t, id, id, own)
			b.key(t, id, id, "", tier.Overrides{TPMLimit: most("key")})
			s.admits(fmt.Sprintf(`"api_key_id":%q`, id), "grok-4", 100, 3, "tpm", tight)
			if tight != "key" && loose != "key" { // the same without a key
				b.user(t, id+"2", id+"2", own)
				b.org(t, tier.Pool{OrgID: id + "2", TPMLimit: *most("org")})
				s.admits(fmt.Sprintf(`"user_id":"%s2"`, id), "grok-4", 100, 3, "tpm", tight)
			}
		}
	}
}

// A change at one level is seen by every instance, whose caches are warm with what was.
func TestChangeAtAnyLevelHoldsOnTheVeryNextCheck(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	b.user(t, "u1", "acme", tier.Overrides{})
	b.user(t, "u2", "", tier.Overrides{})
	b.key(t, "k1", "u1", "", tier.Overrides{})
	b.key(t, "k2", "u2", "", tier.Overrides{})
	b.key(t, "k3", "", "acme", tier.Overrides{})
	everybody := []string{`"user_id":"u1"`, `"user_id":"u2"`, `"api_key_id":"k1"`, `"api_key_id":"k2"`, `"api_key_id":"k3"`}
	no := tier.Pool{OrgID: "acme"}
	for round := range 4 {
		for i, c := range []struct {
			what         string
			change, undo func()
			reason       string
			scope        string
			who          []int // of everybody
		}{
			{"the org is lowered", func() { b.org(t, tier.Pool{OrgID: "acme", TPMLimit: 1}) }, func() { b.org(t, no) }, "request_too_large", "org", []int{0, 2, 4}},
			{"a user is lowered", func() { b.user(t, "u1", "acme", tier.Overrides{TPMLimit: ptr(1)}) }, func() { b.user(t, "u1", "acme", tier.Overrides{}) }, "request_too_large", "user", []int{0, 2}},
			{"a key is lowered", func() { b.keyQuota(t, "k1", tier.Overrides{TPMLimit: ptr(1)}) }, func() { b.keyQuota(t, "k1", tier.Overrides{}) }, "request_too_large", "key", []int{2}},
			{"an org's key is lowered", func() { b.keyQuota(t, "k3", tier.Overrides{TPMLimit: ptr(1)}) }, func() { b.keyQuota(t, "k3", tier.Overrides{}) }, "request_too_large", "key", []int{4}},
			{"a model group is lowered", func() {
				b.user(t, "u2", "", tier.Overrides{ModelLimits: &[]tier.ModelLimits{{Group: "g", Models: []string{"grok-2"}, TPMLimit: 1}}})
			}, func() { b.user(t, "u2", "", tier.Overrides{}) }, "request_too_large", "model", []int{1, 3}},
			{"a user joins a lowered org and leaves it", func() { b.org(t, tier.Pool{OrgID: "full", TPMLimit: 1}); b.user(t, "u2", "full", tier.Overrides{}) },
				func() { b.user(t, "u2", "", tier.Overrides{}) }, "request_too_large", "org", []int{1, 3}},
			{"an org is spread over more shards", func() { b.org(t, tier.Pool{OrgID: "acme", TPMLimit: 1, Shards: 4}) }, func() { b.org(t, no) }, "request_too_large", "org", []int{0, 2, 4}},
		} {
			for _, now := range []bool{false, true} {
				for who, name := range everybody {
					refused := now && slices.Contains(c.who, who)
					v := services[(i+who+round)%3].ask(name, "grok-2", 10)
					if (v["allowed"] == true) == refused || (refused && (v["reason"] != c.reason || v["scope"] != c.scope)) {
						t.Fatalf("round %d, %s (%v), %s: %v", round, c.what, now, name, v)
					}
				}
				if !now {
					c.change()
				}
			}
			c.undo()
		}
	}
}

func TestRevokedKeyIsRefusedOnTheVeryNextCheck(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	b.user(t, "u1", "acme", tier.Overrides{})
	for round := range 10 {
		id := fmt.Sprintf("k%d", round)
		owner := []string{"u1", ""}[round%2]
		org := []string{"", "acme"}[round%2]
		b.key(t, id, owner, org, tier.Overrides{})
		who := fmt.Sprintf(`"api_key_id":%q`, id)
		for _, s := range services {
			if v := s.ask(who, "grok-2", 1); v["allowed"] != true {
				t.Fatal(v)
			}
		}
		if round%3 == 0 { // another secret changes nothing that is counted
			res, err := b.quotas.RotateKey(t.Context(), pgquota.KeyChange{ID: id, Actor: "test"}, pgquota.SecretOf("tg-"+uuid.NewString()))
			b.publish(t, res.Fences, err)
			if v := services[0].ask(who, "grok-2", 1); v["allowed"] != true || v["quota_version"] != 2.0 {
				t.Fatal(v)
			}
		}
		res, err := b.quotas.RevokeKey(t.Context(), pgquota.KeyChange{ID: id, Actor: "test"})
		b.publish(t, res.Fences, err)
		for _, s := range services {
			if v := s.ask(who, "grok-2", 1); v["allowed"] != false || v["reason"] != "suspended" || v["scope"] != "" {
				t.Fatalf("round %d: %v", round, v)
			}
		}
		if v := services[0].ask(`"user_id":"u1"`, "grok-2", 1); v["allowed"] != true {
			t.Fatal("its owner is refused, too: ", v)
		}
	}
}

// Case B43: who pays follows from the key; nothing that a caller sends names another.
func TestB43UsageOfAKeyNamesItsOwnerAndOrg(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	s := run(t, b.config())
	b.user(t, "U1", "O1", tier.Overrides{})
	b.key(t, "K1", "U1", "", tier.Overrides{TPMLimit: ptr(1000)})
	b.key(t, "K2", "", "O1", tier.Overrides{})
	for _, c := range []struct {
		key, user, tier string
	}{{"K1", "U1", tier.Free}, {"K2", "", tier.API}, {"nobody-made-it", "", tier.API}} {
		id := uuid.New()
		body := fmt.Sprintf(`"api_key_id":%q,"request_id":%q`, c.key, id)
		if code, v := s.send("POST", "/internal/rate-limit/check", `{`+body+`,"user_id":"U2","model":"grok-2","estimated_tokens":10}`); code != 400 {
			t.Errorf("a key with another user: %d %v", code, v)
		}
		if v := s.ask(body, "grok-2", 10); v["allowed"] != true {
			t.Fatal(v)
		}
		if code, v := s.send("POST", "/internal/rate-limit/consume", `{`+body+`,"tokens":3}`); code != 200 || v["allowed"] != true {
			t.Error(code, v)
		}
		if code, v := s.send("POST", "/internal/rate-limit/record", `{`+body+`,"model":"grok-2","input_tokens":5,"output_tokens":3,"latency_ms":1,"outcome":"completed"}`); code != 200 {
			t.Error(code, v)
		}
		if code, v := s.send("GET", "/internal/rate-limit/status/api_key/"+c.key, ""); code != 200 || v["tier"] != c.tier || v["in_flight"] != 0.0 {
			t.Error(code, v)
		}
	}
	if v := s.ask(`"api_key_id":"K1"`, "grok-2", 1001); v["scope"] != "key" { // a rejection names them, too
		t.Fatal(v)
	}
	seen := map[string]int{}
	for _, recs := range events(t, k.Brokers(), 4) {
		r := recs[0]
		seen[fmt.Sprintf("%s %q %q %q %s %s %q %s", r.APIKeyID, r.UserID, r.OrgID, r.Tier, r.Key(), r.Outcome, r.Scope, r.Reason)]++
	}
	for _, want := range []string{`K1 "U1" "O1" "free" org:O1 completed "" `, `K1 "U1" "O1" "free" org:O1 rejected "key" request_too_large`, `K2 "" "O1" "api" org:O1 completed "" `,
		`nobody-made-it "" "" "api" api_key:nobody-made-it completed "" `} {
		if seen[want] != 1 {
			t.Errorf("no event says %s, but %v", want, seen)
		}
	}
}

// Requests per day, input and output tokens per minute: configuration only.
func TestFurtherLimitsAreDataOnly(t *testing.T) {
	b := start(t, broker(t).Brokers())
	s := run(t, b.config())
	b.user(t, "u1", "acme", tier.Overrides{Limits: &[]tier.Limit{{Counts: "requests", Window: "1d", Capacity: 5}, {Counts: "input_tokens", Window: "1m", Capacity: 1000},
		{Counts: "output_tokens", Window: "1h", Capacity: 500}}})
	b.org(t, tier.Pool{OrgID: "acme", Limits: []tier.Limit{{Counts: "tokens", Window: "1h", Capacity: 1400}}})
	split := func(in, out int) map[string]any {
		code, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":"u1","model":"grok-2","input_tokens":%d,"max_output_tokens":%d}`, in, out))
		if code != 200 {
			t.Fatal(code, v)
		}
		return v
	}
	v := split(600, 100)
	limit, _ := v["limit"].(map[string]any)
	headers, _ := v["headers"].(map[string]any)
	if v["allowed"] != true || limit["requests_1d"] != 5.0 || limit["input_tokens_1m"] != 1000.0 || limit["tokens_1h"] != 1400.0 || headers["X-RateLimit-Limit-Requests-1d"] != "5" {
		t.Fatal(v)
	}
	for _, c := range []struct {
		in, out       int
		reason, scope string
	}{{450, 0, "itpm", "user"}, {0, 401, "otph", "user"}, {400, 399, "tph", "org"}, {1, 0, "", ""}, {1, 0, "", ""}, {1, 0, "", ""}, {1, 0, "", ""}, {1, 0, "rpd", "user"}} {
		if v := split(c.in, c.out); v["reason"] != c.reason || v["scope"] != c.scope {
			t.Errorf("%d and %d: %v, want %s by %s", c.in, c.out, v, c.reason, c.scope)
		}
	}
}

// A group is one pool of its models, beside the limits for all models; of a key with an own group both count.
func TestModelGroupLimitsItsModelsTogetherAndNoOthers(t *testing.T) {
	b := start(t, broker(t).Brokers())
	s := run(t, b.config())
	b.user(t, "u1", "", tier.Overrides{TPMLimit: ptr(10_000), ModelLimits: &[]tier.ModelLimits{
		{Group: "big", Models: []string{"grok-4", "grok-2"}, TPMLimit: 500, ConcurrentLimit: 2}, {Group: "small", Models: []string{"grok-2-mini"}, RPMLimit: 1}}})
	b.key(t, "k1", "u1", "", tier.Overrides{ModelLimits: &[]tier.ModelLimits{{Group: "mine", Models: []string{"grok-4"}, TPMLimit: 200}}})
	id := uuid.New()
	first := fmt.Sprintf(`"user_id":"u1","request_id":%q`, id)
	if v := s.ask(first, "grok-4", 300); v["allowed"] != true {
		t.Fatal(v)
	}
	for _, c := range []struct {
		who, model, reason string
		tokens             int
	}{{`"user_id":"u1"`, "grok-2", "tpm", 250}, {`"user_id":"u1"`, "another", "", 250}, {`"user_id":"u1"`, "grok-2-mini", "", 1}, {`"user_id":"u1"`, "grok-2-mini", "rpm", 1},
		{`"api_key_id":"k1"`, "grok-4", "request_too_large", 201}, {`"api_key_id":"k1"`, "grok-2", "", 20}, {`"api_key_id":"k1"`, "grok-4", "concurrent", 20}} {
		v := s.ask(c.who, c.model, c.tokens)
		if v["reason"] != c.reason || (c.reason != "" && v["scope"] != "model") {
			t.Errorf("%+v: %v", c, v)
		}
	}
	if code, v := s.send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{%s,"model":"grok-4","input_tokens":100,"output_tokens":0,"latency_ms":1,"outcome":"completed"}`, first)); code != 200 {
		t.Fatal(code, v)
	}
	// What was reserved too much is back in the group, and its slot: 100 and 20 of 500 are used.
	if v := s.ask(`"user_id":"u1"`, "grok-2", 370); v["allowed"] != true {
		t.Error(v)
	}
}

// The slot of a group comes back also where the record can't say which model the check was for.
func TestGroupsSlotReturnsWhateverTheRecordSays(t *testing.T) {
	b := start(t, broker(t).Brokers())
	s := run(t, b.config())
	b.user(t, "u1", "", tier.Overrides{ModelLimits: &[]tier.ModelLimits{{Group: "big", Models: []string{"grok-4"}, ConcurrentLimit: 1}}})
	for _, body := range []string{`"actual_tokens":5`, `"model":"grok-2","input_tokens":1,"output_tokens":1,"latency_ms":1,"outcome":"completed"`} {
		id := uuid.New()
		who := fmt.Sprintf(`"user_id":"u1","request_id":%q`, id)
		if v := s.ask(who, "grok-4", 10); v["allowed"] != true {
			t.Fatal(v)
		}
		if v := s.ask(`"user_id":"u1"`, "grok-4", 10); v["reason"] != "concurrent" || v["scope"] != "model" {
			t.Fatal(v)
		}
		if code, v := s.send("POST", "/internal/rate-limit/record", `{`+who+`,`+body+`}`); code != 200 {
			t.Fatal(code, v)
		}
	}
	if v := s.ask(`"user_id":"u1"`, "grok-4", 10); v["allowed"] != true {
		t.Error(v)
	}
}

// Spread over several hash slots a payer has what it had in one: its pool for all members together, and each member's own limits.
func TestSpreadPayerHasItsWholeQuotaAndNoMore(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config())}
	b.org(t, tier.Pool{OrgID: "hot", TPDLimit: 2000, Shards: 4})
	day := func(n int64) tier.Overrides { return tier.Overrides{TPDLimit: &n} }
	for i := range 4 {
		b.user(t, fmt.Sprintf("m%d", i), "hot", day(700))
		b.key(t, fmt.Sprintf("k%d", i), fmt.Sprintf("m%d", i), "", tier.Overrides{})
	}
	own := day(1000)
	own.Shards = ptr(8)
	b.user(t, "alone", "", own)
	b.key(t, "alones", "alone", "", tier.Overrides{})
	admitted := func(who ...string) (n int) {
		for i := 0; ; i++ {
			v := services[i%2].ask(who[i%len(who)], "grok-2", 100)
			if v["allowed"] != true {
				return n
			}
			n++
		}
	}
	if n := admitted(`"user_id":"m0"`, `"api_key_id":"k0"`); n != 7 {
		t.Errorf("a member and its key were admitted %d times, want 7", n)
	}
	if n := admitted(`"api_key_id":"k1"`, `"user_id":"m2"`, `"api_key_id":"k2"`, `"user_id":"m3"`); n != 13 {
		t.Errorf("the others were admitted %d times, want the 13 that are left in the pool", n)
	}
	if n := admitted(`"user_id":"alone"`, `"api_key_id":"alones"`); n != 10 {
		t.Errorf("a user by itself was admitted %d times, want 10", n)
	}
	for who, used := range map[string]float64{"user/alone": 0, "user/m0": 0} {
		code, v := services[0].send("GET", "/internal/rate-limit/status/"+who, "")
		rem, _ := v["remaining"].(map[string]any)
		if code != 200 || rem["tokens_1d"] != used {
			t.Errorf("%s: %d %v", who, code, v)
		}
	}
	b.user(t, "slots", "", tier.Overrides{Shards: ptr(8), ConcurrentLimit: ptr(8)})
	id := uuid.New()
	for i := range 8 {
		who := `"user_id":"slots"`
		if i == 3 {
			who += fmt.Sprintf(`,"request_id":%q`, id)
		}
		if v := services[i%2].ask(who, "grok-2", 10); v["allowed"] != true {
			t.Fatal(i, v)
		}
	}
	if v := services[1].ask(`"user_id":"slots"`, "grok-2", 10); v["reason"] != "concurrent" {
		t.Error(v)
	}
	if code, v := services[1].send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{"user_id":"slots","request_id":%q,"actual_tokens":5}`, id)); code != 200 || v["already_recorded"] != false {
		t.Error(code, v)
	}
	if v := services[0].ask(`"user_id":"slots"`, "grok-2", 10); v["allowed"] != true {
		t.Error(v)
	}
}

func TestChangedTierHoldsOnTheVeryNextCheckOfEveryoneOnIt(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	for round := range 6 {
		rpm := int64(1000 + round)
		plus, err := b.quotas.Tier(t.Context(), "plus")
		if err != nil {
			t.Fatal(err)
		}
		plus.RPMLimit = rpm
		res, err := b.quotas.PutTier(t.Context(), pgquota.TierChange{Tier: plus, Actor: "test"})
		b.publish(t, res.Fences, err)
		for n, s := range services {
			user := fmt.Sprintf("u%d", n%2)
			if round == 0 {
				b.put(t, user, "plus", tier.Overrides{})
			}
			if v := s.check(user, uuid.New(), 1); v["limit"].(map[string]any)["requests"] != float64(rpm) {
				t.Fatalf("round %d: decided by %v requests a minute, want %d", round, v["limit"], rpm)
			}
		}
	}
}
