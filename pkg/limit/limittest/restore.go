package limittest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// RunRestorer is the suite of limit.Restorer, for limiters that are one.
func RunRestorer(t *testing.T, f Factory) {
	for _, c := range []struct {
		name string
		test func(*world, Factory)
	}{
		{"ReplayedUsageLeavesTheLimiterAsIfNothingWasLost", restoreExact},
		{"RestoringTwiceOrAtOnceCountsOnce", restoreTwice},
		{"WhatHasMoreIsLeftAlone", restoreLeavesMore},
		{"OpenReservationsKeepTheirSlotAndAreGivenBackFromTheirOwn", restoreOpen},
		{"DebtIsRestoredAndDrainsAsDebtUnlessACapacityWasLowered", restoreDebt},
		{"RestoreObeysTheFence", restoreFenced},
		{"LookingChangesNothing", restoreLooks},
		{"RestoredHugeNumbersAreExact", restoreHuge},
		{"RestoredUsageThatHasDrainedLeavesNothing", restoreDrained},
		{"ABillFromTheFutureDrainsNothing", restoreFuture},
		{"EightShardsShareWhatIsMissing", restoreSpread},
		{"ABillOutOfRangeIsRefused", restoreRefuses},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(newWorld(t, f), f) })
	}
}

func (w *world) restorer() limit.Restorer {
	w.t.Helper()
	r, ok := w.Limiter.(limit.Restorer)
	if !ok {
		w.t.Fatalf("%T restores nothing", w.Limiter)
	}
	return r
}

// restore restores one scope and returns what was found.
func (w *world) restore(s limit.Scope, b limit.Bill) limit.RestoredScope {
	w.t.Helper()
	done, err := w.restorer().Restore(context.Background(), []limit.RestoreRequest{{Shard: w.shard, Scopes: []limit.Scope{s}, Bills: []limit.Bill{b}, Open: true}})
	if err != nil || done[0].Stale != nil {
		w.t.Fatal(done, err)
	}
	return done[0].Scopes[0]
}

// bill is n of each limit, now.
func (w *world) bill(s limit.Scope, n int64) limit.Bill {
	b := limit.Bill{At: w.clock.Now()}
	for range s.Limits {
		b.Buckets = append(b.Buckets, limit.Bucket{Consumed: n})
	}
	return b
}

// Usage over two days, whose costs were as reserved: replayed into an empty limiter it leaves the very same state, down to the part of a token
// that has drained, which the wait for the next one tells.
func restoreExact(w *world, f Factory) {
	r := rand.New(rand.NewPCG(7, 7))
	s := scope(40, 7_001, 100_003, 0)
	s.Limits = append(s.Limits, limit.Limit{Counted: limit.Requests, Capacity: 333, Window: time.Hour})
	replay := limit.NewReplay(s.Limits, w.clock.Now(), false)
	for range 600 {
		w.clock.Add(time.Duration(r.Int64N(int64(9 * time.Minute))))
		n := r.Int64N(1500)
		if d, id := w.check(n, s); d.Allowed {
			w.settle(id, n, s)
			replay.Charge(d.At, limit.Usage(n, 0))
		}
	}
	w.clock.Add(1234 * time.Millisecond)
	want, _ := w.check(7_000, s)
	lost := &world{t: w.t, clock: w.clock, Subject: f(w.t, w.clock), user: w.user, shard: w.shard}
	found := lost.restore(s, replay.Bill(false))
	if !found.Raised {
		w.t.Fatalf("nothing was restored: %+v", found)
	}
	got, _ := lost.check(7_000, s)
	if want.Allowed || want.RetryAfter != got.RetryAfter || fmt.Sprint(want.Scopes) != fmt.Sprint(got.Scopes) {
		w.t.Errorf("restored:\n%+v\nwas:\n%+v", got, want)
	}
	lost.clock.Add(got.RetryAfter - time.Millisecond)
	d, _ := lost.check(7_000, s)
	w.wantRefused(d, got.Reason)
	lost.clock.Add(time.Millisecond)
	d, _ = lost.check(7_000, s)
	w.wantAllowed(d)
}

func restoreTwice(w *world, _ Factory) {
	s := scope(0, 0, 1000, 0)
	b := w.bill(s, 700)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { w.restore(s, b) })
	}
	wg.Wait()
	if got := w.left(s)[tpd]; got != 300 {
		w.t.Errorf("%d left of 1,000 after 700", got)
	}
	if again := w.restore(s, b); again.Raised || again.Limits[0] != (limit.RestoredLimit{Had: 700, Billed: 700}) {
		w.t.Errorf("again: %+v", again)
	}
	w.clock.Add(12 * time.Hour)
	if later := w.restore(s, b); later.Raised || w.left(s)[tpd] != 800 {
		w.t.Errorf("later, when both have drained: %+v, %d left", later, w.left(s)[tpd])
	}
}

func restoreLeavesMore(w *world, _ Factory) {
	s := scope(10, 0, 1000, 0)
	d, id := w.check(800, s)
	w.wantAllowed(d)
	w.settle(id, 800, s)
	b := w.bill(s, 0)
	b.Buckets[0].Consumed, b.Buckets[1].Consumed = 5, 700
	if found := w.restore(s, b); !found.Raised || found.Limits[0] != (limit.RestoredLimit{Had: 1, Billed: 5}) || found.Limits[1] != (limit.RestoredLimit{Had: 800, Billed: 700}) {
		w.t.Errorf("%+v", found)
	}
	if got := w.left(s); got[tpd] != 200 || got[rpm] != 5 {
		w.t.Errorf("left %v: each limit is to have the larger of both", got)
	}
}

func restoreOpen(w *world, _ Factory) {
	s := scope(0, 1000, 10_000, 2)
	d, id := w.check(400, s)
	w.wantAllowed(d)
	w.clock.Add(90 * time.Second)
	before := w.left(s)["open"]
	found := w.restore(s, w.bill(s, 6000))
	// A minute's limit has let the reservation drain.
	if found.Limits[1].Held != 400 || found.Limits[0].Held != 0 {
		w.t.Errorf("%+v", found)
	}
	if got := w.left(s); got[tpd] != 3600 || got["open"] != before {
		w.t.Errorf("left %v after 6,000 used and 400 held of 10,000, %d open before", got, before)
	}
	if st := w.settle(id, 100, s); st.Status != limit.Settled {
		w.t.Fatal(st)
	}
	if got := w.left(s); got[tpd] != 3900 || got["open"] != 0 {
		w.t.Errorf("left %v after 6,100 used of 10,000", got)
	}
}

func restoreDebt(w *world, _ Factory) {
	s := scope(0, 0, 1000, 0)
	for lowered, wait := range map[bool]time.Duration{false: 3 * 24 * time.Hour, true: 24 * time.Hour} {
		s.Name = fmt.Sprintf("user:%t", lowered)
		r := limit.NewReplay(s.Limits, w.clock.Now().Add(-48*time.Hour), false)
		r.Charge(w.clock.Now(), limit.Usage(4000, 0))
		w.restore(s, r.Bill(lowered))
		d, _ := w.check(1, s)
		w.wantRefused(d, tpd)
		if d.RetryAfter < wait || d.RetryAfter > wait+2*time.Minute {
			w.t.Errorf("lowered %t: retry after %s, want %s and what one token takes", lowered, d.RetryAfter, wait)
		}
		w.clock.Add(d.RetryAfter)
		d, _ = w.check(1, s)
		w.wantAllowed(d)
	}
}

func restoreFenced(w *world, _ Factory) {
	s := scope(0, 0, 1000, 0)
	if err := w.Publish(context.Background(), w.shard, "user:u1", 3); err != nil {
		w.t.Fatal(err)
	}
	ask := limit.RestoreRequest{Shard: w.shard, Scopes: []limit.Scope{s}, Bills: []limit.Bill{w.bill(s, 500)}, Fences: []limit.Fence{{Name: "org:o1", Version: 1}, {Name: "user:u1", Version: 2}}}
	newer := ask
	newer.Fences = []limit.Fence{{Name: "user:u1", Version: 3}}
	done, err := w.restorer().Restore(context.Background(), []limit.RestoreRequest{ask})
	if err != nil || done[0].Stale == nil || *done[0].Stale != (limit.StaleError{Name: "user:u1", Published: 3}) || w.left(s)[tpd] != 1000 {
		w.t.Errorf("by an old quota: %+v, %v", done, err)
	}
	done, err = w.restorer().Restore(context.Background(), []limit.RestoreRequest{ask, newer})
	if err != nil || done[0].Stale == nil || done[1].Stale != nil || w.left(s)[tpd] != 500 {
		w.t.Errorf("one of two is old: %+v, %v", done, err)
	}
}

func restoreLooks(w *world, _ Factory) {
	s := scope(0, 0, 1000, 0)
	ask := limit.RestoreRequest{Shard: w.shard, Scopes: []limit.Scope{s}, Bills: []limit.Bill{w.bill(s, 500)}, Look: true}
	done, err := w.restorer().Restore(context.Background(), []limit.RestoreRequest{ask})
	if err != nil || !done[0].Scopes[0].Raised || done[0].Scopes[0].Limits[0].Billed != 500 || w.left(s)[tpd] != 1000 {
		w.t.Errorf("%+v, %v, %d left", done, err, w.left(s)[tpd])
	}
}

func restoreHuge(w *world, _ Factory) {
	s := scope(0, 0, 1_000_000_000_000, 0)
	r := limit.NewReplay(s.Limits, w.clock.Now(), false)
	for range 3 {
		r.Charge(w.clock.Now(), limit.Amounts{limit.Tokens: limit.MaxAmount})
	}
	if b := r.Bill(false); b.Buckets[0].Consumed != limit.MaxAmount {
		w.t.Errorf("three times the most is %d", b.Buckets[0].Consumed)
	}
	if got := w.restore(s, r.Bill(false)).Limits[0].Billed; got != limit.MaxAmount {
		w.t.Errorf("billed %d", got)
	}
	s = scope(0, 0, limit.MaxAmount, 0)
	s.Name = "user:huge"
	w.restore(s, w.bill(s, limit.MaxAmount-1))
	if got := w.left(s)[tpd]; got != 1 {
		w.t.Errorf("%d left of 2^53-1 when all but one is used", got)
	}
}

func restoreDrained(w *world, _ Factory) {
	s := scope(10, 1000, 1000, 0)
	b := w.bill(s, 999)
	w.clock.Add(26 * time.Hour)
	if found := w.restore(s, b); found.Raised && w.left(s)[tpd] != 1000 {
		w.t.Errorf("%+v, left %v", found, w.left(s))
	}
	s.Limits = s.Limits[1:]
	s.Name = "user:two"
	if found := w.restore(s, b2(b)); found.Raised {
		w.t.Errorf("%+v", found)
	}
}

func b2(b limit.Bill) limit.Bill { b.Buckets = b.Buckets[1:]; return b }

// The clock of the store that comes back may be behind that of the one that was lost.
func restoreFuture(w *world, _ Factory) {
	s := scope(0, 0, 1000, 0)
	b := w.bill(s, 600)
	b.At = b.At.Add(time.Hour)
	w.restore(s, b)
	if got := w.left(s)[tpd]; got != 400 {
		w.t.Errorf("%d left", got)
	}
	w.clock.Add(6 * time.Hour)
	if got := w.left(s)[tpd]; got != 650 {
		w.t.Errorf("%d left six hours on: it drains from now", got)
	}
}

func restoreSpread(w *world, _ Factory) {
	ctx := context.Background()
	sp := limit.Spread{First: w.shard, Shards: 8}
	s := scope(0, 0, 8000, 8)
	s.Split = true
	l := limit.Spreader{Lender: w.Limiter}
	left := func() int64 {
		w.t.Helper()
		st, err := l.Status(ctx, limit.StatusRequest{Shard: sp.First, Spread: sp, Scopes: []limit.Scope{s}})
		if err != nil {
			w.t.Fatal(err)
		}
		return st.Scopes[0].Limits[0].Remaining
	}
	// Two requests lie wherever their ids say: the shards are not equally full.
	for range 2 {
		id := uuid.New()
		if d, err := l.Check(ctx, limit.CheckRequest{Shard: sp.Home(id.String()), Spread: sp, Subject: w.user, RequestID: id, Scopes: []limit.Scope{s}, Cost: limit.Usage(900, 0)}); err != nil || !d.Allowed {
			w.t.Fatal(d, err)
		}
	}
	ask := limit.RestoreRequest{Shard: sp.First, Spread: sp, Scopes: []limit.Scope{s}, Bills: []limit.Bill{w.bill(s, 1500)}}
	for range 2 {
		done, err := limit.RestoreSpread(ctx, w.restorer(), []limit.RestoreRequest{ask})
		if err != nil || done[0].Scopes[0].Raised || left() != 6200 {
			w.t.Fatalf("%+v, %v; %d left of 8,000 when 1,800 are held already", done, err, left())
		}
	}
	ask.Bills, ask.Open = []limit.Bill{w.bill(s, 4205)}, true
	done, err := limit.RestoreSpread(ctx, w.restorer(), []limit.RestoreRequest{ask})
	if err != nil || done[0].Scopes[0].Limits[0] != (limit.RestoredLimit{Had: 1800, Held: 1800, Billed: 4205}) || left() != 8000-1800-4205 {
		w.t.Fatalf("%+v, %v; %d left", done, err, left())
	}
	ask.Fences = []limit.Fence{{Name: "user:u1", Version: 1}}
	if err := w.Publish(ctx, sp.At(5), "user:u1", 2); err != nil {
		w.t.Fatal(err)
	}
	if done, err := limit.RestoreSpread(ctx, w.restorer(), []limit.RestoreRequest{ask}); err != nil || done[0].Stale == nil {
		w.t.Errorf("by an old quota: %+v, %v", done, err)
	}
}

func restoreRefuses(w *world, _ Factory) {
	s := scope(0, 0, 1000, 0)
	for _, r := range []limit.RestoreRequest{
		{}, {Scopes: []limit.Scope{s}},
		{Scopes: []limit.Scope{s}, Bills: []limit.Bill{{At: w.clock.Now()}}},
		{Scopes: []limit.Scope{s}, Bills: []limit.Bill{w.bill(s, -1)}},
		{Scopes: []limit.Scope{s}, Bills: []limit.Bill{w.bill(s, limit.MaxAmount+1)}},
		{Scopes: []limit.Scope{scope(0, 0, 0, 1)}, Bills: []limit.Bill{{At: w.clock.Now()}}},
		{Scopes: []limit.Scope{s}, Bills: []limit.Bill{{At: w.clock.Now(), Buckets: []limit.Bucket{{Credit: 24 * time.Hour.Milliseconds()}}}}},
	} {
		if _, err := w.restorer().Restore(context.Background(), []limit.RestoreRequest{r}); err == nil {
			w.t.Errorf("taken: %+v", r)
		}
	}
}

var errNoRestorer = errors.New("restores nothing")

// restoreOn makes a restore of a differential test.
func restoreOn(ctx context.Context, s Subject, r limit.RestoreRequest) (any, error) {
	sp, ok := s.Limiter.(spreader)
	if !ok {
		return nil, errNoRestorer
	}
	to, ok := sp.lender.(limit.Restorer)
	if !ok {
		return nil, errNoRestorer
	}
	return limit.RestoreSpread(ctx, to, []limit.RestoreRequest{r})
}

// restore is a request for scopes, some of which are split.
func (g *generator) restore() limit.RestoreRequest {
	r := limit.RestoreRequest{Open: g.r.IntN(2) == 0, Look: g.r.IntN(4) == 0}
	for _, s := range g.scopes() {
		if len(s.Limits) > 0 {
			r.Scopes = append(r.Scopes, s)
		}
	}
	if len(r.Scopes) == 0 {
		r.Scopes = []limit.Scope{scope(0, 0, 1000, 0)}
	}
	r.Shard, r.Spread = g.place(g.newID(), r.Scopes)
	if r.Spread.Shards > 1 {
		for i := range r.Scopes {
			r.Scopes[i].Split = true
		}
	}
	for _, s := range r.Scopes {
		b := limit.Bill{At: time.UnixMilli(g.now + g.r.Int64N(7_200_000) - 6_000_000)}
		for _, l := range s.Limits {
			n := limit.Bucket{Consumed: g.amount(limit.MaxAmount), Credit: g.r.Int64N(l.Window.Milliseconds())}
			if g.r.IntN(4) == 0 {
				n.Fast = g.amount(limit.MaxAmount)
			}
			b.Buckets = append(b.Buckets, n)
		}
		r.Bills = append(r.Bills, b)
	}
	if g.r.IntN(4) == 0 {
		r.Fences = []limit.Fence{{Name: "user:x", Version: max(0, g.version-g.r.Int64N(2))}}
	}
	return r
}
