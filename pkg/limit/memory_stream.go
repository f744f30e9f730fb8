package limit

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"
)

// Consume implements Limiter.
func (m *Memory) Consume(_ context.Context, r ConsumeRequest) (Consumption, error) {
	if err := r.Validate(); err != nil {
		return Consumption{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.stale(r.Shard, r.Fences); err != nil {
		return Consumption{}, err
	}
	now := m.now().UnixMilli()
	key, at := reservationKey{r.Shard, r.Subject, r.RequestID}, time.UnixMilli(now).UTC()
	res := m.reservations[key]
	open := res != nil && res.until > now && !res.settled
	here := r
	here.Scopes = r.Spread.Shares(r.Scopes, r.Shard)
	ask := CheckRequest{Shard: r.Shard, Scopes: here.Scopes}
	var extra Amounts
	if open {
		for _, c := range []Counted{Tokens, OutputTokens} {
			extra[c] = max(0, satAdd(res.drawn[c], r.Tokens)-res.reserved[c])
		}
	}
	_, found, _ := m.observe(ask, now)
	if !open {
		c := ConcludeConsume(here, Amounts{}, nil, true, at, found)
		c.Allowed, c.Status = false, ReservationUnknown
		if res != nil && res.until > now {
			c.Status = ReservationEnded
		}
		return c, nil
	}
	fits, pays := true, make([]bool, len(r.Scopes))
	var wants []wanted // of the scopes that have moved
	for i, s := range here.Scopes {
		// A scope that the check did not know is charged by the settlement, in full.
		if !slices.Contains(res.scopes, scopeID{s.Kind, s.Name}) {
			continue
		}
		if to := m.gone(res, place{r.Shard, s.Name}); to != nil {
			wants = append(wants, m.wants(to, r.Spread, r.Scopes[i], extra, now)...)
			continue
		}
		pays[i] = true
		fits = fits && roomFor(s, extra, found[i])
	}
	for _, w := range wants {
		fits = fits && roomFor(w.scope, w.extra, w.found)
	}
	c := ConcludeConsume(here, extra, pays, fits, at, found)
	for _, w := range wants {
		if !fits {
			c.Refuse(w.scope, w.extra, w.found)
		}
	}
	until := leaseEnd(now, r.Lease)
	for _, id := range res.scopes {
		renew := correction{scope: Scope{Kind: id.kind, Name: id.name, own: true}, drop: res.leaseUntil, take: until}
		i := slices.IndexFunc(r.Scopes, func(s Scope) bool { return id == scopeID{s.Kind, s.Name} })
		if i >= 0 {
			renew.scope = r.Scopes[i]
		}
		if fits {
			renew.amounts = extra
		}
		if !fits || extra == (Amounts{}) {
			renew.scope.lent, renew.scope.loans = nil, nil
		}
		m.correctFor(res, r.Shard, r.Spread, renew, now)
	}
	if fits {
		for _, c := range []Counted{Tokens, OutputTokens} {
			res.drawn[c] = satAdd(res.drawn[c], r.Tokens)
			res.reserved[c] = satAdd(res.reserved[c], extra[c])
		}
		if extra != (Amounts{}) {
			for i, s := range here.Scopes {
				if pays[i] {
					res.borrow(s)
				}
			}
		}
	}
	_, found, _ = m.observe(ask, now)
	c.Scopes = Conclude(ask, true, at, found).Scopes
	c.LeaseWas = time.UnixMilli(res.leaseUntil).UTC()
	res.leaseUntil, res.until, res.due = until, until+Retention.Milliseconds(), until
	c.LeaseUntil, c.CheckMeta = time.UnixMilli(res.leaseUntil).UTC(), res.checkMeta
	return c, nil
}

// wanted is what a scope that has moved is to give in one shard, and what was found there.
type wanted struct {
	scope Scope
	extra Amounts
	found Observed
}

// wants tells what a scope that has moved is to give, wherever its state lies.
func (m *Memory) wants(to *Move, sp Spread, s Scope, extra Amounts, now int64) (out []wanted) {
	for i, shard := range to.To {
		part := extra.Part(i, len(to.To))
		if on := m.moved[place{shard, s.Name}]; on != nil {
			out = append(out, m.wants(on, sp, s, part, now)...)
			continue
		}
		here := sp.Shares([]Scope{s}, shard)
		here[0].lent = nil
		_, found, _ := m.observe(CheckRequest{Shard: shard, Scopes: here}, now)
		out = append(out, wanted{here[0], part, found[0]})
	}
	return out
}

// roomFor tells whether a scope has room for what it must give.
func roomFor(s Scope, extra Amounts, found Observed) bool {
	for j, l := range s.Limits {
		if n := s.charge(j, extra); n > 0 && n > l.Capacity-found.Buckets[j].Consumed {
			return false
		}
	}
	return true
}

// Due implements Limiter.
func (m *Memory) Due(_ context.Context, r DueRequest) ([]Due, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	var keys []reservationKey
	for k, res := range m.reservations {
		if k.shard == r.Shard && res.due > 0 && res.due <= now && res.until > now {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b reservationKey) int {
		return cmp.Or(cmp.Compare(m.reservations[a].due, m.reservations[b].due), bytes.Compare(a.id[:], b.id[:]))
	})
	out := make([]Due, 0, min(len(keys), r.Most))
	for _, k := range keys[:min(len(keys), r.Most)] {
		res := m.reservations[k]
		if !res.settled {
			res.settled, res.meta, res.until = true, r.Meta, now+Retention.Milliseconds()
		}
		res.due = now + EmitGrace.Milliseconds()
		d := Due{Subject: k.subject, RequestID: k.id, Settlement: Settlement{Status: AlreadySettled, At: time.UnixMilli(now).UTC(),
			Reserved: res.reserved, CheckMeta: res.checkMeta, Meta: res.meta}}
		if res.checkedAt != 0 {
			d.CheckedAt = time.UnixMilli(res.checkedAt).UTC()
		}
		out = append(out, d)
	}
	return out, nil
}

// Transfer implements Lender.
func (m *Memory) Transfer(_ context.Context, r TransferRequest) (Transferred, error) {
	if err := r.Validate(); err != nil {
		return Transferred{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	out := Transferred{At: time.UnixMilli(now).UTC(), Amounts: make([][]int64, len(r.Scopes)), Slots: make([]bool, len(r.Scopes)), Found: make([]Observed, len(r.Scopes))}
	for i, s := range r.Scopes {
		line := r.Lines[i]
		if m.moved[place{r.Shard, s.Name}] != nil {
			out.Amounts[i], out.Found[i].Buckets = make([]int64, len(s.Limits)), make([]Bucket, len(s.Limits))
			continue
		}
		st, lag, _ := m.at(place{r.Shard, s.Name}, s.Limits, now, !r.Keep)
		out.Found[i].LagMillis, out.Amounts[i] = lag, make([]int64, len(s.Limits))
		for j, l := range s.Limits {
			b := st.buckets[idOf(l)]
			n := line.Amounts[j]
			if n > 0 && !line.Debt {
				n = max(0, min(n, l.Capacity-b.consumed))
			}
			b.add(n)
			st.buckets[idOf(l)], out.Amounts[i][j] = b, n
			out.Found[i].Buckets = append(out.Found[i].Buckets, Bucket{b.consumed, b.credit, b.fast})
		}
		if !line.Drop.IsZero() {
			st.release(line.Drop.UnixMilli(), now)
		}
		if !line.Take.IsZero() && (s.Slots == 0 || line.Debt || st.open(now) < s.Slots) {
			st.leases[line.Take.UnixMilli()]++
			out.Slots[i] = true
		}
		out.Found[i].InUse = st.open(now)
		m.keep(place{r.Shard, s.Name}, st, now)
	}
	return out, nil
}
