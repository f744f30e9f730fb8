package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// The faults of other systems that a limiter on a real Redis, asked over HTTP, must not have. B01 is in path_test.go, B51 in scopes_test.go, B72
// and B73 in away_test.go.

func (s *service) consume(user string, id uuid.UUID, tokens int) map[string]any {
	s.t.Helper()
	code, v := s.send("POST", "/internal/rate-limit/consume", fmt.Sprintf(`{"user_id":%q,"request_id":%q,"tokens":%d}`, user, id, tokens))
	if code != 200 {
		s.t.Errorf("consume: %d %v", code, v)
	}
	return v
}

func (s *service) inFlight(user string) float64 {
	s.t.Helper()
	_, v := s.send("GET", "/internal/rate-limit/status/user/"+user, "")
	n, _ := v["in_flight"].(float64)
	return n
}

// revoke revokes a key, and leaves it to the caller to publish that.
func (b *backends) revoke(t *testing.T, key string) []pgquota.Fence {
	t.Helper()
	res, err := b.quotas.RevokeKey(t.Context(), pgquota.KeyChange{ID: key, Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return res.Fences
}

// wants checks and wants it allowed (reason "") or refused.
func (s *service) wants(user string, tokens int, reason string) map[string]any {
	s.t.Helper()
	v := s.check(user, uuid.New(), tokens)
	if v["allowed"] != (reason == "") || v["reason"] != reason {
		s.t.Fatalf("%d tokens of %s: %v, want %q", tokens, user, v, reason)
	}
	return v
}

func TestB03SettlementBelowTheReservationIsGivenBackAtOnce(t *testing.T) {
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{TPMLimit: ptr(1000)})
	s := run(t, b.config())
	id := uuid.New()
	if v := s.check("u1", id, 1000); v["allowed"] != true {
		t.Fatal(v)
	}
	s.wants("u1", 700, "tpm")
	if code, v := s.record("u1", id, 200); code != 200 {
		t.Fatal(v)
	}
	if left := s.remaining("u1", "tokens_1m"); left < 800 || left > 1000 {
		t.Errorf("%v left, want 800 and the refill", left)
	}
	s.wants("u1", 700, "")
}

// A client that goes away after some chunks, before the first, or while its end is being recorded: whoever serves it records it as cancelled.
func TestB21CancelledStreamsLeakNoSlot(t *testing.T) {
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{ConcurrentLimit: ptr(2)})
	s := run(t, b.config())
	cancelled := func(id uuid.UUID, output int) string {
		return fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"grok-2","input_tokens":5,"output_tokens":%d,"latency_ms":1,"outcome":"cancelled"}`, id, output)
	}
	for round := range 20 {
		id := uuid.New()
		if v := s.check("u1", id, 50); v["allowed"] != true {
			t.Fatalf("round %d: %v", round, v)
		}
		switch round % 3 {
		case 0: // after two chunks
			s.consume("u1", id, 1)
			s.consume("u1", id, 1)
			s.send("POST", "/internal/rate-limit/record", cancelled(id, 2))
		case 1: // before the first
			s.send("POST", "/internal/rate-limit/record", cancelled(id, 0))
		case 2: // the caller's own connection breaks before the answer
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/internal/rate-limit/record", strings.NewReader(cancelled(id, 1)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			if resp, err := http.DefaultClient.Do(r); err == nil {
				_ = resp.Body.Close()
			}
			cancel()
			s.send("POST", "/internal/rate-limit/record", cancelled(id, 1)) // and it repeats, as callers do
		}
		if n := s.inFlight("u1"); n != 0 {
			t.Fatalf("round %d: %v in flight after the end", round, n)
		}
	}
	s.wants("u1", 50, "")
	s.wants("u1", 50, "")
	s.wants("u1", 50, "concurrent")
}

func TestB23StreamLongerThanItsLeaseKeepsItsSlotAndEndsItsOwn(t *testing.T) {
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{ConcurrentLimit: ptr(1)})
	cfg := b.config()
	cfg.Lease = 2 * time.Second
	services := []*service{run(t, cfg), run(t, cfg)}
	id := uuid.New()
	if v := services[0].check("u1", id, 50); v["allowed"] != true {
		t.Fatal(v)
	}
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for n := range 13 { // 5.2 s: twice the lease and more
		<-tick.C
		if v := services[n%2].consume("u1", id, 1); v["allowed"] != true {
			t.Fatal(v)
		}
		services[(n+1)%2].wants("u1", 50, "concurrent")
	}
	if code, v := services[1].record("u1", id, 13); code != 200 {
		t.Fatal(v)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for _, s := range services {
		wg.Go(func() {
			if v := s.check("u1", uuid.New(), 50); v["allowed"] == true {
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if admitted != 1 {
		t.Errorf("%d of two were admitted into one slot", admitted)
	}
}

// Fifty rounds with a clock that is set are in redisbucket.TestB56WaitingExactlyAsAdvisedPassesEveryTime; here one on the wall's.
func TestB56WaitingAsAdvisedPassesOnTheWallClock(t *testing.T) {
	b := start(t, broker(t).Brokers())
	b.user(t, "requests", "", tier.Overrides{RPMLimit: ptr(7)})
	b.user(t, "tokens", "", tier.Overrides{TPMLimit: ptr(1000)})
	s := run(t, b.config())
	for range 7 {
		s.wants("requests", 1, "")
	}
	s.wants("tokens", 900, "")
	var wg sync.WaitGroup
	for _, c := range []struct {
		user, reason string
		tokens       int
		most         time.Duration
	}{{"requests", "rpm", 1, 8572 * time.Millisecond}, {"tokens", "tpm", 250, 9 * time.Second}} {
		v := s.wants(c.user, c.tokens, c.reason)
		wait := time.Duration(v["retry_after_ms"].(float64) * float64(time.Millisecond))
		if wait > c.most || wait < c.most-3*time.Second {
			t.Errorf("%s: advised to wait %s, the true wait is at most %s", c.user, wait, c.most)
		}
		wg.Go(func() {
			<-time.After(wait + time.Millisecond) // the two clocks' milliseconds don't begin together
			if v := s.check(c.user, uuid.New(), c.tokens); v["allowed"] != true {
				t.Errorf("%s: after the advised %s: %v", c.user, wait, v)
			}
		})
	}
	wg.Wait()
}

func TestB63ChangedLimitHoldsForALiveBucketAndTogglingGivesNothing(t *testing.T) {
	b := start(t, broker(t).Brokers())
	replicas := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	next := 0
	s := func() *service { next++; return replicas[next%3] }
	put := func(own tier.Overrides) { b.user(t, "u1", "", own) }
	put(tier.Overrides{RPMLimit: ptr(100)})
	for range 10 {
		s().wants("u1", 1, "")
	}
	put(tier.Overrides{RPMLimit: ptr(10)})
	admitted := 0
	for range 20 {
		v := s().check("u1", uuid.New(), 1)
		if v["allowed"] == true {
			admitted++
		}
		if limit := v["limit"].(map[string]any)["requests"]; limit != 10.0 || v["headers"].(map[string]any)["X-RateLimit-Limit-Requests"] != "10" {
			t.Fatalf("limit %v after it was lowered: %v", limit, v["headers"])
		}
	}
	if admitted > 10 {
		t.Errorf("%d admitted after the limit was lowered to 10", admitted)
	}
	put(tier.Overrides{RPMLimit: ptr(1000)})
	if left := s().remaining("u1", "requests"); left > 1000-float64(admitted) || left < 985-float64(admitted) {
		t.Errorf("%v left of 1000 after 10 and %d were used", left, admitted)
	}
	for range 50 {
		s().wants("u1", 1, "")
	}

	b.user(t, "u2", "", tier.Overrides{RPMLimit: ptr(100)})
	began := time.Now()
	admitted = 0
	drain := func() {
		for i := 0; ; i++ {
			if v := s().check("u2", uuid.New(), 1); v["allowed"] != true {
				return
			}
			admitted++
			if admitted > 200 {
				t.Fatal("toggling gives tokens")
			}
		}
	}
	for range 20 {
		drain()
		b.user(t, "u2", "", tier.Overrides{RPMLimit: ptr(101)})
		drain()
		b.user(t, "u2", "", tier.Overrides{RPMLimit: ptr(100)})
	}
	drain()
	if most := 101 + int(101*time.Since(began)/time.Minute) + 1; admitted > most {
		t.Errorf("%d admitted while toggling, want %d at most", admitted, most)
	}

	suspended := func(on bool) {
		res, err := b.quotas.PutQuota(t.Context(), pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: "u1"}, Suspended: &on,
			Own: unlimited(tier.Overrides{RPMLimit: ptr(1000)}), Actor: "test"})
		b.publish(t, res.Fences, err)
	}
	for range 3 {
		suspended(true)
		for _, r := range replicas {
			r.wants("u1", 1, "suspended")
		}
		suspended(false)
		for _, r := range replicas {
			r.wants("u1", 1, "")
		}
	}
}

// A replica whose subscription breaks while a key is revoked and a limit lowered: every subscription is killed for as long as the changes are
// made; the other way is a Redis that restarts empty meanwhile.
func TestB64ChangesDuringALostSubscriptionHoldAllTheSame(t *testing.T) {
	server := realredis.Start(t)
	b := startOn(t, broker(t).Brokers(), server.Addr)
	s := run(t, b.config())
	for _, how := range []string{"killed", "restarted", "forgotten"} {
		user, key := "u-"+how, "k-"+how
		b.user(t, user, "", tier.Overrides{RPMLimit: ptr(1000)})
		b.key(t, key, user, "", tier.Overrides{})
		if v := s.ask(fmt.Sprintf(`"api_key_id":%q`, key), "grok-2", 1); v["allowed"] != true {
			t.Fatal(v)
		}
		s.wants(user, 1, "")
		if how == "killed" {
			done := make(chan struct{})
			var killer sync.WaitGroup
			killer.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						_ = b.rdb.ClientKillByFilter(context.WithoutCancel(t.Context()), "TYPE", "pubsub").Err() // none is left at times
					}
				}
			})
			b.publish(t, b.revoke(t, key), nil)
			b.user(t, user, "", tier.Overrides{RPMLimit: ptr(1)})
			close(done)
			killer.Wait()
		} else {
			server.Stop()
			fences := b.revoke(t, key)
			server.Restart() // empty
			if how == "restarted" {
				b.publish(t, fences, nil)
				b.user(t, user, "", tier.Overrides{RPMLimit: ptr(1)})
			} else if _, err := b.quotas.PutQuota(t.Context(), pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: user},
				Own: unlimited(tier.Overrides{RPMLimit: ptr(1)}), Actor: "test"}); err != nil {
				t.Fatal(err)
			}
		}
		// With the change published, the very next check that Redis decides knows of it. Where Redis has forgotten what was published, and nothing
		// announces it again, a replica knows once it has noticed that its subscription broke.
		deadline := time.Now().Add(15 * time.Second) // far below the cache's 60 s
		for {
			v := s.ask(fmt.Sprintf(`"api_key_id":%q`, key), "grok-2", 1)
			if v["reason"] == "suspended" {
				break
			}
			if (v["degraded"] != true && how != "forgotten") || time.Now().After(deadline) {
				t.Fatalf("%s: a revoked key is admitted: %v", how, v)
			}
			<-time.After(20 * time.Millisecond)
		}
		if v := s.check(user, uuid.New(), 1); v["limit"].(map[string]any)["requests"] != 1.0 {
			t.Errorf("%s: decided by the old limit: %v", how, v)
		}
	}
}

func TestB110ForgedAmountsMintNothing(t *testing.T) {
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{TPDLimit: ptr(1000)})
	s := run(t, b.config())
	held := uuid.New()
	if v := s.check("u1", held, 1000); v["allowed"] != true {
		t.Fatal(v)
	}
	before := s.remaining("u1", "tokens_1d")
	forged := []string{"-100000", `"50"`, "1.5", "null", "true", "[10]", "{}", "1e3", "9007199254740992", "-9223372036854775809", "1e400", "NaN"}
	for _, n := range forged {
		for _, field := range []string{"estimated_tokens", "input_tokens"} {
			body := fmt.Sprintf(`{"user_id":"u1","model":"grok-2",%q:%s,"max_output_tokens":1}`, field, n)
			if field == "estimated_tokens" {
				body = fmt.Sprintf(`{"user_id":"u1","model":"grok-2",%q:%s}`, field, n)
			}
			if code, v := s.send("POST", "/internal/rate-limit/check", body); code != 400 {
				t.Errorf("check with %s %s: %d %v", field, n, code, v)
			}
		}
		if code, v := s.send("POST", "/internal/rate-limit/consume", fmt.Sprintf(`{"user_id":"u1","request_id":%q,"tokens":%s}`, held, n)); code != 400 {
			t.Errorf("consume of %s: %d %v", n, code, v)
		}
		if code, v := s.send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{"user_id":"u1","request_id":%q,"actual_tokens":%s}`, held, n)); code != 400 {
			t.Errorf("record of %s: %d %v", n, code, v)
		}
	}
	if after := s.remaining("u1", "tokens_1d"); after < before || after > before+2 {
		t.Errorf("%v tokens are left, before the forged amounts %v", after, before)
	}
	if n := s.inFlight("u1"); n != 1 {
		t.Errorf("%v in flight", n)
	}
	// Far above what was reserved: a debt, shown as nothing left, and paid off at the rate that was sold: 4,000 of 1,000 a day and 500 more.
	if code, v := s.record("u1", held, 5000); code != 200 {
		t.Fatal(v)
	}
	v := s.wants("u1", 500, "tpd")
	if v["remaining"].(map[string]any)["tokens_1d"] != 0.0 || v["headers"].(map[string]any)["X-RateLimit-Remaining-Tokens-1d"] != "0" {
		t.Errorf("in debt: %v", v)
	}
	want := 4.5 * 24 * time.Hour.Seconds() * 1000
	if wait := v["retry_after_ms"].(float64); wait > want || wait < want-120_000 {
		t.Errorf("advised to wait %v ms, want about %v", wait, want)
	}
}

// Case B110: 0 is an amount like any other. It is not refused, no default stands in for it, it passes where nothing is left, and it mints nothing.
func TestB110ZeroIsAnAmountAndNoDefaultStandsInForIt(t *testing.T) {
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{TPDLimit: ptr(1000), RPMLimit: ptr(0), TPMLimit: ptr(0), ConcurrentLimit: ptr(0)})
	s := run(t, b.config())
	if v := s.check("u1", uuid.New(), 1000); v["allowed"] != true {
		t.Fatal(v)
	}
	s.wants("u1", 1, "tpd")
	left := func() float64 { return s.remaining("u1", "tokens_1d") } // a token comes back every 86 s
	for _, body := range []string{`"estimated_tokens":0`, `"estimated_tokens":-0`, `"input_tokens":0,"max_output_tokens":0`, `"input_tokens":-0,"max_output_tokens":0,"reserve":"input"`} {
		id, before := uuid.New(), left()
		code, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":"u1","model":"grok-2","request_id":%q,%s}`, id, body))
		if code != 200 || v["allowed"] != true || v["reserved_tokens"] != 0.0 {
			t.Errorf("check of %s: %d %v", body, code, v)
			continue
		}
		for _, zero := range []string{"0", "-0"} {
			if code, v := s.send("POST", "/internal/rate-limit/consume", fmt.Sprintf(`{"user_id":"u1","request_id":%q,"tokens":%s}`, id, zero)); code != 200 || v["allowed"] != true {
				t.Errorf("consume of %s: %d %v", zero, code, v)
			}
		}
		if code, v := s.send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{"user_id":"u1","request_id":%q,"actual_tokens":0}`, id)); code != 200 || v["already_recorded"] != false {
			t.Errorf("record of 0: %d %v", code, v)
		}
		if after := left(); after < before || after > before+2 {
			t.Errorf("%s: %v tokens are left, before %v", body, after, before)
		}
	}
	// A record of 0 gives back all that was reserved, once.
	b.user(t, "u2", "", tier.Overrides{TPDLimit: ptr(1000)})
	id := uuid.New()
	s.check("u2", id, 600)
	for _, repeated := range []bool{false, true} {
		if code, v := s.record("u2", id, 0); code != 200 || v["already_recorded"] != repeated {
			t.Errorf("%d %v", code, v)
		}
		if n := s.remaining("u2", "tokens_1d"); n != 1000 {
			t.Errorf("%v tokens are left of 1000", n)
		}
	}
}

// The same service on three nodes: decisions, a change of quota, a payer that moves and one that is spread, and the end of a request.
func TestRedisClusterServesTheWholePath(t *testing.T) {
	cluster := realredis.StartCluster(t).Addrs()
	b := startOn(t, broker(t).Brokers(), cluster[0]+"?addr="+cluster[1]+"&addr="+cluster[2])
	replicas := []*service{run(t, b.config()), run(t, b.config())}
	s := replicas[0]
	for n := range 12 { // users on every node
		user := fmt.Sprintf("u%d", n)
		b.user(t, user, "", tier.Overrides{RPMLimit: ptr(2), TPDLimit: ptr(1000), ConcurrentLimit: ptr(5)})
		id := uuid.New()
		if v := s.check(user, id, 400); v["allowed"] != true || v["degraded"] != false {
			t.Fatal(v)
		}
		replicas[1].wants(user, 400, "")
		s.wants(user, 1, "rpm")
		b.user(t, user, []string{"", "acme"}[n%2], tier.Overrides{RPMLimit: ptr(4), TPDLimit: ptr(1000), ConcurrentLimit: ptr(5)})
		if v := replicas[1].wants(user, 300, "tpd"); v["quota_version"] != 2.0 {
			t.Fatal(v)
		}
		// At the instance that knows of the move: one that has not heard of it yet settles in the old place, and the difference drains.
		if code, v := replicas[1].record(user, id, 100); code != 200 || v["already_recorded"] != false {
			t.Fatal(v)
		}
		s.wants(user, 300, "")
		if n := s.inFlight(user); n != 2 {
			t.Errorf("%s: %v in flight", user, n)
		}
	}
	b.user(t, "hot", "", tier.Overrides{RPMLimit: ptr(40), Shards: ptr(8)})
	for range 40 {
		replicas[0].wants("hot", 1, "")
	}
	replicas[1].wants("hot", 1, "rpm")
}
