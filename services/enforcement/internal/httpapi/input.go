package httpapi

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// checkBody is POST /internal/rate-limit/check. nil: the field was left out.
type checkBody struct {
	UserID          *string `json:"user_id"`
	APIKeyID        *string `json:"api_key_id"`
	Model           *string `json:"model"`
	EstimatedTokens *int64  `json:"estimated_tokens"`
	InputTokens     *int64  `json:"input_tokens"`
	MaxOutputTokens *int64  `json:"max_output_tokens"`
	RequestID       *string `json:"request_id"`
	Reserve         *string `json:"reserve"`
	DryRun          *bool   `json:"dry_run"`
}

// recordBody is POST /internal/rate-limit/record.
type recordBody struct {
	UserID            *string `json:"user_id"`
	APIKeyID          *string `json:"api_key_id"`
	RequestID         *string `json:"request_id"`
	ActualTokens      *int64  `json:"actual_tokens"`
	Model             *string `json:"model"`
	InputTokens       *int64  `json:"input_tokens"`
	OutputTokens      *int64  `json:"output_tokens"`
	CachedInputTokens *int64  `json:"cached_input_tokens"`
	LatencyMS         *int64  `json:"latency_ms"`
	Outcome           *string `json:"outcome"`
	Estimated         *bool   `json:"estimated"`
}

// consumeBody is POST /internal/rate-limit/consume.
type consumeBody struct {
	UserID    *string `json:"user_id"`
	APIKeyID  *string `json:"api_key_id"`
	RequestID *string `json:"request_id"`
	Tokens    *int64  `json:"tokens"`
}

// faults collects what is wrong, field by field.
type faults []problem.FieldError

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, problem.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
}

func (f faults) problem() error {
	if len(f) > 0 {
		return problem.Invalid(f...)
	}
	return nil
}

const missing = "is required"

func (f *faults) subject(userID, keyID *string) subject.Subject {
	var s subject.Subject
	switch {
	case userID != nil && keyID != nil:
		f.add("user_id", "give either user_id or api_key_id, not both")
		f.add("api_key_id", "give either user_id or api_key_id, not both")
	case userID != nil:
		s = subject.Subject{Kind: subject.User, ID: f.id("user_id", userID)}
	case keyID != nil:
		s = subject.Subject{Kind: subject.APIKey, ID: f.id("api_key_id", keyID)}
	default:
		f.add("user_id", "give either user_id or api_key_id")
	}
	return s
}

func (f *faults) id(field string, v *string) string {
	if v == nil {
		f.add(field, missing)
		return ""
	}
	if err := subject.ValidateID(*v); err != nil {
		f.add(field, "%v", err)
	}
	return *v
}

// count reads a required number of tokens or milliseconds.
func (f *faults) count(field string, v *int64) int64 {
	switch {
	case v == nil:
		f.add(field, missing)
		return 0
	case *v < 0 || *v > limit.MaxAmount:
		f.add(field, "must be from 0 to %d, is %d", limit.MaxAmount, *v)
		return 0
	}
	return *v
}

// sum keeps a request's total exact: both parts are valid, so they can't overflow.
func (f *faults) sum(a, b int64, field, other string) {
	if a+b > limit.MaxAmount {
		f.add(field, "together with %s it is more than %d", other, limit.MaxAmount)
	}
}

// requestID takes the plain 36-character form of a UUID only: what stands for a request in Redis and in bills has one spelling.
func (f *faults) requestID(v *string) uuid.UUID { return f.uuid("request_id", v) }

func (f *faults) uuid(field string, v *string) uuid.UUID {
	id, err := uuid.Parse(*v)
	switch {
	case err != nil || len(*v) != 36:
		f.add(field, "must be a UUID, such as 01890a5d-ac96-774b-bcce-b302099a8057")
	case id == uuid.Nil:
		f.add(field, "must not be the nil UUID")
	}
	return id
}

func (f *faults) requiredRequestID(v *string) uuid.UUID {
	if v == nil {
		f.add("request_id", missing)
		return uuid.Nil
	}
	return f.requestID(v)
}

// forbid names every field that is given and has no place beside another one.
func (f *faults) forbid(beside string, fields ...given) {
	for _, g := range fields {
		if g.is {
			f.add(g.field, "has no place beside %s", beside)
		}
	}
}

type given struct {
	field string
	is    bool
}

// request checks every field. A request id is made if there is none.
func (b checkBody) request() (decide.Request, error) {
	var f faults
	r := decide.Request{Subject: f.subject(b.UserID, b.APIKeyID), Model: f.id("model", b.Model), DryRun: b.DryRun != nil && *b.DryRun}
	switch {
	case b.EstimatedTokens != nil:
		r.InputTokens = f.count("estimated_tokens", b.EstimatedTokens)
		f.forbid("estimated_tokens", given{"input_tokens", b.InputTokens != nil}, given{"max_output_tokens", b.MaxOutputTokens != nil})
	case b.InputTokens == nil && b.MaxOutputTokens == nil:
		f.add("estimated_tokens", "give either estimated_tokens or input_tokens and max_output_tokens")
	default:
		r.Split = true
		r.InputTokens, r.MaxOutput = f.count("input_tokens", b.InputTokens), f.count("max_output_tokens", b.MaxOutputTokens)
		f.sum(r.MaxOutput, r.InputTokens, "max_output_tokens", "input_tokens")
	}
	if b.RequestID != nil {
		r.RequestID = f.requestID(b.RequestID)
	}
	if b.Reserve != nil {
		switch *b.Reserve {
		case "full":
		case "input":
			r.InputOnly = true
		default:
			f.add("reserve", "must be full or input")
		}
	}
	if err := f.problem(); err != nil {
		return decide.Request{}, err
	}
	if b.RequestID == nil {
		id, err := uuid.NewV7()
		if err != nil {
			return decide.Request{}, fmt.Errorf("make a request id: %w", err)
		}
		r.RequestID, r.Fresh = id, true
	}
	return r, nil
}

// draw checks every field.
func (b consumeBody) draw() (decide.Draw, error) {
	var f faults
	d := decide.Draw{Subject: f.subject(b.UserID, b.APIKeyID), Tokens: f.count("tokens", b.Tokens)}
	d.RequestID = f.requiredRequestID(b.RequestID)
	return d, f.problem()
}

// used checks every field.
func (b recordBody) used() (decide.Used, error) {
	var f faults
	u := decide.Used{Subject: f.subject(b.UserID, b.APIKeyID), Outcome: usage.Completed}
	u.RequestID = f.requiredRequestID(b.RequestID)
	if b.ActualTokens != nil {
		u.Short, u.Input = true, f.count("actual_tokens", b.ActualTokens)
		f.forbid("actual_tokens", given{"model", b.Model != nil}, given{"input_tokens", b.InputTokens != nil},
			given{"output_tokens", b.OutputTokens != nil}, given{"cached_input_tokens", b.CachedInputTokens != nil},
			given{"latency_ms", b.LatencyMS != nil}, given{"outcome", b.Outcome != nil}, given{"estimated", b.Estimated != nil})
		return u, f.problem()
	}
	u.Model, u.Estimated = f.id("model", b.Model), b.Estimated != nil && *b.Estimated
	u.Input, u.Output = f.count("input_tokens", b.InputTokens), f.count("output_tokens", b.OutputTokens)
	f.sum(u.Output, u.Input, "output_tokens", "input_tokens")
	if b.CachedInputTokens != nil {
		if u.Cached = f.count("cached_input_tokens", b.CachedInputTokens); u.Cached > u.Input {
			f.add("cached_input_tokens", "is %d, more than the %d input_tokens it is part of", u.Cached, u.Input)
		}
	}
	u.LatencyMillis = f.count("latency_ms", b.LatencyMS)
	switch o := b.Outcome; {
	case o == nil:
		f.add("outcome", missing)
	case usage.Outcome(*o) == usage.Completed, usage.Outcome(*o) == usage.Cancelled, usage.Outcome(*o) == usage.Failed:
		u.Outcome = usage.Outcome(*o)
	default:
		f.add("outcome", "must be completed, cancelled or failed")
	}
	return u, f.problem()
}
