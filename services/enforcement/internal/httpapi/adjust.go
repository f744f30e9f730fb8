package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// adjustBody is POST /internal/adjustments. nil: the field was left out.
type adjustBody struct {
	AdjustmentID      *string `json:"adjustment_id"`
	CorrectsEventID   *string `json:"corrects_event_id"`
	UserID            *string `json:"user_id"`
	APIKeyID          *string `json:"api_key_id"`
	OrgID             *string `json:"org_id"`
	Tier              *string `json:"tier"`
	Model             *string `json:"model"`
	InputTokens       *int64  `json:"input_tokens"`
	OutputTokens      *int64  `json:"output_tokens"`
	CachedInputTokens *int64  `json:"cached_input_tokens"`
	Timestamp         *string `json:"timestamp"`
	Reason            *string `json:"reason"`
}

const maxReason = 1024

// delta reads a difference of tokens; absent is 0.
func (f *faults) delta(field string, v *int64) int64 {
	switch {
	case v == nil:
		return 0
	case *v < -usage.MaxTokens || *v > usage.MaxTokens:
		f.add(field, "must be from %d to %d, is %d", -usage.MaxTokens, usage.MaxTokens, *v)
	}
	return *v
}

func (f *faults) note(field string, v *string) {
	if v == nil {
		f.add(field, missing)
		return
	}
	if n := utf8.RuneCountInString(*v); n < 1 || n > maxReason {
		f.add(field, "must have from 1 to %d characters, has %d", maxReason, n)
		return
	}
	for _, r := range *v {
		if !unicode.IsPrint(r) {
			f.add(field, "may hold only printable characters and spaces, holds %U", r)
			return
		}
	}
}

// adjustment checks every field.
func (b adjustBody) adjustment() (decide.Adjustment, error) {
	var f faults
	a := decide.Adjustment{Subject: f.subject(b.UserID, b.APIKeyID), Model: f.id("model", b.Model), OrgID: b.OrgID, Tier: b.Tier,
		Input: f.delta("input_tokens", b.InputTokens), Output: f.delta("output_tokens", b.OutputTokens), Cached: f.delta("cached_input_tokens", b.CachedInputTokens)}
	if b.CorrectsEventID == nil {
		f.add("corrects_event_id", missing)
	} else {
		a.Corrects = f.uuid("corrects_event_id", b.CorrectsEventID)
	}
	if b.AdjustmentID != nil {
		a.ID = f.uuid("adjustment_id", b.AdjustmentID)
	}
	if b.OrgID != nil && *b.OrgID != "" {
		if err := subject.ValidateID(*b.OrgID); err != nil {
			f.add("org_id", "%v", err)
		}
	}
	if b.Tier != nil {
		f.id("tier", b.Tier)
	}
	if a.Input == 0 && a.Output == 0 && a.Cached == 0 {
		for _, field := range []string{"input_tokens", "output_tokens", "cached_input_tokens"} {
			f.add(field, "one of the three must be given and other than 0: nothing is corrected")
		}
	}
	if b.Timestamp != nil {
		at, err := usage.ParseInstant(*b.Timestamp)
		if err != nil {
			f.add("timestamp", "%v", err)
		}
		a.At = at
	}
	f.note("reason", b.Reason)
	if err := f.problem(); err != nil {
		return decide.Adjustment{}, err
	}
	if b.AdjustmentID == nil {
		id, err := uuid.NewV7()
		if err != nil {
			return decide.Adjustment{}, fmt.Errorf("make an adjustment id: %w", err)
		}
		a.ID = id
	}
	if usage.EventID(a.Subject, a.ID, usage.KindAdjustment) == a.Corrects {
		f.add("corrects_event_id", "is the event of this very adjustment")
	}
	return a, f.problem()
}

type adjustAnswer struct {
	Success      bool      `json:"success"`
	AdjustmentID uuid.UUID `json:"adjustment_id"`
	EventID      uuid.UUID `json:"event_id"`
}

// adjust corrects an earlier event. Who did it and why is in the log, not in the event, which has no place for it.
func (s *server) adjust(w http.ResponseWriter, r *http.Request, g auth.Grant) error {
	var b adjustBody
	if err := strictjson.Read(r, &b); err != nil {
		return err
	}
	a, err := b.adjustment()
	if err != nil {
		return err
	}
	id, err := s.engine.Adjust(r.Context(), a)
	if errors.Is(err, decide.ErrFuture) {
		return problem.Invalid(problem.FieldError{Field: "timestamp", Detail: "must not lie in the future: what is corrected has been"})
	}
	s.m.adjust(err)
	result := "durable"
	if err != nil {
		result = "not durable"
	}
	s.log.InfoContext(r.Context(), "adjustment", "result", result, "actor", g.Name, "reason", *b.Reason, "event_id", id, "adjustment_id", a.ID, "corrects_event_id", a.Corrects,
		"subject", a.Subject.String(), "model", a.Model, "input_tokens", a.Input, "output_tokens", a.Output, "cached_input_tokens", a.Cached,
		"request_id", w.Header().Get("X-Request-Id"))
	switch {
	case errors.Is(err, decide.ErrUnsendable):
		return problem.New(http.StatusInternalServerError, problem.CodeInternal,
			"Kafka refuses the event of this adjustment. It is kept aside for the operator; do not repeat it.").Because(err)
	case errors.Is(err, decide.ErrUnavailable):
		return problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable,
			"The adjustment is not durable yet. Repeat it with the same adjustment_id ("+a.ID.String()+"): it counts once.").Because(err)
	case err != nil:
		return err
	}
	return writeJSON(w, adjustAnswer{Success: true, AdjustmentID: a.ID, EventID: id})
}
