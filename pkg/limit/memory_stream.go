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
	if err := m.stale(r.Fences); err != nil {
		return Consumption{}, err
	}
	now := m.now().UnixMilli()
	key, at := reservationKey{r.Shard, r.Subject, r.RequestID}, time.UnixMilli(now).UTC()
	res := m.reservations[key]
	open := res != nil && res.until > now && !res.settled
	ask := CheckRequest{Shard: r.Shard, Scopes: r.Scopes}
	var extra Amounts
	if open {
		for _, c := range []Counted{Tokens, OutputTokens} {
			extra[c] = max(0, satAdd(res.drawn[c], r.Tokens)-res.reserved[c])
		}
	}
	work, found, _ := m.observe(ask, now)
	if !open {
		c := ConcludeConsume(r, Amounts{}, nil, true, at, found)
		c.Allowed, c.Status = false, ReservationUnknown
		if res != nil && res.until > now {
			c.Status = ReservationEnded
		}
		return c, nil
	}
	fits, pays := true, make([]bool, len(r.Scopes))
	for i, s := range r.Scopes {
		// A scope that the check did not know is charged by the settlement, in full.
		pays[i] = slices.Contains(res.scopes, scopeID{s.Kind, s.Name})
		for j, l := range s.Limits {
			if n := s.charge(j, extra); pays[i] && n > 0 && n > l.Capacity-work[i].buckets[idOf(l)].consumed {
				fits = false
			}
		}
	}
	until := leaseEnd(now, r.Lease)
	for i, s := range r.Scopes {
		if !pays[i] {
			continue
		}
		if fits && extra != (Amounts{}) {
			for j, l := range s.Limits {
				b := work[i].buckets[idOf(l)]
				b.add(s.charge(j, extra))
				work[i].buckets[idOf(l)] = b
				found[i].Buckets[j] = Bucket{b.consumed, b.credit, b.fast}
			}
		}
		if !res.lent[scopeID{s.Kind, s.Name}] {
			work[i].release(res.leaseUntil, now)
			work[i].leases[until]++
			found[i].InUse = work[i].open(now)
		}
		m.keep(place{r.Shard, s.Name}, work[i], now)
	}
	if fits {
		for _, c := range []Counted{Tokens, OutputTokens} {
			res.drawn[c] = satAdd(res.drawn[c], r.Tokens)
			res.reserved[c] = satAdd(res.reserved[c], extra[c])
		}
	}
	was := time.UnixMilli(res.leaseUntil).UTC()
	res.leaseUntil, res.until, res.due = until, until+Retention.Milliseconds(), until
	c := ConcludeConsume(r, extra, pays, fits, at, found)
	c.LeaseUntil, c.LeaseWas, c.CheckMeta = time.UnixMilli(res.leaseUntil).UTC(), was, res.checkMeta
	return c, nil
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
		st, lag, _ := m.at(place{r.Shard, s.Name}, s.Limits, now, true)
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
