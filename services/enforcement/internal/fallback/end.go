package fallback

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Settle implements limit.Limiter.
func (l *Limiter) Settle(ctx context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	if err := r.Validate(); err != nil {
		return limit.Settlement{}, err
	}
	k := l.keyOf(r.Shard, r.Earlier, r.Subject, r.RequestID)
	if l.here(k) {
		return l.settleHere(ctx, k, r)
	}
	strange := !l.granter(k) && !l.alone()
	first := r
	first.Known = r.Known || strange // another instance may have granted it without the store
	s, err := l.settleInStore(ctx, first)
	if strange && !isStale(err) && (err != nil || s.Status == limit.Unknown) {
		if !l.room(ctx, k) {
			return limit.Settlement{}, ErrFull // before another instance gives it up
		}
		switch a := l.others(ctx, askTime, Question{Shard: r.Shard, Earlier: r.Earlier, Subject: r.Subject, RequestID: r.RequestID, Ended: true, Actual: r.Actual}); {
		case a.Held != nil:
			return l.adopt(ctx, k, r, *a.Held)
		case a.Granted != nil && err != nil:
			l.grants.Add(k, grant{a.Granted.At, a.Granted.LeaseUntil, a.Granted.Reserved, a.Granted.Meta})
		case err == nil && !r.Known:
			s, err = l.settleInStore(ctx, r)
		}
	}
	switch {
	case isStale(err):
		return s, err
	case err == nil:
		l.mu.Lock()
		l.book.drop(k) // drawn or cancelled: it has ended
		l.mu.Unlock()
		return s, nil
	}
	return l.settleHere(ctx, k, r)
}

// room says whether a record can be kept for the store.
func (l *Limiter) room(ctx context.Context, k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.book.entries[k] != nil || !l.book.full() {
		return true
	}
	l.overflow(ctx, "record")
	return false
}

func (l *Limiter) settleInStore(ctx context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	return ask(ctx, l, l.endTime(), func(ctx context.Context) (limit.Settlement, error) { return l.store.Settle(ctx, r) })
}

// granter says whether it was this instance that the store granted a request to.
func (l *Limiter) granter(k key) bool {
	_, known := l.grants.Peek(k)
	return known
}

func (l *Limiter) settleHere(ctx context.Context, k key, r limit.SettleRequest) (limit.Settlement, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.book.entries[k]
	if e != nil && (e.stage == settled || e.stage == noted) {
		return l.endedHere(k, e), nil
	}
	if _, known := l.grants.Peek(k); r.Known && !known && (e == nil || e.stage == cancelled) {
		return limit.Settlement{Status: limit.Unknown, At: l.o.Now().UTC(), Degraded: true}, nil
	}
	r.Known = false
	if e == nil {
		if l.book.full() {
			l.overflow(ctx, "record")
			return limit.Settlement{}, ErrFull
		}
		e = &entry{scopes: r.Scopes}
	}
	here := r
	here.Earlier = nil
	here.Shard, here.Spread, here.Scopes = together, limit.Spread{}, l.scopes(r.Scopes, e.open)
	s, err := l.asks().Settle(ctx, here)
	if err != nil {
		return s, err
	}
	s.Degraded, s.Shard, s.Charged = true, k.shard, nil
	if s.Status == limit.AlreadySettled {
		return s, nil // the store was told, and its event is durable
	}
	if g, known := l.grants.Get(k); known && s.Status == limit.Unknown {
		s.Status, s.CheckedAt, s.Reserved, s.CheckMeta = limit.Settled, g.at, g.reserved, g.meta
	}
	e.settle, e.settlement, e.ended, e.next = r, s, l.o.Now(), time.Time{}
	l.book.put(k, e, settled)
	l.book.dueAt(k, e, l.o.Now().Add(limit.EmitGrace))
	l.wake()
	return s, nil
}

// MarkEmitted implements limit.Limiter.
func (l *Limiter) MarkEmitted(ctx context.Context, shard int, s subject.Subject, requestID uuid.UUID) error {
	k := key{shard, s, requestID}
	if l.markHere(k) {
		return nil
	}
	_, err := ask(ctx, l, l.endTime(), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.store.MarkEmitted(ctx, shard, s, requestID)
	})
	l.grants.Remove(k)
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.book.put(k, &entry{}, noted) {
		l.overflow(ctx, "mark")
		return err // the event is sent once more, by whoever finds it due
	}
	return nil
}

// markHere notes that an event is durable, if the settlement is this instance's to tell the store of.
func (l *Limiter) markHere(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.book.entries[k]
	if e == nil || e.stage != settled {
		return false
	}
	e.emitted, e.due = true, time.Time{}
	l.grants.Remove(k)
	_ = l.asks().MarkEmitted(context.Background(), together, k.subject, k.id) // Memory can't fail
	l.book.enqueue(k, e)
	l.wake()
	return true
}

// Consume implements limit.Limiter.
func (l *Limiter) Consume(ctx context.Context, r limit.ConsumeRequest) (limit.Consumption, error) {
	if err := r.Validate(); err != nil {
		return limit.Consumption{}, err
	}
	k := l.keyOf(r.Shard, r.Earlier, r.Subject, r.RequestID)
	if !l.here(k) {
		c, err := ask(ctx, l, l.o.Share, func(ctx context.Context) (limit.Consumption, error) { return l.store.Consume(ctx, r) })
		if isStale(err) {
			return c, err
		}
		if (err != nil || c.Status == limit.ReservationUnknown) && !l.drawing(k) {
			q := Question{Shard: r.Shard, Earlier: r.Earlier, Subject: r.Subject, RequestID: r.RequestID, Tokens: r.Tokens, Lease: r.Lease}
			if a := l.others(ctx, l.o.Share/2, q); a.Consumption != nil {
				return l.drawnThere(ctx, r, *a.Consumption)
			}
		}
		if err == nil {
			return c, nil
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.book.entries[k]
	if e != nil && e.stage != drawn {
		return l.consumeHere(ctx, k, e, r)
	}
	g, granted := l.grants.Peek(k)
	if r.Known && e == nil && !granted {
		return limit.Consumption{Status: limit.ReservationUnknown, At: l.o.Now().UTC()}, nil
	}
	c, err := l.goOn(ctx, k, e, r)
	c.CheckMeta = g.meta
	return c, err
}

// consumeHere draws from a reservation that was made here, or tells that there is none. l.mu is held.
func (l *Limiter) consumeHere(ctx context.Context, k key, e *entry, r limit.ConsumeRequest) (limit.Consumption, error) {
	r.Shard, r.Spread, r.Scopes = together, limit.Spread{}, l.scopes(r.Scopes, e.open)
	c, err := l.asks().Consume(ctx, r)
	c.Degraded = true
	if err != nil || c.Status != limit.ReservationOpen {
		return c, err
	}
	if c.Allowed {
		for _, counted := range []limit.Counted{limit.Tokens, limit.OutputTokens} {
			e.drawn[counted] = min(e.drawn[counted]+r.Tokens, limit.MaxAmount)
			e.reserved[counted] = max(e.reserved[counted], e.drawn[counted])
		}
	}
	l.book.dueAt(k, e, c.LeaseUntil)
	return c, nil
}

// drawing says whether it is known here that a stream is the store's.
func (l *Limiter) drawing(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.entries[k] != nil || l.granter(k)
}

// drawnThere answers a consume that another instance has made. What is left is told of this one's share.
func (l *Limiter) drawnThere(ctx context.Context, r limit.ConsumeRequest, c limit.Consumption) (limit.Consumption, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.asks().Status(ctx, limit.StatusRequest{Shard: together, Scopes: l.scopes(r.Scopes, false)})
	c.Scopes, c.Degraded = s.Scopes, true
	return c, err
}

// goOn lets a stream of the store's go on: what it has left there can't be known, and its record settles what it drew. The lease is renewed
// in the store as soon as that is back. l.mu is held.
func (l *Limiter) goOn(ctx context.Context, k key, e *entry, r limit.ConsumeRequest) (limit.Consumption, error) {
	if e == nil {
		e = &entry{}
	}
	if !l.book.put(k, e, drawn) {
		l.overflow(ctx, "consume")
		return limit.Consumption{}, ErrFull
	}
	e.spread, e.scopes, e.lease, e.earlier = r.Spread, r.Scopes, r.Lease, r.Earlier
	e.tokens = min(e.tokens+r.Tokens, limit.MaxAmount)
	lease := r.Lease
	if lease == 0 {
		lease = limit.DefaultLease
	}
	s, err := l.asks().Status(ctx, limit.StatusRequest{Shard: together, Scopes: l.scopes(r.Scopes, false)})
	return limit.Consumption{Status: limit.ReservationOpen, Allowed: true, At: s.At, LeaseUntil: s.At.Add(lease), Scopes: s.Scopes, Degraded: true}, err
}

// carryTime is how long a move may take: nobody waits for it but who reads a quota anew, and hundreds of moves of hundreds of scopes are made as one.
const carryTime = 2 * time.Second

// Carry implements limit.Carrier. While the store is away nothing is asked there that could find too little. The caller asks again when the
// store is back: then what it has cached is dropped, for its subscription to changes broke.
func (l *Limiter) Carry(ctx context.Context, r limit.CarryRequest) error {
	if l.away() {
		return nil
	}
	_, err := ask(ctx, l, carryTime, func(ctx context.Context) (struct{}, error) { return struct{}{}, l.store.Carry(ctx, r) })
	return err
}

// Carried implements limit.Carrier. While the store is away no move is known to have been made; Carry makes none then.
func (l *Limiter) Carried(ctx context.Context, rs []limit.CarryRequest) ([]bool, error) {
	if l.away() {
		return make([]bool, len(rs)), nil
	}
	return ask(ctx, l, l.endTime(), func(ctx context.Context) ([]bool, error) { return l.store.Carried(ctx, rs) })
}

// Cancel implements limit.Limiter. While the store is away the answer is true if it may have been asked for the reservation: that is then
// taken back when it returns.
func (l *Limiter) Cancel(ctx context.Context, r limit.CancelRequest) (bool, error) {
	if err := (limit.CheckRequest{Scopes: r.Scopes}).Validate(); err != nil {
		return false, err
	}
	k := l.keyOf(r.Shard, r.Earlier, r.Subject, r.RequestID)
	if !l.here(k) {
		done, err := ask(ctx, l, l.endTime(), func(ctx context.Context) (bool, error) { return l.store.Cancel(ctx, r) })
		if !done && !l.granter(k) { // it may be another instance's
			q := Question{Shard: r.Shard, Earlier: r.Earlier, Subject: r.Subject, RequestID: r.RequestID, Ended: true}
			if a := l.others(ctx, askTime, q); a.Held != nil {
				return a.Held.Status == limit.Settled, nil
			}
		}
		if err == nil {
			l.grants.Remove(k)
			return done, nil
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.book.entries[k]
	if e != nil && (e.stage == settled || e.stage == noted) {
		return false, nil
	}
	if e != nil && e.stage == held {
		here := r
		here.Shard, here.Spread, here.Scopes = together, limit.Spread{}, l.scopes(r.Scopes, e.open)
		done, err := l.asks().Cancel(ctx, here)
		if done && !e.doubtful {
			l.book.drop(k)
		}
		if !done || err != nil || !e.doubtful {
			return done, err
		}
	}
	if !l.book.put(k, &entry{spread: r.Spread, scopes: r.Scopes, earlier: r.Earlier, meta: r.Meta}, cancelled) {
		l.overflow(ctx, "cancel")
		return false, ErrFull
	}
	l.grants.Remove(k)
	l.wake()
	return true, nil
}

// overflow counts and logs that there is no room for another request. l.mu is held.
func (l *Limiter) overflow(ctx context.Context, call string) {
	l.m.overflows.Inc()
	l.o.Log.ErrorContext(ctx, "too much waits for the limiter's store: calls are refused until it is back", "call", call,
		"kept", len(l.book.entries), "most", l.book.most)
}
