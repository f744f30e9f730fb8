package decide

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// ErrFuture says that an adjustment is of a period that has not come.
var ErrFuture = errors.New("the timestamp lies in the future")

// clockSkew is how far a caller's clock may be ahead.
const clockSkew = time.Minute

// Adjustment corrects an event by the difference of its tokens, already validated.
type Adjustment struct {
	ID                    uuid.UUID // the adjustment's own: a repeat has the same
	Corrects              uuid.UUID // event id
	Subject               subject.Subject
	OrgID, Tier           *string // nil: the subject's now
	Model                 string
	Input, Output, Cached int64
	At                    time.Time // zero: now
}

// Adjust makes the event of a correction durable and gives its id, which a repeat has, too. It changes no bucket: what was decided by the wrong
// figure has been decided. The caller hanging up stops nothing.
func (e *Engine) Adjust(ctx context.Context, a Adjustment) (uuid.UUID, error) {
	ctx = context.WithoutCancel(ctx)
	id := usage.EventID(a.Subject, a.ID, usage.KindAdjustment)
	now := e.o.Now()
	if a.At.IsZero() {
		a.At = now
	}
	if a.At.After(now.Add(clockSkew)) {
		return id, fmt.Errorf("adjust %s: %w", a.Corrects, ErrFuture)
	}
	p, err := e.plan(ctx, a.Subject)
	if err != nil {
		return id, fmt.Errorf("adjust %s: %w: quota: %w", a.Corrects, ErrUnavailable, err)
	}
	rec := usage.Record{EventID: id, SchemaVersion: usage.SchemaVersion, OrgID: p.OrgID, Tier: p.Base().Tier, RequestID: a.ID, RequestedModel: a.Model,
		Model: a.Model, InputTokens: a.Input, OutputTokens: a.Output, CachedInputTokens: a.Cached, Timestamp: usage.At(a.At), Outcome: usage.Adjustment,
		Reservation: usage.Missing, Region: e.o.Region, Instance: e.o.Instance, CorrectsEventID: a.Corrects}
	if a.OrgID != nil {
		rec.OrgID = *a.OrgID
	}
	if a.Tier != nil {
		rec.Tier = *a.Tier
	}
	setSubject(&rec, a.Subject, ownerOf(p))
	switch err := e.events.Usage(ctx, rec); {
	case errors.Is(err, ErrUnsendable):
		return id, fmt.Errorf("adjust %s: %w", a.Corrects, err)
	case err != nil:
		return id, fmt.Errorf("adjust %s: %w: events: %w", a.Corrects, ErrUnavailable, err)
	}
	return id, nil
}

// plan is the subject's, within the time that settling may take.
func (e *Engine) plan(ctx context.Context, s subject.Subject) (tier.Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Settle)
	defer cancel()
	return e.quotas.Get(ctx, s)
}
