package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
)

// token makes an admin token by the API.
func (h *harness) token(body string) string {
	h.t.Helper()
	a := h.post("/internal/admin-tokens", body)
	secret, _ := a.json(h.t)["token"].(string)
	if a.status != http.StatusCreated || !strings.HasPrefix(secret, auth.AdminTokenPrefix) {
		h.t.Fatalf("%d %s", a.status, a.body)
	}
	return secret
}

// everything is every row that a change could make, but for the audit log.
func (h *harness) everything() string {
	h.t.Helper()
	var all strings.Builder
	for _, table := range []string{"quotas", "quota_events", "tiers", "tier_events", "org_quotas", "api_keys", "outbox", "prices", "price_events", "admin_tokens", "idempotent_answers"} {
		var rows string
		if err := h.db.QueryRow("SELECT COALESCE(string_agg(x::text, E'\n' ORDER BY x::text), '') FROM " + table + " AS x").Scan(&rows); err != nil {
			h.t.Fatal(err)
		}
		all.WriteString(table + "\n" + rows + "\n")
	}
	return all.String()
}

// operation is a call of the API.
type operation struct{ method, path, body string }

func operationsOn(user, key, org string) []operation {
	return []operation{
		{"GET", "/internal/quota/" + user, "-"}, {"PUT", "/internal/quota/" + user, `{"rpm_limit":5}`}, {"GET", "/internal/quota/" + user + "/events", "-"},
		{"GET", "/internal/quota/" + user + "?at=2026-01-02T00:00:00Z", "-"},
		{"DELETE", "/internal/quota/" + user, "-"}, {"GET", "/internal/quotas?org_id=" + org, "-"},
		{"GET", "/internal/orgs/" + org + "/quota", "-"}, {"PUT", "/internal/orgs/" + org + "/quota", `{"tpm_limit":5}`}, {"DELETE", "/internal/orgs/" + org + "/quota", "-"},
		{"GET", "/internal/orgs/" + org + "/quota/events", "-"},
		{"GET", "/internal/api-keys?org_id=" + org, "-"}, {"POST", "/internal/api-keys", `{"org_id":"` + org + `"}`}, {"POST", "/internal/api-keys", `{"user_id":"` + user + `"}`},
		{"GET", "/internal/api-keys/" + key, "-"}, {"DELETE", "/internal/api-keys/" + key, "-"}, {"GET", "/internal/api-keys/" + key + "/quota", "-"},
		{"PUT", "/internal/api-keys/" + key + "/quota", `{"rpm_limit":5}`}, {"POST", "/internal/api-keys/" + key + "/rotate", "-"}, {"GET", "/internal/api-keys/" + key + "/events", "-"},
	}
}

func operationsForAdmins() []operation {
	return []operation{
		{"PUT", "/internal/tiers/free", wholeTier}, {"GET", "/internal/tiers/free/events", "-"}, {"GET", "/internal/admin-tokens", "-"},
		{"POST", "/internal/admin-tokens", `{"name":"mallory","role":"admin"}`}, {"DELETE", "/internal/admin-tokens/acme-it", "-"}, {"GET", "/internal/refusals", "-"},
		{"GET", "/internal/prices", "-"}, {"GET", "/internal/prices/grok-2", "-"}, {"GET", "/internal/prices/grok-2/events", "-"}, {"PUT", "/internal/prices/grok-2", `{"input_per_million":"1","output_per_million":"1"}`},
	}
}

// world is two orgs, each with a user, a key of it, and a key of its own; a pool; and a user in no org.
type world struct {
	secret, revoked     string // of keys
	orgAdmin, expired   string
	gone                string // a revoked admin token
	ourKeys, theirKeys  []string
	ourAdmin, ourViewer string
}

func newWorld(h *harness) world {
	var w world
	for i, org := range []string{"o1", "o2"} {
		user := fmt.Sprintf("u%d", i+1)
		h.put("/internal/quota/"+user, `{"org_id":"`+org+`","tier":"plus"}`)
		h.put("/internal/orgs/"+org+"/quota", `{"tpm_limit":1000}`)
		ofUser, secret := h.made(`{"user_id":"` + user + `"}`)
		ofOrg, other := h.made(`{"org_id":"` + org + `"}`)
		keys := []string{strings.TrimPrefix(ofUser, "/internal/api-keys/"), strings.TrimPrefix(ofOrg, "/internal/api-keys/")}
		if i == 0 {
			w.secret, w.ourKeys = secret, keys
			continue
		}
		w.theirKeys, w.revoked = keys, other
		h.delete(ofOrg)
	}
	h.put("/internal/quota/u0", `{"tier":"plus"}`)
	w.orgAdmin = h.token(`{"name":"acme-it","role":"org-admin","org_id":"o1"}`)
	w.ourAdmin, w.ourViewer = h.token(`{"name":"alice","role":"admin"}`), h.token(`{"name":"bob","role":"viewer"}`)
	w.gone = h.token(`{"name":"carol","role":"admin"}`)
	if a := h.delete("/internal/admin-tokens/carol"); a.status != 200 || a.json(h.t)["revoked_by"] != "admin" {
		h.t.Fatalf("%d %s", a.status, a.body)
	}
	w.expired = auth.NewAdminToken()
	soon := time.Now().Add(50 * time.Millisecond)
	if _, err := h.store.CreateToken(h.t.Context(), pgquota.NewToken{Name: "dave", Role: auth.Admin, ExpiresAt: &soon, Hash: auth.Hash(w.expired), Actor: "admin"}); err != nil {
		h.t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // expiry is judged by the database's clock
	return w
}

// Case B115: every route by every credential, also by other spellings. Nothing but the audit log changes.
func TestB115OrdinaryKeysManageNothing(t *testing.T) {
	h := newHarness(t)
	w := newWorld(h)
	before := h.everything()
	credentials := []struct {
		name, token string
		want        int
	}{{"nobody", "", 401}, {"a stranger", anyToken, 401}, {"a made-up key", "tg-AAAAAAAAAAAAAAAAAAAAAAAAAA", 401}, {"a made-up admin", "tg-admin-AAAAAAAAAAAAAAAAAAAAAAAAAA", 401},
		{"an expired token", w.expired, 401}, {"a revoked token", w.gone, 401}, {"a revoked key", w.revoked, 401},
		{"an inference key", w.secret, 403}, {"a service", serviceToken, 403}}
	var calls []operation
	for _, op := range append(operationsOn("u1", w.ourKeys[0], "o1"), append(operationsOn("u2", w.theirKeys[0], "o2"), operationsForAdmins()...)...) {
		path, query, _ := strings.Cut(op.path, "?")
		if query != "" {
			query = "?" + query
		}
		calls = append(calls, op, operation{op.method, path + "/" + query, op.body}, operation{op.method, strings.ToUpper(path) + query, op.body},
			operation{op.method, "/" + path + query, op.body}, operation{op.method, strings.Replace(path, "internal", "Internal", 1) + query, op.body})
		if op.method == "GET" {
			calls = append(calls, operation{"HEAD", op.path, "-"})
		}
	}
	for _, c := range calls {
		for _, who := range credentials {
			for _, override := range [][]string{nil, {"X-HTTP-Method-Override", "PUT", "X-HTTP-Method", "DELETE", "X-Method-Override", "POST"}} {
				a := h.call(c.method, c.path, who.token, c.body, override...)
				if a.status != who.want {
					t.Errorf("%s %s by %s: %d, want %d", c.method, c.path, who.name, a.status, who.want)
				}
			}
		}
		// A viewer changes nothing by whatever spelling.
		for _, override := range [][]string{nil, {"X-HTTP-Method-Override", "GET", "X-HTTP-Method", "GET", "X-Method-Override", "GET"}} {
			if a := h.call(c.method, c.path, w.ourViewer, c.body, override...); c.method != "GET" && c.method != "HEAD" && a.status != 403 {
				t.Errorf("%s %s by a viewer, %q: %d", c.method, c.path, override, a.status)
			}
		}
	}
	if after := h.everything(); after != before {
		t.Errorf("something was changed by those who may not:\n%s\nwas\n%s", after, before)
	}
	if err := h.refusals.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var attempts int64
	log, err := h.store.Refusals(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range log {
		attempts += r.Attempts
	}
	if want := int64(len(calls) * len(credentials) * 2); attempts < want {
		t.Errorf("%d attempts in the audit log, want at least %d", attempts, want)
	}
	everything := h.log.String() + h.everything() + fmt.Sprint(log)
	for name, s := range map[string]string{"key": w.secret, "admin token": w.ourAdmin, "org-admin": w.orgAdmin, "expired": w.expired} {
		if strings.Contains(everything, s[9:]) {
			t.Errorf("the %s is in a log or a table", name)
		}
	}
}

// Case B115: an org-admin has its own org only, and learns nothing of others.
func TestB115OrgAdminSeesAndChangesItsOwnOrgOnly(t *testing.T) {
	h := newHarness(t)
	w := newWorld(h)
	as := func(c operation) answer { return h.call(c.method, c.path, w.orgAdmin, c.body) }
	shape := func(a answer) string {
		p := a.problem(t)
		p.RequestID = ""
		return fmt.Sprintf("%d %+v", a.status, p)
	}
	before := h.everything()
	// What is another org's, in no org, or does not exist at all is answered alike.
	nothing := operationsOn("nobody", "01936f2e-0000-7000-8000-000000000000", "o9")
	for i, op := range append(operationsOn("u2", w.theirKeys[0], "o2"), append(operationsOn("u2", w.theirKeys[1], "o2"), operationsOn("u0", w.theirKeys[0], "o2")...)...) {
		a, none := as(op), as(nothing[i%len(nothing)])
		want := 404
		switch {
		case op.method == "DELETE" && strings.HasPrefix(op.path, "/internal/quota/"):
			want = 405
		case op.method != "GET" && strings.HasPrefix(op.path, "/internal/orgs/"):
			want = 403 // pools are not for org-admins, whoever's
		}
		if a.status != want {
			t.Errorf("%s %s: %d %s, want %d", op.method, op.path, a.status, a.body, want)
		}
		if shape(a) != shape(none) {
			t.Errorf("%s %s tells more than of what does not exist:\n%s\n%s", op.method, op.path, shape(a), shape(none))
		}
	}
	for _, op := range operationsForAdmins() {
		if a := as(op); a.status != 403 {
			t.Errorf("%s %s: %d", op.method, op.path, a.status)
		}
	}
	// Lists show its own.
	for path, want := range map[string][]string{"/internal/quotas": {"u1"}, "/internal/quotas?org_id=o1": {"u1"}, "/internal/quotas?tier=plus": {"u1"}, "/internal/orgs": {"o1"},
		"/internal/api-keys": w.ourKeys, "/internal/api-keys?user_id=u1": w.ourKeys[:1], "/internal/api-keys?user_id=u2": {}, "/internal/api-keys?user_id=nobody": {}} {
		a := as(operation{"GET", path, "-"})
		var ids []string
		for _, list := range a.json(t) {
			items, _ := list.([]any)
			for _, item := range items {
				m, _ := item.(map[string]any)
				for _, id := range []string{"api_key_id", "user_id", "org_id"} {
					if v, ok := m[id].(string); ok && v != "" {
						ids = append(ids, v)
						break
					}
				}
			}
		}
		if a.status != 200 || !slices.Equal(ids, append([]string(nil), want...)) {
			t.Errorf("%s: %d %q, want %q", path, a.status, ids, want)
		}
	}
	// It can't take or give away people, sell, or lift what others have imposed.
	h.put("/internal/quota/u1", `{"org_id":"o1","tier":"plus","suspended":true,"rpm_limit":50}`)
	before2 := h.everything()
	for _, c := range []struct {
		op     operation
		fields []string
	}{
		{operation{"PUT", "/internal/quota/u1", `{"org_id":""}`}, []string{"org_id"}}, {operation{"PUT", "/internal/quota/u1", `{"org_id":"o2"}`}, []string{"org_id"}},
		{operation{"PUT", "/internal/quota/u1", `{"tier":"enterprise","suspended":false}`}, []string{"tier", "suspended"}},
		{operation{"PUT", "/internal/quota/u1", `{"rpm_limit":51,"tpm_limit":0,"tpd_limit":500001,"concurrent_limit":4,"max_context":32769,"shards":2,"model_limits":[{"group":"g","models":["m"]}]}`},
			[]string{"rpm_limit", "tpm_limit", "tpd_limit", "concurrent_limit", "max_context", "model_limits", "shards"}},
		{operation{"POST", "/internal/api-keys", `{"org_id":"o1","tier":"enterprise"}`}, []string{"tier"}},
		{operation{"POST", "/internal/api-keys", `{"org_id":"o1","rpm_limit":601}`}, []string{"rpm_limit"}},
		{operation{"PUT", "/internal/api-keys/" + w.ourKeys[1] + "/quota", `{"tier":"enterprise","tpm_limit":0}`}, []string{"tier", "tpm_limit"}},
		{operation{"PUT", "/internal/orgs/o1/quota", `{"tpm_limit":2000}`}, nil}, {operation{"DELETE", "/internal/orgs/o1/quota", "-"}, nil},
	} {
		if a := as(c.op); a.status != 403 || !slices.Equal(a.fields(t), c.fields) {
			t.Errorf("%s %s %s: %d %s, want %q", c.op.method, c.op.path, c.op.body, a.status, a.body, c.fields)
		}
	}
	if after := h.everything(); after != before2 || before == before2 {
		t.Error("a refused change was made")
	}
	// What it may do.
	for _, op := range []operation{{"PUT", "/internal/quota/u1", `{"rpm_limit":50,"tpm_limit":40000,"allowed_models":["grok-2"],"reason":"ours"}`},
		{"PUT", "/internal/quota/u1", `{"org_id":"o1","tier":"plus"}`}, {"GET", "/internal/quota/u1/events", "-"}, {"GET", "/internal/orgs/o1/quota", "-"},
		{"PUT", "/internal/api-keys/" + w.ourKeys[0] + "/quota", `{"rpm_limit":99999}`}, {"POST", "/internal/api-keys/" + w.ourKeys[1] + "/rotate", "-"},
		{"GET", "/internal/api-keys/" + w.ourKeys[0] + "/events", "-"}, {"DELETE", "/internal/api-keys/" + w.ourKeys[0], "-"}, {"GET", "/internal/tiers", "-"}} {
		if a := as(op); a.status != 200 {
			t.Errorf("%s %s: %d %s", op.method, op.path, a.status, a.body)
		}
	}
	if a := as(operation{"POST", "/internal/api-keys", `{"user_id":"u1"}`}); a.status != 201 {
		t.Errorf("%d %s", a.status, a.body)
	}
	var actor string
	if err := h.db.QueryRow("SELECT actor FROM quota_events WHERE subject = 'user:u1' AND reason = 'ours'").Scan(&actor); err != nil || actor != "acme-it" {
		t.Errorf("the change is %q's, %v", actor, err)
	}
	// A user that came from elsewhere has no past here, and one that has left has none at all.
	h.put("/internal/quota/u2", `{"org_id":"o1"}`)
	a := as(operation{"GET", "/internal/quota/u2/events", "-"})
	events, _ := a.json(t)["events"].([]any)
	if len(events) != 1 || strings.Contains(string(a.body), "o2") {
		t.Errorf("%d %s", a.status, a.body)
	}
	h.put("/internal/quota/u1", `{"org_id":"o2"}`)
	if a := as(operation{"GET", "/internal/quota/u1/events", "-"}); a.status != 404 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A guard that looked before the change, and not within it, would let a change through that races with a move.
func TestOrgAdminsChangeNeverLandsOnAUserWhoHasLeft(t *testing.T) {
	h := newHarness(t)
	w := newWorld(h)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				h.put("/internal/quota/u1", fmt.Sprintf(`{"org_id":"o%d"}`, 1+i%2))
			}
		}
	}()
	answers := map[int]int{}
	for i := range 200 {
		a := h.call("PUT", "/internal/quota/u1", w.orgAdmin, fmt.Sprintf(`{"rpm_limit":%d}`, 1+i%39))
		answers[a.status]++
	}
	close(stop)
	<-done
	if answers[200]+answers[404] != 200 || answers[200] == 0 || answers[404] == 0 {
		t.Errorf("answers %v", answers)
	}
	var n int
	if err := h.db.QueryRow(`SELECT count(*) FROM quota_events WHERE actor = 'acme-it' AND (before ->> 'org_id' <> 'o1' OR after ->> 'org_id' <> 'o1')`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d changes of a user of another org, %v", n, err)
	}
}

func TestAdminTokensAreMadeListedAndRevoked(t *testing.T) {
	h := newHarness(t)
	alice := h.token(`{"name":"alice","role":"admin","expires_at":"2099-01-01T00:00:00Z"}`)
	if a := h.call("PUT", "/internal/quota/u1", alice, `{"tier":"plus"}`); a.status != 200 {
		t.Fatal(a.status)
	}
	for _, c := range []struct {
		body string
		want []string
	}{
		{`{}`, []string{"name", "role"}}, {`{"name":"a b","role":"root"}`, []string{"name", "role"}}, {`{"name":"admin","role":"viewer"}`, []string{"name"}},
		{`{"name":"x","role":"org-admin"}`, []string{"org_id"}}, {`{"name":"x","role":"viewer","org_id":"o1"}`, []string{"org_id"}},
		{`{"name":"x","role":"viewer","expires_at":"2001-01-01T00:00:00Z"}`, []string{"expires_at"}}, {`{"name":"x","role":"viewer","expires_at":"soon"}`, []string{"expires_at"}},
		{`{"name":"tg-AAAA","role":"viewer","token":"x"}`, []string{"token", "name"}},
	} {
		if a := h.post("/internal/admin-tokens", c.body); a.status != 400 || !slices.Equal(a.fields(t), c.want) {
			t.Errorf("%s: %d %s, want %q", c.body, a.status, a.body, c.want)
		}
	}
	for range 2 {
		if a := h.call("DELETE", "/internal/admin-tokens/alice", alice, "-"); a.status != 200 && a.status != 401 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := h.call("GET", "/internal/quota/u1", alice, "-"); a.status != 401 {
		t.Errorf("a revoked token: %d", a.status)
	}
	if a := h.post("/internal/admin-tokens", `{"name":"alice","role":"viewer"}`); a.status != 409 {
		t.Errorf("a name again: %d %s", a.status, a.body)
	}
	if a := h.delete("/internal/admin-tokens/nobody"); a.status != 404 {
		t.Errorf("%d %s", a.status, a.body)
	}
	h.token(`{"name":"bob","role":"viewer"}`)
	a := h.get("/internal/admin-tokens")
	if tokens, _ := a.json(t)["admin_tokens"].([]any); len(tokens) != 2 || strings.Contains(string(a.body), "tg-admin-") {
		t.Errorf("%s", a.body)
	}
	for _, stmt := range []string{"UPDATE admin_tokens SET role = 'admin'", "UPDATE admin_tokens SET revoked_at = NULL, revoked_by = ''", "DELETE FROM admin_tokens", "TRUNCATE admin_tokens",
		"UPDATE access_refusals SET actor = 'nobody'", "DELETE FROM access_refusals", "TRUNCATE access_refusals"} {
		h.call("GET", "/internal/tiers", "", "-")
		if err := h.refusals.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := h.db.Exec(stmt); err == nil {
			t.Errorf("%s: done", stmt)
		}
	}
}

// A bad caller is slowed; a good one behind the same address is not, nor does it wait for the bad one's lookups.
func TestFailedAttemptsAreSlowedPerAddressAndAGoodTokenPasses(t *testing.T) {
	h := newHarness(t, func(h *harness) { h.burst = 5 })
	good := h.token(`{"name":"alice","role":"admin"}`)
	statuses := map[int]int{}
	for i := range 50 {
		a := h.call("GET", "/internal/tiers", fmt.Sprintf("tg-admin-%026d", i), "-")
		statuses[a.status]++
		if a.status == 429 && (a.header.Get("Retry-After") != "1" || a.problem(t).Code != "too_many_requests") {
			t.Errorf("%v %s", a.header, a.body)
		}
		for _, token := range []string{good, adminToken} {
			if a := h.call("GET", "/internal/tiers", token, "-"); a.status != 200 {
				t.Fatalf("a good token: %d", a.status)
			}
		}
	}
	if statuses[401] < 5 || statuses[401] > 10 || statuses[401]+statuses[429] != 50 {
		t.Errorf("%v", statuses)
	}
	if err := h.refusals.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := h.get("/internal/refusals?limit=1")
	rows, _ := a.json(t)["refusals"].([]any)
	b := h.get("/internal/refusals?limit=1&cursor=" + fmt.Sprint(a.json(t)["next_cursor"]))
	more, _ := b.json(t)["refusals"].([]any)
	if len(rows) != 1 || len(more) != 1 || h.count("access_refusals") != 2 {
		t.Errorf("%s %s", a.body, b.body)
	}
	var attempts int
	if err := h.db.QueryRow("SELECT sum(attempts) FROM access_refusals").Scan(&attempts); err != nil || attempts != 50 {
		t.Errorf("%d attempts, %v", attempts, err)
	}
}

// Case B115: a user who comes from another org brings nothing of its past along, neither their own nor their keys'.
func TestB115OrgAdminLearnsNothingOfAUsersTimeInAnotherOrg(t *testing.T) {
	h := newHarness(t)
	w := newWorld(h)
	o2 := h.token(`{"name":"o2-it","role":"org-admin","org_id":"o2"}`)
	key := "/internal/api-keys/" + w.theirKeys[0] // of u2
	ok := func(method, path, token, body string) answer {
		t.Helper()
		a := h.call(method, path, token, body)
		if a.status != 200 {
			t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
		}
		return a
	}
	ok("PUT", "/internal/quota/u2", o2, `{"rpm_limit":7,"reason":"theirs"}`)
	ok("PUT", key+"/quota", o2, `{"rpm_limit":6,"reason":"theirs"}`)
	pause := func() string {
		time.Sleep(5 * time.Millisecond)
		defer time.Sleep(5 * time.Millisecond)
		return time.Now().UTC().Format(time.RFC3339Nano)
	}
	theirs := pause()
	h.put("/internal/quota/u2", `{"org_id":"o1","tier":"plus"}`)
	ours := pause()
	ok("PUT", key+"/quota", w.orgAdmin, `{"rpm_limit":5,"reason":"ours"}`)
	pause()
	for _, path := range []string{"/internal/quota/u2", key + "/quota"} {
		if a := h.call("GET", path+"?at="+theirs, w.orgAdmin, "-"); a.status != 404 || strings.Contains(string(a.body), "rpm") {
			t.Errorf("%s of then: %d %s", path, a.status, a.body)
		}
		ok("GET", path+"?at="+ours, w.orgAdmin, "-")
		ok("GET", path+"?at="+theirs, adminToken, "-")
	}
	for path, reasons := range map[string][]string{"/internal/quota/u2/events": {""}, key + "/events": {"ours"}} {
		for _, query := range []string{"", "?limit=1"} {
			a := ok("GET", path+query, w.orgAdmin, "-")
			var got []string
			for _, e := range a.json(t)["events"].([]any) {
				got = append(got, e.(map[string]any)["reason"].(string))
			}
			if !slices.Equal(got, reasons) || strings.Contains(string(a.body), "theirs") || strings.Contains(string(a.body), "o2") {
				t.Errorf("%s%s: %s", path, query, a.body)
			}
		}
	}
	// Their own admin has seen it all, and loses sight of it.
	if a := h.call("GET", key+"/events", o2, "-"); a.status != 404 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := ok("GET", key+"/events", adminToken, "-"); strings.Count(string(a.body), `"version"`) != 3 {
		t.Errorf("%s", a.body)
	}
}
