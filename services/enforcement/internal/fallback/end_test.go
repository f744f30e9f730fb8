package fallback

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// sweep does what the engine does: it gives what was due, and notes the events as durable.
func (w *world) sweep() []limit.Due {
	w.t.Helper()
	shards, err := w.DueShards(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var out []limit.Due
	for _, s := range shards {
		due, err := w.Due(w.t.Context(), limit.DueRequest{Shard: s, Most: 64, Meta: "expired"})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, d := range due {
			w.emitted(d.RequestID)
		}
		out = append(out, due...)
	}
	return out
}

func TestWhatWasUsedMeanwhileIsAppliedExactlyOnce(t *testing.T) {
	for name, f := range map[string]fault{"refused": down, "black hole": deaf, "executed without an answer": forgetful} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, 1, Options{})
				before := make([]uuid.UUID, 10)
				for i := range before {
					before[i] = uuid.New()
					w.check(before[i], wide, 100)
				}
				w.store.fail(f)
				var total int64
				for i, id := range before {
					s := w.record(id, 60+int64(i))
					if total += 60 + int64(i); s.Status != limit.Settled || s.CheckMeta != "check" || s.Reserved[limit.Tokens] != 100 || !s.Degraded {
						t.Errorf("granted by the store: %+v", s)
					}
					if s := w.record(id, 1); s.Status != limit.AlreadySettled || s.Meta != "settle" || !s.Emitted {
						t.Errorf("a second record: %+v", s)
					}
				}
				for i := range 30 {
					id := uuid.New()
					w.check(id, wide, 50)
					s := w.record(id, 20+int64(i))
					if total += 20 + int64(i); s.CheckMeta != "check" || !s.Degraded {
						t.Errorf("granted here: %+v", s)
					}
				}
				unknown := uuid.New()
				total += 11
				if s := w.record(unknown, 11); s.Status != limit.Unknown || !s.CheckedAt.IsZero() {
					t.Errorf("granted by nobody known: %+v", s)
				}
				w.returns()
				w.knows(total)
				if n := w.inFlight(); n != 0 {
					t.Errorf("%d slots are held", n)
				}
				if s := w.settle(unknown, 5); s.Status != limit.AlreadySettled || !s.Emitted || s.Degraded {
					t.Errorf("after the return: %+v", s)
				}
				time.Sleep(time.Minute)
				if due := w.sweep(); len(due) != 0 {
					t.Errorf("second events: %+v", due)
				}
				for id, n := range w.store.settles {
					if n != 1 {
						t.Errorf("%s was settled %d times", id, n)
					}
				}
			})
		})
	}
}

// However long the store was away, its buckets are not debited what has drained meanwhile: who kept to a limit is not refused afterwards for as long.
func TestLongOutageIsNoReasonToRefuseAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(down)
		minute := []limit.Scope{{Kind: limit.ScopeUser, Name: user.String(), Limits: []limit.Limit{{Counted: limit.Tokens, Capacity: 600, Window: time.Minute}}}}
		for range 600 { // ten minutes at the limit
			id := uuid.New()
			if d := w.check(id, minute, 10); !d.Allowed || !d.Degraded {
				t.Fatalf("%+v", d)
			}
			s, err := w.Settle(t.Context(), limit.SettleRequest{Shard: shard, Subject: user, RequestID: id, Scopes: minute, Actual: limit.Usage(10, 0)})
			if err != nil || s.Status != limit.Settled {
				t.Fatalf("%+v, %v", s, err)
			}
			w.emitted(id)
			time.Sleep(time.Second)
		}
		w.returns()
		for range 20 { // a third of the limit at once
			if d := w.check(uuid.New(), minute, 10); !d.Allowed || d.Degraded {
				t.Fatalf("after the return: %+v", d)
			}
		}
	})
}

func TestRecordOutlivesTheReturnOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(down)
		id, streamed := uuid.New(), uuid.New()
		w.check(id, wide, 100)
		w.check(streamed, wide, 10)
		w.returns()
		if d := w.check(id, wide, 100); !d.Repeated || !d.Allowed {
			t.Errorf("a repeat: %+v", d)
		}
		c, err := w.Consume(t.Context(), limit.ConsumeRequest{Shard: shard, Subject: user, RequestID: streamed, Scopes: wide, Tokens: 30})
		if err != nil || !c.Allowed || c.Status != limit.ReservationOpen {
			t.Errorf("%+v, %v", c, err)
		}
		if s := w.record(id, 70); s.Status != limit.Settled || s.CheckMeta != "check" {
			t.Errorf("%+v", s)
		}
		if s := w.record(streamed, 30); s.Status != limit.Settled || s.Reserved[limit.Tokens] != 30 {
			t.Errorf("%+v", s)
		}
		w.returns()
		w.knows(100)
	})
}

// What the store did without answering, and the caller was told otherwise or never used, leaves nothing behind.
func TestTimedOutCheckLeavesNoReservationAndNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.store.fail(forgetful)
		tight := scopes(1000, day, 1)
		if d := w.check(uuid.New(), tight, 10); !d.Allowed { // takes the only slot here
			t.Fatal(d)
		}
		tight[0].Slots = 2 // the store has room, this instance's share has none
		w.live.Store(2)
		refused := uuid.New()
		if d := w.check(refused, tight, 20); d.Allowed || d.Reason != limit.ReasonConcurrent {
			t.Fatal(d)
		}
		closed := request(uuid.New(), wide, 40)
		closed.Away = limit.AwayClosed
		if _, err := w.Check(t.Context(), closed); !errors.Is(err, ErrAway) {
			t.Fatal(err)
		}
		if n := w.inFlight(); n != 3 {
			t.Fatalf("the store holds %d, want 3", n)
		}
		w.trips(deaf)
		w.returns()
		if n, got := w.inFlight(), w.used(); n != 0 || got != 0 {
			t.Errorf("the store holds %d slots and %d tokens; the one that was granted is held here", n, got)
		}
		time.Sleep(2 * limit.DefaultLease) // nobody records the one that was granted
		due := w.sweep()
		if len(due) != 1 || due[0].Meta != "expired" || due[0].Reserved[limit.Tokens] != 10 {
			t.Errorf("%+v", due)
		}
		time.Sleep(time.Minute)
		if due := w.sweep(); len(due) != 0 {
			t.Errorf("and again: %+v", due)
		}
		w.knows(10)
	})
}

func TestRefusedTryMayBeRepeatedAndIsThenNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{Beat: time.Hour})
		w.store.fail(forgetful)
		r := request(uuid.New(), wide, 10)
		r.Away = limit.AwayClosed
		if _, err := w.Check(t.Context(), r); !errors.Is(err, ErrAway) {
			t.Fatal(err)
		}
		w.store.fail(none)
		if d, err := w.Check(t.Context(), r); err != nil || !d.Allowed || d.Degraded {
			t.Fatal(d, err)
		}
		time.Sleep(time.Minute)
		if n := w.inFlight(); n != 1 {
			t.Errorf("%d slots are held, want 1", n)
		}
	})
}

func TestDeadCallersLocalReservationExpiresIntoOneEvent(t *testing.T) {
	for name, back := range map[string]bool{"while the store is away": false, "after its return": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, 1, Options{})
				w.trips(down)
				id := uuid.New()
				w.check(id, wide, 100)
				if back {
					w.returns()
				}
				time.Sleep(limit.DefaultLease - time.Second)
				if due := w.sweep(); len(due) != 0 {
					t.Fatalf("before its lease ended: %+v", due)
				}
				time.Sleep(2 * time.Second)
				due := w.sweep()
				if len(due) != 1 || due[0].RequestID != id || due[0].Meta != "expired" || due[0].CheckMeta != "check" || !due[0].Degraded || due[0].Reserved[limit.Tokens] != 100 {
					t.Fatalf("%+v", due)
				}
				time.Sleep(time.Minute)
				if due := w.sweep(); len(due) != 0 {
					t.Errorf("twice: %+v", due)
				}
				if s := w.settle(id, 5); s.Status != limit.AlreadySettled || s.Meta != "expired" && back == false {
					t.Errorf("a late record: %+v", s)
				}
				w.returns()
				w.knows(100)
			})
		})
	}
}

// Kafka is away as well: the event is offered until it is durable, and only then is the store told.
func TestSettlementWhoseEventIsNotDurableIsOfferedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(down)
		id := uuid.New()
		w.check(id, wide, 100)
		w.settle(id, 60)
		if s := w.settle(id, 1); s.Status != limit.AlreadySettled || s.Emitted || s.Meta != "settle" || s.CheckMeta != "check" {
			t.Errorf("a repeat must make the same event: %+v", s)
		}
		if due := w.sweep(); len(due) != 0 {
			t.Errorf("at once: %+v", due)
		}
		w.store.fail(none)
		time.Sleep(limit.EmitGrace + time.Second)
		due := w.sweep()
		if len(due) != 1 || due[0].Meta != "settle" || due[0].CheckMeta != "check" || !due[0].Degraded {
			t.Errorf("%+v", due)
		}
		w.returns()
		w.knows(60)
	})
}

func TestStreamOfTheStoreGoesOnAndKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		id := uuid.New()
		w.check(id, wide, 100)
		time.Sleep(limit.DefaultLease - 30*time.Second)
		w.trips(down)
		for range 10 {
			c, err := w.Consume(t.Context(), limit.ConsumeRequest{Shard: shard, Subject: user, RequestID: id, Scopes: wide, Tokens: 30})
			if err != nil || !c.Allowed || c.Status != limit.ReservationOpen || c.LeaseUntil.Before(time.Now().Add(limit.DefaultLease)) {
				t.Fatalf("%+v, %v", c, err)
			}
			time.Sleep(10 * time.Second)
		}
		w.returns()
		time.Sleep(20 * time.Second)
		if due := w.sweep(); len(due) != 0 {
			t.Fatalf("a running stream expired: %+v", due)
		}
		w.knows(300)
		if s := w.record(id, 310); s.Status != limit.Settled || s.Degraded {
			t.Errorf("%+v", s)
		}
	})
}

func TestCancelLeavesNothingWhoeverGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
		w.check(ids[0], wide, 100)
		w.check(ids[1], wide, 100)
		cancel := func(id uuid.UUID) {
			t.Helper()
			if done, err := w.Cancel(t.Context(), limit.CancelRequest{Shard: shard, Subject: user, RequestID: id, Scopes: wide}); !done || err != nil {
				t.Errorf("%v, %v", done, err)
			}
		}
		cancel(ids[0])
		w.trips(down)
		w.check(ids[2], wide, 100)
		cancel(ids[1])
		cancel(ids[2])
		w.returns()
		if n, got := w.inFlight(), w.used(); n != 0 || got != 0 {
			t.Errorf("%d slots and %d tokens are held", n, got)
		}
		time.Sleep(2 * limit.DefaultLease)
		if due := w.sweep(); len(due) != 0 {
			t.Errorf("%+v", due)
		}
	})
}

func TestWhatIsKeptIsBoundedAndNeverForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{Most: 3})
		w.trips(down)
		a, b := uuid.New(), uuid.New()
		w.check(a, wide, 100)
		w.check(b, wide, 100)
		w.record(uuid.New(), 10)
		if _, err := w.Check(t.Context(), request(uuid.New(), wide, 1)); !errors.Is(err, ErrFull) {
			t.Errorf("a check for which there is no room: %v", err)
		}
		if _, err := w.Settle(t.Context(), limit.SettleRequest{Shard: shard, Subject: user, RequestID: uuid.New(), Scopes: wide, Actual: limit.Usage(1, 0)}); !errors.Is(err, ErrFull) {
			t.Errorf("a record for which there is no room: %v", err)
		}
		if s := w.record(a, 50); s.Status != limit.Settled {
			t.Errorf("what was granted here has its place: %+v", s)
		}
		if w.metric("tollgate_limiter_overflows_total") != 2 || w.metric("tollgate_limiter_pending_applications") != 2 || w.metric("tollgate_limiter_local_reservations") != 1 {
			t.Error("the metrics don't tell")
		}
		w.returns()
		w.record(b, 50)
		w.returns()
		w.knows(110)
	})
}

func TestMemoryIsEmptiedWhenItSaysNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		w.trips(down)
		id := uuid.New()
		w.check(id, wide, 100)
		w.record(id, 100)
		old := w.memory
		w.returns()
		time.Sleep(forgetAfter + 5*time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.memory == old {
			t.Error("it is kept for ever")
		}
	})
}

// Whoever only asks whether there is a reservation must not make one by asking.
func TestAskingForAnUnknownReservationWhileTheStoreIsAwayMakesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1, Options{})
		granted := uuid.New()
		w.check(granted, wide, 10)
		w.trips(down)
		here := uuid.New()
		w.check(here, wide, 10)
		ask := func(id uuid.UUID) limit.Consumption {
			c, err := w.Consume(t.Context(), limit.ConsumeRequest{Shard: shard, Subject: user, RequestID: id, Scopes: wide, Known: true})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, id := range []uuid.UUID{granted, here} {
			if c := ask(id); c.Status != limit.ReservationOpen || c.CheckMeta != "check" {
				t.Errorf("%+v", c)
			}
		}
		id := uuid.New()
		for range 2 {
			if c := ask(id); c.Status != limit.ReservationUnknown {
				t.Errorf("%+v", c)
			}
		}
		if d := w.check(id, wide, 10); !d.Allowed || d.Repeated {
			t.Errorf("%+v", d)
		}
	})
}
