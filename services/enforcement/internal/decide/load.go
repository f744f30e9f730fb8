package decide

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// Load knows how loaded the inference servers are. It answers at once.
type Load interface {
	// Level is a model's, from 0 to 1, by which package shed decides.
	Level(model string) float64
}

// underLoad says whether a request is shed, and sets which model is served. Where the load would shed it or replace its model, it is looked
// for first: what was granted before keeps its answer, and a slot that is held is never told to be shed. (Of a repeat that comes when the load has
// gone only the model may be another: the one that was asked for.)
func (e *Engine) underLoad(ctx context.Context, p tier.Plan, r *Request) (bool, error) {
	r.served = "" // the plan that was asked first may have been another
	if e.o.Load == nil {
		return false, nil
	}
	v := e.o.Fallback.Decide(shed.Request{ID: r.RequestID, Model: r.Model, Priority: p.Base().Priority, Allows: p.Allows}, e.o.Load.Level)
	if !v.Shed && v.Model == r.Model {
		return false, nil
	}
	if !r.Fresh && !r.DryRun {
		c, err := e.renew(ctx, p, *r)
		if err != nil {
			return false, err
		}
		switch c.Status {
		case limit.ReservationOpen:
			var m checkMeta
			if c.CheckMeta != "" {
				if err := json.Unmarshal([]byte(c.CheckMeta), &m); err != nil {
					return false, fmt.Errorf("what the check kept: %w", err)
				}
			}
			r.served = m.Served
			return false, nil
		case limit.ReservationEnded:
			return false, nil
		}
	}
	if v.Model != r.Model {
		r.served = v.Model
	}
	return v.Shed, nil
}

// renew looks for a request that was granted before. It draws nothing; the lease of an open one begins anew, as the check's repeat is a sign
// of life.
func (e *Engine) renew(ctx context.Context, p tier.Plan, r Request) (limit.Consumption, error) {
	home, sp := spreadOf(p, r.RequestID)
	return e.limiter.Consume(ctx, limit.ConsumeRequest{Shard: home, Earlier: earlier(p, r.RequestID), Spread: sp, Subject: r.Subject, RequestID: r.RequestID,
		Scopes: allScopes(p), Lease: e.o.Lease, Fences: fences(p), Known: true})
}

// shedBy is the answer to a request that is shed. No scope is to blame; the wait is a hint.
func (e *Engine) shedBy(ctx context.Context, p tier.Plan, r Request, err error) (Answer, time.Time, error) {
	if err != nil {
		return Answer{}, time.Time{}, err
	}
	s, err := e.look(ctx, p, Scopes(p, r.serves()))
	a := refusedBy(shed.Reason, r, p, s)
	a.RetryAfter = shed.Hint(r.RequestID)
	return a, s.At, err
}

// model is the one that is served.
func (m checkMeta) model() string { return cmp.Or(m.Served, m.RequestedModel) }
