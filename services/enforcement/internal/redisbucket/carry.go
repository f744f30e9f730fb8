package redisbucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
)

var _ limit.Carrier = (*Limiter)(nil)

// Keys of a move: its mark in each shard it goes to, and in the first of them what is carried, so that a move that was broken off goes on with
// the same.
func markKey(shard int, scope string, f limit.Fence) string {
	return prefix(shard) + "m:" + scope + ":" + f.Name + ":" + strconv.FormatInt(f.Version, 10)
}

func carriedKey(shard int, scope string, f limit.Fence) string {
	return prefix(shard) + "c:" + scope + ":" + f.Name + ":" + strconv.FormatInt(f.Version, 10)
}

// carried is what a scope's states add up to.
type carried struct {
	At      int64 // ms: the time of Buckets
	Buckets map[string]carriedBucket
	Leases  map[int64]int64 // how many end at each second
}

type carriedBucket struct {
	Capacity int64
	Window   int64 // ms
	limit.Bucket
}

// scopesAtOnce is how many scopes of a move are carried at a time: each takes some trips, one after the other.
const scopesAtOnce = 16

// Carry implements limit.Carrier. Scopes have nothing to do with one another.
func (l *Limiter) Carry(ctx context.Context, r limit.CarryRequest) error {
	var g errgroup.Group
	g.SetLimit(scopesAtOnce)
	for _, scope := range r.Scopes {
		g.Go(func() error {
			if err := l.carryScope(ctx, r, scope); err != nil {
				return fmt.Errorf("carry %s along on redis: %w", scope, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Carried implements limit.Carrier, in one round trip.
func (l *Limiter) Carried(ctx context.Context, rs []limit.CarryRequest) ([]bool, error) {
	pipe := l.rdb.Pipeline()
	marks := make([][]*redis.IntCmd, len(rs))
	for i, r := range rs {
		for _, scope := range r.Scopes {
			for _, shard := range r.To {
				marks[i] = append(marks[i], pipe.Exists(ctx, markKey(shard, scope, r.Fence)))
			}
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("look for moves on redis: %w", err)
	}
	made := make([]bool, len(rs))
	for i := range made {
		made[i] = !slices.ContainsFunc(marks[i], func(m *redis.IntCmd) bool { return m.Val() == 0 })
	}
	return made, nil
}

func (l *Limiter) carryScope(ctx context.Context, r limit.CarryRequest, scope string) error {
	r.Scopes = []string{scope}
	if made, err := l.Carried(ctx, []limit.CarryRequest{r}); err != nil || made[0] {
		return err
	}
	c, err := l.takeAlong(ctx, r, scope)
	if err != nil {
		return err
	}
	for i, shard := range r.To {
		text, ttl := c.part(i, len(r.To))
		keys := []string{markKey(shard, scope, r.Fence), prefix(shard) + "b:" + scope}
		if err := putScript.Run(ctx, l.rdb, keys, l.clock(), text, ttl, limit.CarryFor.Milliseconds()).Err(); err != nil {
			return err
		}
	}
	return nil
}

// takeAlong gives what the scope's states add up to: as it was kept by whoever came first, else as it is now.
func (l *Limiter) takeAlong(ctx context.Context, r limit.CarryRequest, scope string) (carried, error) {
	key := carriedKey(r.To[0], scope, r.Fence)
	kept, err := l.rdb.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		var sum carried
		if sum, err = l.sum(ctx, r, scope); err != nil {
			return carried{}, err
		}
		text, e := json.Marshal(sum)
		if e != nil {
			return carried{}, e
		}
		if err := l.rdb.SetNX(ctx, key, text, limit.CarryFor).Err(); err != nil {
			return carried{}, err
		}
		kept, err = l.rdb.Get(ctx, key).Result()
	}
	if err != nil {
		return carried{}, err
	}
	var c carried
	err = json.Unmarshal([]byte(kept), &c)
	return c, err
}

func (l *Limiter) sum(ctx context.Context, r limit.CarryRequest, scope string) (carried, error) {
	c := carried{Buckets: map[string]carriedBucket{}, Leases: map[int64]int64{}}
	for _, shard := range r.From {
		keys := []string{redisfence.Key(shard, r.Fence.Name), prefix(shard) + "b:" + scope}
		reply, err := takeScript.Run(ctx, l.rdb, keys, l.clock(), r.Fence.Version, redisfence.TTL.Milliseconds()).Slice()
		if err != nil {
			return c, err
		}
		now, err := integers(reply, 1)
		if err != nil {
			return c, err
		}
		if err := c.add(fmt.Sprint(reply[1]), now[0]); err != nil {
			return c, fmt.Errorf("state in shard %d: %w", shard, err)
		}
	}
	return c, nil
}

// add takes in a state, drained to now. The time of the first shard's clock stands for all.
func (c *carried) add(state string, now int64) error {
	if c.At == 0 {
		c.At = now
	}
	at, entries, leases, err := parseState(state)
	if err != nil {
		return err
	}
	for _, l := range leases {
		c.Leases[l.till] += l.count
	}
	for _, e := range entries {
		b, sum := e.Drain(e.capacity, time.Duration(e.window)*time.Millisecond, max(0, now-at)), c.Buckets[e.id]
		sum.Window = e.window
		sum.Capacity = min(sum.Capacity+e.capacity, limit.MaxAmount)
		sum.Consumed = min(sum.Consumed+b.Consumed, limit.MaxAmount)
		sum.Fast = min(sum.Fast+b.Fast, limit.MaxAmount)
		c.Buckets[e.id] = sum
	}
	return nil
}

// part is the state of part i of n, and its time to live in ms.
func (c carried) part(i, n int) (state string, ttl int64) {
	var entries []entry
	for _, id := range slices.Sorted(maps.Keys(c.Buckets)) {
		b := c.Buckets[id]
		e := entry{id: id, window: b.Window, capacity: max(1, limit.Part(b.Capacity, i, n))}
		e.Consumed, e.Fast = limit.Part(b.Consumed, i, n), limit.Part(b.Fast, i, n) // a fraction of a token is lost, at the payer's expense
		if e.Consumed == 0 {
			continue
		}
		entries = append(entries, e)
		ttl = max(ttl, int64(min(float64(e.Consumed)/float64(e.capacity)*float64(e.window), 8e12))+2)
	}
	var leases []lease
	for _, till := range slices.Sorted(maps.Keys(c.Leases)) {
		if count := limit.Part(c.Leases[till], i, n); count > 0 {
			leases = append(leases, lease{till, count})
			ttl = max(ttl, till*1000-c.At+1000)
		}
	}
	return stateText(c.At, entries, leases), max(1, ttl)
}
