package limittest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// account keeps books of what a limiter admits, apart from it: whatever random requests do, its sums must come out.
type account struct {
	*world
	r       *rand.Rand
	scope   limit.Scope
	began   time.Time
	held    map[uuid.UUID]int64 // tokens of open reservations
	settled map[uuid.UUID]int64
	order   []uuid.UUID
	charged int64 // tokens admitted, less what came back
	over    int64 // tokens that settlements have used beyond what was admitted: nobody was asked for them
}

// properties makes random requests over time: what is admitted never exceeds capacity and drain, nothing that remains is negative, and
// waiting exactly as long as advised always helps.
func properties(w *world) {
	for seed := range uint64(4) {
		w := &world{t: w.t, clock: w.clock, Subject: w.Subject, user: w.user, shard: w.shard + int(seed)}
		a := newAccount(w, seed, scope(0, 5_000, 40_000, 0))
		for range 120 {
			w.clock.Add(time.Duration(a.r.Int64N(int64(5 * time.Second))))
			a.step()
			for _, l := range []limit.Limit{a.scope.Limits[0], a.scope.Limits[1]} {
				drain := l.Capacity * w.clock.Now().Sub(a.began).Milliseconds() / l.Window.Milliseconds()
				if a.charged > l.Capacity+drain+a.over {
					w.t.Fatalf("seed %d: %d admitted by %s, capacity and drain are %d", seed, a.charged, l.Name(), l.Capacity+drain)
				}
			}
		}
	}
}

// conservation makes them while the clock stands: what is consumed is what was settled and what is held, to the token; and a replay of
// everything that was asked changes nothing.
func conservation(w *world) {
	for seed := range uint64(4) {
		w := &world{t: w.t, clock: w.clock, Subject: w.Subject, user: w.user, shard: w.shard + int(seed)}
		a := newAccount(w, seed, scope(0, 0, 1_000_000, 0))
		for range 60 {
			a.step()
			a.balance()
		}
		for _, id := range a.order { // after each of them, a prefix has been replayed
			if d := w.checkID(id, a.held[id]+7, a.scope); !d.Repeated {
				w.t.Fatalf("asked again: %+v", d)
			}
			if used, ended := a.settled[id]; ended {
				w.settle(id, used+7, a.scope)
			}
			a.balance()
		}
	}
}

func newAccount(w *world, seed uint64, s limit.Scope) *account {
	return &account{world: w, r: rand.New(rand.NewPCG(seed, 1)), scope: s, began: w.clock.Now(), held: map[uuid.UUID]int64{}, settled: map[uuid.UUID]int64{}}
}

func (a *account) step() {
	a.t.Helper()
	if id, open := a.open(); open && a.r.IntN(2) == 0 {
		used := a.r.Int64N(a.held[id] + 51)
		a.charged, a.over = a.charged+used-a.held[id], a.over+max(0, used-a.held[id])
		a.world.settle(id, used, a.scope)
		a.settled[id] = used
		delete(a.held, id)
		return
	}
	tokens := a.r.Int64N(900)
	d, id := a.check(tokens, a.scope)
	for _, l := range d.Scopes[0].Limits {
		if l.Remaining < 0 {
			a.t.Fatalf("%d remain", l.Remaining)
		}
	}
	if !d.Allowed {
		if a.r.IntN(3) > 0 {
			return
		}
		a.clock.Add(d.RetryAfter)
		if d, id = a.check(tokens, a.scope); !d.Allowed {
			a.t.Fatalf("after the advised wait: %+v", d)
		}
	}
	a.held[id], a.charged = tokens, a.charged+tokens
	a.order = append(a.order, id)
}

func (a *account) open() (uuid.UUID, bool) {
	for _, id := range a.order {
		if _, ok := a.held[id]; ok {
			return id, true
		}
	}
	return uuid.Nil, false
}

func (a *account) balance() {
	a.t.Helper()
	st, err := a.Limiter.Status(context.Background(), limit.StatusRequest{Shard: a.shard, Scopes: []limit.Scope{a.scope}})
	if err != nil {
		a.t.Fatal(err)
	}
	var sum int64
	for _, n := range a.held {
		sum += n
	}
	for _, n := range a.settled {
		sum += n
	}
	if consumed := a.scope.Limits[0].Capacity - st.Scopes[0].Limits[0].Remaining; consumed != sum || st.Scopes[0].InUse != int64(len(a.held)) {
		a.t.Fatalf("%d consumed and %d open; settled and held are %d, open %d", consumed, st.Scopes[0].InUse, sum, len(a.held))
	}
}
