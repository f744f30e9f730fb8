package api

import (
	"fmt"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pb33f/libopenapi"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/schemas"
)

// made makes a key and gives its path and secret.
func (h *harness) made(body string) (path, secret string) {
	h.t.Helper()
	a := h.post("/internal/api-keys", body)
	if a.status != http.StatusCreated {
		h.t.Fatal(a.status, string(a.body))
	}
	secret, _ = a.json(h.t)["secret"].(string)
	return a.header.Get("Location"), secret
}

func (h *harness) idOf(secret string) string {
	h.t.Helper()
	k, err := h.store.KeyOf(h.t.Context(), secret)
	if err != nil {
		return err.Error()
	}
	return k.ID
}

func TestSecretIsShownOnce(t *testing.T) {
	h := newHarness(t)
	path, secret := h.made(`{"user_id":"u1","name":"batch jobs","tpm_limit":600,"reason":"asked for"}`)
	if !strings.HasPrefix(secret, "tg-") || len(secret) < 29 || h.idOf(secret) != strings.TrimPrefix(path, "/internal/api-keys/") {
		t.Fatal(path, secret)
	}
	m := h.get(path).json(t)
	if m["user_id"] != "u1" || m["org_id"] != "" || m["name"] != "batch jobs" || m["prefix"] != secret[:pgquota.VisibleLen] || m["version"] != 1.0 || m["revoked_at"] != nil {
		t.Error(m)
	}
	a := h.post(path+"/rotate", "-")
	second, _ := a.json(t)["secret"].(string)
	if a.status != 200 || a.header.Get("ETag") != `"2"` || second == secret || h.idOf(second) != h.idOf(second) || h.idOf(secret) != pgquota.ErrKeyMissing.Error() {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := h.post(path+"/rotate", `{"reason":"leaked"}`, "If-Match", `"1"`); a.status != 412 {
		t.Error(a.status)
	}
	h.put(path+"/quota", `{"rpm_limit":5}`)
	h.delete(path)
	everything := h.log.String() + string(h.get(path).body) + string(h.get("/internal/api-keys").body) + string(h.get(path+"/quota").body) + string(h.call("GET", "/metrics", "", "-").body)
	for _, table := range []string{"quota_events", "outbox", "api_keys", "quotas"} {
		var rows string
		if err := h.db.QueryRow("SELECT COALESCE(string_agg(x::text, ''), '') FROM " + table + " AS x").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		everything += rows
	}
	for _, s := range []string{secret, second} {
		if strings.Contains(everything, s[pgquota.VisibleLen:]) {
			t.Error("a secret was told again")
		}
	}
}

func TestKeysQuotaFollowsItsOwner(t *testing.T) {
	h := newHarness(t)
	h.put("/internal/quota/u1", `{"tier":"plus","org_id":"acme"}`)
	ofUser, _ := h.made(`{"user_id":"u1","tpm_limit":600,"model_limits":[{"group":"big","models":["grok-4"],"rpm_limit":2}]}`)
	m := h.get(ofUser + "/quota").json(t)
	group := map[string]any{"group": "big", "models": []any{"grok-4"}, "rpm_limit": 2.0, "tpm_limit": 0.0, "tpd_limit": 0.0, "concurrent_limit": 0.0, "limits": []any{}}
	if m["tier"] != "" || m["tpm_limit"] != 600.0 || m["rpm_limit"] != 0.0 || m["user_id"] != "u1" || m["org_id"] != "" || !cmp.Equal(m["model_limits"], []any{group}) {
		t.Error(m)
	}
	ofOrg, _ := h.made(`{"org_id":"acme","rpm_limit":7}`)
	if m := h.get(ofOrg + "/quota").json(t); m["tier"] != "api" || m["rpm_limit"] != 7.0 || m["tpm_limit"] != 300000.0 || m["org_id"] != "acme" || m["user_id"] != "" {
		t.Error(m)
	}
	a := h.put(ofOrg+"/quota", `{"tier":"enterprise","limits":[{"counts":"requests","window":"1d","capacity":9}],"suspended":true}`, "If-Match", `"1"`)
	if m := a.json(t); a.status != 200 || m["tier"] != "enterprise" || m["rpm_limit"] != 10000.0 || m["suspended"] != true || m["propagation"] != "done" || a.header.Get("ETag") != `"2"` {
		t.Errorf("%d %s", a.status, a.body)
	}
	if f := h.redis.fences[len(h.redis.fences)-1]; f.Name != "api_key:"+strings.TrimPrefix(ofOrg, "/internal/api-keys/") || f.Version != 2 {
		t.Errorf("published %+v", f)
	}
	for _, c := range []struct {
		method, path, body string
		want               []string
	}{
		{"PUT", ofUser + "/quota", `{"tier":"plus","rpm_limit":-1,"org_id":"x","shards":2}`, []string{"org_id", "shards", "rpm_limit", "tier"}},
		{"POST", "/internal/api-keys", `{}`, []string{"user_id"}},
		{"POST", "/internal/api-keys", `{"user_id":"u1","org_id":"acme"}`, []string{"user_id", "org_id"}},
		{"POST", "/internal/api-keys", `{"user_id":"u1","tier":"plus","name":"a\nb","limits":[{"counts":"x"}],"secret":"tg-x"}`, []string{"secret", "limits[0].counts", "limits[0].window", "limits[0].capacity", "name", "tier"}},
		{"POST", "/internal/api-keys", `{"user_id":"u 1"}`, []string{"user_id"}},
		{"POST", "/internal/api-keys", `{"org_id":"acme","tier":"gold"}`, []string{"tier"}},
	} {
		if a := h.call(c.method, c.path, adminToken, c.body); a.status != 400 || !slices.Equal(a.fields(t), c.want) {
			t.Errorf("%s %s: %d %s, want %q", c.method, c.body, a.status, a.body, c.want)
		}
	}
}

func TestRevokedKeyCanBeReadButNotChanged(t *testing.T) {
	h := newHarness(t)
	path, secret := h.made(`{"org_id":"acme"}`)
	if a := h.delete(path, "If-Match", `"9"`); a.status != 412 {
		t.Error(a.status)
	}
	for range 2 {
		if a := h.delete(path); a.status != 200 || a.json(t)["revoked_at"] == nil || a.json(t)["suspended"] != true || a.json(t)["version"] != 2.0 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for _, a := range []answer{h.post(path+"/rotate", "-"), h.put(path+"/quota", `{"rpm_limit":1}`)} {
		if a.status != 409 || a.problem(t).Code != "conflict" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := h.get(path); a.status != 200 || h.idOf(secret) == pgquota.ErrKeyMissing.Error() {
		t.Error(a.status)
	}
	for _, a := range []answer{h.get("/internal/api-keys/nobody"), h.delete("/internal/api-keys/nobody"), h.post("/internal/api-keys/nobody/rotate", "-"),
		h.get("/internal/api-keys/nobody/quota"), h.put("/internal/api-keys/nobody/quota", `{}`)} {
		if a.status != 404 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

func TestKeysAreListedPageByPage(t *testing.T) {
	h := newHarness(t)
	for i := range 7 {
		h.made([]string{`{"user_id":"u1"}`, `{"org_id":"acme"}`}[i%2])
	}
	for query, want := range map[string]int{"": 7, "user_id=u1": 4, "org_id=acme": 3, "user_id=u2": 0, "user_id=u1&org_id=acme": 0} {
		var ids []string
		cursor, pages := "", 0
		for {
			a := h.get(fmt.Sprintf("/internal/api-keys?limit=2&%s&%s", query, cursor))
			m := a.json(t)
			keys, _ := m["api_keys"].([]any)
			for _, k := range keys {
				one, _ := k.(map[string]any)
				ids = append(ids, fmt.Sprint(one["api_key_id"]))
			}
			if pages++; a.status != 200 || len(keys) > 2 || pages > 5 {
				t.Fatal(a.status, string(a.body))
			}
			next, _ := m["next_cursor"].(string)
			if next == "" {
				break
			}
			cursor = "cursor=" + next
		}
		if len(ids) != want || !slices.IsSorted(ids) || len(slices.Compact(ids)) != want {
			t.Errorf("%s: %q", query, ids)
		}
	}
	for _, c := range []struct {
		query string
		want  []string
	}{{"limit=0&cursor=%25&colour=red&user_id=a%20b&org_id=", []string{"colour", "cursor", "limit", "org_id", "user_id"}}, {"limit=1001", []string{"limit"}}, {"limit=1&limit=2", []string{"limit"}}} {
		if a := h.get("/internal/api-keys?" + c.query); a.status != 400 || !slices.Equal(a.fields(t), c.want) {
			t.Errorf("%s: %d %s", c.query, a.status, a.body)
		}
	}
}

// Every operation of the OpenAPI file is served, to those who may call it, and every method that is served is an operation.
func TestRoutesAreThoseOfTheContract(t *testing.T) {
	h := newHarness(t)
	data, err := fs.ReadFile(schemas.FS, "openapi/quota.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(data)
	if err != nil {
		t.Fatal(err)
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		path = regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllString(path, "x")
		if !strings.HasPrefix(path, "/internal/") {
			continue
		}
		operations := map[string]bool{}
		for method := range item.GetOperations().FromOldest() {
			operations[strings.ToUpper(method)] = true
		}
		for _, method := range []string{"GET", "PUT", "POST", "DELETE", "PATCH"} {
			for who, want := range map[string]int{"": 401, serviceToken: 403} {
				if a := h.call(method, path, who, "-"); a.status != want {
					t.Errorf("%s %s: %d, want %d", method, path, a.status, want)
				}
			}
			if a := h.call(method, path, viewerToken, "-"); (a.status == 403) != (method != "GET") {
				t.Errorf("%s %s by a viewer: %d", method, path, a.status)
			}
			a := h.call(method, path, adminToken, "-")
			if served := a.status != 405 && (a.status != 404 || a.problem(t).Detail != "There is nothing at this path."); served != operations[method] {
				t.Errorf("%s %s: %d, but in the contract: %t", method, path, a.status, operations[method])
			}
		}
	}
}
