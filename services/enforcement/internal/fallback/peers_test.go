package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// wires lead from instance to instance.
type wires struct {
	mu    sync.Mutex
	ends  map[string]*world
	fault map[string]fault // of the instance that is asked
	asked map[string]int
}

func (n *wires) Ask(ctx context.Context, addr string, q Question) (a Answer, err error) {
	n.mu.Lock()
	to, f := n.ends[addr], n.fault[addr]
	n.asked[addr]++
	n.mu.Unlock()
	if f == none || f == forgetful {
		a, err = to.Answer(ctx, q)
	}
	switch f {
	case down:
		return Answer{}, errDown
	case deaf, forgetful:
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
	return a, err
}

func (n *wires) fail(addr string, f fault) { n.mu.Lock(); defer n.mu.Unlock(); n.fault[addr] = f }

func (n *wires) questions(addr string) int { n.mu.Lock(); defer n.mu.Unlock(); return n.asked[addr] }

// fleet runs instances over one store that know of each other. Their addresses are a, b, c.
func fleet(t *testing.T, n int) ([]*world, *wires) {
	t.Helper()
	memory, net := limit.NewMemory(limit.MemoryOptions{}), &wires{ends: map[string]*world{}, fault: map[string]fault{}, asked: map[string]int{}}
	addrs := []string{"a", "b", "c"}[:n]
	all, settles := make([]*world, n), map[uuid.UUID]int{}
	for i, own := range addrs {
		var others []string
		for _, a := range addrs {
			if a != own {
				others = append(others, a)
			}
		}
		s := &store{Memory: memory, settles: settles} // inside the bubble one goroutine at a time tells the store
		all[i] = startOn(t, s, &instances{s: s, n: n, others: others}, Options{Peers: net})
		net.ends[own] = all[i]
	}
	return all, net
}

// nothingIsLeft checks that the store knows of so many tokens, of no open request, and that no second event will be made.
func nothingIsLeft(t *testing.T, all []*world, tokens int64) {
	t.Helper()
	for _, w := range all {
		w.returns()
	}
	all[0].knows(tokens)
	if n := all[0].inFlight(); n != 0 {
		t.Errorf("the store holds %d slots", n)
	}
	time.Sleep(2 * limit.DefaultLease)
	for _, w := range all {
		if due := w.sweep(); len(due) != 0 {
			t.Errorf("a second event: %+v", due)
		}
		if w.metric("tollgate_limiter_local_reservations") != 0 {
			t.Error("a reservation is left")
		}
	}
}

func TestWhoeverIsToldOfTheEndFreesTheSlotWhereItWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := fleet(t, 3)
		a, b, c := all[0], all[1], all[2]
		for _, w := range all {
			w.trips(down)
		}
		tight := scopes(1000, day, 3) // one slot each
		for i := range 5 {
			id := uuid.New()
			if d := a.check(id, tight, 50); !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
			if d := a.check(uuid.New(), tight, 50); d.Reason != limit.ReasonConcurrent {
				t.Fatalf("a second one: %+v", d)
			}
			got, err := c.Consume(t.Context(), limit.ConsumeRequest{Shard: shard, Subject: user, RequestID: id, Scopes: tight, Tokens: 60})
			if err != nil || !got.Allowed || got.Status != limit.ReservationOpen || !got.Degraded || len(got.Scopes) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			if s := b.record(id, 20); s.Status != limit.Settled || s.CheckMeta != "check" || s.Reserved[limit.Tokens] != 60 || s.CheckedAt.IsZero() || !s.Degraded {
				t.Errorf("%+v", s)
			}
			for who, w := range map[string]*world{"the one that granted it": a, "the one that was told": b, "another": c} {
				if s := w.settle(id, 1); s.Status != limit.AlreadySettled {
					t.Errorf("a second record at %s: %+v", who, s)
				}
			}
			got, err = c.Consume(t.Context(), limit.ConsumeRequest{Shard: shard, Subject: user, RequestID: id, Scopes: tight, Tokens: 1})
			if err != nil || got.Status != limit.ReservationEnded {
				t.Errorf("a stream that has ended: %+v, %v", got, err)
			}
		}
		nothingIsLeft(t, all, 100)
	})
}

func TestRecordsOfOneRequestAtSeveralInstancesAtOnceCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := fleet(t, 3)
		for _, w := range all {
			w.trips(down)
		}
		id := uuid.New()
		all[0].check(id, wide, 50)
		var wg sync.WaitGroup
		for _, w := range all[1:] {
			wg.Go(func() { w.record(id, 20) })
		}
		wg.Wait()
		nothingIsLeft(t, all, 20)
	})
}

func TestCancelTakesBackWhatAnotherInstanceGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := fleet(t, 2)
		for _, w := range all {
			w.trips(down)
		}
		tight := scopes(1000, day, 2)
		for i := range 3 {
			id := uuid.New()
			if d := all[0].check(id, tight, 50); !d.Allowed {
				t.Fatalf("%d: %+v", i, d)
			}
			if done, err := all[1].Cancel(t.Context(), limit.CancelRequest{Shard: shard, Subject: user, RequestID: id, Scopes: tight}); !done || err != nil {
				t.Errorf("%v, %v", done, err)
			}
		}
		nothingIsLeft(t, all, 0)
	})
}

// A record waits for a peer that is dead once a second, not each time; what it alone knew is billed as unknown.
func TestDeadPeerDelaysOneRecordASecondAndLosesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, net := fleet(t, 2)
		for _, w := range all {
			w.trips(down)
		}
		net.fail("a", deaf)
		var took []time.Duration
		record := func() {
			began := time.Now()
			if s := all[1].record(uuid.New(), 10); s.Status != limit.Unknown || !s.Degraded {
				t.Errorf("%+v", s)
			}
			took = append(took, time.Since(began))
		}
		record()
		record()
		time.Sleep(silence)
		record()
		if want := []time.Duration{askTime, 0, askTime}; fmt.Sprint(took) != fmt.Sprint(want) {
			t.Errorf("records took %v, want %v", took, want)
		}
		if n, unanswered := net.questions("a"), all[1].metric("tollgate_limiter_unanswered_questions_total"); n != 2 || unanswered != 2 {
			t.Errorf("%d questions, %v unanswered", n, unanswered)
		}
		nothingIsLeft(t, all, 30)
	})
}

func TestInstanceThatHasLongLeftIsAskedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, net := fleet(t, 2)
		b := all[1]
		live := b.instances.(*instances)
		b.store.mu.Lock()
		live.n, live.others = 1, nil
		b.store.mu.Unlock()
		time.Sleep(time.Minute)
		if b.alone() {
			t.Error("an instance that may be cut off is forgotten while it may hold requests")
		}
		time.Sleep(peerFor + 2*time.Second)
		b.record(uuid.New(), 10)
		if n := net.questions("a"); n != 0 || !b.alone() {
			t.Errorf("it was asked %d times", n)
		}
	})
}

// The instance that granted it has given it up, but the other one never learns that: billed, debited and ended once all the same.
func TestLostAnswerIsBilledOnceAsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, net := fleet(t, 2)
		for _, w := range all {
			w.trips(down)
		}
		id, cancelled := uuid.New(), uuid.New()
		all[0].check(id, wide, 50)
		all[0].check(cancelled, wide, 50)
		net.fail("a", forgetful)
		if s := all[1].record(id, 20); s.Status != limit.Unknown || s.CheckMeta != "" {
			t.Errorf("%+v", s)
		}
		time.Sleep(silence)
		if done, err := all[1].Cancel(t.Context(), limit.CancelRequest{Shard: shard, Subject: user, RequestID: cancelled, Scopes: wide}); !done || err != nil {
			t.Errorf("%v, %v", done, err)
		}
		net.fail("a", none)
		time.Sleep(silence)
		if s := all[0].settle(id, 20); s.Status != limit.AlreadySettled {
			t.Errorf("a repeat where it was granted: %+v", s)
		}
		nothingIsLeft(t, all, 20)
	})
}

// The store had granted the request too, without answering: whoever ends it, nothing of that is left there.
func TestDoubtfulGrantIsEndedInTheStoreWhereverTheRequestEnds(t *testing.T) {
	for name, end := range map[string]struct {
		tokens int64
		do     func(t *testing.T, w *world, id uuid.UUID)
	}{
		"record": {20, func(_ *testing.T, w *world, id uuid.UUID) { w.record(id, 20) }},
		"cancel": {0, func(t *testing.T, w *world, id uuid.UUID) {
			if done, err := w.Cancel(t.Context(), limit.CancelRequest{Shard: shard, Subject: user, RequestID: id, Scopes: wide}); !done || err != nil {
				t.Errorf("%v, %v", done, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, _ := fleet(t, 2)
				all[0].store.fail(forgetful)
				id := uuid.New()
				if d := all[0].check(id, wide, 50); !d.Allowed || !d.Degraded {
					t.Fatal(d)
				}
				if n := all[0].inFlight(); n != 1 {
					t.Fatalf("the store holds %d, want 1", n)
				}
				for _, w := range all {
					w.trips(down)
				}
				end.do(t, all[1], id)
				nothingIsLeft(t, all, end.tokens)
			})
		})
	}
}

// A store that is there for the one that is told, and not for the one that granted.
func TestRequestOfAnInstanceThatIsCutOffIsNotTakenForUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := fleet(t, 2)
		all[0].trips(down)
		id := uuid.New()
		all[0].check(id, wide, 50)
		if s := all[1].record(id, 20); s.Status != limit.Settled || s.CheckMeta != "check" || s.Reserved[limit.Tokens] != 50 {
			t.Errorf("%+v", s)
		}
		nothingIsLeft(t, all, 20)
	})
}

func TestStoresGrantIsKnownToTheInstanceThatIsToldWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := fleet(t, 2)
		id := uuid.New()
		all[0].check(id, wide, 50)
		for _, w := range all {
			w.trips(down)
		}
		if s := all[1].record(id, 20); s.Status != limit.Settled || s.CheckMeta != "check" || s.Reserved[limit.Tokens] != 50 {
			t.Errorf("%+v", s)
		}
		nothingIsLeft(t, all, 20)
	})
}

// Nobody may be told that a request has ended when the instance that holds it could not end it.
func TestInstanceThatHasNoRoomKeepsWhatItsPeerGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := fleet(t, 2)
		for _, w := range all {
			w.trips(down)
		}
		all[1].book.most = 1
		all[1].record(uuid.New(), 5)
		id := uuid.New()
		all[0].check(id, wide, 50)
		_, err := all[1].Settle(t.Context(), limit.SettleRequest{Shard: shard, Subject: user, RequestID: id, Scopes: wide, Actual: limit.Usage(20, 0)})
		if !errors.Is(err, ErrFull) {
			t.Errorf("a record for which there is no room: %v", err)
		}
		if s := all[0].record(id, 20); s.Status != limit.Settled {
			t.Errorf("and then where it was granted: %+v", s)
		}
		nothingIsLeft(t, all, 25)
	})
}
