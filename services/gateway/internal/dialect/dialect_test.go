package dialect

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// decision is an answer as enforcement gives it. A dimension that is left out of left is unlimited.
func decision(t *testing.T, limit, left string, resets map[string]time.Duration, headers string) client.Decision {
	t.Helper()
	var d client.Decision
	for _, err := range []error{json.Unmarshal([]byte(limit), &d.Limit), json.Unmarshal([]byte(left), &d.Remaining), json.Unmarshal([]byte(headers), &d.Headers)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d.ResetAt = map[string]*time.Time{}
	for name, in := range resets {
		at := now.Add(in)
		d.ResetAt[name] = &at
	}
	return d
}

func plus(t *testing.T) client.Decision {
	t.Helper()
	return decision(t, `{"requests":40,"tokens_1m":40000,"tokens_1d":500000,"concurrent":3}`, `{"requests":39,"tokens_1m":39850,"tokens_1d":499850,"concurrent":2}`,
		map[string]time.Duration{"requests": 1500 * time.Millisecond, "tokens_1m": 225 * time.Millisecond, "tokens_1d": 25*time.Second + 920*time.Millisecond},
		`{"X-RateLimit-Limit-Requests":"40","X-RateLimit-Remaining-Requests":"39","X-RateLimit-Reset-Requests":"2026-01-01T12:00:01.500Z","X-RateLimit-Limit-Concurrent":"3","X-RateLimit-Remaining-Concurrent":"2"}`)
}

func golden(t *testing.T, h http.Header, want ...string) {
	t.Helper()
	var got []string
	for name := range h {
		if name != http.CanonicalHeaderKey(name) || len(h[name]) != 1 {
			t.Errorf("%s: %q", name, h[name])
		}
		got = append(got, name+": "+h[name][0])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("\ngot\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestHeadersAreThoseOfTheDialect(t *testing.T) {
	golden(t, Tollgate.Headers(plus(t), now),
		"X-Ratelimit-Limit-Requests: 40", "X-Ratelimit-Remaining-Requests: 39", "X-Ratelimit-Reset-Requests: 2026-01-01T12:00:01.500Z",
		"X-Ratelimit-Limit-Concurrent: 3", "X-Ratelimit-Remaining-Concurrent: 2")
	golden(t, OpenAI.Headers(plus(t), now),
		"X-Ratelimit-Limit-Requests: 40", "X-Ratelimit-Remaining-Requests: 39", "X-Ratelimit-Reset-Requests: 1.5s",
		"X-Ratelimit-Limit-Tokens: 40000", "X-Ratelimit-Remaining-Tokens: 39850", "X-Ratelimit-Reset-Tokens: 225ms")
	golden(t, Anthropic.Headers(plus(t), now),
		"Anthropic-Ratelimit-Requests-Limit: 40", "Anthropic-Ratelimit-Requests-Remaining: 39", "Anthropic-Ratelimit-Requests-Reset: 2026-01-01T12:00:02Z",
		"Anthropic-Ratelimit-Tokens-Limit: 40000", "Anthropic-Ratelimit-Tokens-Remaining: 39850", "Anthropic-Ratelimit-Tokens-Reset: 2026-01-01T12:00:01Z")
	golden(t, IETF.Headers(plus(t), now),
		`Ratelimit-Policy: "requests";q=40;w=60, "tokens-1m";q=40000;qu="tokens";w=60, "tokens-1d";q=500000;qu="tokens";w=86400, "concurrent";q=3;qu="concurrent-requests"`,
		`Ratelimit: "requests";r=39;t=2, "tokens-1m";r=39850;t=1, "tokens-1d";r=499850;t=26, "concurrent";r=2`)
}

func TestTightestKindOfTokensIsTold(t *testing.T) {
	d := decision(t, `{"requests":null,"tokens_1m":40000,"tokens_1d":500000,"input_tokens_1m":30000,"requests_1d":9,"concurrent":null}`,
		`{"requests":null,"tokens_1m":40000,"tokens_1d":120,"input_tokens_1m":30000,"requests_1d":0,"concurrent":null}`,
		map[string]time.Duration{"tokens_1m": 0, "tokens_1d": 24*time.Hour - 6*time.Minute, "input_tokens_1m": -time.Second, "requests_1d": time.Millisecond}, "{}")
	golden(t, OpenAI.Headers(d, now), "X-Ratelimit-Limit-Tokens: 500000", "X-Ratelimit-Remaining-Tokens: 120", "X-Ratelimit-Reset-Tokens: 23h54m0s")
	golden(t, Anthropic.Headers(d, now),
		"Anthropic-Ratelimit-Tokens-Limit: 500000", "Anthropic-Ratelimit-Tokens-Remaining: 120", "Anthropic-Ratelimit-Tokens-Reset: 2026-01-02T11:54:00Z",
		"Anthropic-Ratelimit-Input-Tokens-Limit: 30000", "Anthropic-Ratelimit-Input-Tokens-Remaining: 30000", "Anthropic-Ratelimit-Input-Tokens-Reset: 2026-01-01T11:59:59Z")
	golden(t, IETF.Headers(d, now),
		`Ratelimit-Policy: "tokens-1m";q=40000;qu="tokens";w=60, "tokens-1d";q=500000;qu="tokens";w=86400, "input-tokens-1m";q=30000;qu="input-tokens";w=60, "requests-1d";q=9;w=86400`,
		`Ratelimit: "tokens-1m";r=40000;t=0, "tokens-1d";r=120;t=86040, "input-tokens-1m";r=30000;t=0, "requests-1d";r=0;t=1`)
}

func TestDurationsAreAsOpenAIWritesThem(t *testing.T) {
	for in, want := range map[time.Duration]string{0: "0s", time.Second: "1s", 6 * time.Minute: "6m0s", 120 * time.Millisecond: "120ms", time.Microsecond: "1ms", 8640 * time.Millisecond: "8.64s", -time.Hour: "0s"} {
		d := decision(t, `{"requests":1}`, `{"requests":1}`, map[string]time.Duration{"requests": in}, "{}")
		if got := OpenAI.Headers(d, now).Get("x-ratelimit-reset-requests"); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// The largest limits, and a bucket in deep debt: still valid fields, none wrapped round.
func TestExtremesStayValid(t *testing.T) {
	most := int64(1<<53 - 1)
	far := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	d := client.Decision{Room: client.Room{Limit: map[string]*int64{"tokens_1d": &most}, Remaining: map[string]*int64{"tokens_1d": &most}, ResetAt: map[string]*time.Time{"tokens_1d": &far}}}
	h := IETF.Headers(d, now)
	for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
		list, err := httpsfv.UnmarshalList(h[http.CanonicalHeaderKey(name)])
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v %v", name, h, err)
		}
	}
	golden(t, h, `Ratelimit-Policy: "tokens-1d";q=999999999999999;qu="tokens";w=86400`, `Ratelimit: "tokens-1d";r=999999999999999;t=9223372036`)
	if got, err := time.ParseDuration(OpenAI.Headers(d, now).Get("x-ratelimit-reset-tokens")); err != nil || got < 290*365*24*time.Hour {
		t.Errorf("%s, %v", got, err)
	}
	if roundUp(math.MaxInt64, time.Second) < 0 {
		t.Error("wrapped round")
	}
}

func TestWhatIsUnlimitedHasNoHeader(t *testing.T) {
	for _, d := range []Dialect{Tollgate, OpenAI, Anthropic, IETF} {
		golden(t, d.Headers(client.Decision{}, now))
		golden(t, d.Headers(decision(t, `{"requests":null,"tokens_1m":null}`, `{"requests":null,"tokens_1m":null}`, nil, "{}"), now))
	}
}

func TestEveryRefusalHasItsStatusAndOnlyTheRightOnesARetryTime(t *testing.T) {
	const wait = 1500
	for reason, want := range map[string]struct {
		status          int
		kind, code      string
		param           any
		seconds, millis string
	}{
		"rpm":               {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"tpm":               {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"tpd":               {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"itph":              {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"a_new_limit":       {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"concurrent":        {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"shed":              {429, "rate_limit_exceeded", "rate_limit_exceeded", nil, "2", "1500"},
		"request_too_large": {400, "invalid_request_error", "request_too_large", nil, "", ""},
		"context_too_long":  {400, "invalid_request_error", "context_length_exceeded", "messages", "", ""},
		"model_not_allowed": {403, "invalid_request_error", "model_not_allowed", "model", "", ""},
		"suspended":         {403, "invalid_request_error", "suspended", nil, "", ""},
	} {
		e := Refusal(client.Decision{Reason: reason, Scope: "user", Model: "grok-4", RetryAfterMS: wait})
		w := httptest.NewRecorder()
		e.Write(w)
		var b map[string]map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil || len(b) != 1 || len(b["error"]) != 4 {
			t.Fatalf("%s: %v %s", reason, err, w.Body)
		}
		got := b["error"]
		if w.Code != want.status || got["type"] != want.kind || got["code"] != want.code || got["param"] != want.param || got["message"] == "" ||
			w.Header().Get("Retry-After") != want.seconds || w.Header().Get("retry-after-ms") != want.millis || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v %v", reason, w.Code, w.Header(), got)
		}
	}
}

func Test429AlwaysHasARetryTimeRoundedUp(t *testing.T) {
	for ms, want := range map[int64][2]string{0: {"1", "1000"}, 1: {"1", "1"}, 999: {"1", "999"}, 1000: {"1", "1000"}, 1001: {"2", "1001"}, 86_400_000: {"86400", "86400000"}} {
		h := Refusal(client.Decision{Reason: "tpm", RetryAfterMS: ms}).Headers()
		if h.Get("Retry-After") != want[0] || h.Get("retry-after-ms") != want[1] {
			t.Errorf("%d: %v", ms, h)
		}
		if s, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64); err != nil || s*1000 < ms {
			t.Errorf("who waits %d s is refused again: %d ms were advised", s, ms)
		}
	}
}

func TestMessagesSayWhatHelps(t *testing.T) {
	for _, c := range []struct {
		d    client.Decision
		want string
	}{
		{client.Decision{Reason: "tpm", Scope: "org", RetryAfterMS: 1500}, "The limit of tokens per minute of this organization is reached. Try again in 1.5 s."},
		{client.Decision{Reason: "concurrent", Scope: "key", RetryAfterMS: 1000}, "The limit of requests at a time of this API key is reached. Try again in 1 s."},
		{client.Decision{Reason: "model_not_allowed", Model: "grok-4"}, "The model grok-4 is not part of what was bought."},
	} {
		if got := Refusal(c.d).Message; got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestOtherErrors(t *testing.T) {
	for _, c := range []struct {
		e                 Error
		status            int
		code, retry, auth string
	}{
		{Unauthorized("No such key."), 401, "invalid_api_key", "", "Bearer"},
		{Unavailable(), 503, "unavailable", "1", ""},
		{Invalid("messages", "is required"), 400, "invalid_request", "", ""},
	} {
		if h := c.e.Headers(); c.e.Status != c.status || c.e.Code != c.code || h.Get("Retry-After") != c.retry || h.Get("WWW-Authenticate") != c.auth {
			t.Errorf("%+v %v", c.e, h)
		}
	}
	want := `{"error":{"message":"is \"required\"","type":"invalid_request_error","param":"messages","code":"invalid_request"}}`
	if got := string(Invalid("messages", `is "required"`).Body()); got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

func TestDialectIsOneOfFour(t *testing.T) {
	for in, want := range map[string]Dialect{"": Tollgate, "tollgate": Tollgate, "openai": OpenAI, "anthropic": Anthropic, "ietf": IETF} {
		if d, err := Parse(in); err != nil || d != want {
			t.Errorf("%q: %q %v", in, d, err)
		}
	}
	for _, in := range []string{"OpenAI", "azure", " "} {
		if d, err := Parse(in); err == nil {
			t.Errorf("%q: %q", in, d)
		}
	}
}
