package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between tollgatectl and the quota service. before is called with each request; if it answers true the service's answer is lost.
func proxy(t *testing.T, to string, before func(r *http.Request) (lost bool)) string {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !before(r) {
			forward.ServeHTTP(w, r)
			return
		}
		forward.ServeHTTP(httptest.NewRecorder(), r)
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func TestAKeyWhoseAnswerIsLostIsMadeOnce(t *testing.T) {
	env, service := quotaService(t)
	var posts, losses atomic.Int32
	losses.Store(1)
	via := proxy(t, service, func(r *http.Request) bool { return r.Method == http.MethodPost && posts.Add(1) <= losses.Load() })
	create := []string{"key", "create", "--user", "ann", "--quota-url", via, "-o", "json"}
	code, stdout, stderr := run(t, env, create...)
	type key struct {
		ID     string `json:"api_key_id"`
		Secret string
	}
	made := decode[key](t, stdout)
	_, list, _ := run(t, env, "key", "list", "-o", "json")
	all := decode[struct {
		Keys []key `json:"api_keys"`
	}](t, list)
	if code != 0 || posts.Load() != 2 || len(all.Keys) != 1 || all.Keys[0].ID != made.ID || !strings.HasPrefix(made.Secret, "tg-") {
		t.Errorf("exit %d, %d POSTs, %d keys, %s%s", code, posts.Load(), len(all.Keys), stdout, stderr)
	}

	losses.Store(1000) // no answer comes at all
	code, stdout, stderr = run(t, env, create...)
	_, once, ok := strings.Cut(stderr, "--idempotency-key ")
	once, _, _ = strings.Cut(once, " ")
	if code != 4 || stdout != "" || !ok {
		t.Fatalf("exit %d, %s%s", code, stdout, stderr)
	}
	losses.Store(0)
	code, stdout, stderr = run(t, env, append(create, "--idempotency-key", once)...)
	again := decode[key](t, stdout)
	_, list, _ = run(t, env, "key", "list", "-o", "json")
	all.Keys = decode[struct {
		Keys []key `json:"api_keys"`
	}](t, list).Keys
	if code != 0 || again.Secret == "" || len(all.Keys) != 2 || all.Keys[1].ID != again.ID {
		t.Errorf("exit %d, %d keys, %s%s", code, len(all.Keys), stdout, stderr)
	}
	if code, _, stderr = run(t, env, "key", "create", "--user", "bob", "--idempotency-key", once, "--quota-url", via); code != 3 || !strings.Contains(stderr, "take a new one") {
		t.Errorf("another call under the same key: exit %d, %s", code, stderr)
	}
}

func TestAChangeInBetweenLosesTheRaceAndChangesNothing(t *testing.T) {
	env, service := quotaService(t)
	if code, _, stderr := run(t, env, "quota", "set", "ann", "--rpm", "1"); code != 0 {
		t.Fatal(stderr)
	}
	for _, command := range []string{"quota set ann --keep --tpm 5", "org set acme --tpm 5", "tier set plus --keep --rpm 41"} {
		var puts atomic.Int32
		via := proxy(t, service, func(r *http.Request) bool {
			if r.Method == http.MethodPut && puts.Add(1) == 1 { // somebody else is faster
				args := append(strings.Fields(command), "--concurrent", "7", "--yes", "--reason", "faster")
				if code, _, stderr := run(t, env, args...); code != 0 {
					t.Errorf("%s: %s", command, stderr)
				}
			}
			return false
		})
		code, stdout, stderr := run(t, env, append(strings.Fields(command), "--quota-url", via)...)
		if code != 5 || stdout != "" || !strings.Contains(stderr, "Somebody else changed it") || puts.Load() != 1 {
			t.Errorf("%s: exit %d after %d PUTs, %s%s", command, code, puts.Load(), stdout, stderr)
		}
		args := strings.Fields(command)
		if _, stdout, _ = run(t, env, args[0], "get", args[2], "-o", "json"); decode[map[string]any](t, stdout)["concurrent_limit"] != 7.0 {
			t.Errorf("%s: the faster change is lost: %s", command, stdout)
		}
	}
}

func TestAGuardedChangeWithoutAnAnswerIsNotRepeated(t *testing.T) {
	env, service := quotaService(t)
	var puts atomic.Int32
	via := proxy(t, service, func(r *http.Request) bool { return r.Method == http.MethodPut && puts.Add(1) > 0 })
	code, stdout, stderr := run(t, env, "quota", "set", "ann", "--tier", "plus", "--quota-url", via)
	if code != 4 || stdout != "" || puts.Load() != 1 || !strings.Contains(stderr, "tollgatectl quota history ann tells") {
		t.Errorf("exit %d after %d PUTs, %s%s", code, puts.Load(), stdout, stderr)
	}
}

func TestJSONIsTheAPIsOwnAnswer(t *testing.T) {
	env, service := quotaService(t)
	if code, _, stderr := run(t, env, "quota", "set", "ann", "--tier", "plus", "--rpm", "5"); code != 0 {
		t.Fatal(stderr)
	}
	for command, path := range map[string]string{"quota get ann": "quota/ann", "quota list": "quotas", "quota history ann": "quota/ann/events", "tier list": "tiers",
		"tier get plus": "tiers/plus", "tier history free": "tiers/free/events", "org list": "orgs", "org get acme": "orgs/acme/quota", "org history acme": "orgs/acme/quota/events",
		"key list": "api-keys", "price list": "prices", "token list": "admin-tokens"} {
		code, stdout, stderr := run(t, env, append(strings.Fields(command), "-o", "json")...)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service+"/internal/"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+adminToken)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var a, b bytes.Buffer
		if code != 0 || stderr != "" || err != nil || json.Compact(&a, []byte(stdout)) != nil || json.Compact(&b, want) != nil || a.String() != b.String() {
			t.Errorf("%s: exit %d, %s\n%s\nthe API says\n%s", command, code, stderr, a.String(), b.String())
		}
	}
}

func TestEveryPageOfAListIsReadAndItsEndIsTold(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		next := map[string]string{"": "c1", "c1": "c2", "c2": ""}[r.URL.Query().Get("cursor")]
		_, _ = fmt.Fprintf(w, `{"quotas":[{"user_id":"u%d"}],"next_cursor":%q}`, len(asked), next)
	}))
	defer srv.Close()
	env := []string{"TOLLGATE_QUOTA_URL=" + srv.URL, "TOLLGATE_VIEWER_TOKEN=v"}
	code, stdout, stderr := run(t, env, "quota", "list", "--tier", "plus", "--limit", "0", "-o", "json")
	if want := "limit=1000&tier=plus cursor=c1&limit=1000&tier=plus cursor=c2&limit=1000&tier=plus"; code != 0 || strings.Join(asked, " ") != want {
		t.Errorf("exit %d, asked %q, %s", code, asked, stderr)
	}
	if got := decode[map[string]any](t, stdout); len(got["quotas"].([]any)) != 3 || got["next_cursor"] != "" {
		t.Errorf("%v", got)
	}
	asked = nil
	code, stdout, stderr = run(t, env, "quota", "list", "--limit", "2")
	if code != 0 || strings.Join(asked, " ") != "limit=2 cursor=c1&limit=1" || !strings.Contains(stderr, "--cursor c2") || len(strings.Split(strings.TrimSpace(stdout), "\n")) != 3 {
		t.Errorf("exit %d, asked %q, %s%s", code, asked, stdout, stderr)
	}
	if code, _, stderr = run(t, env, "quota", "list", "--limit", "-1"); code != 2 || !strings.Contains(stderr, "--limit") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestRefusedAttemptsAreShown(t *testing.T) {
	env, service := quotaService(t)
	denied := []string{"TOLLGATE_QUOTA_URL=" + service, "TOLLGATE_ADMIN_TOKEN=" + viewerToken}
	code, _, stderr := run(t, denied, "quota", "set", "ann", "--tier", "plus")
	if code != 3 || !strings.Contains(stderr, "403 forbidden") || !strings.Contains(stderr, "The token from TOLLGATE_ADMIN_TOKEN may not do that") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	var stdout string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && !strings.Contains(stdout, "viewer"); time.Sleep(200 * time.Millisecond) {
		if code, stdout, stderr = run(t, env, "refusals"); code != 0 {
			t.Fatal(stderr)
		}
	}
	lines := strings.Split(stdout, "\n")
	if !strings.HasPrefix(lines[0], "last at") || len(lines) < 2 || strings.Join(strings.Fields(lines[1])[1:], " ") != "1 forbidden viewer 127.0.0.1 PUT /internal/quota/ann" {
		t.Errorf("%s", stdout)
	}
}

func TestAdminFailuresHaveTheirExitCodesAndTellNoSecret(t *testing.T) {
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"status":503,"code":"unavailable","detail":"The quota store can't be reached. The call may be repeated."}`)
	}))
	defer away.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "boom \x1b[31m")
	}))
	defer broken.Close()
	website := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer website.Close()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	token := "TOLLGATE_ADMIN_TOKEN=canary-secret"
	for name, c := range map[string]struct {
		code int
		env  []string
		args string
		want string
	}{
		"nobody listens":    {4, []string{token, "TOLLGATE_QUOTA_URL=http://127.0.0.1:1"}, "quota get ann", "the quota API at http://127.0.0.1:1 did not answer: dial tcp"},
		"user in address":   {4, []string{token, "TOLLGATE_QUOTA_URL=http://u:canary@127.0.0.1:1"}, "quota get ann", "the quota API at http://127.0.0.1:1 did not answer"},
		"unavailable":       {4, []string{token, "TOLLGATE_QUOTA_URL=" + away.URL}, "quota get ann", "503 unavailable: The quota store can't be reached"},
		"our side":          {1, []string{token, "TOLLGATE_QUOTA_URL=" + broken.URL}, "quota get ann", "500 internal: 500 Internal Server Error: boom \uFFFD[31m"},
		"a website":         {1, []string{token, "TOLLGATE_QUOTA_URL=" + website.URL}, "quota get ann", "Is that the quota API's address?"},
		"no address, token": {2, nil, "quota get ann", "address is not known: set TOLLGATE_QUOTA_URL or give --quota-url; is `make run` running?\n  no token: set TOLLGATE_ADMIN_TOKEN or TOLLGATE_VIEWER_TOKEN or give --token-file"},
		"viewer's only":     {2, []string{"TOLLGATE_VIEWER_TOKEN=v", "TOLLGATE_QUOTA_URL=" + away.URL}, "quota set ann", "no token: set TOLLGATE_ADMIN_TOKEN or give --token-file"},
		"no scheme":         {2, []string{token, "TOLLGATE_QUOTA_URL=admin:canary@host:99"}, "quota get ann", `TOLLGATE_QUOTA_URL: "…@host:99" is not a URL`},
		"bad port":          {2, []string{token}, "quota get ann --quota-url http://u:canary@host:port", `--quota-url: "http://…@host:port" is not a URL`},
		"password in query": {2, []string{token}, "quota get ann --quota-url host:99?password=canary", `"host:99…" is not a URL`},
		"slash in password": {2, []string{token, "TOLLGATE_QUOTA_URL=http://u:can/ary@canary@:port/"}, "quota get ann", `"http://…@:port/" is not a URL`},
		"no token file":     {2, []string{"TOLLGATE_QUOTA_URL=" + away.URL}, "quota get ann --token-file " + filepath.Join(dir, "none"), "--token-file: open"},
		"two tokens":        {2, []string{"TOLLGATE_QUOTA_URL=" + away.URL}, "quota get ann --token-file " + file("two", "canary one\n", 0o600), "must hold one token and nothing else"},
		"open token file":   {4, []string{"TOLLGATE_QUOTA_URL=" + away.URL}, "quota get ann --token-file " + file("open", "canary\n", 0o644), "warning: others can read"},
		"a token as a flag": {2, []string{token}, "quota get ann --token canary", "unknown flag: --token"},
		"replay's token":    {2, nil, "replay --trace x --token canary", "unknown flag: --token"},
		"replay's ledger":   {2, nil, "replay --trace x --clickhouse-url clickhouse://u:canary@h/x", "--clickhouse-url: every user of the machine can read a flag"},
		"replay's address":  {2, []string{"TOLLGATE_SERVICE_TOKEN=s"}, "replay --trace x --enforcement-url http://u:canary@h:port", `--enforcement-url: "http://…@h:port" is not a URL`},
		"a token as a name": {2, []string{token, "TOLLGATE_QUOTA_URL=" + away.URL}, "token revoke tg-admin-canary --yes", "NAME must be a token's name"},
		"no token at all":   {2, []string{"TOLLGATE_ADMIN_TOKEN=canary\nx", "TOLLGATE_QUOTA_URL=" + away.URL}, "quota get ann", "TOLLGATE_ADMIN_TOKEN must hold one token and nothing else"},
		"kafka away":        {4, []string{"TOLLGATE_KAFKA_BROKERS=127.0.0.1:1"}, "tail --limit 1", "127.0.0.1:1"},
		"no instant":        {2, []string{token, "TOLLGATE_QUOTA_URL=" + away.URL}, "quota get ann --at yesterday", "--at: must be an RFC 3339 instant, such as"},
		"two owners":        {2, []string{token, "TOLLGATE_QUOTA_URL=" + away.URL}, "key create --user a --org b", "if any flags in the group [user org]"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, c.env, strings.Fields(c.args)...)
			if code != c.code || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("exit %d, want %d; stdout %q; stderr %q should hold %q", code, c.code, stdout, stderr, c.want)
			}
			if strings.Contains(strings.ReplaceAll(stderr, dir, ""), "canary") {
				t.Errorf("a secret was printed: %s", stderr)
			}
		})
	}
}

func TestATokensFileIsUsedInsteadOfTheEnvironments(t *testing.T) {
	var got string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = io.WriteString(w, `{"tiers":[]}`)
	}))
	defer srv.Close()
	p := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(p, []byte("of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"TOLLGATE_QUOTA_URL=" + srv.URL, "TOLLGATE_VIEWER_TOKEN=viewers"}
	for _, c := range []struct {
		want string
		env  []string
		args []string
	}{{"viewers", env, nil}, {"admins", append(env, "TOLLGATE_ADMIN_TOKEN=admins"), nil}, {"of-the-file", append(env, "TOLLGATE_ADMIN_TOKEN=admins"), []string{"--token-file", p}}} {
		if code, _, stderr := run(t, c.env, append([]string{"tier", "list"}, c.args...)...); code != 0 || got != "Bearer "+c.want || stderr != "" {
			t.Errorf("exit %d, the token was %q, want %s; %s", code, got, c.want, stderr)
		}
	}
}

func TestWhatCanNotBeTakenBackAsksFirst(t *testing.T) {
	env, _ := quotaService(t)
	_, stdout, _ := run(t, env, "key", "create", "--user", "ann", "--name", "batch", "-o", "json")
	key, _ := decode[map[string]any](t, stdout)["api_key_id"].(string)
	for _, setup := range []string{"quota set ann --rpm 5", "org set acme --time-zone Europe/Berlin", "token create it --role viewer"} {
		if code, _, stderr := run(t, env, strings.Fields(setup)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	for _, c := range [][2]string{
		{"key revoke " + key, "Revoke the key " + key + " (tg-"},
		{"token revoke it", "Revoke the token it for good?"},
		{"quota set ann --tpm 3", "rpm_limit 5. --keep keeps it. Go on?"},
		{"org set acme --tpm 3000", "time_zone Europe/Berlin. --keep keeps it. Go on?"},
		{"org lift acme", "Lift the pool of acme?"},
	} {
		command, question := c[0], c[1]
		for _, yes := range []bool{false, true} {
			var out, errs bytes.Buffer
			var asked string
			code := Run(t.Context(), strings.Fields(command), IO{Environ: env, Dir: t.TempDir(), Stdout: &out, Stderr: &errs, Ask: func(_ context.Context, q string) (bool, error) {
				asked = q
				return yes, nil
			}})
			if !strings.Contains(asked, question) {
				t.Errorf("%s: asked %q", command, asked)
			}
			if !yes && (code != 1 || out.Len() > 0 || errs.String() != "Nothing was done.\n") || yes && (code != 0 || out.Len() == 0) {
				t.Errorf("%s, answered %v: exit %d, %s%s", command, yes, code, out.String(), errs.String())
			}
		}
	}
}

func TestAPersonsAnswerIsReadToTheLine(t *testing.T) {
	for _, c := range []struct {
		answer string
		yes    bool
	}{{"y\n", true}, {" YES \n", true}, {"n\n", false}, {"\n", false}, {"", false}, {"yesterday\n", false}} {
		var out bytes.Buffer
		if got, err := asker(strings.NewReader(c.answer), &out)(t.Context(), "Go on?"); err != nil || got != c.yes || out.String() != "Go on? [y/N] " {
			t.Errorf("%q: %v, %v, %q", c.answer, got, err, out.String())
		}
	}
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := asker(r, io.Discard)(ctx, "Go on?"); yes || err == nil {
		t.Errorf("interrupted: %v, %v", yes, err)
	}
}

func TestCompletionKnowsTheValuesOfEnums(t *testing.T) {
	env, _ := quotaService(t)
	if code, _, stderr := run(t, env, strings.Fields("tier set trial --rpm 5 --tpm 5 --tpd 5 --concurrent 1 --priority 10 --models all --max-context 8 --redis-away open")...); code != 0 {
		t.Fatal(stderr)
	}
	for words, want := range map[string]string{
		"token create x --role ":        "viewer admin org-admin",
		"quota list --output ":          "table json",
		"tier set plus --redis-away ":   "local open closed",
		"quota set ann --tier ":         "trial free plus api enterprise",
		"tier get ":                     "trial free plus api enterprise",
		"tier get plus ":                "",
		"key create --org acme --tier ": "trial free plus api enterprise",
		"key quota set k --tier ":       "trial free plus api enterprise",
		"quota list --tier ":            "trial free plus api enterprise",
		"top ":                          "users orgs keys models tiers",
		"usage --by ":                   "day hour org user key tier model",
		"tail --outcome ":               "completed cancelled failed expired rejected adjustment",
		"replay --quota ":               "keep unlimited trial free plus api enterprise",
	} {
		_, stdout, _ := run(t, env, append([]string{"__complete"}, strings.Split(words, " ")...)...)
		values, _, _ := strings.Cut(stdout, ":")
		got := strings.Join(strings.Fields(values), " ")
		if got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
	if _, stdout, _ := run(t, nil, "__complete", "quota", "set", "ann", "--tier", ""); !strings.HasPrefix(stdout, "free\nplus\napi\nenterprise\n") {
		t.Errorf("without an API: %q", stdout)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := run(t, nil, "completion", shell); code != 0 || !strings.Contains(stdout, "tollgatectl") {
			t.Errorf("%s: exit %d, %s", shell, code, stderr)
		}
	}
}

func TestAnOrgAdminWorksWithinItsOrg(t *testing.T) {
	env, service := quotaService(t)
	for _, setup := range []string{"quota set ann --tier plus --org acme --rpm 10 --shards 2", "quota set zoe --tier plus --org globex"} {
		if code, _, stderr := run(t, env, strings.Fields(setup)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	_, stdout, _ := run(t, env, "token", "create", "acme-it", "--role", "org-admin", "--org", "acme", "-o", "json")
	token, _ := decode[map[string]any](t, stdout)["token"].(string)
	own := []string{"TOLLGATE_QUOTA_URL=" + service, "TOLLGATE_ADMIN_TOKEN=" + token}
	for command, want := range map[string]struct {
		code int
		text string
	}{
		"quota get ann":                         {0, ""},
		"quota set ann --keep --rpm 5":          {0, ""},
		"quota list":                            {0, ""},
		"key list":                              {0, ""},
		"tier list":                             {0, ""},
		"quota set ann --keep --tier api":       {3, "tier (--tier): "},
		"quota set ann --keep --rpm 4000":       {3, "rpm_limit (--rpm): "},
		"quota get zoe":                         {3, "404 not_found"},
		"quota set zoe --keep --rpm 1":          {3, "404 not_found"},
		"price list":                            {3, "403 forbidden"},
		"token revoke acme-it --yes":            {3, "The token from TOLLGATE_ADMIN_TOKEN may not do that"},
		"org set acme --keep --rpm 5 --tpm 100": {3, "403 forbidden"},
	} {
		if code, stdout, stderr := run(t, own, strings.Fields(command)...); code != want.code || !strings.Contains(stderr, want.text) || strings.Contains(stdout+stderr, token) || strings.Contains(stdout, "zoe") {
			t.Errorf("%s: exit %d, want %d; %s%s", command, code, want.code, stdout, stderr)
		}
	}
	if code, _, stderr := run(t, env, "token", "revoke", "acme-it", "--yes"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := run(t, own, "quota", "get", "ann"); code != 3 || !strings.Contains(stderr, "The token from TOLLGATE_ADMIN_TOKEN is unknown, revoked or expired") {
		t.Errorf("a revoked token: exit %d, %s", code, stderr)
	}
}
