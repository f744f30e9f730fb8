package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
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

// B21: a client that leaves gives its slot back, whenever and however it leaves.
func TestB21ALeavingClientFreesItsSlot(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{concurrent: 2})
	slow := hello + `,"stream":true,"x_sim":{"tokens":1000,"pace_ms":20}}`
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	leave := map[string]func(t *testing.T){
		"after two chunks": func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			resp := ask(ctx, t, p.system.GatewayURL, key.Secret, chatPath, slow, nil)
			readEvents(t, bufio.NewReader(resp.Body), 2)
			cancel()
		},
		"before the first byte": func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.system.GatewayURL+"/v1"+chatPath, strings.NewReader(hello+`,"stream":true,"x_sim":{"delay_ms":60000}}`))
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
				t.Error("it was answered")
			}
		},
		"at once": func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.system.GatewayURL+"/v1"+chatPath, strings.NewReader(slow))
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		},
		"by RST_STREAM": func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.system.GatewayURL+"/v1"+chatPath, strings.NewReader(slow))
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			resp, err := h2.RoundTrip(req)
			if err != nil || resp.ProtoMajor != 2 {
				t.Fatal(resp, err)
			}
			readEvents(t, bufio.NewReader(resp.Body), 2)
			_ = resp.Body.Close()
		},
	}
	for name, f := range leave {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				f(t)
				if took := awaitFree(t, e, user); took > 2*time.Second {
					t.Errorf("the slot was free after %s", took)
				}
			}
		})
	}
	if n := p.upstream.Open(); n != 0 {
		time.Sleep(time.Second)
		if n = p.upstream.Open(); n != 0 {
			t.Errorf("the server still answers %d requests of clients that have left", n)
		}
	}
	for range 2 {
		if resp := ask(t.Context(), t, p.system.GatewayURL, key.Secret, chatPath, slow, nil); resp.StatusCode != http.StatusOK {
			t.Errorf("a slot is lost: %s", resp.Status)
		}
	}
	resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, slow)
	kind, code, _, _ := errorOf(t, body)
	if resp.StatusCode != http.StatusTooManyRequests || kind != "rate_limit_exceeded" || code != "rate_limit_exceeded" || resp.Header.Get("Retry-After") != "1" ||
		resp.Header.Get("Retry-After-Ms") != "1000" || resp.Header.Get("X-Ratelimit-Remaining-Concurrent") != "0" {
		t.Errorf("a third: %s %v %s", resp.Status, resp.Header, body)
	}
}

// B23: a lease is renewed for as long as its stream lasts.
func TestB23TheSlotIsHeldForAsLongAsTheStreamLasts(t *testing.T) {
	p, _, q := services(t)
	base, e, _ := p.pair(t, "TOLLGATE_LEASE=3s")
	user, key := keyed(t, q, limits{concurrent: 1})
	stream := ask(t.Context(), t, base, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":8,"x_sim":{"pace_ms":1000}}`, nil) // 7 s
	ended := make(chan string, 1)
	go func() {
		b := new(strings.Builder)
		_, _ = bufio.NewReader(stream.Body).WriteTo(b)
		ended <- b.String()
	}()
	probes := 0
	for done := false; !done; {
		select {
		case body := <-ended:
			if ev := events(body); ev[len(ev)-1] != "[DONE]" {
				t.Errorf("%s", body)
			}
			done = true
		case <-time.After(500 * time.Millisecond):
			if resp, _ := answered(t, base, key.Secret, chatPath, hello+`,"max_tokens":1}`); resp.StatusCode != http.StatusTooManyRequests {
				t.Errorf("admitted beside the stream: %s", resp.Status)
			}
			probes++
		}
	}
	if probes < 10 {
		t.Errorf("%d probes", probes)
	}
	codes := make(chan int, 2)
	for range 2 {
		go func() {
			resp := ask(t.Context(), t, base, key.Secret, chatPath, hello+`,"max_tokens":1,"x_sim":{"delay_ms":500}}`, nil)
			codes <- resp.StatusCode
		}()
	}
	if a, b := <-codes, <-codes; a+b != http.StatusOK+http.StatusTooManyRequests {
		t.Errorf("two at once after the stream: %d and %d", a, b)
	}
	awaitFree(t, e, user)
}

// B28: what was produced for a client that left is billed.
func TestB28WhatWasProducedForALeavingClientIsBilled(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{tpd: 1_000_000, concurrent: 1})
	ctx, cancel := context.WithCancel(t.Context())
	resp := ask(ctx, t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":1000,"x_sim":{"tokens":1000,"stall_after":40}}`, nil)
	readEvents(t, bufio.NewReader(resp.Body), 40)
	cancel()
	if took := awaitFree(t, e, user); took > 2*time.Second {
		t.Errorf("the slot was free after %s", took)
	}
	u := p.usageOf(t, requestID(t, resp))
	if u.Outcome != "cancelled" || !u.Estimated || u.Output < 40 || u.Output > 160 || u.Input < 5 || u.Input > 60 {
		t.Errorf("%+v", u)
	}
	if left := remaining(t, status(t, e, user), "tokens_1d"); left < 1_000_000-u.Input-u.Output || left > 1_000_000-u.Input-u.Output+50 {
		t.Errorf("%d tokens are left after %d and %d", left, u.Input, u.Output)
	}
}

// B32: running totals are not added up, and usage that comes twice counts once.
func TestB32RunningTotalsCountOnce(t *testing.T) {
	p, e, q := services(t)
	for _, usage := range []string{"each", "finish"} {
		user, key := keyed(t, q, limits{tpd: 1_000_000})
		resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":5,"x_sim":{"prompt":16,"usage":"`+usage+`"}}`)
		if u := p.usageOf(t, requestID(t, resp)); u.Input != 16 || u.Output != 5 || u.Estimated {
			t.Errorf("%s: %+v", usage, u)
		}
		if left := remaining(t, status(t, e, user), "tokens_1d"); left < 1_000_000-21 || left > 1_000_000-21+50 {
			t.Errorf("%s: %d tokens are left", usage, left)
		}
		for _, ev := range events(body) {
			var c struct {
				Usage   *json.RawMessage
				Choices []json.RawMessage
			}
			if ev != "[DONE]" && (json.Unmarshal([]byte(ev), &c) != nil || len(c.Choices) == 0 || c.Usage != nil) {
				t.Errorf("%s: a client that did not ask sees %s", usage, ev)
			}
		}
	}
}

// B33: only who asked for usage sees it, and other stream options reach the server.
func TestB33UsageIsHiddenFromWhoDidNotAsk(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	for options, sees := range map[string]int{``: 0, `,"stream_options":{"x":[1,2],"include_usage":false}`: 0, `,"stream_options":{"include_usage":true,"x":[1,2]}`: 1, `,"stream_options":null`: 0} {
		resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":3,"x_sim":{"prompt":11}`+options+`}`)
		ev := events(body)
		seen := strings.Count(body, `"prompt_tokens"`)
		if seen != sees || ev[len(ev)-1] != "[DONE]" || sees == 1 && !strings.Contains(ev[len(ev)-2], `"prompt_tokens":11`) || len(ev) != 3+1+sees+1 {
			t.Errorf("%s: usage seen %d times in\n%s", options, seen, body)
		}
		id := requestID(t, resp)
		if u := p.usageOf(t, id); u.Input != 11 || u.Output != 3 || u.Estimated {
			t.Errorf("%s: %+v", options, u)
		}
		sent := string(p.upstream.Answers()[id.String()].Body)
		if strings.Count(sent, `"include_usage":true`) != 1 || strings.Contains(options, `"x"`) && !strings.Contains(sent, `"x":[1,2]`) {
			t.Errorf("%s: the server got %s", options, sent)
		}
	}
}

// B43: nothing but the credential says who pays.
func TestB43OnlyTheCredentialSaysWhoPays(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{rpm: 100})
	other := newUser(t, q, limits{rpm: 100})
	var last uuid.UUID
	for i := range 20 {
		named := other
		if i >= 10 {
			named = uuid.NewString()
		}
		h := http.Header{"X-User-Id": {named}, "X-Org-Id": {"o2"}, "X-Api-Key": {"tg-other"}, "Openai-Organization": {"o2"}, "Cookie": {"session=1"}, "X-Request-Id": {uuid.NewString()}}
		resp := ask(t.Context(), t, p.system.GatewayURL, key.Secret, chatPath, fmt.Sprintf(`%s,"max_tokens":1,"user":%q,"metadata":{"user_id":%q}}`, hello, named, named), h)
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		_ = resp.Body.Close()
		if last = requestID(t, resp); last.String() == h.Get("X-Request-Id") {
			t.Error("a client's request id became a bill's")
		}
	}
	awaitFree(t, e, user)
	if u := p.usageOf(t, last); u.User != user || u.Key != key.ID || u.Org != "" {
		t.Errorf("%+v", u)
	}
	if left := remaining(t, status(t, e, user), "requests"); left > 100-20+15 {
		t.Errorf("%d requests are left of 100 after 20", left)
	}
	if left := remaining(t, status(t, e, other), "requests"); left != 100 {
		t.Errorf("%d requests are left of the other's 100", left)
	}
	sent := p.upstream.Answers()[last.String()].Header
	for _, name := range []string{"X-User-Id", "X-Org-Id", "X-Api-Key", "Openai-Organization", "Cookie"} {
		if sent.Get(name) != "" {
			t.Errorf("the server got %s", name)
		}
	}
	if sent.Get("Authorization") != "Bearer "+system.UpstreamKey {
		t.Error("the server did not get its own credential")
	}
}

// B123: the server gets the bytes that the client sent.
func TestB123BodiesPassUntouched(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	deep := strings.Repeat(`{"properties":{"p":`, 40) + `{}` + strings.Repeat(`}}`, 40)
	body := `{ "seed":9007199254740993,  "temperature":0.10,"x_sim":{"echo":true},"model":"grok-2","messages":[{"role":"user","content":"a\u2028b\/\ud83d\ude00 é"}],
	"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":` + deep + `}}],"response_format":{"type":"json_object"},
	"logit_bias":{"50256":-100},"unknown":{"b":1,"a":[1e400,-0.0,1E+2]},"unknown":2,"user":"someone"}`
	resp, got := answered(t, p.system.GatewayURL, key.Secret, chatPath, body)
	if resp.StatusCode != http.StatusOK || got != body {
		t.Errorf("%s\n%s\nbecame\n%s", resp.Status, body, got)
	}
	streamed := strings.Replace(body, `"user":"someone"`, `"stream":true,"stream_options":{ "x":1 }`, 1)
	want := strings.Replace(streamed, `{ "x":1 }`, `{"include_usage":true, "x":1 }`, 1)
	if _, got := answered(t, p.system.GatewayURL, key.Secret, chatPath, streamed); got != want {
		t.Errorf("%s\nbecame\n%s", streamed, got)
	}
}

// B130: what clients send becomes no series.
func TestB130NothingThatClientsSendBecomesASeries(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	_, _ = answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"max_tokens":1}`)
	before := metricsOf(t, p.system.GatewayURL)
	marker := "m" + strings.ReplaceAll(uuid.NewString(), "-", "")
	for i := range 300 {
		model := fmt.Sprintf("%s-%d", marker, i)
		_, _ = answered(t, p.system.GatewayURL, key.Secret, chatPath, fmt.Sprintf(`{"model":%q,"user":%q,"max_tokens":1,"messages":[]}`, model, model))
		resp := ask(t.Context(), t, p.system.GatewayURL, "tg-"+model, "/"+model, "{}", nil)
		_ = resp.Body.Close()
		resp = ask(t.Context(), t, p.system.GatewayURL, "tg-"+model, chatPath, "{}", nil)
		_ = resp.Body.Close()
	}
	after := metricsOf(t, p.system.GatewayURL)
	if grown := strings.Count(after, "\n") - strings.Count(before, "\n"); grown >= 100 {
		t.Errorf("%d more series", grown)
	}
	if strings.Contains(after, marker) || strings.Contains(after, key.Secret) {
		t.Error("what a client sent is in the metrics")
	}
}

func TestARevokedOrRotatedKeyIsRefusedOnTheNextRequest(t *testing.T) {
	p, _, q := services(t)
	for range 10 {
		_, key := keyed(t, q, limits{})
		status := func(secret string) int {
			resp, _ := answered(t, p.system.GatewayURL, secret, chatPath, hello+`,"max_tokens":1}`)
			return resp.StatusCode
		}
		if s := status(key.Secret); s != http.StatusOK {
			t.Fatal(s)
		}
		rotated, err := q.RotateKey(t.Context(), key.ID, client.KeyChange{})
		if err != nil {
			t.Fatal(err)
		}
		if s, n := status(key.Secret), status(rotated.Secret); s != http.StatusUnauthorized || n != http.StatusOK {
			t.Errorf("after the rotation: old %d, new %d", s, n)
		}
		if _, err := q.RevokeKey(t.Context(), key.ID, client.KeyChange{}); err != nil {
			t.Fatal(err)
		}
		if s := status(rotated.Secret); s != http.StatusUnauthorized {
			t.Errorf("after the revocation: %d", s)
		}
	}
}

func TestASessionIsBilledToItsUser(t *testing.T) {
	p, _, q := services(t)
	user := newUser(t, q, limits{})
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user, "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(system.JWTSecret))
	if err != nil {
		t.Fatal(err)
	}
	resp, body := answered(t, p.system.GatewayURL, token, chatPath, hello+`,"max_tokens":2}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, body)
	}
	if u := p.usageOf(t, requestID(t, resp)); u.User != user || u.Key != "" || u.Output != 2 {
		t.Errorf("%+v", u)
	}
}

// A stream without a limit of its own ends as if it had one when the quota is used up.
func TestAStreamEndsCleanlyWhenTheQuotaIsUsedUp(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{tpd: 1500})
	resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"stream":true,"stream_options":{"include_usage":true},"x_sim":{"tokens":20000}}`)
	ev := events(body)
	if resp.StatusCode != http.StatusOK || len(ev) < 400 || ev[len(ev)-1] != "[DONE]" {
		t.Fatalf("%s, %d events, %.300s", resp.Status, len(ev), body)
	}
	if end := ev[len(ev)-3]; !strings.Contains(end, `"finish_reason":"length"`) || !strings.Contains(end, `"id":"sim-`) {
		t.Errorf("it ends in %s", end)
	}
	if usage := ev[len(ev)-2]; !strings.Contains(usage, `"completion_tokens"`) {
		t.Errorf("no usage: %s", usage)
	}
	u := p.usageOf(t, requestID(t, resp))
	if u.Outcome != "completed" || !u.Estimated || u.Output < 1024 || u.Output > 1500+300 {
		t.Errorf("%+v", u)
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
