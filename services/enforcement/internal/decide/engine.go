package decide

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// ErrUnavailable is inside every error of an Engine: something it depends on could not be asked in time. The call may be repeated with
// the same request id.
var ErrUnavailable = errors.New("unavailable")

// ErrSpool is inside an error of Events.Usage when Kafka doesn't have the event in time and the local spool takes no more.
// ErrUnsendable says that no retry will make Kafka take the event; it is durable, but set aside.
var (
	ErrSpool      = errors.New("the local spool takes no event")
	ErrUnsendable = errors.New("the event can't be sent")
)

// Quotas says what a subject may use.
type Quotas interface {
	Get(ctx context.Context, s subject.Subject) (tier.Plan, error)
	// Reload gives a plan read after refuted was.
	Reload(ctx context.Context, s subject.Subject, refuted tier.Plan) (tier.Plan, error)
}

// Events takes what the ledger is to know.
type Events interface {
	// Usage returns when the record is durable, in Kafka or in the local spool, or an error when it may not be; ErrUnsendable when it is,
	// but was set aside. The caller hanging up doesn't stop it.
	Usage(ctx context.Context, r usage.Record) error
	// Rejection never waits; under a flood some are dropped and counted.
	Rejection(r usage.Record)
}

// Options are an Engine's settings. Zero values take the defaults.
type Options struct {
	Lease    time.Duration // limit.DefaultLease
	Budget   time.Duration // longest check: 50 ms
	Settle   time.Duration // longest wait for quota and limiter when a request ends: 3 s
	Region   string
	Instance string
	Now      func() time.Time // time.Now
	Log      *slog.Logger     // slog.DiscardHandler's
	Load     Load             // nil: nothing is shed
	Fallback shed.Fallbacks
}

// Engine decides and settles. It is safe for concurrent use.
type Engine struct {
	quotas  Quotas
	limiter limit.Limiter
	events  Events
	o       Options
}

// New makes an Engine.
func New(q Quotas, l limit.Limiter, e Events, o Options) *Engine {
	if o.Lease == 0 {
		o.Lease = limit.DefaultLease
	}
	if o.Budget == 0 {
		o.Budget = 50 * time.Millisecond
	}
	if o.Settle == 0 {
		o.Settle = 3 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{q, l, e, o}
}

// maxStale is how often in a row a quota may turn out to be old before a decision is given up. Each time, another change was published
// between reading it and using it.
const maxStale = 5

// Check decides one request within the budget. A refusal is an Answer, and leaves a rejection event.
func (e *Engine) Check(ctx context.Context, r Request) (Answer, error) {
	// The caller hanging up must not leave it open whether something was reserved.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.o.Budget)
	defer cancel()
	var a Answer
	var at time.Time
	p, err := e.fresh(ctx, r.Subject, func(p tier.Plan) error {
		if reason := refusal(p, r); reason != "" {
			// The limiter still tells what is left, and whether the plan that refuses is the published one.
			s, err := e.look(ctx, p, Scopes(p, r.Model))
			a, at = refusedBy(reason, r, p, s), s.At
			return err
		}
		if shed, err := e.underLoad(ctx, p, &r); shed || err != nil {
			a, at, err = e.shedBy(ctx, p, r, err)
			return err
		}
		c, err := ask(r, p, e.o.Lease)
		if err != nil {
			return err
		}
		d, err := e.limiter.Check(ctx, c)
		a, at = decided(r, p, d), d.At
		return err
	})
	if err != nil {
		return Answer{}, fmt.Errorf("check %s: %w", r.Subject, err)
	}
	if !a.Allowed && !r.DryRun {
		e.events.Rejection(e.rejection(r, p, a, at))
	}
	return a, nil
}

// fresh has the limiter asked by the subject's plan, and again by a newer one for as long as the limiter knows of a newer one.
func (e *Engine) fresh(ctx context.Context, s subject.Subject, question func(tier.Plan) error) (tier.Plan, error) {
	p, err := e.quotas.Get(ctx, s)
	for try := 1; err == nil; try++ {
		var stale *limit.StaleError
		switch asked := question(p); {
		case asked == nil:
			return p, nil
		case !errors.As(asked, &stale) || try == maxStale:
			return p, fmt.Errorf("%w: limiter: %w", ErrUnavailable, asked)
		}
		p, err = e.quotas.Reload(ctx, s, p)
	}
	return p, fmt.Errorf("%w: quota: %w", ErrUnavailable, err)
}

// look tells what is left in some scopes, by a plan that is still the published one. In an org that is spread, what is a member's own lies in
// its home, and what an earlier home may still hold of it must not count; the pool is summed over all shards.
func (e *Engine) look(ctx context.Context, p tier.Plan, scopes []limit.Scope) (limit.Status, error) {
	home, sp := spreadOf(p, uuid.Nil)
	r := limit.StatusRequest{Shard: home, Spread: sp, Scopes: scopes, Fences: fences(p)}
	if sp.Shards < 2 || p.OrgID == "" {
		return e.limiter.Status(ctx, r)
	}
	own := len(scopes) - 1
	r.Spread, r.Scopes = limit.Spread{}, scopes[:own]
	s, err := e.limiter.Status(ctx, r)
	if err != nil {
		return s, err
	}
	r.Spread, r.Scopes = sp, scopes[own:]
	shared, err := e.limiter.Status(ctx, r)
	s.Scopes, s.Degraded = append(s.Scopes, shared.Scopes...), s.Degraded || shared.Degraded
	return s, err
}

// rejection is the event of a refusal, which happened at the limiter's time at.
func (e *Engine) rejection(r Request, p tier.Plan, a Answer, at time.Time) usage.Record {
	rec := usage.Record{EventID: usage.EventID(r.Subject, r.RequestID, usage.KindRejection), SchemaVersion: usage.SchemaVersion,
		OrgID: p.OrgID, Tier: p.Base().Tier, RequestID: r.RequestID, RequestedModel: r.Model, Model: a.Model, Timestamp: usage.At(at),
		WasRateLimited: true, Reason: a.Reason, Scope: string(a.Scope), Outcome: usage.Rejected, Region: e.o.Region, Instance: e.o.Instance}
	setSubject(&rec, r.Subject, ownerOf(p))
	return rec
}

// setSubject names who used it; owner is the user who owns the key, if one does.
func setSubject(rec *usage.Record, s subject.Subject, owner string) {
	if s.Kind == subject.APIKey {
		rec.APIKeyID, rec.UserID = s.ID, owner
		return
	}
	rec.UserID = s.ID
}

// Status is what a subject has left now, whatever the model: limits of groups of models come on top.
type Status struct {
	Subject      subject.Subject
	Tier         string
	OrgID        string
	Rooms        []Room
	InFlight     int64 // open reservations of the subject
	Suspended    bool
	QuotaVersion int64
	Degraded     bool // looked at without Redis: of this instance's share, and of what was decided here
}

// Status looks without changing anything.
func (e *Engine) Status(ctx context.Context, s subject.Subject) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Settle)
	defer cancel()
	var now limit.Status
	p, err := e.fresh(ctx, s, func(p tier.Plan) (err error) {
		now, err = e.look(ctx, p, plainScopes(p))
		return err
	})
	if err != nil {
		return Status{}, fmt.Errorf("status of %s: %w", s, err)
	}
	st := Status{Subject: s, Tier: p.Base().Tier, OrgID: p.OrgID, Rooms: Rooms(now.Scopes), Suspended: p.Suspended(), QuotaVersion: p.Own().Version,
		Degraded: now.Degraded}
	for _, sc := range now.Scopes {
		if sc.Name == s.String() {
			st.InFlight = sc.InUse
		}
	}
	return st, nil
}
