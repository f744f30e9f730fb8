package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// send makes one request as it is given, and reads the problem that comes back.
func send(t *testing.T, method, url, token, body string) (int, problem.Problem) {
	t.Helper()
	resp, b := exchange(t, method, url, token, body)
	var p problem.Problem
	if resp.Header.Get("Content-Type") == problem.ContentType {
		if err := json.Unmarshal(b, &p); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
	}
	return resp.StatusCode, p
}

// exchange makes one request as it is given, and reads the whole answer. No token: no Authorization; a body is JSON.
func exchange(t *testing.T, method, url, token, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

func TestBadInputNamesTheFieldAndConsumesNothing(t *testing.T) {
	p, e, q := services(t)
	user := newUser(t, q, limits{rpm: 10, tpm: 1000, tpd: 1000, concurrent: 5})
	const id = `"0190d7a4-0000-7000-8000-00000000abcd"`
	for _, c := range []struct{ path, fields, field string }{
		{"check", `"model":"grok-2","estimated_tokens":-1`, "estimated_tokens"},
		{"check", `"model":"grok-2","estimated_tokens":1.5`, "estimated_tokens"},
		{"check", `"model":"grok-2","estimated_tokens":"10"`, "estimated_tokens"},
		{"check", `"model":"grok-2","estimated_tokens":null`, "estimated_tokens"},
		{"check", `"model":"grok-2","estimated_tokens":1e30`, "estimated_tokens"},
		{"check", `"model":"grok-2","input_tokens":-5,"max_output_tokens":10`, "input_tokens"},
		{"check", `"model":"grok 2","estimated_tokens":10`, "model"},
		{"check", `"estimated_tokens":10`, "model"},
		{"check", `"model":"grok-2","estimated_tokens":10,"request_id":"nope"`, "request_id"},
		{"check", `"model":"grok-2","estimated_tokens":10,"tier":"enterprise"`, "tier"},
		{"check", `"model":"grok-2","estimated_tokens":10,"estimated_tokens":1`, "estimated_tokens"},
		{"record", `"request_id":` + id + `,"model":"grok-2","input_tokens":-1,"output_tokens":1,"latency_ms":1,"outcome":"completed"`, "input_tokens"},
		{"record", `"request_id":` + id + `,"model":"grok-2","input_tokens":1,"output_tokens":1,"latency_ms":1,"outcome":"expired"`, "outcome"},
		{"record", `"model":"grok-2","input_tokens":1,"output_tokens":1,"latency_ms":1,"outcome":"completed"`, "request_id"},
	} {
		code, got := send(t, http.MethodPost, p.system.EnforcementURL+"/internal/rate-limit/"+c.path, system.ServiceToken, `{"user_id":"`+user+`",`+c.fields+`}`)
		if code != http.StatusBadRequest || got.Code != problem.CodeInvalidRequest || len(got.Errors) == 0 || got.Errors[0].Field != c.field {
			t.Errorf("%s %s: %d, %+v; want 400 naming %s", c.path, c.fields, code, got, c.field)
		}
	}
	for name, body := range map[string]string{"both subjects": `{"user_id":"u","api_key_id":"k","model":"grok-2","estimated_tokens":1}`, "no subject": `{"model":"grok-2","estimated_tokens":1}`} {
		if code, got := send(t, http.MethodPost, p.system.EnforcementURL+"/internal/rate-limit/check", system.ServiceToken, body); code != http.StatusBadRequest || len(got.Errors) == 0 {
			t.Errorf("%s: %d, %+v", name, code, got)
		}
	}
	code, got := send(t, http.MethodPut, p.system.QuotaURL+"/internal/quota/"+user, system.AdminToken, `{"tier":"plus","rpm_limit":-1}`)
	if code != http.StatusBadRequest || len(got.Errors) == 0 || got.Errors[0].Field != "rpm_limit" {
		t.Errorf("a negative limit: %d, %+v", code, got)
	}
	big := `{"user_id":"` + user + `","model":"` + strings.Repeat("x", 1<<20) + `","estimated_tokens":1}`
	if code, _ := send(t, http.MethodPost, p.system.EnforcementURL+"/internal/rate-limit/check", system.ServiceToken, big); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body over 1 MiB: %d", code)
	}
	s := status(t, e, user)
	for dimension, want := range map[string]int64{"requests": 10, "tokens_1m": 1000, "tokens_1d": 1000, "concurrent": 5} {
		if left := remaining(t, s, dimension); left != want {
			t.Errorf("%s: %d are left of %d", dimension, left, want)
		}
	}
	if s.InFlight != 0 || *s.Limit["requests"] != 10 {
		t.Errorf("status is %+v", s)
	}
}

func TestMissingOrWrongTokenIs401(t *testing.T) {
	p, _, _ := services(t)
	e, q := p.system.EnforcementURL, p.system.QuotaURL
	for _, c := range []struct{ method, url string }{
		{http.MethodPost, e + "/internal/rate-limit/check"},
		{http.MethodPost, e + "/internal/rate-limit/record"},
		{http.MethodGet, e + "/internal/rate-limit/status/user/u1"},
		{http.MethodGet, q + "/internal/quota/u1"},
		{http.MethodPut, q + "/internal/quota/u1"},
		{http.MethodGet, q + "/internal/tiers"},
		{http.MethodPut, q + "/internal/tiers/plus"},
	} {
		body := ""
		if c.method != http.MethodGet {
			body = `{}`
		}
		for _, token := range []string{"", "wrong", system.ServiceToken + "x", system.AdminToken[:len(system.AdminToken)-1]} {
			if code, got := send(t, c.method, c.url, token, body); code != http.StatusUnauthorized || got.Code != problem.CodeUnauthorized {
				t.Errorf("%s %s with token %q: %d, %+v", c.method, c.url, token, code, got)
			}
		}
	}
	for _, c := range []struct {
		name, method, url, token string
	}{
		{"a service's token in the quota API", http.MethodGet, q + "/internal/quota/u1", system.ServiceToken},
		{"a viewer's token changing a quota", http.MethodPut, q + "/internal/quota/u1", system.ViewerToken},
	} {
		if code, got := send(t, c.method, c.url, c.token, `{"tier":"plus"}`); code != http.StatusForbidden || got.Code != problem.CodeForbidden {
			t.Errorf("%s: %d, %+v", c.name, code, got)
		}
	}
}
