package api

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownUserHasTheFreeTierAtVersionZero(t *testing.T) {
	h := newHarness(t)
	a := h.get("/internal/quota/nobody")
	if a.status != 200 || a.header.Get("ETag") != `"0"` {
		t.Fatal(a.status, a.header, string(a.body))
	}
	m := a.json(t)
	delete(m, "updated_at")
	want := map[string]any{"user_id": "nobody", "org_id": "", "tier": "free", "rpm_limit": 10.0, "tpm_limit": 10000.0, "tpd_limit": 100000.0,
		"concurrent_limit": 1.0, "allowed_models": []any{"grok-2", "grok-2-mini"}, "max_context": 8192.0, "limits": []any{}, "model_limits": []any{}, "shards": 1.0, "suspended": false,
		"overrides": map[string]any{}, "version": 0.0}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
}

func TestPutStatesTheWholeSetOfOwnLimits(t *testing.T) {
	h := newHarness(t)
	a := h.put("/internal/quota/u1", `{"tier":"plus","org_id":"o1","rpm_limit":7,"tpd_limit":0,"suspended":true,"reason":"trial"}`)
	m := a.json(t)
	if a.status != 200 || a.header.Get("ETag") != `"1"` || m["rpm_limit"] != 7.0 || m["tpd_limit"] != 0.0 || m["tpm_limit"] != 40000.0 || m["propagation"] != "done" {
		t.Fatal(a.status, string(a.body))
	}
	a = h.put("/internal/quota/u1", `{"tpm_limit":5}`)
	m = a.json(t)
	if m["version"] != 2.0 || m["tier"] != "plus" || m["org_id"] != "o1" || m["suspended"] != true || m["rpm_limit"] != 40.0 || m["tpm_limit"] != 5.0 {
		t.Error(string(a.body))
	}
	get := h.get("/internal/quota/u1").json(t)
	delete(m, "propagation")
	if diff := cmp.Diff(m, get); diff != "" {
		t.Errorf("GET is not what PUT answered: %s", diff)
	}
}

func TestPutThatChangesNothingAnswersTheSameVersion(t *testing.T) {
	h := newHarness(t)
	for range 3 {
		if a := h.put("/internal/quota/u1", `{"tier":"plus"}`); a.status != 200 || a.header.Get("ETag") != `"1"` {
			t.Error(a.status, string(a.body))
		}
	}
	if n := h.count("quota_events"); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestAnswerSaysPendingWhileRedisIsAway(t *testing.T) {
	h := newHarness(t)
	h.redis.err = errors.New("away")
	if a := h.put("/internal/quota/u1", `{"tier":"plus"}`); a.status != 200 || a.json(t)["propagation"] != "pending" {
		t.Error(a.status, string(a.body))
	}
	if a := h.put("/internal/quota/u1", `{"tier":"plus"}`); a.json(t)["propagation"] != "pending" {
		t.Errorf("repeated: %s", a.body)
	}
	h.redis.err = nil
	if a := h.put("/internal/quota/u1", `{"tier":"plus"}`); a.json(t)["propagation"] != "done" || len(h.redis.fences) != 1 {
		t.Errorf("repeated when redis is back: %s, published %+v", a.body, h.redis.fences)
	}
}

func TestIfMatchGuardsAgainstLostUpdates(t *testing.T) {
	h := newHarness(t)
	for i, step := range []struct {
		name, value string
		want        int
	}{
		{"If-Match", `"1"`, 412}, {"If-Match", `*`, 412}, {"If-Match", `"0"`, 200}, {"If-Match", `"0"`, 412}, {"If-None-Match", `*`, 412},
		{"If-Match", `"1"`, 200}, {"If-Match", `"1"`, 412}, {"If-Match", `"9", "2"`, 200}, {"If-Match", `W/"3"`, 412}, {"If-Match", `"03"`, 412},
		{"If-Match", `"abc"`, 412}, {"If-Match", `*`, 200}, {"If-Match", `4`, 400}, {"If-Match", `"4`, 400}, {"If-Match", ``, 400}, {"If-Match", `"4" "5"`, 400},
		{"If-Match", `"4" x`, 400}, {"If-None-Match", `"4"`, 400}, {"If-Match", ` , "4",`, 200},
	} {
		a := h.put("/internal/quota/u1", `{"rpm_limit":`+string(rune('1'+i%9))+`,"tpm_limit":`+string(rune('1'+i/9))+`}`, step.name, step.value)
		if a.status != step.want {
			t.Errorf("step %d, %s: %s: %d %s, want %d", i, step.name, step.value, a.status, a.body, step.want)
		}
		if a.status == 400 && !slices.Equal(a.fields(t), []string{step.name}) {
			t.Errorf("step %d: the header is not named: %s", i, a.body)
		}
	}
	if a := h.put("/internal/quota/u2", `{}`, "If-None-Match", "*"); a.status != 200 || a.header.Get("ETag") != `"1"` {
		t.Errorf("create only: %d %s", a.status, a.body)
	}
}

func TestBadInputNamesEveryFieldAndChangesNothing(t *testing.T) {
	h := newHarness(t)
	big := `"` + strings.Repeat("m", 129) + `"`
	many := `[` + strings.TrimSuffix(strings.Repeat(`"m",`, 1001), ",") + `]`
	for _, c := range []struct {
		name, id, body string
		want           []string // fields; nil: malformed_json
	}{
		{"negative", "u1", `{"rpm_limit":-1}`, []string{"rpm_limit"}},
		{"fraction", "u1", `{"tpm_limit":1.5}`, []string{"tpm_limit"}},
		{"fraction of zero", "u1", `{"tpm_limit":1.0}`, []string{"tpm_limit"}},
		{"exponent", "u1", `{"tpm_limit":1e3}`, []string{"tpm_limit"}},
		{"null", "u1", `{"tpd_limit":null}`, []string{"tpd_limit"}},
		{"string", "u1", `{"concurrent_limit":"3"}`, []string{"concurrent_limit"}},
		{"true", "u1", `{"max_context":true}`, []string{"max_context"}},
		{"beyond 2^53-1", "u1", `{"max_context":9007199254740992}`, []string{"max_context"}},
		{"beyond 64 bits", "u1", `{"max_context":99999999999999999999}`, []string{"max_context"}},
		{"unknown field", "u1", `{"colour":"red"}`, []string{"colour"}},
		{"wrong case", "u1", `{"RPM_limit":1}`, []string{"RPM_limit"}},
		{"read-only field", "u1", `{"version":1,"user_id":"u1"}`, []string{"version", "user_id"}},
		{"twice", "u1", `{"rpm_limit":1,"rpm_limit":2}`, []string{"rpm_limit"}},
		{"unknown tier", "u1", `{"tier":"gold"}`, []string{"tier"}},
		{"empty tier", "u1", `{"tier":""}`, []string{"tier"}},
		{"forged tier", "u1", `{"tier":"a b"}`, []string{"tier"}},
		{"forged org", "u1", `{"org_id":"o:1"}`, []string{"org_id"}},
		{"long org", "u1", `{"org_id":` + big + `}`, []string{"org_id"}},
		{"suspended as text", "u1", `{"suspended":"yes"}`, []string{"suspended"}},
		{"models not a list", "u1", `{"allowed_models":"grok-2"}`, []string{"allowed_models"}},
		{"bad model names", "u1", `{"allowed_models":["ok","","a b","x{y}",` + big + `]}`, []string{"allowed_models[1]", "allowed_models[2]", "allowed_models[3]", "allowed_models[4]"}},
		{"null model", "u1", `{"allowed_models":["ok",null]}`, []string{"allowed_models[1]"}},
		{"model twice", "u1", `{"allowed_models":["a","b","a"]}`, []string{"allowed_models[2]"}},
		{"number as model", "u1", `{"allowed_models":[1]}`, []string{"allowed_models"}},
		{"long reason", "u1", `{"reason":"` + strings.Repeat("é", 1025) + `"}`, []string{"reason"}},
		{"reason with a line break", "u1", `{"reason":"a\nb"}`, []string{"reason"}},
		{"reason with NUL", "u1", `{"reason":"a\u0000b"}`, []string{"reason"}},
		{"forged id: colon", "user:u1", `{}`, []string{"user_id"}},
		{"forged id: brace", "%7Bu1%7D", `{}`, []string{"user_id"}},
		{"forged id: space", "u%201", `{}`, []string{"user_id"}},
		{"forged id: NUL", "u%001", `{}`, []string{"user_id"}},
		{"forged id: percent", "u%251", `{}`, []string{"user_id"}},
		{"forged id: encoded twice", "a%252Fb", `{}`, []string{"user_id"}},
		{"forged id: not ASCII", "%C3%A9", `{}`, []string{"user_id"}},
		{"long id", strings.Repeat("u", 129), `{}`, []string{"user_id"}},
		{"all at once", "u%201", `{"rpm_limit":-1,"tpm_limit":"x","tier":"gold","colour":1,"allowed_models":["a b"],"org_id":"o 1"}`,
			[]string{"user_id", "tpm_limit", "colour", "rpm_limit", "allowed_models[0]", "org_id", "tier"}},
		{"empty body", "u1", ``, nil}, {"not json", "u1", `hello`, nil}, {"cut", "u1", `{"rpm_limit":1`, nil}, {"a list", "u1", `[1]`, nil},
		{"null itself", "u1", `null`, nil}, {"trailing data", "u1", `{} {}`, nil},
	} {
		a := h.put("/internal/quota/"+c.id, c.body)
		if a.status != 400 {
			t.Errorf("%s: %d %s", c.name, a.status, a.body)
			continue
		}
		if p := a.problem(t); c.want == nil && p.Code != "malformed_json" {
			t.Errorf("%s: code %s", c.name, p.Code)
		}
		if got := a.fields(t); !slices.Equal(got, c.want) {
			t.Errorf("%s: names %q, want %q: %s", c.name, got, c.want, a.body)
		}
	}
	if a := h.put("/internal/quota/u1", `{"allowed_models":`+many+`}`); a.status != 400 || a.fields(t)[0] != "allowed_models" {
		t.Errorf("1001 models: %d %.300s", a.status, a.body)
	}
	if a := h.put("/internal/quota/u1", `{"reason":"`+strings.Repeat("x", 1<<20)+`"}`); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("large body: %d", a.status)
	}
	if a := h.put("/internal/quota/u1", `{}`, "Content-Type", "text/plain"); a.status != http.StatusUnsupportedMediaType {
		t.Errorf("text: %d", a.status)
	}
	if n := h.count("quota_events") + h.count("quotas") + h.count("outbox"); n != 0 {
		t.Errorf("bad input left %d rows", n)
	}
}

func TestLargestValuesAreKeptExactly(t *testing.T) {
	h := newHarness(t)
	a := h.put("/internal/quota/u1", `{"rpm_limit":9007199254740991,"reason":"`+strings.Repeat("é", 1024)+`","org_id":"`+strings.Repeat("o", 128)+`"}`)
	if a.status != 200 || !strings.Contains(string(a.body), `"rpm_limit":9007199254740991`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestEveryValidIDWorksInThePath(t *testing.T) {
	h := newHarness(t)
	for path, id := range map[string]string{"a%2Fb": "a/b", "a%2fb": "a/b", "a@b.c": "a@b.c", "a%40b.c": "a@b.c", "a+b": "a+b", "a%2Bb": "a+b", "%2F%2F": "//",
		"a%2Fevents": "a/events", "..": "..", "-_.": "-_.", "%2E%2E%2Fx": "../x", strings.Repeat("u", 128): strings.Repeat("u", 128)} {
		a := h.put("/internal/quota/"+path, `{"tier":"plus"}`)
		if a.status != 200 || a.json(t)["user_id"] != id {
			t.Errorf("PUT %s: %d %s", path, a.status, a.body)
		}
		if a := h.get("/internal/quota/" + path); a.status != 200 || a.json(t)["user_id"] != id || a.json(t)["tier"] != "plus" {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
}

func TestPostgresAwayIsToldAsSuch(t *testing.T) {
	h := newHarness(t)
	h.store.Close()
	for _, a := range []answer{h.get("/internal/quota/u1"), h.put("/internal/quota/u1", `{}`), h.get("/internal/tiers"), h.get("/internal/tiers/free")} {
		if a.status != 503 || a.header.Get("Retry-After") == "" || a.problem(t).Code != "unavailable" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := h.call(http.MethodGet, "/readyz", "", "-"); a.status != 503 {
		t.Errorf("ready: %d", a.status)
	}
	if a := h.call(http.MethodGet, "/healthz", "", "-"); a.status != 200 {
		t.Errorf("alive: %d", a.status)
	}
}
