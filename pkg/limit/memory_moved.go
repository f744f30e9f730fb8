package limit

import (
	"context"
	"maps"
	"slices"
)

var _ Carrier = (*Memory)(nil)

// correction is what the end of a request, or its going on, changes in one scope.
type correction struct {
	scope      Scope   // whole; own: by the limits of its state. Without limits only its leases change
	amounts    Amounts // charged, or given back
	besides    []int64 // by limit: charged on top
	age        int64   // how long ago amounts were used, ms
	drop, take int64   // leases that end then, ms; 0: none
	keep       bool    // buckets keep their capacity
}

// parting is when a scope's state came to be one part of what it was before, and which are the others.
type parting struct {
	at int64 // ms
	by Move
}

// gone tells where what a reservation holds of a scope has gone from the reservation's shard: nil if it is there. The shard may be one of those that it has
// been shared out to; a reservation that was made since then lies in it alone. One without a check holds nothing.
func (m *Memory) gone(res *reservation, p place) *Move {
	if to := m.moved[p]; to != nil {
		return to
	}
	if part, ok := m.parted[p]; ok && res.checkedAt != 0 && res.checkedAt < part.at {
		return &part.by
	}
	return nil
}

// correctFor makes a correction for a reservation that lies in a shard, and tells whether that is where it was made. The slot that another shard has lent
// is that one's, until all have moved.
func (m *Memory) correctFor(res *reservation, shard int, sp Spread, c correction, now int64) (here bool) {
	if to := m.gone(res, place{shard, c.scope.Name}); to != nil {
		c.scope.lent = nil
		m.follow(to, sp, c, now)
		return false
	}
	if at, lent := res.lent[scopeID{c.scope.Kind, c.scope.Name}]; lent {
		m.correct(at, sp, correction{scope: Scope{Name: c.scope.Name}, drop: c.drop, take: c.take, keep: true}, now)
		c.drop, c.take = 0, 0
	}
	if c.take == 0 {
		c.besides = m.repay(res, sp, c, now)
	}
	m.correct(shard, sp, c, now)
	return true
}

// repay gives back to other shards what they have lent to a scope and what was not used, and tells how much that is of each limit: so much less is given back
// in the home.
func (m *Memory) repay(res *reservation, sp Spread, c correction, now int64) []int64 {
	repaid := make([]int64, len(c.scope.Limits))
	for _, l := range res.loans {
		j := slices.IndexFunc(c.scope.Limits, func(lim Limit) bool { return idOf(lim) == l.limit })
		if j < 0 || l.scope != (scopeID{c.scope.Kind, c.scope.Name}) {
			continue
		}
		n := min(l.amount, -c.amounts[l.limit.counted]-repaid[j])
		if n <= 0 {
			continue
		}
		repaid[j] += n
		known := !sp.Shares([]Scope{c.scope}, l.shard)[0].own
		if known && m.moved[place{l.shard, c.scope.Name}] == nil {
			back := correction{scope: c.scope, besides: make([]int64, len(repaid)), keep: true}
			back.besides[j] = -n
			m.correct(l.shard, sp, back, now)
		}
	}
	return repaid
}

// follow makes a correction where a scope has moved to. If that is several shards each has its part, and the first one that has the lease drops it.
func (m *Memory) follow(to *Move, sp Spread, c correction, now int64) (dropped bool) {
	for i, at := range to.To {
		part := c
		part.amounts = c.amounts.Part(i, len(to.To))
		if dropped {
			part.drop = 0
		}
		if i > 0 {
			part.take = 0
		}
		dropped = m.correct(at, sp, part, now) || dropped
	}
	return dropped
}

// correct makes a correction where the scope's state lies now: if it has moved from the shard, there. It tells
// whether a lease was dropped.
func (m *Memory) correct(shard int, sp Spread, c correction, now int64) (dropped bool) {
	p := place{shard, c.scope.Name}
	if to := m.moved[p]; to != nil {
		return m.follow(to, sp, c, now)
	}
	s := sp.Shares([]Scope{c.scope}, shard)[0]
	var st *scopeState
	if s.own {
		st = m.owned(p, c.amounts, now)
	} else {
		st, _, _ = m.at(p, s.Limits, now, !c.keep)
		for j, l := range s.Limits {
			b := st.buckets[idOf(l)]
			n := s.charge(j, c.amounts)
			if c.besides != nil {
				n += c.besides[j]
			}
			b.addLate(n, l.Window.Milliseconds(), c.age)
			st.buckets[idOf(l)] = b
		}
	}
	before := st.leases[c.drop]
	if c.drop > 0 {
		st.release(c.drop, now)
	}
	dropped = st.leases[c.drop] < before
	if c.take > now {
		st.leases[c.take]++
	}
	m.keep(p, st, now)
	return dropped
}

// owned gives a copy of a scope's state, drained to now and charged by its own limits. An empty bucket says nothing, not even that it exists.
func (m *Memory) owned(p place, amounts Amounts, now int64) *scopeState {
	st := newScopeState(now)
	if old := m.scopes[p]; old != nil {
		st = old.clone()
	}
	ms := max(0, now-st.at)
	st.at += ms
	for id, b := range st.buckets {
		b.drain(id.window, ms)
		if b.consumed > 0 {
			b.add(amounts[id.counted])
		}
		st.buckets[id] = b
	}
	return st
}

// Carry implements Carrier.
func (m *Memory) Carry(_ context.Context, r CarryRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, last, shards := m.now().UnixMilli(), r.Last(), r.Shards()
	var scopes []string
	for _, name := range r.Scopes {
		if !m.came(name, last) {
			scopes = append(scopes, name)
		}
	}
	if len(scopes) == 0 {
		return nil
	}
	for _, shard := range shards {
		if err := m.stale(shard, r.Fences); err != nil {
			return err
		}
	}
	for _, shard := range shards {
		for _, f := range r.Newest() {
			m.left[place{shard, f.Name}] = max(m.left[place{shard, f.Name}], f.Version)
		}
	}
	for _, name := range scopes {
		sum, some := newScopeState(now), false
		for _, shard := range shards {
			p := place{shard, name}
			if st := m.scopes[p]; st != nil {
				some = sum.join(st, now) || some
			}
			some = some || m.moved[p] != nil
			delete(m.scopes, p)
		}
		for _, shard := range shards {
			if some {
				m.moved[place{shard, name}] = &last
			}
		}
		for i, to := range last.To {
			p := place{to, name}
			delete(m.moved, p)
			delete(m.parted, p)
			if len(last.To) > 1 {
				m.parted[p] = parting{now, last}
			}
			if st := sum.part(i, len(last.To)); len(st.buckets)+len(st.leases) > 0 {
				m.keep(p, st, now)
			}
			m.arrived[arrival{p, last.Fence}] = true
		}
	}
	return nil
}

// came tells whether a move has brought a scope to all places that it goes to.
func (m *Memory) came(name string, by Move) bool {
	return !slices.ContainsFunc(by.To, func(to int) bool { return !m.arrived[arrival{place{to, name}, by.Fence}] })
}

// Carried implements Carrier.
func (m *Memory) Carried(_ context.Context, rs []CarryRequest) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]bool, len(rs))
	for i, r := range rs {
		out[i] = !slices.ContainsFunc(r.Scopes, func(name string) bool { return !m.came(name, r.Last()) })
	}
	return out, nil
}

// join adds a state to a sum, drained to now, and tells whether there was anything in it.
func (st *scopeState) join(other *scopeState, now int64) bool {
	some := false
	for id, b := range other.buckets {
		if b.drain(id.window, max(0, now-other.at)); b.consumed == 0 {
			continue
		}
		some, st.at = true, max(st.at, other.at)
		sum := st.buckets[id]
		st.buckets[id] = bucket{consumed: satAdd(sum.consumed, b.consumed), capacity: satAdd(sum.capacity, b.capacity), fast: satAdd(sum.fast, b.fast)}
	}
	for until, n := range other.leases {
		if until > now {
			some = true
			st.leases[until] += n
		}
	}
	return some
}

// part is part i of n. A fraction of a token is lost, at the payer's expense.
func (st *scopeState) part(i, n int) *scopeState {
	out := newScopeState(st.at)
	for id, b := range st.buckets {
		if c := Part(b.consumed, i, n); c > 0 {
			out.buckets[id] = bucket{consumed: c, capacity: max(1, Part(b.capacity, i, n)), fast: Part(b.fast, i, n)}
		}
	}
	for until := range maps.Keys(st.leases) {
		if count := Part(st.leases[until], i, n); count > 0 {
			out.leases[until] = count
		}
	}
	return out
}
