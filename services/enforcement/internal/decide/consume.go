package decide

import (
	"context"
	"fmt"
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
	LeaseUntil time.Time // zero if there is no open reservation
}

// Consume draws from a reservation, and from the buckets once it is used up. It takes no longer than a check may.
func (e *Engine) Consume(ctx context.Context, r Draw) (Drawn, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.o.Budget)
	defer cancel()
	var c limit.Consumption
	q, err := e.fresh(ctx, r.Subject, func(q tier.Quota) (err error) {
		tokens := r.Tokens
		if q.Suspended {
			tokens = 0 // nothing more is sold; the slot stays until the stream is recorded
		}
		c, err = e.limiter.Consume(ctx, limit.ConsumeRequest{Shard: subject.Shard(q.OrgID, r.Subject), Subject: r.Subject, RequestID: r.RequestID,
			Scopes: Scopes(r.Subject, q), Tokens: tokens, Lease: e.o.Lease, Fences: fences(r.Subject, q)})
		return err
	})
	if err != nil {
		return Drawn{}, fmt.Errorf("consume for %s of %s: %w", r.RequestID, r.Subject, err)
	}
	d := Drawn{Allowed: c.Allowed, Reason: c.Reason, RetryAfter: c.RetryAfter, Rooms: Rooms(c.Scopes), LeaseUntil: c.LeaseUntil}
	switch {
	case c.Status == limit.ReservationEnded:
		d.Reason = ReasonReservationEnded
	case c.Status == limit.ReservationUnknown:
		d.Reason = ReasonReservationUnknown
	case q.Suspended:
		d.Allowed, d.Reason = false, ReasonSuspended
	}
	return d, nil
}
