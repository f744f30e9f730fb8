package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

const (
	chatPath = "/v1/chat/completions"
	hello    = `{"model":"grok-2","messages":[{"role":"user","content":"hello"}]`
)

// panicking is a counter that fails when an answer comes.
type panicking struct{ *tokens.Counter }

func (panicking) NewText(string) *tokens.Text { panic("no tokenizer") }

func TestAPanicIsSettledOnce(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Counter = panicking{counter()} })
	resp, body := w.ask(chatPath, hello+`,"x_sim":{"usage":"none"}}`)
	if r := w.recorded(); resp.StatusCode != http.StatusInternalServerError || !strings.Contains(body, `"code":"internal"`) || r.Outcome != "failed" {
		t.Errorf("%s %s, %+v", resp.Status, body, r)
	}
}

func TestAPanicInAStreamIsNoEndOfIt(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Counter = panicking{counter()} })
	_, body := w.ask(chatPath, hello+`,"stream":true}`)
	if r := w.recorded(); strings.Contains(body, "[DONE]") || r.Outcome != "failed" {
		t.Errorf("%s, %+v", body, r)
	}
}

func TestASettlementIsRepeatedUntilItIsDurable(t *testing.T) {
	w := newWorld(t, nil)
	w.e.away = 3
	w.ask(chatPath, hello+`,"max_tokens":3,"x_sim":{"prompt":7}}`)
	if r := w.recorded(); r.InputTokens != 7 || r.OutputTokens != 3 || r.Outcome != "completed" || r.APIKeyID != "k1" || r.Estimated {
		t.Errorf("%+v", r)
	}
}

func TestTheEndWaitsForTheSettlementWhereTheSlotIsNeeded(t *testing.T) {
	w := newWorld(t, nil)
	for range 20 {
		_, body := w.ask(chatPath, hello+`,"stream":true}`)
		w.e.mu.Lock()
		n := len(w.e.records)
		w.e.records = nil
		w.e.mu.Unlock()
		if n != 1 || !strings.Contains(body, "[DONE]") {
			t.Fatalf("%d records at the answer's end", n)
		}
	}
}

func TestAServerThatStopsIsGivenUp(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.HeaderWait, o.IdleWait = 300*time.Millisecond, 300*time.Millisecond })
	resp, body := w.ask(chatPath, hello+`,"x_sim":{"delay_ms":60000}}`)
	if r := w.recorded(); resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(body, `"code":"upstream_timeout"`) || r.Outcome != "failed" || r.InputTokens != 0 {
		t.Errorf("%s %s, %+v", resp.Status, body, r)
	}
	w.e.records = nil
	_, body = w.ask(chatPath, hello+`,"stream":true,"x_sim":{"stall_after":5}}`)
	if r := w.recorded(); !strings.Contains(body, `"code":"upstream_timeout"`) || strings.Contains(body, "[DONE]") || r.Outcome != "failed" || r.OutputTokens < 5 || r.OutputTokens > 15 || !r.Estimated {
		t.Errorf("%s, %+v", body, r)
	}
}

func TestAClientThatReadsNothingIsDropped(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Stall = 300 * time.Millisecond })
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+chatPath, strings.NewReader(hello+`,"stream":true,"max_tokens":100000,"x_sim":{"tokens":100000,"content_bytes":5000}}`))
	req.Header.Set("Authorization", "Bearer k1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if r := w.recorded(); r.Outcome != "cancelled" || r.OutputTokens < 100 {
		t.Errorf("%+v", r)
	}
	deadline := time.Now().Add(5 * time.Second)
	for w.up.Open() > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if n := w.up.Open(); n != 0 {
		t.Error("the server still answers")
	}
	if n := w.up.Answers()[resp.Header.Get("X-Request-Id")].Produced; n > 20_000 {
		t.Errorf("%d tokens of 5 kB were produced for a client that reads nothing", n)
	}
}

func TestTheServedModelIsAskedForAndTold(t *testing.T) {
	w := newWorld(t, nil)
	w.e.check = `{"allowed":true,"model":"grok-2-mini"}`
	resp, _ := w.ask(chatPath, hello+`,"max_tokens":1}`)
	a := w.up.Answers()[resp.Header.Get("X-Request-Id")]
	if a.Model != "grok-2-mini" || resp.Header.Get("X-Tollgate-Requested-Model") != "grok-2" || resp.Header.Get("X-Tollgate-Served-Model") != "grok-2-mini" || w.recorded().Model != "grok-2-mini" {
		t.Errorf("asked for %s, %v", a.Model, resp.Header)
	}
}

func TestRefusalsAreMappedAsTheDesignSays(t *testing.T) {
	for reason, c := range map[string]struct {
		wait   string
		status int
		code   string
		after  string
	}{
		"rpm":               {"1", 429, "rate_limit_exceeded", "1"},
		"tpm":               {"1000", 429, "rate_limit_exceeded", "1"},
		"tpd":               {"1001", 429, "rate_limit_exceeded", "2"},
		"concurrent":        {"1000", 429, "rate_limit_exceeded", "1"},
		"shed":              {"2000", 429, "rate_limit_exceeded", "2"},
		"request_too_large": {"0", 400, "request_too_large", ""},
		"context_too_long":  {"0", 400, "context_length_exceeded", ""},
		"model_not_allowed": {"0", 403, "model_not_allowed", ""},
		"suspended":         {"0", 403, "suspended", ""},
	} {
		w := newWorld(t, nil)
		w.e.check = `{"allowed":false,"reason":"` + reason + `","scope":"user","retry_after_ms":` + c.wait + `,"headers":{"X-RateLimit-Limit-Requests":"40"}}`
		resp, body := w.ask(chatPath, hello+`}`)
		if resp.StatusCode != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) || resp.Header.Get("Retry-After") != c.after ||
			c.after != "" && resp.Header.Get("Retry-After-Ms") != c.wait || resp.Header.Get("X-Ratelimit-Limit-Requests") != "40" || w.up.Served() != 0 || len(w.e.records) != 0 {
			t.Errorf("%s: %s %v %s", reason, resp.Status, resp.Header, body)
		}
	}
}

func TestWithoutADecisionNothingIsServed(t *testing.T) {
	w := newWorld(t, nil)
	w.e.check = "away"
	resp, body := w.ask(chatPath, hello+`}`)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !strings.Contains(body, `"code":"unavailable"`) || w.up.Served() != 0 {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// A check whose answer was lost may hold a slot.
func TestWhatALostCheckHasTakenIsGivenBack(t *testing.T) {
	w := newWorld(t, nil)
	w.e.check = "lost"
	resp, _ := w.ask(chatPath, hello+`}`)
	if r := w.recorded(); resp.StatusCode != http.StatusServiceUnavailable || r.RequestID.String() != resp.Header.Get("X-Request-Id") || r.InputTokens+r.OutputTokens != 0 || r.Outcome != "failed" {
		t.Errorf("%s, %+v", resp.Status, r)
	}
	w = newWorld(t, nil)
	w.e.check = "away"
	w.e.consume = func(int64) string { return `{"allowed":false,"reason":"reservation_unknown"}` }
	w.ask(chatPath, hello+`}`)
	if err := w.server.Wait(t.Context()); err != nil || len(w.e.records) != 0 || len(w.e.draws) != 1 {
		t.Errorf("%v, records %+v, draws %v", err, w.e.records, w.e.draws)
	}
}

func TestAKeyThatIsRevokedAtTheDecisionIsServedNothing(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Identities = everybody{&identity.Unauthorized{Detail: "The API key is revoked."}}
	})
	resp, _ := w.ask(chatPath, hello+`}`)
	if r := w.recorded(); resp.StatusCode != http.StatusUnauthorized || w.up.Served() != 0 || r.InputTokens+r.OutputTokens != 0 || r.Outcome != "cancelled" {
		t.Errorf("%s, %+v", resp.Status, r)
	}
}

func TestFaultyBodiesAreRefusedWithTheLimits(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxBody = 1000 })
	for _, c := range []struct {
		body   string
		header []string
		status int
		code   string
	}{
		{hello + `,"x":"` + strings.Repeat("x", 1000) + `"}`, nil, 413, "body_too_large"},
		{hello + `}`, []string{"Content-Encoding", "gzip"}, 415, "unsupported_media_type"},
		{`{"model":`, nil, 400, "invalid_request"},
		{`{"model":"a"}`, nil, 400, "invalid_request"},
		{`{"model":"a","n":-1}`, nil, 400, "invalid_request"},
	} {
		resp, body := w.ask(chatPath, c.body, c.header...)
		if resp.StatusCode != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) || resp.Header.Get("X-Ratelimit-Remaining-Requests") != "39" || resp.Header.Get("X-Ratelimit-Reset-Requests") != "2026-01-01T12:00:01.500Z" || len(w.e.checks) != 0 {
			t.Errorf("%s %v %s", resp.Status, resp.Header, body)
		}
	}
	if resp, _ := w.ask(chatPath, hello+`}`, "Authorization", "Bearer "); resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Www-Authenticate") == "" {
		t.Error(resp.Status)
	}
	if resp, _ := w.ask("/v1/models", `{}`); resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET" {
		t.Error(resp.Status)
	}
	for _, path := range []string{"/", "/v1", "/v1/nothing", "/v1//models", "/internal/load"} {
		if resp, _ := w.ask(path, `{}`); resp.StatusCode != http.StatusNotFound {
			t.Error(path, resp.Status)
		}
	}
}

func TestTheOutputsReserveIsTheRequestsBoundOrAPrediction(t *testing.T) {
	for body, want := range map[string]int64{
		`}`:                 1024,
		`,"max_tokens":50}`: 50,
		`,"max_tokens":50,"max_completion_tokens":40}`: 50,
		`,"max_tokens":40,"max_completion_tokens":50}`: 50,
		`,"max_tokens":100000}`:                        8000,
		`,"max_tokens":50,"n":3}`:                      150,
		`,"n":2}`:                                      2048,
		`,"max_tokens":0}`:                             0,
	} {
		w := newWorld(t, func(o *Options) { o.MaxOutput = map[string]int64{"grok-2": 8000} })
		w.ask(chatPath, hello+body)
		if c := w.e.checks[0]; *c.MaxOutputTokens != want || *c.InputTokens < 8 {
			t.Errorf("%s: reserved %d and %d, want %d", body, *c.InputTokens, *c.MaxOutputTokens, want)
		}
	}
	w := newWorld(t, nil)
	w.ask("/v1/embeddings", `{"model":"grok-2","input":"words"}`)
	if c := w.e.checks[0]; *c.MaxOutputTokens != 0 {
		t.Errorf("%+v", c)
	}
}

func TestAStreamWithABoundDrawsNothingAndOneWithoutInSteps(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Predicted = 100 })
	w.ask(chatPath, hello+`,"stream":true,"max_tokens":2000,"x_sim":{"tokens":2000}}`)
	if len(w.e.draws) != 0 {
		t.Errorf("drew %v", w.e.draws)
	}
	w.e.records = nil
	w.ask(chatPath, hello+`,"stream":true,"x_sim":{"tokens":2000,"usage":"none"}}`)
	sum := int64(0)
	for _, n := range w.e.draws {
		sum += n
	}
	if r := w.recorded(); len(w.e.draws) < 10 || len(w.e.draws) > 2000/16 || sum > r.OutputTokens || sum < r.OutputTokens-drawEvery {
		t.Errorf("drew %v, %d in all of %d", w.e.draws, sum, r.OutputTokens)
	}
}

func TestALeaseThatIsLostEndsTheStream(t *testing.T) {
	w := newWorld(t, nil)
	w.e.check = `{"allowed":true,"lease_ms":300}`
	w.e.consume = func(int64) string { return `{"allowed":false,"reason":"reservation_ended"}` }
	_, body := w.ask(chatPath, hello+`,"stream":true,"max_tokens":1000,"x_sim":{"tokens":1000,"pace_ms":20}}`)
	if n := strings.Count(body, "data:"); n > 100 || !strings.HasSuffix(body, "data: [DONE]\n\n") || !strings.Contains(body, `"finish_reason":"length"`) {
		t.Errorf("%d events: %.100s", n, body)
	}
}

// B23: how long a lease is, the answers tell, and may change; the instants in them are of another clock.
func TestB23LeasesAreRenewedAsTheAnswersTell(t *testing.T) {
	w := newWorld(t, nil)
	w.e.check = `{"allowed":true,"lease_ms":60}`
	w.e.consume = func(int64) string {
		return map[bool]string{true: `{"allowed":true,"lease_ms":60,"lease_expires_at":"2031-01-01T00:00:00Z"}`, false: `{"allowed":true,"lease_ms":600000,"lease_expires_at":"2021-01-01T00:00:00Z"}`}[len(w.e.draws) < 4]
	}
	w.ask(chatPath, hello+`,"stream":true,"max_tokens":10,"x_sim":{"pace_ms":100}}`)
	if n := len(w.e.draws); n != 4 {
		t.Errorf("renewed %d times, want 4: each 20 ms until the lease got longer", n)
	}
}
