package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/problem"
)

const traceText = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,1\n2023-11-16 18:15:47,20,2\n2023-11-16 18:15:48,30,3\n2023-11-16 18:15:49,40,4\n"

func traceFile(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// services answers checks (every fourth is refused), records and quota changes.
func services(t *testing.T, quotas *atomic.Int32) string {
	t.Helper()
	var n atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("POST /internal/rate-limit/check", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer svc" {
			problem.Write(w, problem.New(http.StatusUnauthorized, problem.CodeUnauthorized, "The token is wrong."))
			return
		}
		_, _ = fmt.Fprintf(w, `{"allowed":%t,"reason":"tpm","model":"grok-2"}`, n.Add(1)%4 != 0)
	})
	mux.HandleFunc("POST /internal/rate-limit/record", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"success":true}`)
	})
	mux.HandleFunc("PUT /internal/quota/{user}", func(w http.ResponseWriter, r *http.Request) {
		var q map[string]any
		if json.NewDecoder(r.Body).Decode(&q) == nil && q["tier"] == "plus" && r.Header.Get("Authorization") == "Bearer adm" {
			quotas.Add(1)
		}
		_, _ = fmt.Fprint(w, `{}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func run(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(context.Background(), args, IO{Environ: environ, Dir: t.TempDir(), Stdout: &out, Stderr: &errs})
	return code, out.String(), errs.String()
}

func TestReplayGivesTheQuotaThenAnAccountThatAddsUp(t *testing.T) {
	var quotas atomic.Int32
	url := services(t, &quotas)
	env := []string{"TOLLGATE_ENFORCEMENT_URL=" + url, "TOLLGATE_QUOTA_URL=" + url, "TOLLGATE_SERVICE_TOKEN=svc", "TOLLGATE_ADMIN_TOKEN=adm"}
	code, stdout, stderr := run(t, env, "replay", "--trace", traceFile(t, traceText), "--users", "7", "--speed", "0", "--quota", "plus", "--json")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err, stdout)
	}
	if got["checks"] != 4.0 || got["allowed"] != 3.0 || got["refused"] != 1.0 || got["recorded"] != 3.0 || got["errors"] != 0.0 {
		t.Errorf("account %v", got)
	}
	if quotas.Load() != 7 {
		t.Errorf("%d quotas were set, want 7", quotas.Load())
	}
	code, stdout, _ = run(t, env, "replay", "--trace", traceFile(t, traceText), "--max", "2", "--speed", "0")
	if code != 0 || !strings.Contains(stdout, "of 2 requests in the trace") || !strings.Contains(stdout, "not compared: no ClickHouse URL is known") {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

func TestReplayFailsWithReason(t *testing.T) {
	var quotas atomic.Int32
	url := services(t, &quotas)
	good := traceFile(t, traceText)
	for name, c := range map[string]struct {
		code int
		env  []string
		args []string
		want string
	}{
		"wrong token":   {1, []string{"TOLLGATE_ENFORCEMENT_URL=" + url, "TOLLGATE_SERVICE_TOKEN=no"}, []string{"--trace", good, "--speed", "0"}, "4 calls failed"},
		"no trace":      {2, nil, nil, "--trace is required"},
		"no address":    {2, nil, []string{"--trace", good}, "--enforcement-url is not given"},
		"no file":       {1, []string{"TOLLGATE_ENFORCEMENT_URL=" + url, "TOLLGATE_SERVICE_TOKEN=svc"}, []string{"--trace", "nowhere.csv"}, "nowhere.csv"},
		"bad line":      {1, []string{"TOLLGATE_ENFORCEMENT_URL=" + url, "TOLLGATE_SERVICE_TOKEN=svc"}, []string{"--trace", traceFile(t, traceText+"x,1,1\n")}, "line 6, column TIMESTAMP"},
		"bad url":       {2, []string{"TOLLGATE_ENFORCEMENT_URL=nope", "TOLLGATE_SERVICE_TOKEN=svc"}, []string{"--trace", good}, `"nope" is not a URL`},
		"bad prefix":    {2, []string{"TOLLGATE_ENFORCEMENT_URL=" + url, "TOLLGATE_SERVICE_TOKEN=svc"}, []string{"--trace", good, "--prefix", "a b"}, "--prefix makes user ids that are refused"},
		"no users":      {2, nil, []string{"--trace", good, "--users", "0"}, "--users must be from 1"},
		"unknown flag":  {2, nil, []string{"--speeed", "1"}, "unknown flag"},
		"no clickhouse": {4, []string{"TOLLGATE_ENFORCEMENT_URL=" + url, "TOLLGATE_SERVICE_TOKEN=svc", "TOLLGATE_CLICKHOUSE_URL=clickhouse://u:secret@127.0.0.1:1/tollgate"}, []string{"--trace", good}, "read the ledger"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, c.env, append([]string{"replay"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit %d, want %d; stderr %q should hold %q", code, c.code, stderr, c.want)
			}
			if strings.Contains(stdout+stderr, "secret") {
				t.Errorf("a password was printed: %s%s", stdout, stderr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	if code, stdout, _ := run(t, nil, "version"); code != 0 || !strings.HasPrefix(stdout, "tollgatectl ") {
		t.Errorf("exit %d, %q", code, stdout)
	}
}
