package redisbucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
	limit.Bucket
}

// Carry implements limit.Carrier. Cost: one round trip if it was done before.
func (l *Limiter) Carry(ctx context.Context, r limit.CarryRequest) error {
	for _, scope := range r.Scopes {
		if err := l.carryScope(ctx, r, scope); err != nil {
			return fmt.Errorf("carry %s along on redis: %w", scope, err)
		}
	}
	return nil
}

func (l *Limiter) carryScope(ctx context.Context, r limit.CarryRequest, scope string) error {
	pipe := l.rdb.Pipeline()
	marks := make([]*redis.IntCmd, len(r.To))
	for i, shard := range r.To {
		marks[i] = pipe.Exists(ctx, markKey(shard, scope, r.Fence))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(marks, func(m *redis.IntCmd) bool { return m.Val() == 0 }) {
		return nil
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

// add takes in a state as bucket.lua tells its form, drained to now. The time of the first shard's clock stands for all.
func (c *carried) add(text string, now int64) error {
	if c.At == 0 {
		c.At = now
	}
	head, leases, _ := strings.Cut(text, ";")
	for _, l := range strings.FieldsFunc(leases, func(r rune) bool { return r == ',' }) {
		var till, count int64
		if _, err := fmt.Sscanf(l, "%d:%d", &till, &count); err != nil {
			return fmt.Errorf("leases %q: %w", leases, err)
		}
		c.Leases[till] += count
	}
	if head == "" {
		return nil
	}
	sig, _, _ := strings.Cut(head, "|")
	ids := strings.Split(sig, ",")
	at, buckets, err := parseState(head, len(ids))
	if err != nil {
		return err
	}
	for i, entry := range ids {
		id, capacityText, _ := strings.Cut(entry, ":")
		capacity, err1 := strconv.ParseInt(capacityText, 10, 64)
		window, err2 := windowOf(id)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("%q: %w", entry, err)
		}
		b, sum := buckets[i].Drain(capacity, window, max(0, now-at)), c.Buckets[id]
		sum.Capacity = min(sum.Capacity+capacity, limit.MaxAmount)
		sum.Consumed = min(sum.Consumed+b.Consumed, limit.MaxAmount)
		sum.Fast = min(sum.Fast+b.Fast, limit.MaxAmount)
		c.Buckets[id] = sum
	}
	return nil
}

func windowOf(id string) (time.Duration, error) {
	if id == "" {
		return 0, errors.New("a limit without a name")
	}
	seconds, err := strconv.ParseFloat(id[1:], 64)
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond), err
}

// part is the state of part i of n, and its time to live in ms.
func (c carried) part(i, n int) (text string, ttl int64) {
	var sig, numbers, fasts []string
	draining := false
	for _, id := range slices.Sorted(maps.Keys(c.Buckets)) {
		b := c.Buckets[id]
		capacity, consumed, fast := max(1, limit.Part(b.Capacity, i, n)), limit.Part(b.Consumed, i, n), limit.Part(b.Fast, i, n)
		window, err := windowOf(id)
		if err != nil || consumed == 0 {
			continue
		}
		sig = append(sig, id+":"+strconv.FormatInt(capacity, 10))
		numbers = append(numbers, strconv.FormatInt(consumed, 10)+" 0") // a fraction of a token is lost, at the payer's expense
		fasts = append(fasts, strconv.FormatInt(fast, 10)+" ")
		draining = draining || fast > 0
		ttl = max(ttl, int64(min(float64(consumed)/float64(capacity)*float64(window.Milliseconds()), 8e12))+2)
	}
	if len(sig) > 0 {
		text = fmt.Sprintf("%s|%d %s", strings.Join(sig, ","), c.At, strings.Join(numbers, " "))
		if draining {
			text += "|" + strings.Join(fasts, "")
		}
	}
	var leases []string
	for _, till := range slices.Sorted(maps.Keys(c.Leases)) {
		if count := limit.Part(c.Leases[till], i, n); count > 0 {
			leases = append(leases, fmt.Sprintf("%d:%d", till, count))
			ttl = max(ttl, till*1000-c.At+1000)
		}
	}
	if len(leases) > 0 {
		text += ";" + strings.Join(leases, ",")
	}
	return text, max(1, ttl)
}
