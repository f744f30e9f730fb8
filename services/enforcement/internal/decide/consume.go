package decide

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Reasons for which a stream may not go on, beside those of a check.
const (
	ReasonReservationEnded   = "reservation_ended"   // settled, or its lease ran out
	ReasonReservationUnknown = "reservation_unknown" // never granted, or forgotten
)

// Draw is what a stream has produced since its last one, already validated.
type Draw struct {
	Subject   subject.Subject
	RequestID uuid.UUID
	Tokens    int64 // 0 only renews the lease
}

// Drawn says whether the stream may go on.
type Drawn struct {
	Allowed    bool
	Reason     string
	RetryAfter time.Duration
	Rooms      []Room
	LeaseUntil time.Time     // zero if there is no open reservation
	Lease      time.Duration // until then, by the clock that keeps the slot
	Degraded   bool          // drawn without Redis
}

// Consume draws from a reservation, and from the buckets once it is used up. It takes no longer than a check may.
func (e *Engine) Consume(ctx context.Context, r Draw) (Drawn, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.o.Budget)
	defer cancel()
	var c limit.Consumption
	p, err := e.fresh(ctx, r.Subject, func(p tier.Plan) (err error) {
		tokens := r.Tokens
		if p.Suspended() {
			tokens = 0 // nothing more is sold; the slot stays until the stream is recorded
		}
		home, sp := spreadOf(p, r.RequestID)
		c, err = e.limiter.Consume(ctx, limit.ConsumeRequest{Shard: home, Earlier: earlier(p, r.RequestID), Spread: sp, Subject: r.Subject,
			RequestID: r.RequestID, Scopes: allScopes(p), Tokens: tokens, Lease: e.o.Lease, Fences: fences(p)}) // those that the check reserved in pay
		return err
	})
	if err != nil {
		return Drawn{}, fmt.Errorf("consume for %s of %s: %w", r.RequestID, r.Subject, err)
	}
	d := Drawn{Allowed: c.Allowed, Reason: c.Reason, RetryAfter: c.RetryAfter, Rooms: Rooms(plain(c.Scopes)), LeaseUntil: c.LeaseUntil,
		Lease: max(c.LeaseUntil.Sub(c.At), 0), Degraded: c.Degraded}
	switch {
	case c.Status == limit.ReservationEnded:
		d.Reason = ReasonReservationEnded
	case c.Status == limit.ReservationUnknown:
		d.Reason = ReasonReservationUnknown
	case p.Suspended():
		d.Allowed, d.Reason = false, ReasonSuspended
	}
	return d, nil
}

// plain leaves out the groups of models: which of them the stream's model is in, isn't known here.
func plain(scopes []limit.ScopeState) []limit.ScopeState {
	return slices.DeleteFunc(slices.Clone(scopes), func(s limit.ScopeState) bool { return s.Kind == limit.ScopeModel })
}
