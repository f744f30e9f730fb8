package fallback

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// grant is what is known here of one of the store's grants.
type grant struct {
	at, leaseUntil time.Time
	reserved       limit.Amounts
	meta           string
}

// shareHint is the wait advised to a request that is larger than this instance's share, though not larger than the capacity: no wait helps
// it here, and the store may be back any moment.
const shareHint = 10 * time.Second

// Check implements limit.Limiter.
func (l *Limiter) Check(ctx context.Context, r limit.CheckRequest) (limit.Decision, error) {
	if err := r.Validate(); err != nil {
		return limit.Decision{}, err
	}
	k := l.keyOf(r.Shard, r.Earlier, r.Subject, r.RequestID)
	err := errNotAsked
	if r.DryRun || !l.here(k) {
		var d limit.Decision
		d, err = ask(ctx, l, l.o.Share, func(ctx context.Context) (limit.Decision, error) { return l.store.Check(ctx, r) })
		if isStale(err) {
			return limit.Decision{}, err
		}
		if err == nil {
			l.granted(k, r, d)
			return d, nil
		}
	}
	d, err := l.decide(ctx, k, r, err)
	if !r.DryRun {
		l.m.decided(r.Away, d.Allowed, err)
	}
	return d, err
}

// keyOf is what a request is known by here: where its payer was when it was granted, if that is known here; else where its payer is.
func (l *Limiter) keyOf(shard int, earlier []int, s subject.Subject, id uuid.UUID) key {
	k := key{shard, s, id}
	if len(earlier) == 0 {
		return k
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.knownAs(k, earlier)
}

// knownAs is keyOf. l.mu is held.
func (l *Limiter) knownAs(k key, earlier []int) key {
	for _, shard := range append([]int{k.shard}, earlier...) {
		at := key{shard, k.subject, k.id}
		if l.book.entries[at] != nil || l.granter(at) {
			return at
		}
	}
	return k
}

// here says whether a request is this instance's to answer for, whether or not the store is away.
func (l *Limiter) here(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.book.entries[k]
	return e != nil && (e.stage == held || e.stage == settled || e.stage == cancelled && e.busy)
}

// granted remembers what the store granted. Whatever was to be taken back is valid now.
func (l *Limiter) granted(k key, r limit.CheckRequest, d limit.Decision) {
	if r.DryRun {
		return
	}
	if d.Allowed && !d.Repeated {
		l.grants.Add(k, grant{d.At, d.LeaseUntil, d.Reserved, r.Meta})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.book.entries[k]; e != nil && e.stage == cancelled {
		l.book.drop(k)
	}
}

// decide decides here. failed is why the store did not: if it was asked, it may have granted the request all the same.
func (l *Limiter) decide(ctx context.Context, k key, r limit.CheckRequest, failed error) (limit.Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.book.entries[k]
	if g, known := l.grants.Get(k); !r.DryRun && (known && e == nil || e != nil && e.stage == drawn) {
		return l.repeated(ctx, r, g)
	}
	repeat := e != nil && (e.stage == held || e.stage == settled)
	if r.Away == limit.AwayClosed && !repeat {
		l.takeBack(k, r, failed)
		return limit.Decision{}, fmt.Errorf("%w, and nothing may be decided without it: %w", ErrAway, failed)
	}
	open := r.Away == limit.AwayOpen
	if repeat {
		open = e.open
	}
	here := r
	here.Shard, here.Spread, here.Scopes = together, limit.Spread{}, l.scopes(r.Scopes, open)
	if !r.DryRun && e == nil && l.book.full() {
		l.overflow(ctx, "check")
		return limit.Decision{}, ErrFull
	}
	d, err := l.asks().Check(ctx, here)
	if err != nil {
		return d, err
	}
	d.Degraded = true
	switch {
	case !d.Allowed:
		if d.Reason == limit.ReasonRequestTooLarge {
			d = beyondShare(d, r, here)
		}
		l.takeBack(k, r, failed)
	case !r.DryRun && !repeat:
		e := &entry{local: true, open: open, spread: r.Spread, scopes: r.Scopes, meta: r.Meta, at: d.At, reserved: r.Cost, drawn: r.Drawn, doubtful: doubtful(failed) || e != nil,
			next: l.o.Now().Add(cancelAfter)}
		l.book.put(k, e, held)
		l.book.dueAt(k, e, d.LeaseUntil)
	}
	return d, nil
}

// repeated answers a check whose request the store has granted before. l.mu is held.
func (l *Limiter) repeated(ctx context.Context, r limit.CheckRequest, g grant) (limit.Decision, error) {
	s, err := l.asks().Status(ctx, limit.StatusRequest{Shard: together, Scopes: l.scopes(r.Scopes, r.Away == limit.AwayOpen)})
	return limit.Decision{Allowed: true, Repeated: true, At: s.At, Reserved: g.reserved, LeaseUntil: g.leaseUntil, Scopes: s.Scopes, Degraded: true}, err
}

// takeBack has a reservation undone that the store may have made although its answer did not come.
func (l *Limiter) takeBack(k key, r limit.CheckRequest, failed error) {
	if r.DryRun || !doubtful(failed) {
		return
	}
	if e := l.book.entries[k]; e != nil && e.stage != cancelled {
		return // it was granted before
	}
	e := &entry{spread: r.Spread, scopes: r.Scopes, meta: r.Meta, next: l.o.Now().Add(cancelAfter)}
	if !l.book.put(k, e, cancelled) {
		l.overflow(context.Background(), "check") // its lease ends it
	}
}

// beyondShare words the refusal of a request that fits the capacity, but not this instance's share of it.
func beyondShare(d limit.Decision, r, here limit.CheckRequest) limit.Decision {
	reason, scope := "", limit.ScopeKind("")
	for i, s := range r.Scopes {
		for j, lim := range s.Limits {
			cost := r.Cost[lim.Counted]
			if cost > lim.Capacity {
				return d
			}
			if reason == "" && cost > here.Scopes[i].Limits[j].Capacity {
				reason, scope = lim.Name(), s.Kind
			}
		}
	}
	d.Reason, d.Scope, d.RetryAfter = reason, scope, shareHint
	return d
}

// together is the one shard of all that is decided here: a payer that is spread over many in the store, or moves to another, is one here.
const together = 0

// scopes gives this instance's share of every scope or, if open, the same scopes without limits.
func (l *Limiter) scopes(sold []limit.Scope, open bool) []limit.Scope {
	n := max(1, l.live.Load())
	out := make([]limit.Scope, len(sold))
	for i, s := range sold {
		out[i] = limit.Scope{Kind: s.Kind, Name: s.Name}
		if open {
			continue
		}
		if s.Slots > 0 {
			out[i].Slots = max(1, s.Slots/n)
		}
		out[i].Limits = make([]limit.Limit, len(s.Limits))
		for j, lim := range s.Limits {
			lim.Capacity = max(1, lim.Capacity/n)
			out[i].Limits[j] = lim
		}
	}
	return out
}

// asks gives the memory and notes that it is in use. l.mu is held.
func (l *Limiter) asks() *limit.Memory {
	l.used = l.o.Now()
	return l.memory
}

// Status implements limit.Limiter.
func (l *Limiter) Status(ctx context.Context, r limit.StatusRequest) (limit.Status, error) {
	if err := (limit.CheckRequest{Scopes: r.Scopes}).Validate(); err != nil {
		return limit.Status{}, err
	}
	s, err := ask(ctx, l, l.o.Share, func(ctx context.Context) (limit.Status, error) { return l.store.Status(ctx, r) })
	if err == nil || isStale(err) {
		return s, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err = l.asks().Status(ctx, limit.StatusRequest{Shard: together, Scopes: l.scopes(r.Scopes, false)})
	s.Degraded = true
	return s, err
}
