package api

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPoolIsUnlimitedUntilItIsSetAndAfterItIsDeleted(t *testing.T) {
	h := newHarness(t)
	unlimited := map[string]any{"org_id": "acme", "rpm_limit": 0.0, "tpm_limit": 0.0, "tpd_limit": 0.0, "concurrent_limit": 0.0, "limits": []any{}, "shards": 1.0,
		"time_zone": "UTC", "version": 0.0, "updated_at": nil}
	a := h.get("/internal/orgs/acme/quota")
	if diff := cmp.Diff(unlimited, a.json(t)); diff != "" || a.header.Get("ETag") != `"0"` {
		t.Error(diff, a.header)
	}
	a = h.put("/internal/orgs/acme/quota", `{"tpm_limit":1000,"limits":[{"counts":"requests","window":"1d","capacity":5}],"shards":3,"time_zone":"Europe/Berlin","reason":"sold"}`, "If-Match", `"0"`)
	m := a.json(t)
	if a.status != 200 || a.header.Get("ETag") != `"1"` || m["propagation"] != "done" || m["tpm_limit"] != 1000.0 || m["rpm_limit"] != 0.0 || m["shards"] != 3.0 || m["time_zone"] != "Europe/Berlin" {
		t.Fatal(a.status, string(a.body))
	}
	if f := h.redis.fences[0]; f.Name != "org:acme" || f.Version != 1 || len(f.Shards) != 3 {
		t.Errorf("published %+v", f)
	}
	delete(m, "propagation")
	if diff := cmp.Diff(m, h.get("/internal/orgs/acme/quota").json(t)); diff != "" {
		t.Errorf("GET is not what PUT answered: %s", diff)
	}
	if a := h.get("/internal/orgs/acme/quota", "If-None-Match", `"1"`); a.status != 304 {
		t.Error(a.status)
	}
	if a := h.delete("/internal/orgs/acme/quota", "If-Match", `"0"`); a.status != 412 {
		t.Error(a.status)
	}
	h.redis.err = errors.New("away")
	for range 2 {
		a = h.delete("/internal/orgs/acme/quota")
		m = a.json(t)
		if a.status != 200 || m["version"] != 2.0 || m["tpm_limit"] != 0.0 || m["propagation"] != "pending" || m["time_zone"] != "UTC" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := h.put("/internal/orgs/acme/quota", `{}`, "If-Match", `"2"`); a.status != 200 || a.json(t)["version"] != 3.0 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestPoolNamesEveryFault(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct {
		id, body string
		want     []string
	}{
		{"acme", `{"rpm_limit":-1,"tier":"plus","shards":65,"time_zone":"Mars/Base","limits":[{"counts":"tokens","window":"1m","capacity":1},{"counts":"x","window":"1d","capacity":0}]}`,
			[]string{"tier", "rpm_limit", "limits[0]", "limits[1].counts", "limits[1].capacity", "shards", "time_zone"}},
		{"a%20b", `{"limits":[{"counts":"tokens","window":"1h","capacity":1,"colour":"red"}]}`, []string{"limits[0].colour", "org_id"}},
		{"acme", `{"limits":[{"counts":"tokens","window":"1h"}],"time_zone":"Local","model_limits":[]}`, []string{"model_limits", "limits[0].capacity", "time_zone"}},
		{"acme", `{"shards":0,"time_zone":""}`, []string{"shards", "time_zone"}},
	} {
		a := h.put("/internal/orgs/"+c.id+"/quota", c.body)
		if a.status != 400 || !slices.Equal(a.fields(t), c.want) {
			t.Errorf("%s: %d %s, want %q", c.body, a.status, a.body, c.want)
		}
	}
	if n := h.count("org_quotas") + h.count("quota_events"); n != 0 {
		t.Errorf("bad input left %d rows", n)
	}
}
