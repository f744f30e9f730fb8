package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func TestQuotaThatCannotBeReadIs503AndConsumesNothing(t *testing.T) {
	w := newWorld(t)
	w.quotaErr = errors.New("postgres://user:secret@db is away")
	for _, c := range []call{
		{method: "POST", path: "/internal/rate-limit/check", body: `{"user_id":"u1","model":"m","estimated_tokens":1}`},
		{method: "POST", path: "/internal/rate-limit/record", body: `{"user_id":"u1","request_id":"01890a5d-ac96-774b-bcce-b302099a8057","actual_tokens":1}`},
		{method: "GET", path: "/internal/rate-limit/status/user/u1"},
	} {
		resp := c.do(t, w)
		p := read[problem.Problem](t, resp, 503)
		if strings.Contains(fmt.Sprintf("%+v", p), "secret") || resp.Header.Get("Retry-After") == "" || p.RequestID == "" {
			t.Errorf("%+v", p)
		}
	}
	w.quotaErr = nil
	if st := w.status(t, "user/u1"); n(st.Remaining["tokens_1d"]) != 500_000 {
		t.Errorf("%+v", st)
	}
}

func TestBadInputNamesEveryFieldAndConsumesNothing(t *testing.T) {
	const uid, model, est, id = `"user_id":"u1"`, `"model":"m"`, `"estimated_tokens":1`, `"request_id":"01890a5d-ac96-774b-bcce-b302099a8057"`
	const full = `"model":"m","input_tokens":10,"output_tokens":5,"latency_ms":1,"outcome":"completed"`
	obj := func(parts ...string) string { return "{" + strings.Join(parts, ",") + "}" }
	w := newWorld(t)
	before := w.status(t, "user/u1")
	for _, c := range []struct {
		path, body string
		fields     string // sorted, with blanks; "" is malformed JSON
		beyond     bool
	}{
		{"consume", `{}`, "request_id tokens user_id", false},
		{"consume", obj(uid, id, `"tokens":-1`), "tokens", false},
		{"consume", obj(uid, id, `"tokens":1`, `"model":"m"`), "model", false},
		{"check", ``, "", false},
		{"check", `[]`, "", false},
		{"check", `nonsense`, "", false},
		{"check", `{} {}`, "", true},
		{"check", `{}`, "estimated_tokens model user_id", false},
		{"check", obj(uid, `"api_key_id":"k"`, model, est), "api_key_id user_id", false},
		{"check", obj(`"user_id":"a:b"`, `"model":"a b"`, `"estimated_tokens":-1`, `"request_id":"x"`, `"reserve":"some"`), "estimated_tokens model request_id reserve user_id", false},
		{"check", obj(`"user_id":""`, model, est), "user_id", false},
		{"check", obj(`"user_id":"`+strings.Repeat("x", 129)+`"`, model, est), "user_id", false},
		{"check", obj(uid, model, est, `"tokens":5`), "tokens", false},
		{"check", obj(uid, model, est, est), "estimated_tokens", true},
		{"check", obj(uid, model, `"estimated_tokens":null`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":"50"`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":1.5`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":true`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":[10]`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":-100000`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":9007199254740992`), "estimated_tokens", false},
		{"check", obj(uid, model, `"estimated_tokens":99999999999999999999`), "estimated_tokens", false},
		{"check", obj(uid, model, est, `"input_tokens":1`), "input_tokens", false},
		{"check", obj(uid, model, `"input_tokens":1`), "max_output_tokens", false},
		{"check", obj(uid, model, `"max_output_tokens":1`), "input_tokens", false},
		{"check", obj(uid, model, `"input_tokens":9007199254740991`, `"max_output_tokens":1`), "max_output_tokens", true},
		{"check", obj(uid, model, est, `"request_id":"00000000-0000-0000-0000-000000000000"`), "request_id", false},
		{"check", obj(uid, model, est, `"request_id":"{01890a5d-ac96-774b-bcce-b302099a8057}"`), "request_id", false},
		{"check", obj(uid, model, est, `"request_id":"01890a5dac96774bbcceb302099a8057"`), "request_id", false},
		{"check", obj(uid, model, est, `"dry_run":1`), "dry_run", false},
		{"check", obj(uid, `"Model":"m"`, est), "Model", false},
		{"record", `{}`, "input_tokens latency_ms model outcome output_tokens request_id user_id", false},
		{"record", obj(uid, id, full, `"actual_tokens":5`), "input_tokens latency_ms model outcome output_tokens", false},
		{"record", obj(uid, id, `"actual_tokens":-500`), "actual_tokens", false},
		{"record", obj(uid, id, full, `"cached_input_tokens":11`), "cached_input_tokens", true},
		{"record", obj(uid, id, `"model":"m","input_tokens":9007199254740991,"output_tokens":1,"latency_ms":1,"outcome":"completed"`), "output_tokens", true},
		{"record", obj(uid, id, `"model":"m","input_tokens":-1,"output_tokens":-1,"latency_ms":-1,"outcome":"expired"`), "input_tokens latency_ms outcome output_tokens", false},
		{"record", obj(uid, id, `"model":"m","input_tokens":1e3,"output_tokens":1,"latency_ms":1,"outcome":"completed"`), "input_tokens", true},
	} {
		resp := call{method: "POST", path: "/internal/rate-limit/" + c.path, body: c.body, beyond: c.beyond}.do(t, w)
		p := read[problem.Problem](t, resp, 400)
		var fields []string
		for _, e := range p.Errors {
			if !slices.Contains(fields, e.Field) {
				fields = append(fields, e.Field)
			}
		}
		slices.Sort(fields)
		if got := strings.Join(fields, " "); got != c.fields || (got == "") != (p.Code == problem.CodeMalformedJSON) {
			t.Errorf("%s %.120s: names %q, want %q: %+v", c.path, c.body, got, c.fields, p)
		}
	}
	if after := w.status(t, "user/u1"); fmt.Sprint(text(after.rooms)) != fmt.Sprint(text(before.rooms)) || len(w.usage)+len(w.rejections) != 0 {
		t.Error("bad input changed something")
	}
}

func TestHugeAndForeignBodiesAreRefused(t *testing.T) {
	w := newWorld(t)
	big := `{"user_id":"` + strings.Repeat("x", strictjson.MaxBody) + `"}`
	read[problem.Problem](t, call{method: "POST", path: "/internal/rate-limit/check", body: big}.do(t, w), 413)
	read[problem.Problem](t, call{method: "POST", path: "/internal/rate-limit/check", body: "user_id=u1", header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}.do(t, w), 415)
}

func TestNothingInternalAnswersWithoutTheServiceToken(t *testing.T) {
	w := newWorld(t)
	for _, tok := range []string{"-", "Bearer", "Bearer ", "Bearer wrong", "Basic " + token, token, "Bearer " + token + "x"} {
		for _, c := range []call{
			{method: "POST", path: "/internal/rate-limit/check", body: `{"user_id":"u1","model":"m","estimated_tokens":1}`},
			{method: "POST", path: "/internal/rate-limit/check", body: `nonsense`},
			{method: "GET", path: "/internal", unlisted: true},
			{method: "POST", path: "/internal", unlisted: true},
			{method: "POST", path: "/internal/rate-limit/record", body: `{}`},
			{method: "GET", path: "/internal/rate-limit/status/user/u1"},
			{method: "GET", path: "/internal/rate-limit/status/api_key/k1"},
			{method: "DELETE", path: "/internal/rate-limit/check", unlisted: true},
			{method: "GET", path: "/internal/unknown", unlisted: true},
			{method: "GET", path: "/internal/", unlisted: true},
			{method: "POST", path: "/%69nternal/rate-limit/check", body: `{"user_id":"u1","model":"m","estimated_tokens":1}`, unlisted: true},
			{method: "POST", path: "//internal/rate-limit/check", unlisted: true},
			{method: "POST", path: "/x/../internal/rate-limit/check", unlisted: true},
		} {
			c.token = tok
			resp := c.do(t, w)
			if p := read[problem.Problem](t, resp, 401); p.Code != problem.CodeUnauthorized || resp.Header.Get("WWW-Authenticate") == "" || resp.Header.Get("Content-Type") != problem.ContentType {
				t.Errorf("%s %s with %q: %+v", c.method, c.path, tok, p)
			}
		}
	}
	if st := w.status(t, "user/u1"); st.InFlight != 0 {
		t.Error("something was reserved")
	}
}

func TestUnknownPathsAndMethodsAreProblemDocuments(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		call
		status int
		allow  string
	}{
		{call{method: "GET", path: "/"}, 404, ""},
		{call{method: "GET", path: "/internal/rate-limit"}, 404, ""},
		{call{method: "POST", path: "/internal/rate-limit/check/"}, 404, ""},
		{call{method: "POST", path: "/internal//rate-limit/check"}, 404, ""},
		{call{method: "POST", path: "/internal/rate-limit/../rate-limit/check"}, 404, ""},
		{call{method: "GET", path: "/internal/rate-limit/status/user/"}, 404, ""},
		{call{method: "GET", path: "/internal/rate-limit/check"}, 405, "POST"},
		{call{method: "PUT", path: "/internal/rate-limit/record"}, 405, "POST"},
		{call{method: "POST", path: "/internal/rate-limit/status/user/u1"}, 405, "GET"},
		{call{method: "POST", path: "/healthz"}, 405, "GET"},
		{call{method: "BREW", path: "/metrics"}, 405, "GET"},
	} {
		c.unlisted = true
		resp := c.do(t, w)
		if p := read[problem.Problem](t, resp, c.status); p.Status != c.status || resp.Header.Get("Content-Type") != problem.ContentType || resp.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %+v %v", c.method, c.path, p, resp.Header)
		}
	}
}

func TestMetricLabelsAreAClosedSet(t *testing.T) {
	w := newWorld(t)
	series := func() int {
		families, err := w.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, f := range families {
			total += len(f.GetMetric())
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if strings.Contains(l.GetValue(), "random") {
						t.Errorf("%s has label %s", f.GetName(), l)
					}
				}
			}
		}
		return total
	}
	w.check(t, `{"user_id":"u","model":"grok-2","estimated_tokens":1}`)
	before := series()
	serve := func(c call) { c.unlisted = true; c.do(t, w) }
	for i := range 1000 {
		serve(call{method: "POST", path: "/internal/rate-limit/check", body: fmt.Sprintf(`{"user_id":"random%d","model":"random%d","estimated_tokens":1}`, i%50, i)})
		serve(call{method: "GET", path: fmt.Sprintf("/internal/random%d", i)})
		serve(call{method: "GET", path: fmt.Sprintf("/internal/rate-limit/status/user/random%d", i)})
		serve(call{method: fmt.Sprintf("RANDOM%d", i), path: "/internal/rate-limit/check"})
		w.sell(fmt.Sprintf("user:random%d", i%50), tier.Quota{Tier: fmt.Sprintf("random%d", i)})
	}
	if grown := series() - before; grown > 20 {
		t.Errorf("%d new series", grown)
	}
}

func TestCallersRequestIDIsKeptIfItIsSane(t *testing.T) {
	w := newWorld(t)
	for sent, kept := range map[string]bool{"call-17": true, "": false, "a b": false, "a\tb": false, strings.Repeat("x", 200): false} {
		resp := call{method: "GET", path: "/internal/none", header: http.Header{"X-Request-Id": {sent}}, unlisted: true}.do(t, w)
		if got := resp.Header.Get("X-Request-Id"); (got == sent) != kept || got == "" {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
}
