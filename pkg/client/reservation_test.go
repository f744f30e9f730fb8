package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/problem"
)

// enforcement is a fake of the service: each path answers by its function, which gets how many calls it had before.
type enforcement struct {
	mu    sync.Mutex
	calls map[string]int
	check func(n int, w http.ResponseWriter)
	rec   func(n int, w http.ResponseWriter)
	draw  func(n int, w http.ResponseWriter)
}

func (f *enforcement) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	n := f.calls[r.URL.Path]
	f.calls[r.URL.Path]++
	f.mu.Unlock()
	switch r.URL.Path {
	case "/internal/rate-limit/check":
		f.check(n, w)
	case "/internal/rate-limit/record":
		f.rec(n, w)
	case "/internal/rate-limit/consume":
		f.draw(n, w)
	default:
		http.NotFound(w, r)
	}
}

func says(text string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) { answer(text)(w, nil) }
}

func away(_ int, w http.ResponseWriter) {
	problem.Write(w, problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "not now"))
}

const (
	granted  = `{"allowed":true,"request_id":"0190d7a4-0000-7000-8000-000000000001","model":"grok-2-mini","reserved_tokens":150}`
	recorded = `{"success":true,"already_recorded":false,"event_id":"0190d7a4-0000-7000-8000-0000000000aa"}`
)

func fake() *enforcement {
	return &enforcement{calls: map[string]int{}, check: says(granted), rec: says(recorded),
		draw: says(`{"allowed":true,"reason":"","retry_after_ms":0,"remaining":{},"lease_expires_at":"2026-01-01T12:10:00.000Z"}`)}
}

func reserve(t *testing.T, f *enforcement, opts ...client.Option) (*client.Reservation, func() []map[string]any, error) {
	t.Helper()
	url, sent := serve(t, f.ServeHTTP)
	e := client.NewEnforcement(url, "tok", opts...)
	t.Cleanup(e.Close)
	r, err := e.Reserve(t.Context(), client.CheckRequest{UserID: "u1", Model: "grok-2", EstimatedTokens: new(int64(150)),
		RequestID: uuid.MustParse("0190d7a4-0000-7000-8000-000000000001")})
	return r, sent, err
}

func last(sent func() []map[string]any) map[string]any { s := sent(); return s[len(s)-1] }

func TestSettleRecordsTheServedModelAndWhatWasUsed(t *testing.T) {
	r, sent, err := reserve(t, fake())
	if err != nil {
		t.Fatal(err)
	}
	if d, err := r.Consume(t.Context(), 32); err != nil || !d.Allowed || d.LeaseExpiresAt == nil {
		t.Errorf("consume: %+v, %v", d, err)
	}
	if got := last(sent); got["tokens"] != 32.0 || got["user_id"] != "u1" {
		t.Errorf("consume sent %v", got)
	}
	if _, err := r.Settle(t.Context(), client.Usage{InputTokens: 100, OutputTokens: 20, CachedInputTokens: 5, Latency: 1500 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	got := last(sent)
	for field, want := range map[string]any{"user_id": "u1", "request_id": "0190d7a4-0000-7000-8000-000000000001", "model": "grok-2-mini", "input_tokens": 100.0,
		"output_tokens": 20.0, "cached_input_tokens": 5.0, "latency_ms": 1500.0, "outcome": "completed"} {
		if got[field] != want {
			t.Errorf("%s is %v, want %v", field, got[field], want)
		}
	}
	if _, err := r.Consume(t.Context(), 1); !errors.Is(err, client.ErrEnded) {
		t.Errorf("consume after settle: %v", err)
	}
}

func TestDeferredSettleIsSafeWhateverReserveAnswered(t *testing.T) {
	f := fake()
	f.check = says(`{"allowed":false,"request_id":"0190d7a4-0000-7000-8000-000000000001","reason":"tpm","scope":"org","retry_after_ms":1200}`)
	r, sent, err := reserve(t, f)
	var refused *client.Refused
	if !errors.As(err, &refused) || refused.RetryAfter() != 1200*time.Millisecond || refused.Decision.Reason != "tpm" || r != nil {
		t.Fatalf("reserve gave %v, %v", r, err)
	}
	if _, err := r.Settle(t.Context(), client.Usage{InputTokens: 1}); err != nil {
		t.Error(err)
	}
	if err := r.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := r.Consume(t.Context(), 1); !errors.Is(err, client.ErrEnded) {
		t.Error(err)
	}
	if n := len(sent()); n != 1 {
		t.Errorf("%d calls were sent, want the check alone", n)
	}
}

func TestSettleThoughTheCallerHungUpIsRecordedAsCancelled(t *testing.T) {
	r, sent, err := reserve(t, fake())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Settle(ctx, client.Usage{InputTokens: 25, OutputTokens: 40}); err != nil {
		t.Fatal(err)
	}
	if got := last(sent); got["outcome"] != "cancelled" || got["output_tokens"] != 40.0 {
		t.Errorf("sent %v", got)
	}
}

func TestManyEndingsRecordOnce(t *testing.T) {
	r, sent, err := reserve(t, fake())
	if err != nil {
		t.Fatal(err)
	}
	var first atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			receipt, err := r.Settle(t.Context(), client.Usage{InputTokens: 7})
			if err != nil || receipt.EventID == uuid.Nil {
				t.Error(receipt, err)
			}
			if !receipt.AlreadyRecorded {
				first.Add(1)
			}
		})
	}
	wg.Wait()
	if err := r.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(sent()); first.Load() != 1 || n != 2 {
		t.Errorf("%d first settlements, %d calls; want 1, and 2 with the check", first.Load(), n)
	}
}

func TestAFailedSettleMayBeRepeated(t *testing.T) {
	f := fake()
	f.rec = func(n int, w http.ResponseWriter) {
		if n == 0 {
			problem.Write(w, problem.New(http.StatusInternalServerError, problem.CodeInternal, "oops"))
			return
		}
		says(recorded)(n, w)
	}
	r, _, err := reserve(t, f)
	if err != nil {
		t.Fatal(err)
	}
	var p *problem.Problem
	if _, err := r.Settle(t.Context(), client.Usage{InputTokens: 7}); !errors.As(err, &p) || p.Status != http.StatusInternalServerError {
		t.Fatalf("settle: %v", err)
	}
	if receipt, err := r.Settle(t.Context(), client.Usage{InputTokens: 7}); err != nil || receipt.AlreadyRecorded {
		t.Errorf("settle again: %+v, %v", receipt, err)
	}
}

func TestReserveAsksAgainWithTheSameIDWithinItsBudget(t *testing.T) {
	f := fake()
	f.check = func(n int, w http.ResponseWriter) {
		if n < 2 {
			away(n, w)
			return
		}
		says(granted)(n, w)
	}
	r, sent, err := reserve(t, f, client.WithCheckBudget(20*time.Second))
	if err != nil || r.Unchecked {
		t.Fatal(r, err)
	}
	for _, c := range sent() {
		if c["request_id"] != "0190d7a4-0000-7000-8000-000000000001" {
			t.Errorf("sent %v", c)
		}
	}
	if n := len(sent()); n != 3 {
		t.Errorf("%d checks, want 3", n)
	}
}

func TestWithoutADecisionTheClientFailsAsItWasTold(t *testing.T) {
	closed := fake()
	closed.check = away
	if r, _, err := reserve(t, closed, client.WithCheckBudget(time.Millisecond)); err == nil || r != nil {
		t.Errorf("fails closed: %v, %v", r, err)
	}

	open := fake()
	open.check = away
	r, sent, err := reserve(t, open, client.WithCheckBudget(time.Millisecond), client.WithFailOpen())
	if err != nil || !r.Unchecked || !r.Decision.Allowed || !r.Decision.Degraded {
		t.Fatal(r, err)
	}
	if d, err := r.Consume(t.Context(), 10); err != nil || !d.Allowed {
		t.Errorf("consume: %+v, %v", d, err)
	}
	if _, err := r.Settle(t.Context(), client.Usage{InputTokens: 9}); err != nil {
		t.Fatal(err)
	}
	if got := last(sent); got["_path"] != "POST /internal/rate-limit/record" || got["input_tokens"] != 9.0 || got["model"] != "grok-2" {
		t.Errorf("what was used unchecked is billed: sent %v", got)
	}

	faulty := fake()
	faulty.check = func(_ int, w http.ResponseWriter) {
		problem.Write(w, problem.Invalid(problem.FieldError{Field: "model", Detail: "must not be empty"}))
	}
	if r, _, err := reserve(t, faulty, client.WithFailOpen()); err == nil || r != nil {
		t.Errorf("a faulty request is no outage: %v, %v", r, err)
	}
}

func TestADryRunHoldsNothingAndRecordsNothing(t *testing.T) {
	url, sent := serve(t, fake().ServeHTTP)
	e := client.NewEnforcement(url, "tok")
	r, err := e.Reserve(t.Context(), client.CheckRequest{UserID: "u1", Model: "grok-2", EstimatedTokens: new(int64(1)), DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Settle(t.Context(), client.Usage{InputTokens: 1}); err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(sent())
	if len(sent()) != 1 {
		t.Errorf("sent %s", b)
	}
}
