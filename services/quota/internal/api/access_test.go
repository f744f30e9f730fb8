package api

import (
	"net/http"
	"strings"
	"testing"
)

const wholeTier = `{"rpm_limit":1,"tpm_limit":2,"tpd_limit":3,"concurrent_limit":4,"priority":5,"allowed_models":["m"],"max_context":6,"redis_away":"closed"}`

func TestWhoMayDoWhat(t *testing.T) {
	h := newHarness(t)
	before := h.count("quota_events") + h.count("tier_events")
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/internal/quota/u1", "-"}, {"HEAD", "/internal/quota/u1", "-"}, {"PUT", "/internal/quota/u1", `{"tier":"enterprise"}`},
		{"GET", "/internal/tiers", "-"}, {"HEAD", "/internal/tiers", "-"}, {"GET", "/internal/tiers/free", "-"}, {"PUT", "/internal/tiers/free", wholeTier},
		{"PUT", "/internal/quota/u1/", `{}`}, {"GET", "/internal/quota/", "-"}, {"GET", "/internal/quota/u1/events", "-"}, {"DELETE", "/internal/quota/u1", "-"},
		{"POST", "/internal/quota/u1", `{}`}, {"PATCH", "/internal/tiers/free", `{}`}, {"PUT", "/INTERNAL/quota/u1", `{}`}, {"PUT", "//internal/quota/u1", `{}`},
		{"PUT", "/%69nternal/quota/u1", `{}`}, {"GET", "/", "-"}, {"GET", "/nothing", "-"}, {"GET", "/metrics/", "-"}, {"PUT", "/healthz/../internal/quota/u1", `{}`},
		{"OPTIONS", "/internal/quota/u1", "-"}, {"TRACE", "/internal/quota/u1", "-"}, {"get", "/internal/quota/u1", "-"},
	} {
		for _, who := range []struct {
			name, token string
			want        int
		}{{"nobody", "", 401}, {"a stranger", anyToken, 401}, {"a service", serviceToken, 403}} {
			for _, override := range []string{"", "PUT"} {
				headers := []string{}
				if override != "" {
					headers = append(headers, "X-HTTP-Method-Override", override)
				}
				a := h.call(c.method, c.path, who.token, c.body, headers...)
				if a.status != who.want {
					t.Errorf("%s %s by %s: %d, want %d", c.method, c.path, who.name, a.status, who.want)
				}
				if (a.header.Get("WWW-Authenticate") != "") != (a.status == 401) {
					t.Errorf("%s %s by %s: WWW-Authenticate %q", c.method, c.path, who.name, a.header.Get("WWW-Authenticate"))
				}
			}
		}
		a := h.call(c.method, c.path, viewerToken, c.body)
		if reads := c.method == "GET" || c.method == "HEAD"; (a.status == 403) == reads {
			t.Errorf("%s %s by a viewer: %d", c.method, c.path, a.status)
		}
	}
	// Nor do other ways of sending a token, or a method override, let anybody in.
	if a := h.call("GET", "/internal/quota/u1?access_token="+adminToken, "", "-"); a.status != 401 {
		t.Errorf("token in the query: %d", a.status)
	}
	if a := h.call("GET", "/internal/quota/u1", "", "-", "Authorization", adminToken); a.status != 401 {
		t.Errorf("token without scheme: %d", a.status)
	}
	if a := h.call("GET", "/internal/quota/u1", viewerToken, `{"tier":"enterprise"}`, "X-HTTP-Method-Override", "PUT"); a.status != 200 || a.json(t)["tier"] != "free" {
		t.Errorf("override by a viewer: %d %s", a.status, a.body)
	}
	if after := h.count("quota_events") + h.count("tier_events"); after != before {
		t.Errorf("%d events were made by those who may not", after-before)
	}
	log := h.log.String()
	if !strings.Contains(log, `"msg":"refused"`) || !strings.Contains(log, `"reason":"unauthorized","actor":""`) || !strings.Contains(log, `"reason":"forbidden","actor":"service"`) {
		t.Error("refused attempts are not in the log")
	}
	if strings.Contains(log, "canary") {
		t.Error("a token is in the log")
	}
}

func TestPathsAndMethodsThatAreNotThere(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct {
		method, path string
		want         int
		allow        string
	}{
		{"GET", "/internal/quota/u1/", 404, ""}, {"GET", "/internal/quota/", 404, ""}, {"GET", "/internal/quota", 404, ""}, {"GET", "/internal/tiers/", 404, ""},
		{"GET", "/internal/quota/a/b", 404, ""}, {"PUT", "/internal/quota/", 404, ""}, {"GET", "/Internal/Quota/u1", 404, ""}, {"GET", "/", 404, ""},
		{"DELETE", "/internal/quota/u1", 405, "PUT"}, {"POST", "/internal/tiers/free", 405, "PUT"}, {"PUT", "/internal/tiers", 405, "GET"},
		{"TRACE", "/internal/quota/u1", 405, "GET"}, {"BREW", "/internal/quota/u1", 405, "GET"},
	} {
		a := h.call(c.method, c.path, adminToken, "-")
		if a.status != c.want || !strings.Contains(a.header.Get("Allow"), c.allow) {
			t.Errorf("%s %s: %d, Allow %q", c.method, c.path, a.status, a.header.Get("Allow"))
		}
	}
	if a := h.call(http.MethodHead, "/internal/quota/u1", adminToken, "-"); a.status != 200 || a.header.Get("ETag") != `"0"` {
		t.Errorf("HEAD: %d %v", a.status, a.header)
	}
}

func TestAnswersCarrySecurityHeadersAndTheRequestID(t *testing.T) {
	h := newHarness(t)
	for _, a := range []answer{h.get("/internal/quota/u1", "X-Request-Id", "r-1"), h.call("GET", "/internal/quota/u1", "", "-", "X-Request-Id", "r-1")} {
		for name, want := range map[string]string{"X-Request-Id": "r-1", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
	if a := h.get("/internal/quota/u1", "X-Request-Id", "forged\r\nline"); a.header.Get("X-Request-Id") == "" || strings.Contains(a.header.Get("X-Request-Id"), "forged") {
		t.Errorf("forged request id: %q", a.header.Get("X-Request-Id"))
	}
}

func TestMetricLabelsComeFromClosedSets(t *testing.T) {
	h := newHarness(t)
	h.get("/internal/quota/secret-user")
	h.get("/internal/nothing/secret-path")
	h.call("BREW", "/internal/quota/secret-user", adminToken, "-")
	a := h.call("GET", "/metrics", "", "-")
	if a.status != 200 || strings.Contains(string(a.body), "secret") || !strings.Contains(string(a.body), `route="/internal/quota/:user_id"`) ||
		!strings.Contains(string(a.body), `method="other"`) || !strings.Contains(string(a.body), `tollgate_quota_changes_total{kind="tier",result="pending"} 0`) {
		t.Errorf("%d\n%s", a.status, a.body)
	}
}
