package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

var errBroken = errors.New("the process died")

// dying is a client whose process dies after so many calls of scripts: they are made, and nothing after them. Negative: never.
type dying struct{ left atomic.Int64 }

func (h *dying) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *dying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" { // such as what a new connection begins with
			return next(ctx, cmd)
		}
		for {
			switch left := h.left.Load(); {
			case left == 0:
				cmd.SetErr(errBroken)
				return errBroken
			case left < 0 || h.left.CompareAndSwap(left, left-1):
				return next(ctx, cmd)
			}
		}
	}
}

func (h *dying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// brokenWorld is a limiter that lives, and one on the same server that dies. The server is emptied.
func brokenWorld(t *testing.T, addr string) (alive, mortal *Limiter, life *dying) {
	t.Helper()
	client := func() *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	a, b := client(), client()
	life = &dying{}
	life.left.Store(-1)
	b.AddHook(life)
	alive, mortal = New(a, Options{}), New(b, Options{})
	if err := a.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := alive.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return alive, mortal, life
}

func moveTo(version int64, from, to []int) limit.Move {
	return limit.Move{From: from, To: to, Fence: limit.Fence{Name: "user:u1", Version: version}}
}

// Wherever a move is broken off, what was consumed is neither lost nor doubled: not if it is repeated, and not if the payer moves on before that.
func TestMoveThatIsBrokenOffLosesNothingAndDoublesNothing(t *testing.T) {
	ctx, addr := context.Background(), realredis.Start(t).Addr
	share := []int{5, 6, 7}
	first := moveTo(2, []int{5}, share)
	next := map[string]limit.CarryRequest{
		"the same move again":         {Moves: []limit.Move{first}},
		"on to another shard":         {Moves: []limit.Move{first, moveTo(3, share, []int{90})}},
		"on to more of them":          {Moves: []limit.Move{first, moveTo(3, share, []int{5, 6, 7, 8, 9})}},
		"back":                        {Moves: []limit.Move{first, moveTo(3, share, []int{5})}},
		"on, the first being too old": {Moves: []limit.Move{moveTo(3, share, []int{7, 8})}},
	}
	for name, r := range next {
		for calls := range int64(12) {
			t.Run(fmt.Sprintf("%s, after %d calls", name, calls), func(t *testing.T) {
				alive, mortal, life := brokenWorld(t, addr)
				scope := carryScope()
				if d, _, err := checkIn(t, alive, 5, 1, 70_003); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
				life.left.Store(calls)
				_ = mortal.Carry(ctx, limit.CarryRequest{Moves: []limit.Move{first}, Scopes: []string{scope.Name}})
				r.Scopes = []string{scope.Name}
				if err := alive.Carry(ctx, r); err != nil {
					t.Fatal(err)
				}
				to := limit.Spread{First: r.Last().To[0], Shards: len(r.Last().To)}
				scope.Split = true
				st, err := limit.Spreader{Lender: alive}.Status(ctx, limit.StatusRequest{Shard: to.First, Spread: to, Scopes: []limit.Scope{scope}})
				if err != nil || st.Scopes[0].Limits[1].Remaining < 9_997 || st.Scopes[0].Limits[1].Remaining > 9_999 || st.Scopes[0].InUse != 1 {
					t.Errorf("%+v, %v", st, err)
				}
			})
		}
	}
}

// Wherever the end of a request is broken off, its repeat ends it, and what it gives back is given back once.
func TestEndThatIsBrokenOffWhileFollowingAPayerGivesBackOnce(t *testing.T) {
	ctx, addr := context.Background(), realredis.Start(t).Addr
	for calls := range int64(9) {
		t.Run(fmt.Sprintf("after %d calls", calls), func(t *testing.T) {
			alive, mortal, life := brokenWorld(t, addr)
			scope := carryScope()
			if d, _, err := checkIn(t, alive, 5, 1, 30_000); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			d, id, err := checkIn(t, alive, 5, 1, 40_000)
			if err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			to := limit.Spread{First: 60, Shards: 4}
			if err := alive.Carry(ctx, limit.CarryRequest{Moves: []limit.Move{moveTo(2, []int{5}, []int{60, 61, 62, 63})}, Scopes: []string{scope.Name}}); err != nil {
				t.Fatal(err)
			}
			scope.Split = true
			r := limit.SettleRequest{Shard: to.Home(id.String()), Earlier: []int{5}, Spread: to, Subject: u1, RequestID: id, Scopes: []limit.Scope{scope}, Actual: limit.Usage(1_000, 0)}
			life.left.Store(calls)
			_, _ = limit.Spreader{Lender: mortal}.Settle(ctx, r)
			s, err := limit.Spreader{Lender: alive}.Settle(ctx, r)
			if want := limit.Settled; err != nil || s.Status != want && calls < 6 {
				t.Errorf("%+v, %v", s, err)
			}
			st, err := limit.Spreader{Lender: alive}.Status(ctx, limit.StatusRequest{Shard: 60, Spread: to, Scopes: []limit.Scope{scope}})
			if err != nil || st.Scopes[0].Limits[1].Remaining < 49_000 || st.Scopes[0].Limits[1].Remaining > 49_002 || st.Scopes[0].InUse != 1 {
				t.Errorf("%+v, %v", st, err)
			}
		})
	}
}

// Until the move has been made an end waits for it, unless it is told not to: then what was held drains.
func TestEndWaitsForTheMoveUnlessItMustNot(t *testing.T) {
	ctx, addr := context.Background(), realredis.Start(t).Addr
	alive, mortal, life := brokenWorld(t, addr)
	scope := carryScope()
	d, id, err := checkIn(t, alive, 5, 1, 40_000)
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	move := limit.CarryRequest{Moves: []limit.Move{moveTo(2, []int{5}, []int{60})}, Scopes: []string{scope.Name}}
	life.left.Store(2)
	if err := mortal.Carry(ctx, move); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	r := limit.SettleRequest{Shard: 5, Subject: u1, RequestID: id, Scopes: []limit.Scope{scope}, Actual: limit.Usage(1_000, 0)}
	var stale *limit.StaleError
	for range 2 {
		if s, err := alive.Settle(ctx, r); !errors.As(err, &stale) || stale.Published != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	r.Anyway = true
	if s, err := alive.Settle(ctx, r); err != nil || s.Status != limit.Settled {
		t.Errorf("%+v, %v", s, err)
	}
	if err := alive.Carry(ctx, move); err != nil {
		t.Fatal(err)
	}
	st, err := alive.Status(ctx, limit.StatusRequest{Shard: 60, Scopes: []limit.Scope{scope}})
	if err != nil || st.Scopes[0].Limits[1].Remaining > 40_001 || st.Scopes[0].Limits[1].Remaining < 40_000 {
		t.Errorf("what it held drains: %+v, %v", st, err)
	}
}
