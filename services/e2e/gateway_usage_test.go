package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

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
