package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

func carryScope() limit.Scope {
	return limit.Scope{Kind: limit.ScopeUser, Name: "user:u1", Slots: 8, Limits: []limit.Limit{
		{Counted: limit.Requests, Capacity: 80, Window: time.Minute}, {Counted: limit.Tokens, Capacity: 80_000, Window: 24 * time.Hour}}}
}

func onAll(t *testing.T, f func(t *testing.T, l *Limiter, s limittest.Subject, clock *limittest.Clock)) {
	for name, factory := range map[string]limittest.Factory{"miniredis": mini, "redis": realServer(t), "cluster": realCluster(t)} {
		t.Run(name, func(t *testing.T) {
			clock := limittest.NewClock()
			s := factory(t, clock)
			f(t, s.Limiter.(*Limiter), s, clock)
		})
	}
}

var u1 = subject.Subject{Kind: subject.User, ID: "u1"}

func checkIn(t *testing.T, l limit.Limiter, shard int, version, tokens int64) (limit.Decision, uuid.UUID, error) {
	t.Helper()
	id := uuid.New()
	d, err := l.Check(context.Background(), limit.CheckRequest{Shard: shard, Subject: u1, RequestID: id, Scopes: []limit.Scope{carryScope()}, Cost: limit.Usage(tokens, 0),
		Fences: []limit.Fence{{Name: "user:u1", Version: version}}})
	return d, id, err
}

func TestASubjectThatMovesTakesItsConsumptionAlongOnce(t *testing.T) {
	onAll(t, func(t *testing.T, l *Limiter, _ limittest.Subject, clock *limittest.Clock) {
		ctx := context.Background()
		for range 3 {
			if d, _, err := checkIn(t, l, 5, 1, 10_000); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		clock.Add(1500 * time.Millisecond)
		there := limit.Move{From: []int{5}, To: []int{200}, Fence: limit.Fence{Name: "user:u1", Version: 2}}
		move := limit.CarryRequest{Moves: []limit.Move{there}, Scopes: []string{"user:u1"}}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := l.Carry(ctx, move); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		// What the old quota would still grant in the old place is refused from now on.
		var stale *limit.StaleError
		if _, _, err := checkIn(t, l, 5, 1, 1); !errors.As(err, &stale) || stale.Published != 2 {
			t.Errorf("checked in the old place: %v", err)
		}
		d, _, err := checkIn(t, l, 200, 2, 10_000)
		if err != nil || d.Scopes[0].Limits[0].Remaining != 80-3-1+2 || d.Scopes[0].Limits[1].Remaining != 80_000-40_000+1 || d.Scopes[0].InUse != 4 {
			t.Errorf("%+v, %v", d.Scopes, err)
		}
		if err := l.Carry(ctx, move); err != nil {
			t.Fatal(err)
		}
		if again, _, _ := checkIn(t, l, 200, 2, 0); again.Scopes[0].Limits[1].Remaining != d.Scopes[0].Limits[1].Remaining {
			t.Errorf("carried twice: %+v", again.Scopes)
		}
		// Back again: what was left behind there is long carried away.
		back := limit.CarryRequest{Moves: []limit.Move{there, {From: []int{200}, To: []int{5}, Fence: limit.Fence{Name: "user:u1", Version: 3}}}, Scopes: []string{"user:u1"}}
		if err := l.Carry(ctx, back); err != nil {
			t.Fatal(err)
		}
		if d, _, err := checkIn(t, l, 5, 3, 0); err != nil || d.Scopes[0].Limits[1].Remaining != 80_000-40_000+1 {
			t.Errorf("%+v, %v", d.Scopes, err)
		}
	})
}

// From one shard to eight, to three, to one: the sum stays what was consumed, and no share sells what another has sold.
func TestAnotherNumberOfShardsKeepsWhatWasConsumed(t *testing.T) {
	onAll(t, func(t *testing.T, l *Limiter, _ limittest.Subject, _ *limittest.Clock) {
		ctx, s := context.Background(), limit.Spreader{Lender: l}
		if d, _, err := checkIn(t, l, 5, 1, 70_003); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		from := limit.Spread{First: 5, Shards: 1}
		scope := carryScope()
		scope.Split = true
		for version, n := range []int{2: 8, 3: 3, 4: 5, 5: 8, 6: 1} {
			if n == 0 {
				continue
			}
			carryTo(t, l, &from, int64(version), n)
			st, err := s.Status(ctx, limit.StatusRequest{Shard: 5, Spread: from, Scopes: []limit.Scope{scope}})
			if err != nil || st.Scopes[0].Limits[1].Remaining != 9_997 || st.Scopes[0].Limits[0].Remaining != 79 || st.Scopes[0].InUse != 1 {
				t.Errorf("over %d shards: %+v, %v", n, st, err)
			}
		}
	})
}

func carryTo(t *testing.T, l *Limiter, from *limit.Spread, version int64, n int) {
	t.Helper()
	to := limit.Spread{First: from.First, Shards: n}
	all := func(s limit.Spread) (out []int) {
		for i := range s.Shards {
			out = append(out, s.At(i))
		}
		return out
	}
	move := limit.Move{From: all(*from), To: all(to), Fence: limit.Fence{Name: "user:u1", Version: version}}
	if err := l.Carry(context.Background(), limit.CarryRequest{Moves: []limit.Move{move}, Scopes: []string{"user:u1"}}); err != nil {
		t.Fatal(err)
	}
	*from = to
}

// trips counts the calls of scripts and the pipelines of reads of a client; those by which it connects are none of either.
type trips struct{ n atomic.Int64 }

func (h *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			h.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "get" {
			h.n.Add(1)
		}
		return next(ctx, cmds)
	}
}

// A payer that has moved hundreds of times, with a hundred groups of models, and is read for the first time: all its moves together take as many calls
// as one, and that they were made is found out in one trip at every load of its quota.
func TestHundredsOfMovesAreMadeAsOne(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: realredis.Start(t).Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	l, ctx := New(rdb, Options{}), context.Background()
	if err := l.Load(ctx); err != nil {
		t.Fatal(err)
	}
	scopes := []string{"user:u1"}
	for i := range 100 {
		scopes = append(scopes, fmt.Sprintf("user:u1/model:g%d", i))
	}
	if d, _, err := checkIn(t, l, 0, 1, 10_000); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	r := limit.CarryRequest{Scopes: scopes}
	for version := range int64(639) {
		r.Moves = append(r.Moves, limit.Move{From: []int{int(version) % 40}, To: []int{int(version+1) % 40}, Fence: limit.Fence{Name: "user:u1", Version: version + 2}})
	}
	made, err := l.Carried(ctx, []limit.CarryRequest{r})
	if err != nil || made[0] {
		t.Fatal(made, err)
	}
	var count trips
	rdb.AddHook(&count)
	if err := l.Carry(ctx, r); err != nil || count.n.Load() > 85 {
		t.Errorf("%v, in %d trips; 40 shards are asked twice, and 3 more", err, count.n.Load())
	}
	count.n.Store(0)
	if made, err = l.Carried(ctx, []limit.CarryRequest{r}); err != nil || !made[0] || count.n.Load() != 1 {
		t.Errorf("%v, %v, in %d trips", made, err, count.n.Load())
	}
	if d, _, err := checkIn(t, l, 639%40, 640, 0); err != nil || d.Scopes[0].Limits[1].Remaining != 80_000-10_000 {
		t.Errorf("%+v, %v", d, err)
	}
	more := r
	more.Scopes = append(slices.Clone(scopes), "user:u1/model:new")
	spread := limit.CarryRequest{Moves: []limit.Move{{To: []int{639 % 40, 41}, Fence: r.Last().Fence}}, Scopes: scopes[:1]}
	if made, err = l.Carried(ctx, []limit.CarryRequest{r, more, spread}); err != nil || !made[0] || made[1] || made[2] {
		t.Errorf("%v, %v", made, err)
	}
}
