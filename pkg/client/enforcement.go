package client

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
)

// Enforcement calls the decision API (DESIGN §4).
type Enforcement struct{ *caller }

// NewEnforcement makes a client of the service at baseURL, with a service token; to adjust, an admin token.
func NewEnforcement(baseURL, token string, opts ...Option) *Enforcement {
	return &Enforcement{newCaller(baseURL, token, opts)}
}

// Close drops kept connections.
func (e *Enforcement) Close() { e.close() }

// CheckRequest asks whether a request may run. Exactly one of UserID and APIKeyID is given; either EstimatedTokens, or InputTokens
// and MaxOutputTokens. A zero RequestID is replaced by a new one (v7).
type CheckRequest struct {
	UserID          string    `json:"user_id,omitempty"`
	APIKeyID        string    `json:"api_key_id,omitempty"`
	Model           string    `json:"model"`
	EstimatedTokens *int64    `json:"estimated_tokens,omitempty"`
	InputTokens     *int64    `json:"input_tokens,omitempty"`
	MaxOutputTokens *int64    `json:"max_output_tokens,omitempty"`
	RequestID       uuid.UUID `json:"request_id,omitzero"`
	Reserve         string    `json:"reserve,omitempty"` // "full" (the default), or "input": the stream pays for its output by Consume
	DryRun          bool      `json:"dry_run,omitempty"`
}

// Room is what applies to a subject, by dimension ("requests", "tokens_1m", "tokens_1d", "concurrent"). nil: unlimited.
type Room struct {
	Limit     map[string]*int64     `json:"limit"`
	Remaining map[string]*int64     `json:"remaining"`
	ResetAt   map[string]*time.Time `json:"reset_at"`
}

// Decision is the answer to a check. A refusal is a Decision, not an error.
type Decision struct {
	Allowed        bool              `json:"allowed"`
	RequestID      uuid.UUID         `json:"request_id"`
	Model          string            `json:"model"`
	ReservedTokens int64             `json:"reserved_tokens"`
	LeaseMS        int64             `json:"lease_ms"`       // the slot is kept for that long, then by Consume; 0: none is
	RetryAfterMS   int64             `json:"retry_after_ms"` // of a refusal: the same request passes after this wait; 0: no wait helps
	Reason         string            `json:"reason"`
	Scope          string            `json:"scope"`
	Headers        map[string]string `json:"headers"` // to hand on to the end client
	QuotaVersion   int64             `json:"quota_version"`
	Degraded       bool              `json:"degraded"`
	Room
}

// Check asks for a decision, once: whoever has an end client waiting has a budget of its own.
func (e *Enforcement) Check(ctx context.Context, r CheckRequest) (Decision, error) {
	if r.RequestID == uuid.Nil {
		r.RequestID = uuid.Must(uuid.NewV7())
	}
	var d Decision
	err := e.call(ctx, http.MethodPost, "/internal/rate-limit/check", nil, r, &d)
	return d, err
}

// CheckPatiently is Check for callers that have time: while the service is away or unavailable it asks again, with the same request id,
// until its patience or ctx ends. However often it asks, the request is charged once.
func (e *Enforcement) CheckPatiently(ctx context.Context, r CheckRequest) (Decision, error) {
	if r.RequestID == uuid.Nil {
		r.RequestID = uuid.Must(uuid.NewV7())
	}
	var d Decision
	err := e.patiently(ctx, "/internal/rate-limit/check", r, &d)
	return d, err
}

// RecordRequest reports what a granted request used.
type RecordRequest struct {
	UserID            string    `json:"user_id,omitempty"`
	APIKeyID          string    `json:"api_key_id,omitempty"`
	RequestID         uuid.UUID `json:"request_id"`
	Model             string    `json:"model"`
	InputTokens       int64     `json:"input_tokens"`
	OutputTokens      int64     `json:"output_tokens"`
	CachedInputTokens int64     `json:"cached_input_tokens,omitempty"` // part of InputTokens
	LatencyMS         int64     `json:"latency_ms"`
	Outcome           string    `json:"outcome"`             // completed, cancelled or failed
	Estimated         bool      `json:"estimated,omitempty"` // the tokens were counted here: the inference server gave no figure
}

// Receipt is the answer to a record: the event is durable.
type Receipt struct {
	Success         bool      `json:"success"`
	AlreadyRecorded bool      `json:"already_recorded"`
	EventID         uuid.UUID `json:"event_id"`
}

// ConsumeRequest draws tokens that a running stream has produced. 0 tokens only renew the lease.
type ConsumeRequest struct {
	UserID    string    `json:"user_id,omitempty"`
	APIKeyID  string    `json:"api_key_id,omitempty"`
	RequestID uuid.UUID `json:"request_id"`
	Tokens    int64     `json:"tokens"`
}

// Draw is the answer to a consume: whether the stream may go on.
type Draw struct {
	Allowed        bool              `json:"allowed"`
	Reason         string            `json:"reason"` // a check's, or reservation_ended, reservation_unknown; "" if allowed
	RetryAfterMS   int64             `json:"retry_after_ms"`
	Remaining      map[string]*int64 `json:"remaining"`        // as in Room
	LeaseExpiresAt *time.Time        `json:"lease_expires_at"` // the slot is kept until then; nil if there is none
	LeaseMS        int64             `json:"lease_ms"`         // how long that is from now, whatever the clocks say
	Degraded       bool              `json:"degraded"`         // drawn without Redis
}

// Consume draws tokens, once: a call that is repeated draws again, until the record sets it right.
func (e *Enforcement) Consume(ctx context.Context, r ConsumeRequest) (Draw, error) {
	var d Draw
	err := e.call(ctx, http.MethodPost, "/internal/rate-limit/consume", nil, r, &d)
	return d, err
}

// Record reports usage. While the service is away or unavailable it tries again, with the same request id, until its patience or ctx
// ends: usage that is not recorded is not billed, and a repeat is billed once.
func (e *Enforcement) Record(ctx context.Context, r RecordRequest) (Receipt, error) {
	var rec Receipt
	err := e.patiently(ctx, "/internal/rate-limit/record", r, &rec)
	return rec, err
}

// AdjustmentRequest corrects an event that was billed, by the difference of its tokens. Exactly one of UserID and APIKeyID is given. A nil OrgID or
// Tier is the subject's now; a zero Timestamp is now. A zero AdjustmentID is replaced by a new one (v7).
type AdjustmentRequest struct {
	AdjustmentID      uuid.UUID `json:"adjustment_id,omitzero"`
	CorrectsEventID   uuid.UUID `json:"corrects_event_id"`
	UserID            string    `json:"user_id,omitempty"`
	APIKeyID          string    `json:"api_key_id,omitempty"`
	OrgID             *string   `json:"org_id,omitempty"`
	Tier              *string   `json:"tier,omitempty"`
	Model             string    `json:"model"`
	InputTokens       int64     `json:"input_tokens,omitempty"` // negative: too many were billed
	OutputTokens      int64     `json:"output_tokens,omitempty"`
	CachedInputTokens int64     `json:"cached_input_tokens,omitempty"`
	Timestamp         time.Time `json:"timestamp,omitzero"` // of the period that is corrected
	Reason            string    `json:"reason"`
}

// Adjusted is the answer to an adjustment: its event is durable.
type Adjusted struct {
	Success      bool      `json:"success"`
	AdjustmentID uuid.UUID `json:"adjustment_id"`
	EventID      uuid.UUID `json:"event_id"`
}

// Adjust corrects usage; the client must have an admin token. While the service is away or unavailable it tries again, with the same
// adjustment id, until its patience or ctx ends: the correction counts once.
func (e *Enforcement) Adjust(ctx context.Context, r AdjustmentRequest) (Adjusted, error) {
	if r.AdjustmentID == uuid.Nil {
		r.AdjustmentID = uuid.Must(uuid.NewV7())
	}
	var a Adjusted
	err := e.patiently(ctx, "/internal/adjustments", r, &a)
	return a, err
}

// patiently calls until it gets an answer that a repeat would not change, or until patience or ctx ends.
func (e *Enforcement) patiently(ctx context.Context, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	for attempt := 0; ; attempt++ {
		err := e.call(ctx, http.MethodPost, path, nil, in, out)
		if err == nil || !Unavailable(err) {
			return err
		}
		wait := time.NewTimer(e.backoff(attempt))
		select {
		case <-wait.C:
			e.onRetry(err)
		case <-ctx.Done():
			wait.Stop()
			return err // why it could not be done says more than that time is up
		}
	}
}

// backoff grows from 50 ms to 2 s; half of it is random, so that callers that failed together don't return together.
func backoff(attempt int) time.Duration {
	d := min(50*time.Millisecond<<min(attempt, 10), 2*time.Second)
	return d/2 + rand.N(d/2) //nolint:gosec // spreads retries; nothing to guess
}

// Status is what a subject may still use now.
type Status struct {
	UserID   string `json:"user_id"`
	APIKeyID string `json:"api_key_id"`
	Tier     string `json:"tier"`
	InFlight int64  `json:"in_flight"`
	Degraded bool   `json:"degraded"` // looked at without Redis: of one instance's share
	Room
	Suspended    bool  `json:"suspended"`
	QuotaVersion int64 `json:"quota_version"`
}

// UserStatus reads a user's room without changing it.
func (e *Enforcement) UserStatus(ctx context.Context, userID string) (Status, error) {
	var s Status
	err := e.call(ctx, http.MethodGet, "/internal/rate-limit/status/user/"+url.PathEscape(userID), nil, nil, &s)
	return s, err
}

// KeyStatus reads an API key's room without changing it.
func (e *Enforcement) KeyStatus(ctx context.Context, keyID string) (Status, error) {
	var s Status
	err := e.call(ctx, http.MethodGet, "/internal/rate-limit/status/api_key/"+url.PathEscape(keyID), nil, nil, &s)
	return s, err
}
