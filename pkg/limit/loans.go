package limit

import (
	"context"
	"slices"
	"time"
)

// loans is what one request has borrowed of the other shards.
type loans struct {
	lender Lender
	spread Spread
	home   int
	scopes []Scope // whole
	split  []int   // which of them are Split

	amounts [][]int64           // in hand, by split scope and limit
	holders []int               // by split scope: which shard holds its slot; -1: none does
	until   time.Time           // when the holders' leases end
	owed    map[int]Transferred // what each shard has given, and its state
}

func newLoans(l Lender, sp Spread, home int, scopes []Scope) *loans {
	out := &loans{lender: l, spread: sp, home: home, scopes: scopes, owed: map[int]Transferred{}}
	for i, sc := range scopes {
		if sc.Split {
			out.split = append(out.split, i)
			out.amounts = append(out.amounts, make([]int64, len(sc.Limits)))
			out.holders = append(out.holders, -1)
		}
	}
	return out
}

// share is a scope as it is in one shard.
func (l *loans) share(sc Scope, shard int) Scope { return l.spread.Shares([]Scope{sc}, shard)[0] }

// lacks tells what the home is short of, beyond what is in hand: amounts and slots by split scope. impossible: a scope that lies in the home alone
// refuses, or a whole capacity is less than the cost.
func (l *loans) lacks(states []ScopeState, cost Amounts) (amounts [][]int64, slots []bool, impossible bool) {
	for i, sc := range l.scopes {
		for j, lim := range sc.Limits {
			b := states[i].Limits[j].bucket
			if c := cost[lim.Counted]; c > lim.Capacity || (!sc.Split && b.consumed+c > lim.Capacity) {
				impossible = true
			}
		}
		impossible = impossible || (!sc.Split && sc.Slots > 0 && states[i].InUse >= sc.Slots)
	}
	amounts, slots = l.none(), make([]bool, len(l.split))
	for k, i := range l.split {
		share := l.share(l.scopes[i], l.home)
		for j, lim := range share.Limits {
			short := cost[lim.Counted] + states[i].Limits[j].bucket.consumed - lim.Capacity - l.amounts[k][j]
			if share.bare[j] {
				short = cost[lim.Counted] - l.amounts[k][j]
			}
			if cost[lim.Counted] > 0 && short > 0 {
				amounts[k][j] = short
			}
		}
		slots[k] = l.holders[k] < 0 && share.Slots > 0 && (share.slotless || states[i].InUse >= share.Slots)
	}
	return amounts, slots, impossible
}

// gather asks one shard after another until nothing is lacking. until is when the slots' leases would end, in ms; 0: the request has its slots. Each
// scope's slot is taken where there is one, for a shard that is full in one scope has room in another.
func (l *loans) gather(ctx context.Context, states []ScopeState, cost Amounts, until int64) bool {
	want, slots, impossible := l.lacks(states, cost)
	if impossible {
		return false
	}
	if until == 0 {
		slots = make([]bool, len(slots))
	} else if l.until.IsZero() {
		l.until = time.UnixMilli(until).UTC()
	}
	for i := 1; i < l.spread.Shards && (anyOf(slots) || anyLeft(want)); i++ {
		shard := l.spread.At((l.spread.index(l.home) + i) % l.spread.Shards)
		t, err := l.transfer(ctx, shard, want, 1, slots, time.Time{}, l.until, false)
		if err != nil {
			return false
		}
		for k := range want {
			if slots[k] && t.Slots[k] {
				slots[k], l.holders[k] = false, shard
			}
			for j, got := range t.Amounts[k] {
				l.amounts[k][j] += got
				want[k][j] -= got
			}
		}
		l.owe(shard, t)
	}
	return !anyOf(slots) && !anyLeft(want)
}

func anyOf(wanted []bool) bool { return slices.Contains(wanted, true) }

func anyLeft(amounts [][]int64) bool {
	return slices.ContainsFunc(amounts, func(a []int64) bool { return slices.ContainsFunc(a, func(n int64) bool { return n > 0 }) })
}

func (l *loans) owe(shard int, t Transferred) {
	if old, ok := l.owed[shard]; ok {
		for k := range t.Amounts {
			for j := range t.Amounts[k] {
				t.Amounts[k][j] += old.Amounts[k][j]
			}
		}
	}
	l.owed[shard] = t
}

// transfer moves sign times amounts in the split scopes of a shard, and leases in those that are marked.
func (l *loans) transfer(ctx context.Context, shard int, amounts [][]int64, sign int64, leases []bool, drop, take time.Time, debt bool) (Transferred, error) {
	r := TransferRequest{Shard: shard}
	shares := l.spread.Shares(l.scopes, shard)
	for k, i := range l.split {
		line := Line{Amounts: make([]int64, len(shares[i].Limits)), Debt: debt}
		for j := range line.Amounts {
			if !shares[i].bare[j] { // it has none to lend
				line.Amounts[j] = sign * amounts[k][j]
			}
		}
		if leases[k] && shares[i].Slots > 0 && !shares[i].slotless {
			line.Drop, line.Take = drop, take
		}
		r.Add(shares[i], line)
	}
	return l.lender.Transfer(ctx, r)
}

// heldBy marks the split scopes whose slot a shard holds.
func (l *loans) heldBy(shard int) []bool {
	out := make([]bool, len(l.split))
	for k := range out {
		out[k] = l.holders[k] == shard
	}
	return out
}

// large tells that a request needs more than its home has of anything, even when that is full.
func (l *loans) large(home []Scope, cost Amounts) bool {
	for _, i := range l.split {
		for _, lim := range home[i].Limits {
			if cost[lim.Counted] > lim.Capacity {
				return true
			}
		}
	}
	return false
}

// look tells whether all shards together have room, and takes nothing: what a request takes that is refused in the end, others lack meanwhile.
func (l *loans) look(ctx context.Context, states []ScopeState, cost Amounts) bool {
	want, slots, impossible := l.lacks(states, cost)
	if impossible {
		return false
	}
	for i := range l.spread.Shards {
		shard := l.spread.At(i)
		if shard == l.home {
			continue
		}
		t, err := l.transfer(ctx, shard, l.none(), 1, slots, time.Time{}, time.Time{}, false)
		if err != nil {
			return false
		}
		l.owed[shard] = t
		for k, share := range l.splitIn(shard) {
			for j, lim := range share.Limits {
				if !share.bare[j] {
					want[k][j] -= max(0, lim.Capacity-t.Found[k].Buckets[j].Consumed)
				}
			}
			slots[k] = slots[k] && (share.slotless || t.Found[k].InUse >= share.Slots)
		}
	}
	return !anyOf(slots) && !anyLeft(want)
}

// splitIn gives the split scopes as they are in a shard.
func (l *loans) splitIn(shard int) []Scope {
	out := make([]Scope, len(l.split))
	for k, i := range l.split {
		out[k] = l.share(l.scopes[i], shard)
	}
	return out
}

func (l *loans) none() [][]int64 {
	out := make([][]int64, len(l.amounts))
	for k := range out {
		out[k] = make([]int64, len(l.amounts[k]))
	}
	return out
}

// apply has the scopes charge less by what is in hand.
func (l *loans) apply(scopes []Scope) []Scope {
	out := slices.Clone(scopes)
	for k, i := range l.split {
		out[i].loans = nil
		for n := range l.spread.Shards {
			if t, ok := l.owed[l.spread.At(n)]; ok && anyLeft(t.Amounts[k:k+1]) {
				out[i].loans = append(out[i].loans, Loan{l.spread.At(n), slices.Clone(t.Amounts[k])})
			}
		}
		out[i].lent, out[i].slotAt, out[i].slotLent = slices.Clone(l.amounts[k]), l.holders[k], l.holders[k] >= 0
	}
	return out
}

// hold makes the holders' leases end with the reservation's.
func (l *loans) hold(ctx context.Context, until time.Time) {
	if until.Equal(l.until) {
		return
	}
	for shard := range l.owed {
		if held := l.heldBy(shard); anyOf(held) {
			_, _ = l.transfer(ctx, shard, l.none(), 1, held, l.until, until, true)
		}
	}
}

// giveBack returns everything. What can't be returned drains away, or ends with its lease.
func (l *loans) giveBack(ctx context.Context) {
	for shard, t := range l.owed {
		held := l.heldBy(shard)
		if !anyOf(held) && !slices.ContainsFunc(t.Amounts, func(a []int64) bool { return slices.ContainsFunc(a, func(n int64) bool { return n != 0 }) }) {
			continue // it gave nothing
		}
		if back, err := l.transfer(ctx, shard, t.Amounts, -1, held, l.until, time.Time{}, false); err == nil {
			l.owed[shard] = back
		}
	}
}

// refusal tells why all shards together refuse, and the wait after which they have room.
func (l *loans) refusal(home Decision, cost Amounts) Decision {
	d := Decision{At: home.At, Scopes: home.Scopes}
	tooLarge := false
	note := func(reason string, scope ScopeKind, wait time.Duration) {
		if wait > d.RetryAfter || d.Reason == "" {
			d.Reason, d.Scope, d.RetryAfter = reason, scope, wait
		}
	}
	for i, sc := range l.scopes {
		state := &d.Scopes[i]
		k := slices.Index(l.split, i)
		for j, lim := range sc.Limits {
			buckets := []bucket{state.Limits[j].bucket}
			if k >= 0 {
				if l.share(sc, l.home).bare[j] {
					buckets[0].capacity, buckets[0].consumed = 0, 0
				}
				for shard, t := range l.owed {
					if share, f := l.share(sc, shard), t.Found[k].Buckets[j]; !share.bare[j] {
						buckets = append(buckets, bucket{consumed: f.Consumed, credit: f.Credit, fast: f.Fast, capacity: share.Limits[j].Capacity})
					}
				}
				state.Limits[j].Remaining = 0
				for _, b := range buckets {
					state.Limits[j].Remaining += max(0, b.capacity-b.consumed)
				}
			}
			c := cost[lim.Counted]
			switch wait := waitForAll(buckets, lim.Window.Milliseconds(), c); {
			case tooLarge:
			case c > lim.Capacity:
				tooLarge = true
				d.Reason, d.Scope, d.RetryAfter = ReasonRequestTooLarge, sc.Kind, 0
			case wait > 0:
				note(lim.Name(), sc.Kind, millis(wait))
			}
		}
		if k >= 0 {
			for _, t := range l.owed {
				state.InUse += t.Found[k].InUse
			}
			state.whole(sc)
		}
		if !tooLarge && sc.Slots > 0 && state.InUse >= sc.Slots {
			note(ReasonConcurrent, sc.Kind, SlotHint)
		}
	}
	if d.Reason == "" { // others took the room while it was gathered, and it is there again
		d.Reason, d.Scope, d.RetryAfter = home.Reason, home.Scope, time.Millisecond
		if d.Reason == ReasonRequestTooLarge || d.Reason == "" {
			d.Reason, d.Scope, d.RetryAfter = ReasonConcurrent, l.scopes[0].Kind, SlotHint
		}
	}
	return d
}

// waitForAll is the least time in ms after which buckets together have room for need. The first is the home, whose debt others must cover.
func waitForAll(buckets []bucket, window, need int64) int64 {
	room := func(ms int64) int64 {
		var sum int64
		for i, b := range buckets {
			b.drain(window, ms)
			if free := b.capacity - b.consumed; free > 0 || i == 0 {
				sum = min(sum+free, MaxAmount)
			}
		}
		return sum
	}
	if room(0) >= need {
		return 0
	}
	low, high := int64(0), int64(1)
	for room(high) < need {
		if high > maxMillis/2 {
			return maxMillis
		}
		low, high = high, 2*high
	}
	for high-low > 1 {
		if mid := low + (high-low)/2; room(mid) < need {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}
