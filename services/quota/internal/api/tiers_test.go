package api

import (
	"slices"
	"strings"
	"testing"
)

func TestTierChangeHoldsForEveryoneOnIt(t *testing.T) {
	h := newHarness(t)
	h.put("/internal/quota/own", `{"rpm_limit":77}`)
	a := h.put("/internal/tiers/free", wholeTier, "If-Match", `"1"`)
	if a.status != 200 || a.header.Get("ETag") != `"2"` || a.json(t)["propagation"] != "done" {
		t.Fatal(a.status, string(a.body))
	}
	last := h.redis.fences[len(h.redis.fences)-1]
	if last.Name != "tier:free" || last.Version != 2 || len(last.Shards) != 0 {
		t.Errorf("published %+v", last)
	}
	if m := h.get("/internal/quota/other").json(t); m["rpm_limit"] != 1.0 || m["max_context"] != 6.0 || m["version"] != 0.0 {
		t.Error(m)
	}
	if m := h.get("/internal/quota/own").json(t); m["rpm_limit"] != 77.0 || m["tpm_limit"] != 2.0 || m["version"] != 1.0 {
		t.Error(m)
	}
	if a := h.put("/internal/tiers/free", wholeTier); a.status != 200 || a.header.Get("ETag") != `"2"` {
		t.Errorf("the same again: %d %s", a.status, a.header.Get("ETag"))
	}
	if a := h.put("/internal/tiers/free", wholeTier, "If-Match", `"1"`); a.status != 412 {
		t.Errorf("stale: %d", a.status)
	}
}

func TestAdminsMayAddATier(t *testing.T) {
	h := newHarness(t)
	if a := h.get("/internal/tiers/gold"); a.status != 404 {
		t.Errorf("before: %d", a.status)
	}
	if a := h.put("/internal/tiers/gold", wholeTier, "If-None-Match", "*"); a.status != 200 || a.json(t)["version"] != 1.0 {
		t.Fatal(a.status, string(a.body))
	}
	if a := h.put("/internal/quota/u1", `{"tier":"gold"}`); a.status != 200 || a.json(t)["tpd_limit"] != 3.0 {
		t.Error(a.status, string(a.body))
	}
	tiers, _ := h.get("/internal/tiers").json(t)["tiers"].([]any)
	if len(tiers) != 5 {
		t.Errorf("%d tiers", len(tiers))
	}
}

func TestUnchangedTierNeedsNoNewCopy(t *testing.T) {
	h := newHarness(t)
	for value, want := range map[string]int{`"1"`: 304, `W/"1"`: 304, `*`: 304, `"2"`: 200, `nonsense`: 200} {
		if a := h.get("/internal/tiers/plus", "If-None-Match", value); a.status != want || (want == 304) != (len(a.body) == 0) {
			t.Errorf("%s: %d", value, a.status)
		}
	}
}

func TestTierIsStatedCompletely(t *testing.T) {
	h := newHarness(t)
	all := []string{"rpm_limit", "tpm_limit", "tpd_limit", "concurrent_limit", "priority", "max_context", "allowed_models", "redis_away"}
	for _, c := range []struct {
		name, tier, body string
		want             []string
	}{
		{"nothing", "gold", `{}`, all},
		{"forged name", "a%20b", wholeTier, []string{"tier"}},
		{"priority", "gold", strings.Replace(wholeTier, `"priority":5`, `"priority":101`, 1), []string{"priority"}},
		{"policy", "gold", strings.Replace(wholeTier, `closed`, `maybe`, 1), []string{"redis_away"}},
		{"negative", "gold", strings.Replace(wholeTier, `"tpm_limit":2`, `"tpm_limit":-2`, 1), []string{"tpm_limit"}},
		{"several", "gold", `{"rpm_limit":"x","tpm_limit":-1,"tpd_limit":1,"concurrent_limit":1,"priority":1,"allowed_models":["a b"],"redis_away":"local"}`,
			[]string{"rpm_limit", "max_context", "tpm_limit", "allowed_models[0]"}},
	} {
		a := h.put("/internal/tiers/"+c.tier, c.body)
		if a.status != 400 || !slices.Equal(a.fields(t), c.want) {
			t.Errorf("%s: %d %s, want %q", c.name, a.status, a.body, c.want)
		}
	}
	if n := h.count("tier_events"); n != 4 {
		t.Errorf("%d events", n)
	}
}
