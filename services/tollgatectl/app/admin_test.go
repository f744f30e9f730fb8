package app

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	quota "github.com/tollgate-dev/tollgate/services/quota/app"
)

var update = flag.Bool("update", false, "write the outputs in testdata/admin.txt anew")

const (
	adminToken  = "admin-token-canary-1"
	viewerToken = "viewer-token-canary-1"
)

// quotaService starts the real quota service on stores of its own and gives the environment of its admin.
func quotaService(t *testing.T) (env []string, url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url = "http://" + l.Addr().String()
	redis, kafka := stores.Redis(t), stores.Kafka(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- quota.Run(ctx, quota.Config{AttemptBurst: 1000, AttemptEvery: time.Second, Addr: l.Addr().String(), PostgresURL: stores.Postgres(t), RedisURL: redis.URL(),
			KafkaBrokers: []string{kafka.Addr}, AdminToken: adminToken, ViewerToken: viewerToken, Listener: l, Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the service ended with %v", err)
		}
	}))
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get(url + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the quota service was not ready within 30 s")
		}
	}
	return []string{"TOLLGATE_QUOTA_URL=" + url, "TOLLGATE_ADMIN_TOKEN=" + adminToken}, url
}

// steady replaces what differs from run to run by what is as wide.
type steady struct {
	uuids []string // in the order they were seen
}

var (
	uuidText    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)
	requestText = regexp.MustCompile(`Request id: [0-9a-f-]{36}`)
	secondText  = regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z`)
	secretText  = regexp.MustCompile(`tg-(admin-)?[A-Z2-7]{6}([A-Z2-7]{20})?`)
	argText     = regexp.MustCompile(`"([^"]*)"|'([^']*)'|(\S+)`)
	portText    = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)
	pendingText = regexp.MustCompile(`(propagation"?:? +"?)pending`)
	laterText   = regexp.MustCompile(`warning: the change is kept, but Redis .*\n`)
)

func (s *steady) text(out string) string {
	year := fmt.Sprint(time.Now().UTC().Year())
	out = secondText.ReplaceAllStringFunc(out, func(at string) string {
		if !strings.HasPrefix(at, year) { // one that the script states
			return at
		}
		return "2026-01-02T03:04:05" + at[19 : len(at)-1][:min(1, len(at)-20)] + strings.Repeat("0", max(0, len(at)-21)) + "Z"
	})
	out = uuidText.ReplaceAllStringFunc(out, func(id string) string {
		for i, seen := range s.uuids {
			if seen == id {
				return fmt.Sprintf("00000000-0000-7000-8000-%012d", i+1)
			}
		}
		s.uuids = append(s.uuids, id)
		return fmt.Sprintf("00000000-0000-7000-8000-%012d", len(s.uuids))
	})
	out = secretText.ReplaceAllStringFunc(out, func(secret string) string {
		begin := "tg-"
		if strings.HasPrefix(secret, "tg-admin-") {
			begin = "tg-admin-"
		}
		return begin + strings.Repeat("A", len(secret)-len(begin))
	})
	out = requestText.ReplaceAllString(out, "Request id: REQUEST")
	// On a busy machine Redis may take longer than the service waits for it: that is within the contract.
	out = laterText.ReplaceAllString(pendingText.ReplaceAllString(out, "${1}done"), "")
	return portText.ReplaceAllString(out, "127.0.0.1:PORT")
}

// command gives a line's arguments: split at blanks, but for what is in "" or ”.
func (s *steady) command(line string) (args []string) {
	for _, m := range argText.FindAllStringSubmatch(line, -1) {
		args = append(args, m[1]+m[2]+m[3])
	}
	for i := range args {
		for n, id := range s.uuids {
			args[i] = strings.ReplaceAll(args[i], fmt.Sprintf("00000000-0000-7000-8000-%012d", n+1), id)
		}
	}
	return args
}

// Every command against the real service, with what it prints and its exit code: testdata/admin.txt. "! " is standard error.
func TestAdminCommandsPrintWhatTheScriptSays(t *testing.T) {
	env, _ := quotaService(t)
	const path = "testdata/admin.txt"
	script, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	var s steady
	for line := range strings.Lines(string(script)) {
		if strings.HasPrefix(line, "#") {
			got.WriteString(line)
			continue
		}
		command, ok := strings.CutPrefix(line, "$ tollgatectl ")
		if !ok {
			continue // an output
		}
		var out, errs bytes.Buffer
		code := Run(t.Context(), s.command(strings.TrimSpace(command)), IO{Environ: env, Dir: t.TempDir(), Stdout: &out, Stderr: &errs})
		got.WriteString(line + s.text(out.String()))
		for l := range strings.Lines(s.text(errs.String())) {
			got.WriteString("! " + l)
		}
		if code != 0 {
			fmt.Fprintf(&got, "= %d\n", code)
		}
		got.WriteString("\n")
	}
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(script), got.String()); diff != "" && !*update {
		t.Error(diff)
	}
}
