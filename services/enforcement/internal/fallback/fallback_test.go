package fallback

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

func TestCheckNeverOutlastsItsBudgetAndNeverWaitsOnceTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.store.fail(deaf)
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			began := time.Now()
			d, err := w.Check(ctx, request(uuid.New(), wide, 1))
			cancel()
			took := time.Since(began)
			if err != nil || !d.Allowed || !d.Degraded {
				t.Fatalf("check %d: %+v, %v", i, d, err)
			}
			if i < trip && took != 25*time.Millisecond || i >= trip && took != 0 {
				t.Errorf("check %d took %s", i, took)
			}
		}
		if w.metric("tollgate_limiter_degraded") != 1 || w.decisions("local", "allowed") != 20 {
			t.Error("the metrics don't tell")
		}
		w.store.fail(none)
		time.Sleep(time.Second)
		if d := w.check(uuid.New(), wide, 1); d.Degraded || w.metric("tollgate_limiter_degraded") != 0 {
			t.Errorf("a second after the store's return: %+v", d)
		}
		changes := 0
		for _, line := range w.logs.text {
			if strings.Contains(line, "the limiter's store is") {
				changes++
			}
		}
		if changes != 2 {
			t.Errorf("an outage is %d lines in the log, want 2:\n%s", changes, w.logs.text)
		}
	})
}

// A caller that has spent its budget elsewhere, or hung up, says nothing of the store.
func TestOnlyFailuresOfTheStoreOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{Beat: time.Hour})
		w.store.fail(deaf)
		for range 3 * trip {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if d, err := w.Check(ctx, request(uuid.New(), wide, 1)); err != nil || !d.Degraded {
				t.Fatal(d, err)
			}
			cancel()
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 3 * trip {
			_, _ = w.Status(gone, limit.StatusRequest{Shard: shard, Scopes: wide})
		}
		w.store.fail(none)
		w.store.Publish("user:u1", 5)
		for range 3 * trip {
			r := request(uuid.New(), wide, 1)
			r.Fences = []limit.Fence{{Name: "user:u1", Version: 4}}
			var stale *limit.StaleError
			if _, err := w.Check(t.Context(), r); !errors.As(err, &stale) || stale.Published != 5 {
				t.Fatal(err)
			}
			r.Scopes = []limit.Scope{{Name: "x", Slots: -1}}
			if _, err := w.Check(t.Context(), r); err == nil || errors.As(err, &stale) {
				t.Fatal(err)
			}
		}
		if w.away() {
			t.Error("the breaker opened")
		}
	})
}

func TestSlowStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(deaf)
		time.Sleep(30 * time.Second)
		if !w.away() {
			t.Error("a store that doesn't answer in time is back")
		}
		before := w.store.called()
		for range 100 {
			w.check(uuid.New(), wide, 1)
		}
		if w.store.called() != before {
			t.Error("callers were made to probe")
		}
	})
}

func TestThreeInstancesShareEveryCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 3, Options{})
		w.trips(down)
		sold := scopes(60, day, 4)
		allowed := 0
		for range 60 {
			id := uuid.New()
			if d := w.check(id, sold, 1); d.Allowed {
				allowed++
				if got := d.Scopes[0].Limits[0]; got.Capacity != 20 || got.Remaining != int64(20-allowed) || d.Scopes[0].Slots != 1 {
					t.Errorf("%+v", d.Scopes[0])
				}
				w.record(id, 1)
			} else if d.Reason != "rpm" || d.RetryAfter != 3*time.Second {
				t.Fatalf("%+v", d)
			}
		}
		if allowed != 20 {
			t.Errorf("%d of 60 by one of three instances", allowed)
		}
		one := scopes(1, 1, 1)
		one[0].Name = "user:u2"
		if d := w.check(uuid.New(), one, 1); !d.Allowed {
			t.Error("a share is at least 1: ", d)
		}
		if d := w.check(uuid.New(), wide, 1_900); d.Allowed || d.Reason != "tpd" || d.RetryAfter != shareHint {
			t.Errorf("what fits the capacity, not the share, is refused for good: %+v", d)
		}
		if d := w.check(uuid.New(), wide, day+1); d.Reason != limit.ReasonRequestTooLarge {
			t.Errorf("%+v", d)
		}
	})
}

func TestLastCountOfInstancesHoldsWhileTheStoreIsAwayAndUntilAllAreBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 3, Options{})
		inst := w.instances.(*instances)
		w.trips(down)
		time.Sleep(time.Minute)
		if n := w.live.Load(); n != 3 {
			t.Errorf("%d while away", n)
		}
		inst.n = 1 // the others have not beaten yet
		w.returns()
		time.Sleep(2 * time.Second)
		if n := w.live.Load(); n != 3 {
			t.Errorf("%d just after", n)
		}
		time.Sleep(15 * time.Second)
		if n := w.live.Load(); n != 1 || w.metric("tollgate_limiter_instances") != 1 {
			t.Errorf("%d later", n)
		}
	})
}

func TestPolicyOfTheTierHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(down)
		tight := scopes(2, day, 1)
		for i := range 5 {
			r := request(uuid.New(), tight, 10)
			r.Away = limit.AwayOpen
			if d, err := w.Check(t.Context(), r); err != nil || !d.Allowed || !d.Degraded {
				t.Fatalf("open, %d: %+v, %v", i, d, err)
			}
			if s := w.record(r.RequestID, 7); s.CheckMeta != "check" || s.Reserved[limit.Tokens] != 10 || s.CheckedAt.IsZero() {
				t.Errorf("%+v", s)
			}
		}
		r := request(uuid.New(), tight, 10)
		r.Away = limit.AwayClosed
		if d, err := w.Check(t.Context(), r); !errors.Is(err, ErrAway) || d.Allowed || d.Reason != "" {
			t.Errorf("closed: %+v, %v", d, err)
		}
		if d := w.check(uuid.New(), tight, 1); !d.Allowed {
			t.Errorf("what passed uncounted was counted: %+v", d)
		}
		if d := w.check(uuid.New(), tight, 1); d.Allowed || d.Reason != limit.ReasonConcurrent {
			t.Errorf("local: %+v", d)
		}
		if w.decisions("open", "allowed") != 5 || w.decisions("closed", "error") != 1 || w.decisions("local", "allowed") != 1 || w.decisions("local", "refused") != 1 {
			t.Error("the metrics don't tell")
		}
		w.returns()
		w.knows(35)
	})
}

// What lies over several shards in the store is one here: else each shard's part would be given the whole share.
func TestSpreadPayerHasOneShareAndIsToldToItsShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(down)
		sold, spread := scopes(20, day, 0), limit.Spread{First: 3, Shards: 8}
		sold[0].Split = true
		allowed, shards := 0, map[int]bool{}
		for range 60 {
			r := request(uuid.New(), sold, 1)
			r.Spread, r.Shard = spread, spread.Home(r.RequestID.String())
			d, err := w.Check(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				continue
			}
			allowed++
			shards[r.Shard] = true
			if s, err := w.Settle(t.Context(), limit.SettleRequest{Shard: r.Shard, Spread: spread, Subject: user, RequestID: r.RequestID, Scopes: sold,
				Actual: limit.Usage(1, 0), Known: true}); err != nil || s.Status != limit.Settled {
				t.Fatal(s, err)
			}
			if err := w.MarkEmitted(t.Context(), r.Shard, user, r.RequestID); err != nil {
				t.Fatal(err)
			}
		}
		if allowed != 20 || len(shards) < 3 {
			t.Errorf("%d allowed, in %d shards", allowed, len(shards))
		}
		if s, err := w.Settle(t.Context(), limit.SettleRequest{Shard: shard, Subject: user, RequestID: uuid.New(), Scopes: wide, Known: true}); err != nil || s.Status != limit.Unknown {
			t.Errorf("a settle of what is known only: %+v, %v", s, err)
		}
		w.returns()
		if n := len(w.store.settles); n != 20 {
			t.Errorf("the store was told of %d requests, want 20", n)
		}
	})
}
