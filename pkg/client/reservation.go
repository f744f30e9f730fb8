package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Refused is the error of a Reserve that was answered with a refusal. Nothing is held and nothing was charged.
type Refused struct{ Decision Decision }

func (r *Refused) Error() string {
	text := "refused by " + r.Decision.Reason
	if r.Decision.Scope != "" {
		text += " of the " + r.Decision.Scope
	}
	if wait := r.RetryAfter(); wait > 0 {
		text += fmt.Sprintf("; try again in %s", wait)
	}
	return text
}

// RetryAfter is the wait after which the same request passes if nothing else happens; 0 if no wait helps.
func (r *Refused) RetryAfter() time.Duration {
	return time.Duration(r.Decision.RetryAfterMS) * time.Millisecond
}

// ErrEnded is the error of a Consume on a reservation that was settled or cancelled.
var ErrEnded = errors.New("the reservation has ended")

// Usage is what a request used. Tokens are counts.
type Usage struct {
	InputTokens       int64
	OutputTokens      int64
	CachedInputTokens int64         // part of InputTokens
	Latency           time.Duration // since Reserve if 0
	Outcome           string        // completed, cancelled or failed; if empty, cancelled where Settle's ctx has ended, else completed
	Estimated         bool          // the tokens were counted: the inference server gave no figure
}

// Reservation is a granted request: its tokens and its slot are held until it is settled or cancelled, or until its lease runs out. Its
// methods may be called from any goroutine, and on a nil Reservation, where they do nothing: so `defer r.Settle(…)` is safe whatever
// Reserve has answered.
type Reservation struct {
	Decision  Decision
	Unchecked bool // admitted without a decision (WithFailOpen): nothing is held, and what is used is billed all the same

	e       *Enforcement
	request CheckRequest
	began   time.Time

	mu      sync.Mutex
	settled bool
	receipt Receipt
}

// Reserve asks for a decision and holds what it grants. While the service is away it asks again, with the same request id and so charged
// once, within its budget. Errors: *Refused; what Check gives, if no decision could be had and the client fails closed. If only the answer
// was lost, what the check took is held until its lease ends.
func (e *Enforcement) Reserve(ctx context.Context, r CheckRequest) (*Reservation, error) {
	if r.RequestID == uuid.Nil {
		r.RequestID = uuid.Must(uuid.NewV7())
	}
	res := &Reservation{e: e, request: r, began: time.Now()}
	budget, cancel := context.WithTimeout(ctx, e.budget)
	defer cancel()
	err := e.patiently(budget, "/internal/rate-limit/check", r, &res.Decision)
	switch {
	case err != nil && e.failOpen && Unavailable(err) && ctx.Err() == nil:
		res.Unchecked = true
		res.Decision = Decision{Allowed: true, RequestID: r.RequestID, Model: r.Model, Degraded: true}
		return res, nil
	case err != nil:
		return nil, err
	case !res.Decision.Allowed:
		return nil, &Refused{res.Decision}
	}
	return res, nil
}

// Consume draws tokens that a stream has produced, from the reservation first, and renews its lease. With Allowed false the stream is to
// end. 0 tokens only renew. An Unchecked reservation may always go on. Error: ErrEnded; what Enforcement.Consume gives.
func (r *Reservation) Consume(ctx context.Context, tokens int64) (Draw, error) {
	if r == nil {
		return Draw{}, ErrEnded
	}
	r.mu.Lock()
	settled := r.settled
	r.mu.Unlock()
	switch {
	case settled:
		return Draw{}, ErrEnded
	case r.Unchecked:
		return Draw{Allowed: true}, nil
	}
	return r.e.Consume(ctx, ConsumeRequest{UserID: r.request.UserID, APIKeyID: r.request.APIKeyID, RequestID: r.request.RequestID, Tokens: tokens})
}

// Settle ends the reservation by what was used, and returns when that is durable. It goes on though ctx has ended, up to the client's
// patience: whoever hangs up has used what was produced. Once it has succeeded, later calls change nothing and give its receipt, with
// AlreadyRecorded; after an error it may be called again.
func (r *Reservation) Settle(ctx context.Context, u Usage) (Receipt, error) {
	if r == nil {
		return Receipt{}, nil
	}
	if u.Outcome == "" {
		u.Outcome = "completed"
		if ctx.Err() != nil {
			u.Outcome = "cancelled"
		}
	}
	return r.end(context.WithoutCancel(ctx), u)
}

// Cancel ends the reservation with nothing used: tokens and slot are free at once. The request itself stays counted. After a Settle it
// does nothing, so it can be deferred beside one.
func (r *Reservation) Cancel(ctx context.Context) error {
	_, err := r.Settle(ctx, Usage{Outcome: "cancelled"})
	return err
}

func (r *Reservation) end(ctx context.Context, u Usage) (Receipt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled {
		again := r.receipt
		again.AlreadyRecorded = true
		return again, nil
	}
	if r.request.DryRun { // holds nothing
		r.settled = true
		return Receipt{Success: true}, nil
	}
	latency := cmp.Or(u.Latency, time.Since(r.began))
	receipt, err := r.e.Record(ctx, RecordRequest{UserID: r.request.UserID, APIKeyID: r.request.APIKeyID, RequestID: r.request.RequestID,
		Model: cmp.Or(r.Decision.Model, r.request.Model), InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CachedInputTokens: u.CachedInputTokens,
		LatencyMS: latency.Milliseconds(), Outcome: u.Outcome, Estimated: u.Estimated})
	if err != nil {
		return Receipt{}, err
	}
	r.settled, r.receipt = true, receipt
	return receipt, nil
}
