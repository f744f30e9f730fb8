package fallback

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// sweepTime is how long a look for ended reservations may wait for the store.
const sweepTime = 2 * time.Second

// sweeps says whether the store's own ended reservations are looked for. Just after an outage they are not: what this instance or another
// still has to tell may be that they were used.
func (l *Limiter) sweeps() bool {
	return !l.away() && l.o.Now().Sub(time.UnixMilli(l.back.Load())) >= sweepAfter
}

// DueShards gives the shards in which Due may find something.
func (l *Limiter) DueShards(ctx context.Context) ([]int, error) {
	l.mu.Lock()
	l.book.sortDue(l.o.Now())
	here := slices.Collect(maps.Keys(l.book.ready))
	l.mu.Unlock()
	if !l.sweeps() {
		return here, nil
	}
	shards, err := ask(ctx, l, sweepTime, l.store.DueShards)
	if err != nil && len(here) > 0 {
		return here, nil // these don't need it
	}
	shards = append(shards, here...)
	slices.Sort(shards)
	return slices.Compact(shards), err
}

// Due implements limit.Limiter.
func (l *Limiter) Due(ctx context.Context, r limit.DueRequest) ([]limit.Due, error) {
	out := l.dueHere(ctx, r)
	if len(out) >= r.Most || !l.sweeps() {
		return out, nil
	}
	rest := r
	rest.Most -= len(out)
	more, err := ask(ctx, l, sweepTime, func(ctx context.Context) ([]limit.Due, error) { return l.store.Due(ctx, rest) })
	if err != nil && len(out) > 0 {
		return out, nil // the store offers its own again
	}
	return append(out, more...), err
}

// dueHere gives what was granted or settled here: reservations whose lease has ended, and settlements whose event is not durable yet.
func (l *Limiter) dueHere(ctx context.Context, r limit.DueRequest) []limit.Due {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.o.Now()
	l.book.sortDue(now)
	var out []limit.Due
	keys := l.book.ready[r.Shard]
	for len(keys) > 0 && len(out) < r.Most {
		k := keys[0]
		keys = keys[1:]
		e := l.book.entries[k]
		if e == nil || e.due.IsZero() || e.due.After(now) {
			continue
		}
		if e.stage == held {
			l.expire(ctx, k, e, r.Meta)
		}
		l.book.dueAt(k, e, now.Add(limit.EmitGrace))
		d := limit.Due{Subject: k.subject, RequestID: k.id, Settlement: e.settlement}
		d.Status, d.At = limit.AlreadySettled, now.UTC()
		out = append(out, d)
	}
	if len(keys) == 0 {
		delete(l.book.ready, r.Shard)
	} else {
		l.book.ready[r.Shard] = keys
	}
	return out
}

// expire ends a reservation that was made here by what it holds. l.mu is held.
func (l *Limiter) expire(ctx context.Context, k key, e *entry, meta string) {
	e.settle = limit.SettleRequest{Shard: k.shard, Subject: k.subject, RequestID: k.id, Spread: e.spread, Scopes: e.scopes,
		Actual: e.reserved, Meta: meta}
	here := e.settle
	here.Shard, here.Spread, here.Scopes = together, limit.Spread{}, l.scopes(e.scopes, e.open)
	e.settlement, _ = l.asks().Settle(ctx, here) // Memory can't fail
	e.settlement.Degraded = true
	e.ended, e.next = l.o.Now(), time.Time{}
	l.book.put(k, e, settled)
}
