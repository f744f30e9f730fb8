package app

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Whoever changes org, or is spread over other shards, begins with what it has consumed and has open, and what was open ends as usual.
func TestMovingTakesConsumptionAlong(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	services := []*service{run(t, b.config()), run(t, b.config())}
	own := tier.Overrides{TPDLimit: ptr(100_000), ConcurrentLimit: ptr(9), ModelLimits: &[]tier.ModelLimits{{Group: "big", Models: []string{"grok-4"}, TPDLimit: 50_000}}}
	spread := own
	spread.Shards = ptr(4)
	b.org(t, tier.Pool{OrgID: "b", TPDLimit: 1_000_000})
	b.user(t, "u1", "", own)
	b.key(t, "k1", "u1", "", tier.Overrides{TPDLimit: ptr(80_000)})
	const used = 10_000 // by each of the open requests
	var open []uuid.UUID
	begin := func(who string) {
		t.Helper()
		id := uuid.New()
		if v := services[len(open)%2].ask(fmt.Sprintf(`%s,"request_id":%q`, who, id), "grok-4", used); v["allowed"] != true {
			t.Fatal(v)
		}
		open = append(open, id)
	}
	left := func(who string) (tokens, slots float64) {
		t.Helper()
		code, v := services[len(open)%2].send("GET", "/internal/rate-limit/status/"+who, "")
		rem, _ := v["remaining"].(map[string]any)
		tokens, _ = rem["tokens_1d"].(float64)
		slots, _ = rem["concurrent"].(float64)
		if code != 200 {
			t.Fatal(code, v)
		}
		return tokens, slots
	}
	near := func(got, want float64) bool { return got >= want && got < want+300 } // what drains meanwhile
	begin(`"user_id":"u1"`)
	begin(`"api_key_id":"k1"`)
	for i, move := range []func(){
		func() { b.user(t, "u1", "a", own) },
		func() { b.user(t, "u1", "b", own) },
		func() { b.org(t, tier.Pool{OrgID: "b", TPDLimit: 1_000_000, Shards: 5}) },
		func() { b.user(t, "u1", "", spread) },
		func() { b.user(t, "u1", "", own) },
	} {
		move()
		if tokens, slots := left("user/u1"); !near(tokens, 80_000) || slots != 7 {
			t.Fatalf("after move %d the user has %v tokens and %v slots", i, tokens, slots)
		}
		if tokens, _ := left("api_key/k1"); !near(tokens, 70_000) {
			t.Fatalf("after move %d the key has %v tokens", i, tokens)
		}
		if v := services[i%2].ask(`"user_id":"u1"`, "grok-4", 31_000); v["scope"] != "model" {
			t.Fatalf("after move %d the model group has more than the 30000 that were left: %v", i, v)
		}
	}
	b.user(t, "u1", "b", own)
	for i, who := range []string{`"user_id":"u1"`, `"api_key_id":"k1"`} {
		code, v := services[i].send("POST", "/internal/rate-limit/consume", fmt.Sprintf(`{%s,"request_id":%q,"tokens":5}`, who, open[i]))
		if code != 200 || v["allowed"] != true {
			t.Errorf("a stream was cut by a move: %d %v", code, v)
		}
		code, v = services[i].send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{%s,"request_id":%q,"model":"grok-4","input_tokens":1000,"output_tokens":0,"latency_ms":1,"outcome":"completed"}`, who, open[i]))
		if code != 200 || v["already_recorded"] != false {
			t.Error(code, v)
		}
	}
	if tokens, slots := left("user/u1"); !near(tokens, 98_000) || slots != 9 {
		t.Errorf("in the end the user has %v tokens and %v slots", tokens, slots)
	}
	for _, recs := range events(t, k.Brokers(), 7) { // 5 rejections
		if r := recs[0]; r.Outcome == usage.Completed && r.Reservation != usage.Held {
			t.Errorf("%+v", r)
		}
	}
}

// A request that was let in before its payer moved keeps its id, and what it gives back its org's pool has again, whoever of the org is asked, and whether the
// one who made it has left the org by then.
func TestRequestOfAPayerThatMovesKeepsItsIDAndGivesBackToItsPool(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	services := []*service{run(t, b.config()), run(t, b.config())}
	own := tier.Overrides{TPDLimit: ptr(1_000_000), ConcurrentLimit: ptr(9)}
	pool := tier.Pool{OrgID: "b", TPDLimit: 100_000, ConcurrentLimit: 8}
	b.org(t, pool)
	for _, u := range []string{"stays", "leaves", "asks"} {
		b.user(t, u, "b", own)
	}
	stays, leaves := uuid.New(), uuid.New()
	body := func(user string, id uuid.UUID) string { return fmt.Sprintf(`"user_id":%q,"request_id":%q`, user, id) }
	for user, id := range map[string]uuid.UUID{"stays": stays, "leaves": leaves} {
		if v := services[0].ask(body(user, id), "grok-2", 30_000); v["allowed"] != true {
			t.Fatal(v)
		}
	}
	pool.Shards = 4
	b.org(t, pool)
	b.user(t, "leaves", "", own)
	for i, s := range services {
		for user, id := range map[string]uuid.UUID{"stays": stays, "leaves": leaves} {
			if v := s.ask(body(user, id), "grok-2", 30_000); v["allowed"] != true || v["reserved_tokens"] != 30_000.0 {
				t.Errorf("instance %d: asked again for what was granted: %v", i, v)
			}
		}
		if v := s.ask(`"user_id":"asks"`, "grok-2", 41_000); v["scope"] != "org" || v["reason"] != "tpd" {
			t.Errorf("instance %d: the pool has more than the 40000 that were left: %v", i, v)
		}
	}
	for i, user := range []string{"stays", "leaves"} {
		code, v := services[i].send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{%s,"model":"grok-2","input_tokens":1000,"output_tokens":0,"latency_ms":1,"outcome":"completed"}`,
			body(user, []uuid.UUID{stays, leaves}[i])))
		if code != 200 || v["already_recorded"] != false {
			t.Error(code, v)
		}
	}
	if v := services[1].ask(`"user_id":"asks"`, "grok-2", 98_500); v["scope"] != "org" {
		t.Errorf("the pool has more than the 98000 that were left: %v", v)
	}
	for _, s := range services {
		if v := s.ask(`"user_id":"asks"`, "grok-2", 48_900); v["allowed"] != true {
			t.Errorf("the pool hasn't got back what was not used: %v", v)
		}
	}
}

// A new key of a user who has moved for hundreds of times, with as many groups of models as there may be: it is let in by its first request.
func TestFirstRequestOfAKeyWhoseOwnerHasMovedHundredsOfTimesIsLetIn(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	var groups []tier.ModelLimits
	for i := range tier.MaxGroups {
		groups = append(groups, tier.ModelLimits{Group: fmt.Sprintf("g%d", i), Models: []string{fmt.Sprintf("grok-%d", i)}, TPDLimit: 1_000_000})
	}
	own := tier.Overrides{TPDLimit: ptr(1_000_000), ModelLimits: &groups}
	const moves = 639
	for i := range moves {
		b.user(t, "u1", fmt.Sprintf("org%d", i%40), own)
	}
	b.key(t, "k1", "u1", "", tier.Overrides{ModelLimits: &groups})
	s := run(t, b.config())
	began := time.Now()
	if v := s.ask(`"api_key_id":"k1"`, "grok-2", 10); v["allowed"] != true {
		t.Errorf("refused: %v", v)
	}
	t.Logf("%d moves, %d groups of the key's and as many of the user's: %s", moves, len(groups), time.Since(began).Round(time.Millisecond))
	if v := s.ask(`"user_id":"u1"`, "grok-2", 10); v["allowed"] != true {
		t.Errorf("refused: %v", v)
	}
}
