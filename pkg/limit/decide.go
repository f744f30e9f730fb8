package limit

import (
	"fmt"
	"time"
)

// Bucket is one limit's state as a store keeps it; for implementations of Limiter outside this package.
type Bucket struct{ Consumed, Credit, Fast int64 }

// Observed is what a store found in one scope at the time of a decision: the state of each of the scope's limits, drained to that
// time, and the open reservations. For a granted request it is the state after it was charged.
//
// LagMillis is how far the scope's last operation lies ahead of the clock: nothing drains until a clock that ran backwards has caught up.
type Observed struct {
	Buckets   []Bucket
	InUse     int64
	LagMillis int64
}

// Conclude turns what a store found into the answer: what is left in every scope and, for a refusal, the reason, the scope and the
// exact wait. Every implementation of Limiter ends its checks with it, so that they differ in storage only.
//
// Of several failing limits the one with the longest wait is named; of equal waits the first in the order of the scopes. A cost above
// a capacity comes before all others, for no wait helps it.
func Conclude(r CheckRequest, allowed bool, at time.Time, found []Observed) Decision {
	d := Decision{Allowed: allowed, At: at, Scopes: make([]ScopeState, len(r.Scopes))}
	tooLarge := false
	for i, s := range r.Scopes {
		state := ScopeState{Kind: s.Kind, Name: s.Name, Slots: s.Slots, InUse: found[i].InUse, Limits: make([]LimitState, len(s.Limits))}
		for j, l := range s.Limits {
			f, window := found[i].Buckets[j], l.Window.Milliseconds()
			b := bucket{consumed: f.Consumed, credit: f.Credit, capacity: l.Capacity, fast: f.Fast}
			if b.consumed <= b.capacity {
				b.fast = 0 // over, which the next drain would find
			}
			state.Limits[j] = LimitState{Limit: l, Remaining: max(0, l.Capacity-b.consumed), bucket: b,
				ResetAt: after(at, lagged(b.wait(window, 0), found[i].LagMillis))}
			if allowed || tooLarge {
				continue
			}
			cost := s.charge(j, r.Cost)
			if cost > l.Capacity {
				tooLarge = true
				d.Reason, d.Scope, d.RetryAfter = ReasonRequestTooLarge, s.Kind, 0
				continue
			}
			if b.consumed+cost > l.Capacity {
				if w := millis(lagged(b.wait(window, l.Capacity-cost), found[i].LagMillis)); w > d.RetryAfter {
					d.Reason, d.Scope, d.RetryAfter = l.Name(), s.Kind, w
				}
			}
		}
		if !allowed && !tooLarge && s.Slots > 0 && !s.slotLent && state.InUse >= s.Slots && SlotHint > d.RetryAfter {
			d.Reason, d.Scope, d.RetryAfter = ReasonConcurrent, s.Kind, SlotHint
		}
		d.Scopes[i] = state
	}
	return d
}

// lagged adds a lag to a wait; who needn't wait needn't wait for the clock either.
func lagged(ms, lag int64) int64 {
	if ms == 0 {
		return 0
	}
	return satAdd(ms, lag)
}

// maxMillis keeps a wait inside time.Duration: 292 years.
const maxMillis = int64(1<<63-1) / int64(time.Millisecond)

func millis(ms int64) time.Duration { return time.Duration(min(ms, maxMillis)) * time.Millisecond }

func after(at time.Time, ms int64) time.Time { return at.Add(millis(ms)) }

// Validate tells what is wrong with a request's scopes, cost or lease. It guards against faults in code and configuration: input from
// outside was checked before.
func (r CheckRequest) Validate() error {
	if err := validateScopes(r.Scopes); err != nil {
		return err
	}
	if r.Lease < 0 || r.Lease > MaxWindow {
		return fmt.Errorf("lease must be from 0 to %s, is %s", MaxWindow, r.Lease)
	}
	if err := validateAmounts(r.Cost); err != nil {
		return err
	}
	for c, n := range r.Drawn {
		if n < 0 || n > r.Cost[c] {
			return fmt.Errorf("%s drawn must be from 0 to the cost of %d, is %d", longNames[c], r.Cost[c], n)
		}
	}
	return nil
}

// Validate tells what is wrong with a consume's scopes, tokens or lease.
func (r ConsumeRequest) Validate() error {
	return CheckRequest{Scopes: r.Scopes, Lease: r.Lease, Cost: Amounts{Tokens: r.Tokens}}.Validate()
}

// ConcludeConsume is Conclude for a consume that needed extra amounts from the buckets of the scopes that pay for it (nil: none does).
func ConcludeConsume(r ConsumeRequest, extra Amounts, pays []bool, allowed bool, at time.Time, found []Observed) Consumption {
	c := Consumption{Status: ReservationOpen, Allowed: allowed, At: at, extra: extra,
		Scopes: Conclude(CheckRequest{Scopes: r.Scopes}, true, at, found).Scopes}
	if !allowed {
		for i, s := range r.Scopes {
			if pays[i] {
				c.Refuse(s, extra, found[i])
			}
		}
	}
	return c
}

// Refuse notes why a scope that was to pay extra amounts, and was found in this state, had no room for them, if it had none. The longest wait
// is told, and a cost that no wait helps before all others.
func (c *Consumption) Refuse(s Scope, extra Amounts, found Observed) {
	found, s = wanting(found, s, extra)
	s.Slots = 0 // it holds its slot already
	d := Conclude(CheckRequest{Scopes: []Scope{s}, Cost: extra}, false, c.At, []Observed{found})
	if c.Reason != ReasonRequestTooLarge && (d.Reason == ReasonRequestTooLarge || d.RetryAfter > c.RetryAfter) {
		c.Reason, c.Scope, c.RetryAfter = d.Reason, d.Scope, d.RetryAfter
	}
}

// wanting leaves the limits that must give something: what the reservation pays for waits for no debt.
func wanting(o Observed, s Scope, extra Amounts) (Observed, Scope) {
	out, state := s, Observed{InUse: o.InUse, LagMillis: o.LagMillis}
	out.Limits, out.lent = nil, nil
	for j, l := range s.Limits {
		if s.charge(j, extra) <= 0 {
			continue
		}
		out.Limits, state.Buckets = append(out.Limits, l), append(state.Buckets, o.Buckets[j])
		if s.lent != nil {
			out.lent = append(out.lent, s.lent[j])
		}
	}
	return state, out
}

// Validate tells what is wrong with a settlement's scopes or amounts.
func (r SettleRequest) Validate() error {
	if err := validateScopes(r.Scopes); err != nil {
		return err
	}
	if r.Age < 0 {
		return fmt.Errorf("age must not be negative, is %s", r.Age)
	}
	return validateAmounts(r.Actual)
}

func validateAmounts(a Amounts) error {
	for c, n := range a {
		if n < 0 || n > MaxAmount {
			return fmt.Errorf("%s must be from 0 to %d, is %d", longNames[c], MaxAmount, n)
		}
	}
	return nil
}

func validateScopes(scopes []Scope) error {
	for _, s := range scopes {
		if s.Slots < 0 || s.Slots > MaxAmount {
			return fmt.Errorf("scope %s: slots must be from 0 to %d, is %d", s.Name, MaxAmount, s.Slots)
		}
		for i, l := range s.Limits {
			ms := l.Window.Milliseconds()
			switch {
			case l.Counted < 0 || l.Counted >= countedKinds:
				return fmt.Errorf("scope %s: limit %d counts %d, which is nothing known", s.Name, i, l.Counted)
			case l.Capacity < 1 || l.Capacity > MaxAmount:
				return fmt.Errorf("scope %s: %s: capacity must be from 1 to %d, is %d", s.Name, l.Name(), MaxAmount, l.Capacity)
			case ms < 1 || l.Window > MaxWindow || l.Window != time.Duration(ms)*time.Millisecond:
				return fmt.Errorf("scope %s: %s: window must be whole milliseconds up to %s, is %s", s.Name, l.Name(), MaxWindow, l.Window)
			}
			for _, other := range s.Limits[:i] {
				if other.Counted == l.Counted && other.Window == l.Window {
					return fmt.Errorf("scope %s: %s is given twice", s.Name, l.Name())
				}
			}
		}
	}
	return nil
}
