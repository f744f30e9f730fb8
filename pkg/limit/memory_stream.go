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
		for _, l := range s.Limits {
			if pays[i] && extra[l.Counted] > l.Capacity-work[i].buckets[idOf(l)].consumed {
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
				b.add(extra[l.Counted])
				work[i].buckets[idOf(l)] = b
				found[i].Buckets[j] = Bucket{b.consumed, b.credit, b.fast}
			}
		}
		work[i].release(res.leaseUntil, now)
		work[i].leases[until]++
		found[i].InUse = work[i].open(now)
		m.keep(place{r.Shard, s.Name}, work[i], now)
	}
	if fits {
		for _, c := range []Counted{Tokens, OutputTokens} {
			res.drawn[c] = satAdd(res.drawn[c], r.Tokens)
			res.reserved[c] = satAdd(res.reserved[c], extra[c])
		}
	}
	res.leaseUntil, res.until, res.due = until, until+Retention.Milliseconds(), until
	c := ConcludeConsume(r, extra, pays, fits, at, found)
	c.LeaseUntil = time.UnixMilli(res.leaseUntil).UTC()
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
