package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// policy sets what a tier's requests meet while Redis is away.
func (b *backends) policy(t *testing.T, tierName string, p tier.RedisAway) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "UPDATE tiers SET redis_away = $1 WHERE tier = $2", p, tierName); err != nil {
		t.Fatal(err)
	}
}

// known counts what Redis holds of a subject's requests: what is open or not known to be durable is a field of a hash, the rest a key.
func (b *backends) known(t *testing.T, member string) int {
	t.Helper()
	keys, err := b.rdb.Keys(t.Context(), "tg:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, k := range keys {
		if strings.Contains(k, ":r:"+member) {
			n++
		}
		if b.rdb.Type(t.Context(), k).Val() == "hash" {
			fields, err := b.rdb.HKeys(t.Context(), k).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range fields {
				if strings.HasPrefix(f, member) {
					n++
				}
			}
		}
	}
	return n
}

// A Redis that is stopped keeps what was sent to it, and does it all when it goes on: what had been refused or failed meanwhile must not stay.
func TestPoliciesHoldAndWhatWasNotGrantedLeavesNothingInRedis(t *testing.T) {
	s := runProxied(t, broker(t).Brokers(), 200*time.Millisecond)
	s.policy(t, "api", tier.AwayClosed)
	s.policy(t, "enterprise", tier.AwayOpen)
	s.put(t, "closed", "api", tier.Overrides{})
	s.put(t, "open", "enterprise", tier.Overrides{RPMLimit: ptr(1)})
	s.put(t, "local", "plus", tier.Overrides{ConcurrentLimit: ptr(1)})
	for _, u := range []string{"closed", "open", "local"} { // quotas are cached, connections are made
		s.send("GET", "/internal/rate-limit/status/user/"+u, "")
	}
	s.server.Pause()
	granted := map[string][]uuid.UUID{}
	for round := range 4 {
		for _, u := range []string{"closed", "open", "local"} {
			id := uuid.New()
			code, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":%q,"model":"grok-2","estimated_tokens":100,"request_id":%q}`, u, id))
			if v["allowed"] == true {
				granted[u] = append(granted[u], id)
			}
			switch {
			case u == "closed" && (code != 503 || v["code"] != "unavailable"):
				t.Errorf("closed: %d %v", code, v)
			case u == "open" && (v["allowed"] != true || v["degraded"] != true):
				t.Errorf("open: %d %v", code, v)
			case u == "local" && (v["allowed"] != (round == 0) || v["degraded"] != true || round > 0 && v["reason"] != "concurrent"):
				t.Errorf("local, round %d: %d %v", round, code, v)
			}
		}
	}
	s.awaitGauge("tollgate_limiter_degraded", 1, 0)
	s.server.Resume()
	open := 0 // that the check is one is shown by what it finds before anything is taken back
	for deadline := time.Now().Add(time.Second); open == 0 && time.Now().Before(deadline); {
		open = s.known(t, "user:closed:")
	}
	if open == 0 {
		t.Error("nothing of what Redis was asked for was done: this test shows nothing")
	}
	s.awaitGauge("tollgate_limiter_degraded", 0, backWithin)
	for _, u := range []string{"open", "local"} {
		for _, id := range granted[u] {
			if code, v := s.record(u, id, 50); code != 200 || v["already_recorded"] != false {
				t.Errorf("%s: %d %v", u, code, v)
			}
		}
	}
	s.awaitGauge("tollgate_limiter_pending_applications", 0, 20*time.Second)
	for u, want := range map[string]int{"closed": 0, "open": 4, "local": 1} {
		if n := s.known(t, "user:"+u+":"); n != want {
			t.Errorf("%s: Redis knows of %d requests, want the %d that were recorded", u, n, want)
		}
		if code, v := s.send("GET", "/internal/rate-limit/status/user/"+u, ""); code != 200 || v["in_flight"] != 0.0 {
			t.Errorf("%s: %d %v", u, code, v)
		}
	}
}

// What an instance has answered is durable when it dies; that Redis never hears of it makes one more event of the same id, which the ledger
// puts last (migrations/clickhouse/00003).
func TestInstanceThatDiesBeforeRedisIsBackHasLostNoUsage(t *testing.T) {
	k := broker(t)
	s := runProxied(t, k.Brokers(), 200*time.Millisecond)
	s.put(t, "u1", "plus", tier.Overrides{})
	lease := s.config()
	lease.RedisURL, lease.CheckBudget, lease.Lease = "redis://"+s.proxy.Addr, s.budget, time.Second
	dies := run(t, lease)
	id := uuid.New()
	if v := dies.check("u1", id, 100); v["allowed"] != true || v["degraded"] != false {
		t.Fatal(v)
	}
	s.proxy.Refuse()
	code, v := dies.record("u1", id, 70)
	want := usage.EventID(subject.Subject{Kind: subject.User, ID: "u1"}, id, usage.KindUsage)
	if code != 200 || v["event_id"] != want.String() {
		t.Fatal(code, v)
	}
	dies.stop()
	<-dies.done
	lease.RedisURL = s.redis
	run(t, lease)
	var recs []usage.Record
	for deadline := time.Now().Add(30 * time.Second); len(recs) < 2; <-time.After(200 * time.Millisecond) {
		if recs = events(t, k.Brokers(), 1)[want]; time.Now().After(deadline) {
			t.Fatalf("%+v", recs)
		}
	}
	if r := recs[0]; r.Outcome != usage.Completed || r.InputTokens != 70 || r.Reservation != usage.Degraded || r.ReservedTokens != 100 || r.Tier != "plus" {
		t.Errorf("%+v", r)
	}
	if r := recs[1]; r.Outcome != usage.Expired {
		t.Errorf("%+v", r)
	}
}
