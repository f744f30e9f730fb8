package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Restorer puts back into a store what it has forgotten, by what somebody else remembers.
type Restorer interface {
	// Restore raises what was consumed to what the bills say, each request in one atomic step. What has as much or more stays as it is, so
	// that doing it again, or while traffic flows, counts nothing twice; slots and reservations are not touched. After an error some of the
	// requests may have been done; doing them again is safe.
	Restore(ctx context.Context, rs []RestoreRequest) ([]Restored, error)
}

var _ Restorer = (*Memory)(nil)

// RestoreRequest restores scopes of one shard. Scopes and Fences are those of a check.
type RestoreRequest struct {
	Shard  int
	Spread Spread // of Split scopes: RestoreSpread shares their bills out
	Scopes []Scope
	Bills  []Bill // one for each scope
	Fences []Fence
	Open   bool // what open reservations hold comes on top: it is on nobody's bill yet, and their settlements will give it back
	Look   bool // change nothing
}

// Bill is what a scope has consumed, as somebody remembers it: the state of each of its limits at a moment.
type Bill struct {
	At      time.Time
	Buckets []Bucket
}

// Restored is what became of a request.
type Restored struct {
	At     time.Time   // the limiter's clock
	Stale  *StaleError // a newer version is published, and nothing was done
	Scopes []RestoredScope
}

// RestoredScope is what was found in a scope, and whether any of its limits was raised, or would be.
type RestoredScope struct {
	Raised bool
	Limits []RestoredLimit
}

// RestoredLimit is what one limit had consumed, what open reservations hold of that (0 unless Open), and what the bill comes to by now.
type RestoredLimit struct{ Had, Held, Billed int64 }

// raised is what the limit should have consumed: a bill that has drained away asks for nothing.
func (l RestoredLimit) raised() (int64, bool) {
	to := satAdd(l.Billed, l.Held)
	return to, l.Billed > 0 && to > l.Had
}

// Validate tells what is wrong with a request's scopes or bills.
func (r RestoreRequest) Validate() error {
	if err := validateScopes(r.Scopes); err != nil {
		return err
	}
	if len(r.Scopes) == 0 || len(r.Bills) != len(r.Scopes) {
		return fmt.Errorf("restoring %d scopes takes as many bills and at least one, not %d", len(r.Scopes), len(r.Bills))
	}
	for i, s := range r.Scopes {
		b := r.Bills[i]
		if len(s.Limits) == 0 || len(b.Buckets) != len(s.Limits) || b.At.UnixMilli() < 0 {
			return fmt.Errorf("scope %s: a bill of %d limits at %s for %d limits; at least one is needed", s.Name, len(b.Buckets), b.At, len(s.Limits))
		}
		for j, l := range s.Limits {
			if n := b.Buckets[j]; n.Consumed < 0 || n.Consumed > MaxAmount || n.Fast < 0 || n.Fast > MaxAmount || n.Credit < 0 || n.Credit >= l.Window.Milliseconds() {
				return fmt.Errorf("scope %s: %s: a bill of %+v is out of range", s.Name, l.Name(), n)
			}
		}
	}
	return nil
}

// Restore implements Restorer.
func (m *Memory) Restore(_ context.Context, rs []RestoreRequest) ([]Restored, error) {
	out := make([]Restored, len(rs))
	for i, r := range rs {
		if err := r.Validate(); err != nil {
			return nil, err
		}
		out[i] = m.restore(r)
	}
	return out, nil
}

func (m *Memory) restore(r RestoreRequest) Restored {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	var out Restored
	if errors.As(m.stale(r.Shard, r.Fences), &out.Stale) {
		return out
	}
	out.At = time.UnixMilli(now).UTC()
	for i, s := range r.Scopes {
		st, _, changed := m.at(place{r.Shard, s.Name}, s.Limits, now, true)
		found := RestoredScope{Limits: make([]RestoredLimit, len(s.Limits))}
		for j, l := range s.Limits {
			id, due := idOf(l), r.Bills[i].Buckets[j]
			bill := bucket{consumed: due.Consumed, credit: due.Credit, fast: due.Fast, capacity: l.Capacity}
			bill.drain(id.window, max(0, now-r.Bills[i].At.UnixMilli()))
			b := st.buckets[id]
			found.Limits[j] = RestoredLimit{Had: b.consumed, Billed: bill.consumed}
			if r.Open {
				found.Limits[j].Held = m.held(r.Shard, s, l, now)
			}
			if to, raised := found.Limits[j].raised(); raised {
				found.Raised = true
				b.consumed, b.credit, b.fast = to, bill.credit, max(b.fast, bill.fast)
				st.buckets[id] = b
			}
		}
		if (found.Raised || changed) && !r.Look {
			m.keep(place{r.Shard, s.Name}, st, now)
		}
		out.Scopes = append(out.Scopes, found)
	}
	return out
}

// held is what open reservations hold of a limit. What was reserved longer than a window ago has drained.
func (m *Memory) held(shard int, s Scope, l Limit, now int64) (n int64) {
	for k, res := range m.reservations {
		if k.shard != shard || res.settled || res.until <= now || now-res.checkedAt >= l.Window.Milliseconds() {
			continue
		}
		for _, id := range res.scopes {
			if id == (scopeID{s.Kind, s.Name}) {
				n = satAdd(n, res.reserved[l.Counted])
			}
		}
	}
	return n
}

// RestoreSpread is Restore for requests with and without a Spread. What a Split scope lacks in all of its shards together is charged to
// those that have the most left. (Each by its part of the bill would raise the sum beyond the bill, for shards are not equally full.)
// Two who do so at a time charge it once, unless traffic comes in between.
func RestoreSpread(ctx context.Context, to Restorer, rs []RestoreRequest) ([]Restored, error) {
	out, plain, at := make([]Restored, len(rs)), []RestoreRequest(nil), []int(nil)
	for i, r := range rs {
		if r.Spread.Shards < 2 {
			plain, at = append(plain, r), append(at, i)
			continue
		}
		var err error
		if out[i], err = restoreSplit(ctx, to, r); err != nil {
			return nil, err
		}
	}
	done, err := to.Restore(ctx, plain)
	for i := range done {
		out[at[i]] = done[i]
	}
	return out, err
}

func restoreSplit(ctx context.Context, to Restorer, r RestoreRequest) (Restored, error) {
	parts := make([]RestoreRequest, r.Spread.Shards)
	for i := range parts {
		p := r
		p.Shard, p.Spread, p.Look = r.Spread.At(i), Spread{}, true
		p.Scopes = r.Spread.Shares(r.Scopes, p.Shard)
		p.Bills = make([]Bill, len(r.Scopes))
		for k, s := range r.Scopes {
			p.Bills[k] = Bill{At: r.Bills[k].At, Buckets: make([]Bucket, len(s.Limits))}
		}
		parts[i] = p
	}
	looked, err := to.Restore(ctx, parts)
	if err != nil {
		return Restored{}, err
	}
	if i := slices.IndexFunc(looked, isStale); i >= 0 {
		return looked[i], nil
	}
	sum := Restored{At: looked[0].At}
	for k, s := range r.Scopes {
		found := RestoredScope{Limits: make([]RestoredLimit, len(s.Limits))}
		for j, l := range s.Limits {
			n := &found.Limits[j]
			for _, p := range looked {
				n.Had, n.Held = satAdd(n.Had, p.Scopes[k].Limits[j].Had), satAdd(n.Held, p.Scopes[k].Limits[j].Held)
			}
			bill := r.Bills[k].Buckets[j].Drain(l.Capacity, l.Window, max(0, sum.At.Sub(r.Bills[k].At).Milliseconds()))
			n.Billed = bill.Consumed
			due, raised := n.raised()
			if !raised {
				continue
			}
			found.Raised = true
			had := make([]int64, len(parts))
			for i := range looked {
				had[i] = looked[i].Scopes[k].Limits[j].Had
			}
			for i, to := range leveled(had, due) {
				parts[i].Bills[k].At = sum.At
				parts[i].Bills[k].Buckets[j] = Bucket{Consumed: to, Fast: Part(bill.Fast, i, len(parts))}
			}
		}
		sum.Scopes = append(sum.Scopes, found)
	}
	if r.Look {
		return sum, nil
	}
	for i := range parts {
		parts[i].Look, parts[i].Open = false, false
	}
	done, err := to.Restore(ctx, parts)
	if i := slices.IndexFunc(done, isStale); i >= 0 {
		return done[i], nil
	}
	return sum, err
}

func isStale(r Restored) bool { return r.Stale != nil }

// leveled raises the lowest of some amounts until all add up to sum, which is no less than they do.
func leveled(had []int64, sum int64) []int64 {
	order := make([]int, len(had))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(had[a], had[b]) })
	rest := sum // what the lowest come to, together
	for _, n := range had {
		rest -= n
	}
	out := slices.Clone(had)
	for n, i := range order {
		rest += had[i]
		if last := n == len(order)-1; last || rest/int64(n+1) <= had[order[n+1]] {
			for k, i := range order[:n+1] {
				out[i] = Part(rest, k, n+1)
			}
			break
		}
	}
	return out
}

// Replay charges a scope with what it is known to have used, in the order of time, as if it were used again: it makes the Bill.
type Replay struct {
	limits  []Limit
	buckets []bucket
	at      int64
}

// NewReplay begins at a moment. What was consumed by then is not known: nothing, or, to be on the safe side, all there was (full).
func NewReplay(limits []Limit, from time.Time, full bool) *Replay {
	r := &Replay{limits: limits, buckets: make([]bucket, len(limits)), at: from.UnixMilli()}
	for i, l := range limits {
		r.buckets[i].capacity = l.Capacity
		if full {
			r.buckets[i].consumed = l.Capacity
		}
	}
	return r
}

// Charge adds what was used at a moment. Time that runs backwards drains nothing; a negative amount is none.
func (r *Replay) Charge(at time.Time, used Amounts) {
	ms := max(0, at.UnixMilli()-r.at)
	r.at += ms
	for i, l := range r.limits {
		r.buckets[i].drain(l.Window.Milliseconds(), ms)
		r.buckets[i].add(max(0, used[l.Counted]))
	}
}

// Bill is what the replay has come to. If lowered, capacities may have been larger when it was used, and what exceeds them now drains within
// a window, as after a downgrade; else it is debt.
func (r *Replay) Bill(lowered bool) Bill {
	b := Bill{At: time.UnixMilli(r.at).UTC(), Buckets: make([]Bucket, len(r.buckets))}
	for i, s := range r.buckets {
		if lowered && s.consumed > s.capacity {
			s.fast = s.consumed - s.capacity
		}
		b.Buckets[i] = Bucket{Consumed: s.consumed, Credit: s.credit, Fast: s.fast}
	}
	return b
}
