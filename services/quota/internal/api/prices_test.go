package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPricesAreStatedReadAndReplaced(t *testing.T) {
	h := newHarness(t)
	if a := h.get("/internal/prices/grok-2"); a.status != 404 || a.problem(t).Code != "not_found" {
		t.Errorf("unknown model: %d %s", a.status, a.body)
	}
	a := h.put("/internal/prices/grok-2", `{"input_per_million":"3.00","output_per_million":"15","valid_from":"2026-01-01T01:00:00+01:00","reason":"list"}`, "If-None-Match", "*")
	m := a.json(t)
	want := map[string]any{"valid_from": "2026-01-01T00:00:00.000Z", "currency": "USD", "input_per_million": "3", "cached_input_per_million": "3",
		"output_per_million": "15", "version": 1.0, "actor": "admin", "reason": "list"}
	first, _ := m["in_force"].(map[string]any)
	delete(first, "updated_at")
	if diff := cmp.Diff(want, first); a.status != 200 || diff != "" || a.header.Get("ETag") != `"1"` || m["version"] != 1.0 {
		t.Fatalf("%d %s %s", a.status, a.body, diff)
	}
	a = h.put("/internal/prices/grok-2", `{"input_per_million":"2","cached_input_per_million":"0.000000000001","output_per_million":"0","valid_from":"2099-12-31T23:59:59.999Z","currency":"EUR"}`,
		"If-Match", `"1"`)
	if m = a.json(t); a.status != 200 || m["version"] != 2.0 || len(m["prices"].([]any)) != 2 || m["in_force"].(map[string]any)["version"] != 1.0 {
		t.Errorf("a future price: %d %s", a.status, a.body)
	}
	if a := h.put("/internal/prices/grok-2", `{"input_per_million":"1","output_per_million":"1"}`, "If-Match", `"1"`); a.status != 412 {
		t.Errorf("a lost update: %d %s", a.status, a.body)
	}
	a = h.put("/internal/prices/grok-2", `{"input_per_million":"4","output_per_million":"15","valid_from":"2026-01-01T00:00:00Z"}`)
	again := h.put("/internal/prices/grok-2", `{"input_per_million":"4","output_per_million":"15"}`)
	got := h.get("/internal/prices/grok-2")
	if m = a.json(t); a.status != 200 || m["version"] != 3.0 || len(m["prices"].([]any)) != 2 || m["in_force"].(map[string]any)["input_per_million"] != "4" {
		t.Errorf("replaced: %d %s", a.status, a.body)
	}
	if string(a.body) != string(again.body) || string(a.body) != string(got.body) || got.header.Get("ETag") != `"3"` {
		t.Errorf("a PUT without valid_from of the price in force, and GET:\n%s\n%s\n%s", a.body, again.body, got.body)
	}
	if a := h.get("/internal/prices/grok-2", "If-None-Match", `"3"`); a.status != 304 {
		t.Error(a.status)
	}
	h.put("/internal/prices/a%2Fb", `{"input_per_million":"0","output_per_million":"0","valid_from":"2030-01-01T00:00:00Z"}`)
	a = h.get("/internal/prices")
	models := a.json(t)["models"].([]any)
	if len(models) != 2 || models[0].(map[string]any)["model"] != "a/b" || models[0].(map[string]any)["in_force"] != nil {
		t.Errorf("%s", a.body)
	}
	if n := h.count("price_events"); n != 4 || len(h.redis.fences) != 0 {
		t.Errorf("%d events; published to Redis: %+v", n, h.redis.fences)
	}
}

func TestPriceNamesEveryFault(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct {
		model, body string
		want        []string
	}{
		{"grok-2", `{}`, []string{"input_per_million", "output_per_million"}},
		{"grok-2", `{"input_per_million":3,"output_per_million":"1","colour":"red"}`, []string{"input_per_million", "colour"}},
		{"grok-2", `{"input_per_million":"-1","cached_input_per_million":"1e3","output_per_million":"NaN","currency":"JPY","valid_from":"tomorrow","reason":"a\nb"}`,
			[]string{"input_per_million", "cached_input_per_million", "output_per_million", "valid_from", "currency", "reason"}},
		{"grok-2", `{"input_per_million":"0.0000000000001","output_per_million":"1000000000000","currency":"usd","valid_from":"1999-12-31T23:59:59Z"}`,
			[]string{"input_per_million", "output_per_million", "valid_from", "currency"}},
		{"a%20b", `{"input_per_million":"1","output_per_million":"1","valid_from":"2026-01-01T00:00:00.0001Z"}`, []string{"valid_from", "model"}},
		{"grok-2", `{"input_per_million":null,"output_per_million":"","valid_from":"2101-01-01T00:00:00Z"}`, []string{"input_per_million", "output_per_million", "valid_from"}},
	} {
		a := h.put("/internal/prices/"+c.model, c.body)
		if a.status != 400 || !slices.Equal(a.fields(t), c.want) {
			t.Errorf("%s: %d %s, want %q", c.body, a.status, a.body, c.want)
		}
	}
	if n := h.count("prices") + h.count("price_events") + h.count("outbox"); n != 0 {
		t.Errorf("bad input left %d rows", n)
	}
}

func TestOnlyAdminsChangePrices(t *testing.T) {
	h := newHarness(t)
	const body = `{"input_per_million":"1","output_per_million":"1"}`
	for token, want := range map[string]int{"": 401, anyToken: 401, serviceToken: 403, viewerToken: 403} {
		if a := h.call("PUT", "/internal/prices/grok-2", token, body); a.status != want {
			t.Errorf("%q: %d, want %d", token, a.status, want)
		}
	}
	if n := h.count("price_events"); n != 0 {
		t.Errorf("%d events", n)
	}
	h.put("/internal/prices/grok-2", body)
	if a := h.call("GET", "/internal/prices/grok-2", viewerToken, "-"); a.status != 200 || !strings.Contains(string(a.body), `"1"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestPriceHistoryTellsEachChangeInPages(t *testing.T) {
	h := newHarness(t)
	for i, at := range []string{"2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z", "2026-01-01T00:00:00Z"} {
		h.put("/internal/prices/a%2Fb", fmt.Sprintf(`{"input_per_million":"%d.50","output_per_million":"2","valid_from":%q,"reason":"r%d"}`, i, at, i))
	}
	var got []string
	for next, pages := "", 0; pages == 0 || next != ""; pages++ {
		target := "/internal/prices/a%2Fb/events?limit=2"
		if next != "" {
			target += "&cursor=" + next
		}
		m := h.get(target).json(t)
		list, _ := m["events"].([]any)
		for _, e := range list {
			e, _ := e.(map[string]any)
			before, _ := e["before"].(map[string]any)
			after, _ := e["after"].(map[string]any)
			got = append(got, fmt.Sprintf("%v %v %v %v %v %v", e["version"], e["valid_from"], e["actor"], e["reason"], before["input_per_million"], after["input_per_million"]))
		}
		next, _ = m["next_cursor"].(string)
	}
	want := []string{"1 2026-01-01T00:00:00.000Z admin r0 <nil> 0.5", "2 2026-07-01T00:00:00.000Z admin r1 <nil> 1.5", "3 2026-01-01T00:00:00.000Z admin r2 0.5 2.5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if a := h.get("/internal/prices/nobody/events"); a.status != 200 || len(a.json(t)["events"].([]any)) != 0 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := h.get("/internal/prices/x%3Ay/events?limit=0&cursor=AAAA&at=now"); a.status != 400 || !slices.Equal(a.fields(t), []string{"model", "at", "cursor", "limit"}) {
		t.Errorf("%d %s", a.status, a.body)
	}
}
