package limittest

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

func (w *world) consume(id uuid.UUID, tokens int64, scopes ...limit.Scope) limit.Consumption {
	w.t.Helper()
	c, err := w.Limiter.Consume(context.Background(), limit.ConsumeRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: scopes, Tokens: tokens, Lease: 30 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) due() []limit.Due {
	w.t.Helper()
	d, err := w.Limiter.Due(context.Background(), limit.DueRequest{Shard: w.shard, Most: 10, Meta: "expired"})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) checkSplit(id uuid.UUID, input, output int64, lease time.Duration, scopes ...limit.Scope) limit.Decision {
	w.t.Helper()
	r := w.request(id, 0, scopes)
	r.Cost, r.Drawn, r.Lease = limit.Usage(input, output), limit.Usage(input, 0), lease
	d, err := w.Limiter.Check(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// The prompt of 100 is spent from the start; the 50 of output that were reserved are drawn before the buckets are.
func consumeReserved(w *world) {
	s, id := scope(0, 1000, 0, 1), uuid.New()
	w.wantAllowed(w.checkSplit(id, 100, 50, 0, s))
	for _, c := range []struct{ tokens, left int64 }{{30, 850}, {20, 850}, {1, 849}, {49, 800}} {
		if got := w.consume(id, c.tokens, s); !got.Allowed || got.Status != limit.ReservationOpen || got.Scopes[0].Limits[0].Remaining != c.left || w.left(s)[tpm] != c.left {
			w.t.Fatalf("after %d tokens: %+v, want %d left", c.tokens, got, c.left)
		}
	}
	// 200 are held now; 180 were used.
	if st := w.settle(id, 180, s); st.Reserved[limit.Tokens] != 200 || st.Reserved[limit.OutputTokens] != 100 {
		w.t.Errorf("settlement %+v", st)
	}
	if got := w.left(s); got[tpm] != 820 || got["open"] != 0 {
		w.t.Errorf("left %v", got)
	}
}

func consumeStops(w *world) {
	s, id := scope(0, 1000, 0, 1), uuid.New()
	w.wantAllowed(w.checkSplit(id, 900, 0, 0, s)) // the stream pays as it goes
	if c := w.consume(id, 60, s); !c.Allowed {
		w.t.Fatalf("%+v", c)
	}
	before := w.left(s)
	c := w.consume(id, 60, s)
	if c.Allowed || c.Reason != tpm || c.Scope != limit.ScopeUser || c.RetryAfter != 20*60*time.Millisecond || c.LeaseUntil.IsZero() {
		w.t.Fatalf("with 40 left, 60 were drawn: %+v", c)
	}
	if after := w.left(s); !maps.Equal(before, after) {
		w.t.Errorf("a refused draw changed %v into %v", before, after)
	}
	w.clock.Add(c.RetryAfter)
	if c := w.consume(id, 60, s); !c.Allowed {
		w.t.Errorf("after the advised wait: %+v", c)
	}
}

// B23: a stream longer than its lease keeps its slot as long as it consumes, and what it ends is its own.
func consumeRenews(w *world) {
	s, id := scope(0, 100_000, 0, 1), uuid.New()
	w.wantAllowed(w.checkSplit(id, 10, 100, 30*time.Second, s))
	for range 14 {
		w.clock.Add(5 * time.Second)
		if c := w.consume(id, 1, s); !c.Allowed || !c.LeaseUntil.Equal(c.At.Add(30*time.Second)) {
			w.t.Fatalf("%+v", c)
		}
		d, _ := w.check(1, s)
		w.wantRefused(d, limit.ReasonConcurrent)
		if due := w.due(); len(due) != 0 {
			w.t.Fatalf("a live stream expired: %+v", due)
		}
	}
	w.settle(id, 24, s)
	a, _ := w.check(1, s)
	w.wantAllowed(a)
	b, _ := w.check(1, s)
	w.wantRefused(b, limit.ReasonConcurrent)
}

func consumeEnded(w *world) {
	s, id := scope(0, 1000, 0, 1), uuid.New()
	if c := w.consume(id, 5, s); c.Allowed || c.Status != limit.ReservationUnknown || !c.LeaseUntil.IsZero() {
		w.t.Errorf("unknown: %+v", c)
	}
	w.checkSplit(id, 10, 10, 0, s)
	w.settle(id, 20, s)
	if c := w.consume(id, 5, s); c.Allowed || c.Status != limit.ReservationEnded {
		w.t.Errorf("settled: %+v", c)
	}
	if got := w.left(s); got[tpm] != 980 || got["open"] != 0 {
		w.t.Errorf("left %v", got)
	}
}

func consumeFenced(w *world) {
	ctx, s, id := context.Background(), scope(0, 1000, 0, 1), uuid.New()
	w.checkSplit(id, 10, 10, 0, s)
	if err := w.Publish(ctx, w.shard, "user:u1", 7); err != nil {
		w.t.Fatal(err)
	}
	old := []limit.Fence{{Name: "user:u1", Version: 6}}
	var stale *limit.StaleError
	if _, err := w.Limiter.Consume(ctx, limit.ConsumeRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: []limit.Scope{s}, Tokens: 1, Fences: old}); !errors.As(err, &stale) {
		w.t.Errorf("consume: %v", err)
	}
}

// An instance that settles by a quota of yesterday must neither give room back nor start a new lock-out.
func settleKeepsCapacity(w *world) {
	old, now := scope(0, 1000, 0, 0), scope(0, 100, 0, 0)
	_, id := w.check(500, old)
	if got := w.left(now)[tpm]; got != 0 {
		w.t.Fatalf("left %d", got)
	}
	w.clock.Add(30 * time.Second)
	w.settle(id, 500, old)
	w.clock.Add(30 * time.Second)
	if got := w.left(now)[tpm]; got != 0 {
		w.t.Errorf("left %d one window after the downgrade, want 0: the excess is gone, what fits is not", got)
	}
	w.clock.Add(600 * time.Millisecond)
	if d, _ := w.check(1, now); !d.Allowed {
		w.t.Errorf("locked out for longer than a window: %+v", d)
	}
}

func expiry(w *world) {
	s, id := scope(0, 1000, 0, 1), uuid.New()
	w.wantAllowed(w.checkSplit(id, 100, 200, 30*time.Second, s))
	w.clock.Add(30*time.Second - time.Millisecond)
	if d := w.due(); len(d) != 0 {
		w.t.Fatalf("before its lease has ended: %+v", d)
	}
	w.clock.Add(time.Millisecond)
	left := w.left(s)[tpm]
	d := w.due()
	if len(d) != 1 || d[0].Subject != w.user || d[0].RequestID != id || d[0].Reserved != limit.Usage(100, 200) || d[0].CheckMeta != "check meta" || d[0].Meta != "expired" || d[0].CheckedAt.IsZero() {
		w.t.Fatalf("%+v", d)
	}
	if got := w.left(s); got[tpm] != left || got["open"] != 0 {
		w.t.Errorf("expiry gave tokens back or kept the slot: %v, before %d", got, left)
	}
	if d := w.due(); len(d) != 0 {
		w.t.Errorf("offered twice at once: %+v", d)
	}
	// Whoever took it died: after the grace another instance gets the very same.
	w.clock.Add(limit.EmitGrace)
	if again := w.due(); len(again) != 1 || again[0].RequestID != id || again[0].Meta != "expired" {
		w.t.Errorf("after the grace: %+v", again)
	}
	// A late record changes nothing and learns what was told.
	if st := w.settle(id, 5, s); st.Status != limit.AlreadySettled || st.Meta != "expired" || st.Emitted {
		w.t.Errorf("late record: %+v", st)
	}
	if err := w.Limiter.MarkEmitted(context.Background(), w.shard, w.user, id); err != nil {
		w.t.Fatal(err)
	}
	w.clock.Add(time.Minute)
	if d := w.due(); len(d) != 0 {
		w.t.Errorf("offered after it was durable: %+v", d)
	}
	if st := w.settle(id, 5, s); st.Status != limit.AlreadySettled || !st.Emitted {
		w.t.Errorf("later record: %+v", st)
	}
}

// A record that was settled and never made durable, because its instance died or its caller gave up, is offered until it is.
func unemitted(w *world) {
	s := scope(0, 1000, 0, 1)
	_, id := w.check(10, s)
	w.settle(id, 10, s)
	late := uuid.New()
	w.settle(late, 7, s)
	if d := w.due(); len(d) != 0 {
		w.t.Fatalf("within the grace: %+v", d)
	}
	w.clock.Add(limit.EmitGrace)
	d := w.due()
	if len(d) != 2 || d[0].Meta != "settle meta" || d[1].Meta != "settle meta" || d[0].Status != limit.AlreadySettled {
		w.t.Fatalf("%+v", d)
	}
	for _, x := range d {
		if (x.RequestID == late) != x.CheckedAt.IsZero() {
			w.t.Errorf("%+v", x)
		}
	}
	// It outlives the tombstone: usage is not forgotten because Kafka was away for an hour.
	w.clock.Add(limit.DefaultTombstone + time.Hour)
	if d := w.due(); len(d) != 2 {
		w.t.Errorf("after an hour: %+v", d)
	}
}

func repeatTellsWhatIsHeld(w *world) {
	s, id := scope(0, 1000, 0, 1), uuid.New()
	if d := w.checkSplit(id, 100, 50, 0, s); d.Reserved != limit.Usage(100, 50) {
		w.t.Errorf("%+v", d)
	}
	if d := w.checkSplit(id, 1, 1, 0, s); !d.Repeated || d.Reserved != limit.Usage(100, 50) {
		w.t.Errorf("%+v", d)
	}
}

// A check whose answer was lost is taken back: nothing is charged, nothing will expire, and the id is free.
func cancelTakesBack(w *world) {
	s := scope(5, 1000, 0, 1)
	before := w.left(s)
	_, id := w.check(300, s)
	cancel := func() bool {
		ok, err := w.Limiter.Cancel(context.Background(), limit.CancelRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: []limit.Scope{s}, Meta: "check meta"})
		if err != nil {
			w.t.Fatal(err)
		}
		return ok
	}
	// Another check has made it, with the same id: a late cancel of one that failed leaves it alone.
	other := limit.CancelRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: []limit.Scope{s}, Meta: "another meta"}
	if ok, err := w.Limiter.Cancel(context.Background(), other); ok || err != nil {
		w.t.Errorf("another's reservation was cancelled: %v, %v", ok, err)
	}
	// Asked again it is the later check's, which is told that it is granted.
	r := w.request(id, 300, []limit.Scope{s})
	r.Meta = "later meta"
	if d, err := w.Limiter.Check(context.Background(), r); err != nil || !d.Repeated || cancel() {
		w.t.Errorf("cancelled after another was told that it is granted: %+v, %v", d, err)
	}
	w.checkID(id, 300, s)
	if !cancel() || cancel() {
		w.t.Error("want it cancelled once")
	}
	if after := w.left(s); !maps.Equal(before, after) {
		w.t.Errorf("left %v, before %v", after, before)
	}
	w.clock.Add(limit.DefaultLease + limit.EmitGrace)
	if d := w.due(); len(d) != 0 {
		w.t.Errorf("a cancelled reservation is due: %+v", d)
	}
	if d := w.checkID(id, 100, s); !d.Allowed || d.Repeated {
		w.t.Errorf("checked again: %+v", d)
	}
	w.settle(id, 100, s)
	if left := w.left(s); cancel() || !maps.Equal(left, w.left(s)) {
		w.t.Error("what was settled can't be cancelled")
	}
}

// Many leases that end in the same second are counted one by one.
func leasesOfOneSecond(w *world) {
	s := scope(0, 1000, 0, 3)
	w.clock.Add(100 * time.Millisecond)
	var ids []uuid.UUID
	for range 3 {
		d, id := w.check(1, s)
		w.wantAllowed(d)
		ids = append(ids, id)
		w.clock.Add(200 * time.Millisecond)
	}
	d, _ := w.check(1, s)
	w.wantRefused(d, limit.ReasonConcurrent)
	for i, id := range ids {
		w.settle(id, 1, s)
		if got := w.left(s)["open"]; got != int64(2-i) {
			w.t.Errorf("after %d settles %d are open", i+1, got)
		}
	}
}

// What is held is paid for: a bucket in debt, by a lowered limit or another's overuse, stops no stream within its reservation.
func consumeInDebt(w *world) {
	s, id := scope(10, 1000, 0, 3), uuid.New()
	w.wantAllowed(w.checkSplit(id, 100, 50, 0, s))
	_, other := w.check(10, s)
	w.settle(other, 5000, s)
	lowered := scope(1, 1000, 0, 3)
	for _, tokens := range []int64{0, 20, 30} {
		if c := w.consume(id, tokens, lowered); !c.Allowed {
			w.t.Errorf("%d within the reservation: %+v", tokens, c)
		}
	}
	if c := w.consume(id, 1, lowered); c.Allowed || c.Reason != tpm {
		w.t.Errorf("beyond the reservation: %+v", c)
	}
}
