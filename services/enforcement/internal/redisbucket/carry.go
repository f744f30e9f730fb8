package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
)

var _ limit.Carrier = (*Limiter)(nil)

// markKey notes in each shard that a move goes to that it has brought a scope, and what it has brought to all of them together.
func markKey(shard int, scope string, f limit.Fence) string {
	return prefix(shard) + "m:" + scope + ":" + f.Name + ":" + strconv.FormatInt(f.Version, 10)
}

// carried is what a scope's states add up to.
type carried struct {
	at      int64 // ms: the time of buckets
	buckets map[string]entry
	leases  map[int64]int64 // how many end at each second
}

// shardsAtOnce is how many shards are asked at a time.
const shardsAtOnce = 16

// Carry implements limit.Carrier: freeze, add up, put. Each step takes one call a shard for all scopes. Broken off anywhere, it is taken up by whoever
// comes next, for this move or a later one, and nothing is lost or brought twice: what is frozen says by which move, and the marks of that tell what
// has arrived.
func (l *Limiter) Carry(ctx context.Context, r limit.CarryRequest) error {
	if err := l.carry(ctx, r); err != nil {
		return fmt.Errorf("carry along on redis: %w", err)
	}
	return nil
}

// Carried implements limit.Carrier, in one round trip.
func (l *Limiter) Carried(ctx context.Context, rs []limit.CarryRequest) ([]bool, error) {
	var asked []arrival
	for _, r := range rs {
		asked = append(asked, arrivals(r)...)
	}
	marks, err := l.marks(ctx, asked)
	if err != nil {
		return nil, fmt.Errorf("look for moves on redis: %w", err)
	}
	made := make([]bool, len(rs))
	for i, r := range rs {
		made[i] = !slices.ContainsFunc(arrivals(r), func(a arrival) bool { return marks[a] == nil })
	}
	return made, nil
}

// arrival is a scope in a shard that a move, in the form of a word, brings it to.
type arrival struct {
	shard int
	scope string
	by    limit.Fence
}

func arrivals(r limit.CarryRequest) (out []arrival) {
	for _, scope := range r.Scopes {
		for _, shard := range r.Last().To {
			out = append(out, arrival{shard, scope, r.Last().Fence})
		}
	}
	return out
}

// marks gives what marks say; nil: there is none.
func (l *Limiter) marks(ctx context.Context, of []arrival) (map[arrival]*string, error) {
	pipe, got := l.rdb.Pipeline(), map[arrival]*redis.StringCmd{}
	for _, a := range of {
		if got[a] == nil {
			got[a] = pipe.Get(ctx, markKey(a.shard, a.scope, a.by))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	out := map[arrival]*string{}
	for a, cmd := range got {
		text, err := cmd.Result()
		switch {
		case err == nil:
			out[a] = &text
		case !errors.Is(err, redis.Nil):
			return nil, err
		}
	}
	return out, nil
}

func (l *Limiter) carry(ctx context.Context, r limit.CarryRequest) error {
	marks, err := l.marks(ctx, arrivals(r))
	if err != nil {
		return err
	}
	sums := map[string]carried{} // of those that were brought to some of the shards
	open := r
	open.Scopes = nil
	for _, scope := range r.Scopes {
		made := 0
		for _, shard := range r.Last().To {
			if m := marks[arrival{shard, scope, r.Last().Fence}]; m != nil {
				made++
				if sums[scope], err = parseCarried(*m); err != nil {
					return err
				}
			}
		}
		if made < len(r.Last().To) {
			open.Scopes = append(open.Scopes, scope)
		}
	}
	if len(open.Scopes) == 0 {
		return nil
	}
	found, err := l.freeze(ctx, open, false)
	if err != nil {
		return err
	}
	some := open
	some.Scopes = slices.DeleteFunc(slices.Clone(open.Scopes), func(scope string) bool {
		return !slices.ContainsFunc(found, func(f frozen) bool { return f.scope == scope && f.word != "" })
	})
	if len(some.Scopes) > 0 {
		if found, err = l.freeze(ctx, some, true); err != nil {
			return err
		}
	}
	if err := l.sum(ctx, open, found, sums); err != nil {
		return err
	}
	return l.put(ctx, open, sums)
}

// frozen is what was found of a scope in a shard.
type frozen struct {
	scope string
	word  string // '' if nothing
	now   int64  // when it was looked at there
}

// freeze stops all of the chain's shards at once: nobody changes a scope there any more. everywhere: word is left in all of them, for one that has had nothing
// may hold a request all the same, whose room others have lent.
func (l *Limiter) freeze(ctx context.Context, r limit.CarryRequest, everywhere bool) ([]frozen, error) {
	shards, newest := r.Shards(), r.Newest()
	out := make([][]frozen, len(shards))
	err := onEach(ctx, shards, func(ctx context.Context, i, shard int) error {
		args := []any{l.clock(), len(r.Fences), len(newest), redisfence.TTL.Milliseconds(), word(r.Last()), limit.CarryFor.Milliseconds(), everywhere}
		var keys []string
		for _, f := range append(slices.Clone(r.Fences), newest...) {
			keys, args = append(keys, redisfence.Key(shard, f.Name)), append(args, f.Version)
		}
		for _, scope := range r.Scopes {
			keys = append(keys, prefix(shard)+"b:"+scope, markKey(shard, scope, r.Last().Fence))
		}
		reply, err := takeScript.Run(ctx, l.rdb, keys, args...).Slice()
		if err != nil {
			return err
		}
		n, err := integers(reply, 1)
		switch {
		case err != nil:
			return err
		case n[0] == -1:
			return staleBy(r.Fences, reply[1:])
		case len(reply) != 1+len(r.Scopes):
			return errShape
		}
		for k, scope := range r.Scopes {
			text, ok := reply[1+k].(string)
			if !ok {
				return errShape
			}
			out[i] = append(out[i], frozen{scope, text, n[0]})
		}
		return nil
	})
	return slices.Concat(out...), err
}

// staleBy reads which fence is newer: its number, and the version that is published.
func staleBy(fences []limit.Fence, reply []any) error {
	n, err := integers(reply, 2)
	if err != nil || n[0] < 1 || n[0] > int64(len(fences)) {
		return errShape
	}
	return &limit.StaleError{Name: fences[n[0]-1].Name, Published: n[1]}
}

// sum adds up what is frozen and has not arrived anywhere.
func (l *Limiter) sum(ctx context.Context, r limit.CarryRequest, found []frozen, sums map[string]carried) error {
	type piece struct {
		by    string
		state string
		frozen
	}
	var pieces []piece
	var earlier []arrival // of moves that came before, and may have arrived or not
	added := map[string]carried{}
	for _, scope := range r.Scopes {
		added[scope] = carried{buckets: map[string]entry{}, leases: map[int64]int64{}}
	}
	for _, f := range found {
		c := added[f.scope]
		c.at = max(c.at, f.now)
		added[f.scope] = c
		if f.word == "" {
			continue
		}
		_, by, state, err := parseFrozen(f.word)
		if err != nil {
			return err
		}
		pieces = append(pieces, piece{by, state, f})
		if by != word(r.Last()) {
			to, err := parseWord(by)
			if err != nil {
				return err
			}
			for _, shard := range to.To {
				earlier = append(earlier, arrival{shard, f.scope, to.Fence})
			}
		}
	}
	marks, err := l.marks(ctx, earlier)
	if err != nil {
		return err
	}
	halves := map[[2]string]bool{}
	for _, p := range pieces {
		c, arrived, to := added[p.scope], 0, limit.Move{}
		if p.by != word(r.Last()) {
			to, _ = parseWord(p.by) // was read before
		}
		var half *string
		for _, shard := range to.To {
			if m := marks[arrival{shard, p.scope, to.Fence}]; m != nil {
				arrived, half = arrived+1, m
			}
		}
		switch {
		case arrived == 0:
			err = c.add(p.state, p.now)
		case arrived < len(to.To) && !halves[[2]string{p.by, p.scope}]: // it was broken off
			halves[[2]string{p.by, p.scope}] = true
			var whole carried
			if whole, err = parseCarried(*half); err != nil {
				break
			}
			for i, shard := range to.To {
				if marks[arrival{shard, p.scope, to.Fence}] == nil && err == nil {
					text, _ := whole.part(i, len(to.To))
					err = c.add(text, p.now)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("state of %s: %w", p.scope, err)
		}
		added[p.scope] = c
	}
	for scope, c := range added {
		if _, before := sums[scope]; !before {
			sums[scope] = c
		}
	}
	return nil
}

// put has all scopes arrive.
func (l *Limiter) put(ctx context.Context, r limit.CarryRequest, sums map[string]carried) error {
	to := r.Last().To
	return onEach(ctx, to, func(ctx context.Context, i, shard int) error {
		args := []any{l.clock(), len(r.Fences), limit.CarryFor.Milliseconds(), ""}
		if len(to) > 1 {
			args[3] = word(r.Last())
		}
		var keys []string
		for _, f := range r.Fences {
			keys, args = append(keys, redisfence.Key(shard, f.Name)), append(args, f.Version)
		}
		for _, scope := range r.Scopes {
			text, ttl := sums[scope].part(i, len(to))
			keys = append(keys, prefix(shard)+"b:"+scope, markKey(shard, scope, r.Last().Fence), partedKey(shard, scope))
			args = append(args, text, ttl, sums[scope].text())
		}
		reply, err := putScript.Run(ctx, l.rdb, keys, args...).Slice()
		if err == nil && len(reply) > 0 {
			err = staleBy(r.Fences, reply)
		}
		return err
	})
}

// onEach asks shards, some at a time.
func onEach(ctx context.Context, shards []int, ask func(ctx context.Context, i, shard int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(shardsAtOnce)
	for i, shard := range shards {
		g.Go(func() error { return ask(ctx, i, shard) })
	}
	return g.Wait()
}

// add takes in a state, drained to now. What has drained by then, or ended, is nothing.
func (c *carried) add(state string, now int64) error {
	at, entries, leases, err := parseState(state)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.till*1000 > now {
			c.leases[l.till] += l.count
		}
	}
	for _, e := range entries {
		b := e.Drain(e.capacity, time.Duration(e.window)*time.Millisecond, max(0, now-at))
		if b.Consumed == 0 {
			continue
		}
		c.at = max(c.at, at)
		sum := c.buckets[e.id]
		sum.id, sum.window = e.id, e.window
		sum.capacity = min(sum.capacity+e.capacity, limit.MaxAmount)
		sum.Consumed = min(sum.Consumed+b.Consumed, limit.MaxAmount)
		sum.Fast = min(sum.Fast+b.Fast, limit.MaxAmount)
		c.buckets[e.id] = sum
	}
	return nil
}

// text is all of it, its time before it.
func (c carried) text() string {
	var entries []entry
	for _, id := range slices.Sorted(maps.Keys(c.buckets)) {
		entries = append(entries, c.buckets[id])
	}
	return strconv.FormatInt(c.at, 10) + " " + stateText(c.at, entries, c.sorted(func(n int64) int64 { return n }))
}

func parseCarried(text string) (carried, error) {
	c := carried{buckets: map[string]entry{}, leases: map[int64]int64{}}
	at, state, ok := strings.Cut(text, " ")
	var err error
	if c.at, err = strconv.ParseInt(at, 10, 64); err != nil || !ok {
		return c, fmt.Errorf("%q is nothing that was carried: %w", text, err)
	}
	_, entries, leases, err := parseState(state)
	for _, e := range entries {
		c.buckets[e.id] = e
	}
	for _, l := range leases {
		c.leases[l.till] = l.count
	}
	return c, err
}

// part is the state of part i of n, and its time to live in ms. A fraction of a token is lost, at the payer's expense.
func (c carried) part(i, n int) (state string, ttl int64) {
	var entries []entry
	for _, id := range slices.Sorted(maps.Keys(c.buckets)) {
		b := c.buckets[id]
		e := entry{id: id, window: b.window, capacity: max(1, limit.Part(b.capacity, i, n))}
		e.Consumed, e.Fast = limit.Part(b.Consumed, i, n), limit.Part(b.Fast, i, n)
		if e.Consumed == 0 {
			continue
		}
		entries = append(entries, e)
		ttl = max(ttl, int64(min(float64(e.Consumed)/float64(e.capacity)*float64(e.window), 8e12))+2)
	}
	leases := c.sorted(func(count int64) int64 { return limit.Part(count, i, n) })
	for _, l := range leases {
		ttl = max(ttl, l.till*1000-c.at+1000)
	}
	return stateText(c.at, entries, leases), max(1, ttl)
}

// sorted gives the leases, so many of each.
func (c carried) sorted(of func(count int64) int64) (out []lease) {
	for _, till := range slices.Sorted(maps.Keys(c.leases)) {
		if n := of(c.leases[till]); n > 0 {
			out = append(out, lease{till, n})
		}
	}
	return out
}
