package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// serve answers every call by h and keeps what was sent.
func serve(t *testing.T, h http.HandlerFunc) (url string, sent func() []map[string]any) {
	t.Helper()
	var mu sync.Mutex
	var bodies []map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		m := map[string]any{"_path": r.Method + " " + r.URL.EscapedPath(), "_auth": r.Header.Get("Authorization"), "_if_match": r.Header.Get("If-Match")}
		_ = json.Unmarshal(b, &m)
		mu.Lock()
		bodies = append(bodies, m)
		mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() []map[string]any { mu.Lock(); defer mu.Unlock(); return bodies }
}

func answer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

func TestRefusalIsADecisionNotAnError(t *testing.T) {
	url, sent := serve(t, answer(`{"allowed":false,"request_id":"0190d7a4-0000-7000-8000-000000000001","model":"grok-2","reserved_tokens":0,"retry_after_ms":1500,
		"reason":"rpm","scope":"user","limit":{"requests":40,"tokens_1d":null},"remaining":{"requests":0},"reset_at":{"requests":"2026-01-01T12:00:01.500Z"},
		"headers":{"X-RateLimit-Limit-Requests":"40"},"quota_version":7,"degraded":false}`))
	d, err := client.NewEnforcement(url+"/", "tok").Check(t.Context(), client.CheckRequest{UserID: "u1", Model: "grok-2", InputTokens: new(int64(0)), MaxOutputTokens: new(int64(9))})
	if err != nil {
		t.Fatal(err)
	}
	if d.Allowed || d.Reason != "rpm" || d.Scope != "user" || d.RetryAfterMS != 1500 || d.QuotaVersion != 7 {
		t.Errorf("decision is %+v", d)
	}
	if *d.Limit["requests"] != 40 || d.Limit["tokens_1d"] != nil || *d.Remaining["requests"] != 0 || d.ResetAt["requests"].Nanosecond() != 500e6 {
		t.Errorf("room is %+v", d.Room)
	}
	got := sent()[0]
	if got["_path"] != "POST /internal/rate-limit/check" || got["_auth"] != "Bearer tok" {
		t.Errorf("sent %v", got)
	}
	if got["input_tokens"] != 0.0 || got["max_output_tokens"] != 9.0 {
		t.Errorf("a count of 0 must be sent: %v", got)
	}
	if _, ok := got["estimated_tokens"]; ok {
		t.Errorf("an omitted field was sent: %v", got)
	}
	if id, err := uuid.Parse(got["request_id"].(string)); err != nil || id.Version() != 7 {
		t.Errorf("request id %v is not a UUID v7", got["request_id"])
	}
}

func TestAdjustmentIsRepeatedUnderItsOwnID(t *testing.T) {
	var calls atomic.Int32
	url, sent := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) < 3 {
			problem.Write(w, problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "away"))
			return
		}
		answer(`{"success":true,"adjustment_id":"0190d7a4-0000-7000-8000-000000000001","event_id":"0190d7a4-0000-7000-8000-000000000002"}`)(w, r)
	})
	org := ""
	a, err := client.NewEnforcement(url, "admin").Adjust(t.Context(), client.AdjustmentRequest{CorrectsEventID: uuid.New(), UserID: "u1", OrgID: &org, Model: "grok-2",
		OutputTokens: -5, Reason: "twice"})
	if err != nil || !a.Success || a.EventID.String() != "0190d7a4-0000-7000-8000-000000000002" {
		t.Fatal(a, err)
	}
	ids := map[any]bool{}
	for _, m := range sent() {
		ids[m["adjustment_id"]] = true
		if m["_path"] != "POST /internal/adjustments" || m["output_tokens"] != -5.0 || m["org_id"] != "" || m["timestamp"] != nil {
			t.Errorf("sent %v", m)
		}
	}
	if len(sent()) != 3 || len(ids) != 1 || ids[nil] {
		t.Errorf("%d calls with the ids %v", len(sent()), ids)
	}
}

func TestProblemIsTheError(t *testing.T) {
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		problem.Write(w, problem.Invalid(problem.FieldError{Field: "model", Detail: "must not be empty"}))
	})
	_, err := client.NewEnforcement(url, "tok").Check(t.Context(), client.CheckRequest{UserID: "u1"})
	var p *problem.Problem
	if !errors.As(err, &p) || p.Status != 400 || p.Code != problem.CodeInvalidRequest || p.Errors[0].Field != "model" {
		t.Fatalf("error is %v", err)
	}
}

func TestAnswerThatIsNoProblemDocumentBecomesOne(t *testing.T) {
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "upstream connect error", http.StatusBadGateway)
	})
	_, err := client.NewQuotas(url, "tok").GetQuota(t.Context(), "u1")
	var p *problem.Problem
	if !errors.As(err, &p) || p.Status != 502 || p.Code != problem.CodeUnavailable || p.Detail != "502 Bad Gateway: upstream connect error" {
		t.Fatalf("error is %v", err)
	}
}

func TestRecordIsRepeatedWithTheSameRequestIDUntilItIsDurable(t *testing.T) {
	var calls atomic.Int32
	url, sent := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch calls.Add(1) {
		case 1:
			problem.Write(w, problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "Kafka is away."))
		case 2: // the connection breaks before an answer
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		default:
			answer(`{"success":true,"already_recorded":true,"event_id":"0190d7a4-0000-5000-8000-000000000001"}`)(w, r)
		}
	})
	id := uuid.Must(uuid.NewV7())
	rec, err := client.NewEnforcement(url, "tok").Record(t.Context(), client.RecordRequest{UserID: "u1", RequestID: id, Model: "grok-2", InputTokens: 3, OutputTokens: 4, Outcome: "completed"})
	if err != nil || !rec.Success || !rec.AlreadyRecorded {
		t.Fatalf("receipt %+v, error %v", rec, err)
	}
	for _, b := range sent() {
		if b["request_id"] != id.String() {
			t.Errorf("request id changed to %v", b["request_id"])
		}
	}
	if n := len(sent()); n < 3 {
		t.Errorf("%d calls, want at least 3", n)
	}
}

func TestPatientCheckAsksAgainWithTheSameRequestID(t *testing.T) {
	var calls, retries atomic.Int32
	url, sent := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) < 3 {
			problem.Write(w, problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "No decision could be made in time."))
			return
		}
		answer(`{"allowed":true}`)(w, r)
	})
	e := client.NewEnforcement(url, "tok", client.WithRetryHook(func(error) { retries.Add(1) }))
	d, err := e.CheckPatiently(t.Context(), client.CheckRequest{UserID: "u1", Model: "grok-2", EstimatedTokens: new(int64(1))})
	if err != nil || !d.Allowed || retries.Load() != 2 {
		t.Fatalf("decision %+v after %d retries, %v", d, retries.Load(), err)
	}
	if b := sent(); b[0]["request_id"] != b[2]["request_id"] || b[0]["request_id"] == nil {
		t.Errorf("request ids %v, %v", b[0]["request_id"], b[2]["request_id"])
	}
	if _, err := e.Check(t.Context(), client.CheckRequest{UserID: "u1"}); err != nil || calls.Load() != 4 {
		t.Errorf("a plain check: %v, %d calls", err, calls.Load())
	}
}

func TestRecordDoesNotRepeatWhatCanNotPass(t *testing.T) {
	var calls atomic.Int32
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		problem.Write(w, problem.New(http.StatusUnauthorized, problem.CodeUnauthorized, "Who are you?"))
	})
	if _, err := client.NewEnforcement(url, "bad").Record(t.Context(), client.RecordRequest{UserID: "u1", RequestID: uuid.New()}); err == nil {
		t.Fatal("no error")
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls, want 1", calls.Load())
	}
}

func TestRecordGivesUpWhenItsPatienceEndsAndSaysWhy(t *testing.T) {
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		problem.Write(w, problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "Kafka is away."))
	})
	_, err := client.NewEnforcement(url, "tok", client.WithPatience(60*time.Millisecond)).Record(t.Context(), client.RecordRequest{UserID: "u1", RequestID: uuid.New()})
	var p *problem.Problem
	if !errors.As(err, &p) || p.Code != problem.CodeUnavailable {
		t.Fatalf("error is %v", err)
	}
}

func TestConnectionsAreKept(t *testing.T) {
	var opened atomic.Int32
	srv := httptest.NewUnstartedServer(answer(`{"allowed":true}`))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	e := client.NewEnforcement(srv.URL, "tok", client.WithConnections(8))
	for range 5 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := e.Check(context.Background(), client.CheckRequest{UserID: "u1"}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n := opened.Load(); n > 16 {
		t.Errorf("%d connections for 40 calls, 8 at a time", n)
	}
}

func TestPutQuotaSendsOnlyWhatIsGivenAndGuardsTheVersion(t *testing.T) {
	url, sent := serve(t, answer(`{"user_id":"a/b","org_id":"","tier":"plus","rpm_limit":40,"tpm_limit":0,"allowed_models":[],"version":8,"updated_at":"2026-01-01T12:00:00.000Z"}`))
	q, err := client.NewQuotas(url, "adm").PutQuota(t.Context(), "a/b", client.QuotaChange{Tier: "plus", Overrides: tier.Overrides{TPMLimit: new(int64(0))}, IfVersion: new(int64(7))})
	if err != nil || q.UserID != "a/b" || q.Tier != "plus" || q.RPMLimit != 40 || q.Version != 8 {
		t.Fatalf("quota %+v, error %v", q, err)
	}
	got := sent()[0]
	if got["_path"] != "PUT /internal/quota/a%2Fb" || got["_if_match"] != `"7"` || got["tpm_limit"] != 0.0 {
		t.Errorf("sent %v", got)
	}
	if _, ok := got["rpm_limit"]; ok {
		t.Errorf("an omitted limit was sent: %v", got)
	}
}

func TestUnlimitedLeavesNoLimitToTheTier(t *testing.T) {
	url, sent := serve(t, answer(`{}`))
	if _, err := client.NewQuotas(url, "adm").PutQuota(t.Context(), "u1", client.Unlimited()); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"rpm_limit", "tpm_limit", "tpd_limit", "concurrent_limit", "max_context"} {
		if sent()[0][f] != 0.0 {
			t.Errorf("%s is %v, want an explicit 0", f, sent()[0][f])
		}
	}
}

func TestLoadIsReportedInTheContractsUnits(t *testing.T) {
	url, sent := serve(t, answer(`{"model_group":"grok-4","load":0.91,"level":0.93,"expires_at":"2026-01-01T12:00:15.000Z","shed":[]}`))
	e := client.NewEnforcement(url, "tok")
	l, err := e.PutLoad(t.Context(), "grok-4", 0.91, 15*time.Second)
	if err != nil || l.ModelGroup != "grok-4" || l.Load != 0.91 || l.Level != 0.93 || l.ExpiresAt.Second() != 15 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := e.PutLoad(t.Context(), "", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	if b := sent()[0]; b["_path"] != "PUT /internal/load" || b["model_group"] != "grok-4" || b["load"] != 0.91 || b["ttl_ms"] != 15000.0 {
		t.Errorf("%v", b)
	}
	if b := sent()[1]; b["load"] != 0.0 || b["ttl_ms"] != 1000.0 {
		t.Errorf("%v", b)
	} else if _, has := b["model_group"]; has {
		t.Error("all models are named by no name")
	}
	url, _ = serve(t, answer(`{"loads":[{"model_group":"","load":0.5,"level":0.5,"expires_at":"2026-01-01T12:00:15.000Z","shed":[]}]}`))
	if ls, err := client.NewEnforcement(url, "tok").Loads(t.Context()); err != nil || len(ls) != 1 || ls[0].Level != 0.5 {
		t.Errorf("%+v, %v", ls, err)
	}
}
