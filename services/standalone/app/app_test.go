package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/testkit/upstream"
)

// asStandalone makes this test binary the command itself: what is tested is a process, with its signals and its exit code.
const asStandalone = "TOLLGATE_TEST_AS_STANDALONE"

func TestMain(m *testing.M) {
	embedded.MaybeRunChild()
	if os.Getenv(asStandalone) != "" {
		os.Exit(Main(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	code := m.Run()
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// startWithin covers a first start that downloads the servers.
const startWithin = 5 * time.Minute

// command is standalone with a data directory and ports of its own.
type command struct {
	*exec.Cmd
	out *output
}

func newCommand(dir string, ports [4]int, args ...string) *command {
	self, err := os.Executable()
	if err != nil {
		panic(err) // a test binary knows its path
	}
	c := &command{exec.CommandContext(context.Background(), self, args...), &output{}}
	c.Env = append(os.Environ(), asStandalone+"=1", "TOLLGATE_DATA_DIR="+dir, "TOLLGATE_CHECK_BUDGET=5s", // many tests share a machine
		fmt.Sprintf("TOLLGATE_ENFORCEMENT_ADDR=127.0.0.1:%d", ports[0]), fmt.Sprintf("TOLLGATE_QUOTA_ADDR=127.0.0.1:%d", ports[1]),
		fmt.Sprintf("TOLLGATE_CONSUMER_ADDR=127.0.0.1:%d", ports[2]), fmt.Sprintf("TOLLGATE_GATEWAY_ADDR=127.0.0.1:%d", ports[3]))
	c.Stdout, c.Stderr = c.out, c.out
	return c
}

// output keeps what a process prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) { o.mu.Lock(); defer o.mu.Unlock(); return o.b.Write(p) }
func (o *output) String() string              { o.mu.Lock(); defer o.mu.Unlock(); return o.b.String() }

// shared is the first run, which several tests look at.
var shared struct {
	once  sync.Once
	dir   string
	ports [4]int
	out   string
	err   error
}

func firstRun(t *testing.T) {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "tollgate-standalone-"); shared.err != nil {
			return
		}
		for i := range shared.ports {
			if shared.ports[i], shared.err = process.FreePort(); shared.err != nil {
				return
			}
		}
		c := newCommand(filepath.Join(shared.dir, "data"), shared.ports, "-traffic", "2s", "-exit")
		shared.err = c.Run()
		shared.out = c.out.String()
	})
	if shared.err != nil {
		t.Fatalf("first run: %v\n%s", shared.err, shared.out)
	}
}

func TestSampleTrafficEndsWithLogAndLedgerInAgreement(t *testing.T) {
	firstRun(t)
	for _, want := range []string{"Serving after", "200, 13 events, [DONE]", "left at event 4", "403 model_not_allowed", "no: model", "401 invalid_api_key", "429, come again in", "no: rpm",
		"very next request       200, usage 13 + 12", "owes 0.0", "demo-enterprise", "concurrent", " USD", "clients counted", "by the answers", "They agree: every event is in the ledger, once", "Stopped in"} {
		if !strings.Contains(shared.out, want) {
			t.Errorf("%q is not in\n%s", want, shared.out)
		}
	}
	if strings.Contains(shared.out, "\x1b") {
		t.Error("control characters where there is no terminal")
	}
	for i, line := range strings.Split(shared.out, "\n") {
		if n := len([]rune(line)); n > 100 && !strings.Contains(line, shared.dir) && !strings.Contains(line, " of 2 s ") {
			t.Errorf("line %d has %d columns: %s", i+1, n, line)
		}
	}
}

// readEnv gives the variables of the env file.
func readEnv(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(shared.dir, "data", "env"))
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			vars[name] = strings.Trim(value, "'")
		}
	}
	return vars
}

func TestEnvFileHasEveryPromisedKeyAndMode0600(t *testing.T) {
	firstRun(t)
	st, err := os.Stat(filepath.Join(shared.dir, "data", "env"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	vars := readEnv(t)
	for _, name := range []string{"TOLLGATE_REDIS_URL", "TOLLGATE_POSTGRES_URL", "TOLLGATE_KAFKA_BROKERS", "TOLLGATE_CLICKHOUSE_URL",
		"TOLLGATE_CLICKHOUSE_HTTP_URL", "TOLLGATE_FINANCE_USER", "TOLLGATE_FINANCE_PASSWORD", "TOLLGATE_CONSUMER_URL", "TOLLGATE_ENFORCEMENT_URL",
		"TOLLGATE_GATEWAY_URL", "TOLLGATE_QUOTA_URL", "TOLLGATE_SERVICE_TOKEN", "TOLLGATE_ADMIN_TOKEN", "TOLLGATE_VIEWER_TOKEN"} {
		if vars[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestSecondStartFindsItsDataAndCtrlCStopsItWithZero(t *testing.T) {
	firstRun(t)
	before := readEnv(t)
	dir := filepath.Join(shared.dir, "data")
	own := httptest.NewServer(upstream.New(upstream.Options{})) // it gets no sample traffic
	defer own.Close()
	c := newCommand(dir, shared.ports)
	c.Env = append(c.Env, "TOLLGATE_UPSTREAM_URL="+own.URL)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Kill() })
	deadline := time.After(startWithin)
	for !strings.Contains(c.out.String(), "Serving until Ctrl-C") {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, c.out)
		case <-deadline:
			t.Fatalf("not serving:\n%s", c.out)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if !strings.Contains(c.out.String(), "No sample traffic: TOLLGATE_UPSTREAM_URL") {
		t.Errorf("a server of the user's own:\n%s", c.out)
	}
	after := readEnv(t)
	for _, name := range []string{"TOLLGATE_SERVICE_TOKEN", "TOLLGATE_ADMIN_TOKEN", "TOLLGATE_VIEWER_TOKEN", "TOLLGATE_FINANCE_PASSWORD"} {
		if before[name] != after[name] {
			t.Errorf("%s changed", name)
		}
	}
	q, err := client.NewQuotas(after["TOLLGATE_QUOTA_URL"], after["TOLLGATE_ADMIN_TOKEN"]).GetQuota(t.Context(), "demo-plus")
	if err != nil || q.Tier != "plus" {
		t.Errorf("demo-plus is on %q, %v", q.Tier, err)
	}
	if got := ask(t, after, "SELECT count() > 0 FROM tollgate.usage_events WHERE user_id = 'demo-plus'"); got != "1" {
		t.Errorf("the ledger forgot demo-plus: %s", got)
	}
	if keys, _, err := client.NewQuotas(after["TOLLGATE_QUOTA_URL"], after["TOLLGATE_ADMIN_TOKEN"]).ListKeys(t.Context(), "demo-plus", "", client.Page{}); err != nil || len(keys) != 1 || keys[0].RevokedAt == nil {
		t.Errorf("the sample traffic left a key that is good: %+v, %v", keys, err)
	}
	t.Run("the gateway serves by a new key", func(t *testing.T) {
		key, err := client.NewQuotas(after["TOLLGATE_QUOTA_URL"], after["TOLLGATE_ADMIN_TOKEN"]).CreateKey(t.Context(), client.NewKey{UserID: "demo-plus", Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, after["TOLLGATE_GATEWAY_URL"]+"/v1/chat/completions",
			strings.NewReader(`{"model":"grok-2","max_tokens":3,"stream":true,"messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key.Secret)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
			t.Errorf("%s %s, %v", resp.Status, b, err)
		}
	})
	t.Run("what it offers to try works when pasted as a whole", func(t *testing.T) {
		_, pasted, _ := strings.Cut(c.out.String(), "from another terminal:")
		pasted, _, ok := strings.Cut(pasted, "Serving until Ctrl-C")
		sh := exec.CommandContext(t.Context(), "sh", "-e")
		sh.Stdin = strings.NewReader(pasted)
		out, err := sh.CombinedOutput()
		_, sums, _ := strings.Cut(string(out), "user_id─")
		for _, want := range []string{"data: [DONE]", `"tier":"plus"`, `"allowed":true`, `"success":true`} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s is missing", want)
			}
		}
		if !ok || err != nil || !strings.Contains(sums, "│ bob ") || !strings.Contains(sums, "│ ann ") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("a second standalone on the same data is refused", func(t *testing.T) {
		again := newCommand(dir, [4]int{}, "-exit", "-no-traffic")
		if err := again.Run(); err == nil || !strings.Contains(again.out.String(), "another standalone uses") || !strings.Contains(again.out.String(), "TOLLGATE_DATA_DIR") {
			t.Errorf("%v\n%s", err, again.out)
		}
	})

	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after Ctrl-C: %v\n%s", err, c.out)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("still running 30 s after Ctrl-C:\n%s", c.out)
	}
	if !strings.Contains(c.out.String(), "Stopped in") {
		t.Errorf("it does not say that it stopped:\n%s", c.out)
	}
}

// ask asks the ledger over HTTP, as finance.
func ask(t *testing.T, vars map[string]string, query string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, vars["TOLLGATE_CLICKHOUSE_HTTP_URL"], strings.NewReader(query))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(vars["TOLLGATE_FINANCE_USER"], vars["TOLLGATE_FINANCE_PASSWORD"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestPortInUseNamesThePortAndTheVariable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener's
	c := newCommand(t.TempDir(), [4]int{0, port}, "-exit")
	err = c.Run()
	if err == nil || !strings.Contains(c.out.String(), fmt.Sprintf("port %d", port)) || !strings.Contains(c.out.String(), "TOLLGATE_QUOTA_ADDR") {
		t.Errorf("%v\n%s", err, c.out)
	}
}

func TestWrongCommandLineOrSettingIsExit2(t *testing.T) {
	for want, c := range map[string]struct{ args, environ []string }{
		"unexpected argument":       {[]string{"now"}, nil},
		"-traffic must be":          {[]string{"-traffic", "-1s"}, nil},
		"TOLLGATE_QUOTA_ADDR":       {nil, []string{"TOLLGATE_QUOTA_ADDR=8082"}},
		"flag provided but not def": {[]string{"-nope"}, nil},
	} {
		var out bytes.Buffer
		if code := Main(c.args, c.environ, &out, &out); code != 2 || !strings.Contains(out.String(), want) {
			t.Errorf("exit %d, want 2; %q should hold %q", code, out.String(), want)
		}
	}
}
