package e2e

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

const hello = `{"model":"grok-2","messages":[{"role":"user","content":"hello"}]`

func TestGatewaySettlesByTheServersOwnFigures(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{rpm: 1000, tpm: 100_000, tpd: 1_000_000, concurrent: 2})
	for name, c := range map[string]struct {
		path, body    string
		input, output int64
		cached        int64
		estimated     bool
	}{
		"chat":            {chatPath, hello + `,"max_tokens":5,"x_sim":{"prompt":30,"cached":10}}`, 30, 5, 10, false},
		"chat, n":         {chatPath, hello + `,"n":3,"max_tokens":5,"x_sim":{"prompt":30}}`, 30, 15, 0, false},
		"stream":          {chatPath, hello + `,"stream":true,"max_tokens":7,"x_sim":{"prompt":30,"cached":10}}`, 30, 7, 10, false},
		"stream, n":       {chatPath, hello + `,"stream":true,"n":2,"max_tokens":7,"x_sim":{"prompt":30}}`, 30, 14, 0, false},
		"completion":      {"/completions", `{"model":"grok-2","prompt":"hello","max_tokens":4,"x_sim":{"prompt":9}}`, 9, 4, 0, false},
		"embedding":       {"/embeddings", `{"model":"grok-2","input":["a","b"],"x_sim":{"prompt":8}}`, 8, 0, 0, false},
		"gzip":            {chatPath, hello + `,"max_tokens":5,"x_sim":{"prompt":30,"encoding":"gzip"}}`, 30, 5, 0, false},
		"br, stream":      {chatPath, hello + `,"stream":true,"max_tokens":5,"x_sim":{"prompt":30,"encoding":"br"}}`, 30, 5, 0, false},
		"zstd, stream":    {chatPath, hello + `,"stream":true,"max_tokens":5,"x_sim":{"prompt":30,"encoding":"zstd"}}`, 30, 5, 0, false},
		"gzip, stream":    {chatPath, hello + `,"stream":true,"max_tokens":5,"x_sim":{"prompt":30,"encoding":"gzip"}}`, 30, 5, 0, false},
		"byte by byte":    {chatPath, hello + `,"stream":true,"max_tokens":5,"x_sim":{"prompt":30,"bytewise":true,"crlf":true}}`, 30, 5, 0, false},
		"malformed":       {chatPath, hello + `,"stream":true,"max_tokens":5,"x_sim":{"prompt":30,"malformed":true}}`, 30, 5, 0, false},
		"no usage":        {chatPath, hello + `,"max_tokens":9,"x_sim":{"usage":"none"}}`, -1, -5, 0, true},
		"no usage, strm.": {chatPath, hello + `,"stream":true,"max_tokens":5,"x_sim":{"usage":"none"}}`, -1, -5, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := answered(t, p.system.GatewayURL, key.Secret, c.path, c.body)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "" || resp.Header.Get("X-Ratelimit-Limit-Requests") != "1000" ||
				resp.Header.Get("X-Ratelimit-Remaining-Tokens-1m") == "" || resp.Header.Get("X-Ratelimit-Reset-Tokens-1d") == "" || resp.Header.Get("X-Ratelimit-Limit-Concurrent") != "2" {
				t.Fatalf("%s %v: %s", resp.Status, resp.Header, body)
			}
			if strings.Contains(c.body, `"stream"`) && !strings.HasSuffix(strings.ReplaceAll(body, "\r", ""), "data: [DONE]\n\n") {
				t.Errorf("the stream ends in %.60q", body[max(0, len(body)-60):])
			}
			u := p.usageOf(t, requestID(t, resp))
			if u.User != user || u.Key != key.ID || u.Outcome != "completed" || u.Reservation != "held" || u.Estimated != c.estimated || u.Cached != c.cached {
				t.Errorf("%+v", u)
			}
			if c.input > 0 && (u.Input != c.input || u.Output != c.output) || c.input < 0 && (u.Input < 1 || u.Output < -c.output) {
				t.Errorf("%+v, want %d and %d tokens", u, c.input, c.output)
			}
		})
	}
	awaitFree(t, e, user)
}

func TestAServerThatFailsIsTold(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{tpd: 1_000_000, concurrent: 1})
	for name, c := range map[string]struct {
		body      string
		status    int
		min, max  int64 // output tokens that are billed
		broken    bool  // the stream is
		estimated bool
	}{
		"500":             {hello + `,"x_sim":{"status":500}}`, 500, 0, 0, false, false},
		"429":             {hello + `,"x_sim":{"status":429,"retry_after":7}}`, 429, 0, 0, false, false},
		"401":             {hello + `,"x_sim":{"status":401}}`, 502, 0, 0, false, false},
		"cut":             {hello + `,"x_sim":{"cut_after":1}}`, 502, 0, 0, false, true},
		"cut stream":      {hello + `,"stream":true,"max_tokens":100,"x_sim":{"tokens":20,"cut_after":9}}`, 200, 9, 40, true, true},
		"ended stream":    {hello + `,"stream":true,"max_tokens":100,"x_sim":{"tokens":20,"end_after":9}}`, 200, 9, 40, true, true},
		"cut with totals": {hello + `,"stream":true,"max_tokens":100,"x_sim":{"tokens":20,"usage":"each","cut_after":9}}`, 200, 9, 9, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			resp := ask(t.Context(), t, p.system.GatewayURL, key.Secret, chatPath, c.body, nil)
			b := new(strings.Builder)
			_, err := bufio.NewReader(resp.Body).WriteTo(b)
			if resp.StatusCode != c.status || resp.Header.Get("X-Ratelimit-Limit-Tokens-1d") == "" || (err != nil) != c.broken || strings.Contains(b.String(), "[DONE]") || !strings.Contains(b.String(), `"error"`) {
				t.Errorf("%s, %v: %s", resp.Status, err, b)
			}
			u := p.usageOf(t, requestID(t, resp))
			if u.Outcome != "failed" || u.Output < c.min || u.Output > c.max || u.Estimated != c.estimated {
				t.Errorf("%+v", u)
			}
		})
	}
	awaitFree(t, e, user)
}

func TestFaultyRequestsAreToldInOpenAIsShapeWithTheLimits(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{rpm: 3, tpm: 5000, concurrent: 5})
	for body, want := range map[string][2]string{
		`{`:                                 {"invalid_request", ""},
		`[]`:                                {"invalid_request", ""},
		`{"messages":[]}`:                   {"invalid_request", "model"},
		`{"model":"a","model":"b"}`:         {"invalid_request", "model"},
		`{"model":"a","max_tokens":"many"}`: {"invalid_request", "max_tokens"},
		`{"model":"a"}`:                     {"invalid_request", "messages"},
		hello + `,"max_tokens":1000000}`:    {"request_too_large", ""},
	} {
		resp, answer := answered(t, p.system.GatewayURL, key.Secret, chatPath, body)
		kind, code, _, param := errorOf(t, answer)
		if resp.StatusCode != http.StatusBadRequest || kind != "invalid_request_error" || code != want[0] || param != want[1] || resp.Header.Get("X-Ratelimit-Limit-Requests") != "3" || resp.Header.Get("Retry-After") != "" {
			t.Errorf("%s: %s %v %s", body, resp.Status, resp.Header, answer)
		}
	}
	if left := remaining(t, status(t, e, user), "requests"); left != 3 {
		t.Errorf("faulty requests were charged: %d of 3 are left", left)
	}
	for _, token := range []string{"", "tg-unknown", "nonsense"} {
		resp, answer := answered(t, p.system.GatewayURL, token, chatPath, hello+"}")
		if _, code, _, _ := errorOf(t, answer); resp.StatusCode != http.StatusUnauthorized || code != "invalid_api_key" {
			t.Errorf("%q: %s %s", token, resp.Status, answer)
		}
	}
	if _, err := q.PutQuota(t.Context(), user, client.QuotaChange{Suspended: new(true)}); err != nil {
		t.Fatal(err)
	}
	resp, answer := answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+"}")
	if _, code, _, _ := errorOf(t, answer); resp.StatusCode != http.StatusForbidden || code != "suspended" {
		t.Errorf("%s %s", resp.Status, answer)
	}
}

func TestModelsAreListedForWhoMayAsk(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{rpm: 7})
	for token, want := range map[string]int{key.Secret: http.StatusOK, "tg-unknown": http.StatusUnauthorized} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, p.system.GatewayURL+"/v1/models", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || want == http.StatusOK && (resp.Header.Get("X-Ratelimit-Remaining-Requests") != "7" || resp.ContentLength < 100) {
			t.Errorf("%s %v", resp.Status, resp.Header)
		}
	}
}

// The stop of the gateway: no new requests, short streams are served to their end, long ones are broken off; all are settled before it has stopped.
func TestAGatewayThatStopsSettlesWhatItServes(t *testing.T) {
	p, _, q := services(t)
	base, e, stop := p.pair(t, "TOLLGATE_DRAIN=2s")
	user, key := keyed(t, q, limits{concurrent: 10})
	short := ask(t.Context(), t, base, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":10,"x_sim":{"pace_ms":100}}`, nil)
	long := ask(t.Context(), t, base, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":1000,"x_sim":{"tokens":1000,"pace_ms":100}}`, nil)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	whole, err := io.ReadAll(short.Body)
	if err != nil || !strings.HasSuffix(string(whole), "data: [DONE]\n\n") {
		t.Errorf("the short one: %v, %s", err, whole)
	}
	part, err := io.ReadAll(long.Body)
	if err == nil || strings.Contains(string(part), "[DONE]") {
		t.Errorf("the long one: %v, %s", err, part)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if st := status(t, e, user); st.InFlight != 0 {
		t.Errorf("%d slots are held after the stop", st.InFlight)
	}
	if u := p.usageOf(t, requestID(t, short)); u.Outcome != "completed" || u.Output != 10 {
		t.Errorf("%+v", u)
	}
	if u := p.usageOf(t, requestID(t, long)); u.Outcome != "cancelled" || u.Output < 10 {
		t.Errorf("%+v", u)
	}
}
