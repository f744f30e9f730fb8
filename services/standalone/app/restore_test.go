package app

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

// serving starts standalone and waits until it serves. The returned func stops it.
func serving(t *testing.T, dir string, ports [4]int, env ...string) (c *command, vars map[string]string, stop func()) {
	t.Helper()
	c = newCommand(dir, ports, "-no-traffic")
	c.Env = append(c.Env, env...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Kill() })
	for deadline := time.After(startWithin); !strings.Contains(c.out.String(), "Serving until Ctrl-C"); {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, c.out)
		case <-deadline:
			t.Fatalf("not serving:\n%s", c.out)
		case <-time.After(20 * time.Millisecond):
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	vars = map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			vars[name] = strings.Trim(value, "'")
		}
	}
	return c, vars, func() {
		t.Helper()
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
	}
}

// perDay is a token a millisecond.
const perDay = int64(24 * 60 * 60 * 1000)

// spend sells a user a day's quota and uses it up at once. It tells when.
func spend(t *testing.T, vars map[string]string) time.Time {
	t.Helper()
	q := client.NewQuotas(vars["TOLLGATE_QUOTA_URL"], vars["TOLLGATE_ADMIN_TOKEN"])
	defer q.Close()
	change := client.Unlimited()
	change.TPDLimit = new(perDay)
	if _, err := q.PutQuota(t.Context(), "dave", change); err != nil {
		t.Fatal(err)
	}
	e := client.NewEnforcement(vars["TOLLGATE_ENFORCEMENT_URL"], vars["TOLLGATE_SERVICE_TOKEN"])
	defer e.Close()
	id, begin := uuid.New(), time.Now()
	d, err := e.Check(t.Context(), client.CheckRequest{UserID: "dave", Model: "grok-2", EstimatedTokens: new(perDay), RequestID: id})
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if _, err := e.Record(t.Context(), client.RecordRequest{UserID: "dave", RequestID: id, Model: "grok-2", InputTokens: perDay, Outcome: "completed"}); err != nil {
		t.Fatal(err)
	}
	return begin
}

func freePorts(t *testing.T) (ports [4]int) {
	t.Helper()
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	return ports
}

func TestADaysQuotaThatWasSpentIsSpentAfterARestart(t *testing.T) {
	dir, ports := filepath.Join(t.TempDir(), "data"), freePorts(t)
	c, vars, stop := serving(t, dir, ports)
	if !strings.Contains(c.out.String(), "restored from the ledger: 0 scopes") {
		t.Errorf("the first start does not say what it restored:\n%s", c.out)
	}
	spent := spend(t, vars)
	stop()

	c, vars, stop = serving(t, dir, ports)
	defer stop()
	if !strings.Contains(c.out.String(), "restored from the ledger: 1 scope ") {
		t.Errorf("it does not say what it restored:\n%s", c.out)
	}
	e := client.NewEnforcement(vars["TOLLGATE_ENFORCEMENT_URL"], vars["TOLLGATE_SERVICE_TOKEN"])
	defer e.Close()
	// What has drained since is what has passed since, to the millisecond; a second more of it must be waited for.
	st, err := e.UserStatus(t.Context(), "dave")
	if err != nil {
		t.Fatal(err)
	}
	left, passed := *st.Remaining["tokens_1d"], time.Since(spent).Milliseconds()
	if left > passed+1 || left < passed/2 {
		t.Errorf("%d tokens left %d ms after all were spent", left, passed)
	}
	want := left + 3000
	r := client.CheckRequest{UserID: "dave", Model: "grok-2", EstimatedTokens: &want}
	d, err := e.Check(t.Context(), r)
	if err != nil || d.Allowed || d.Reason != "tpd" || d.RetryAfterMS < 1 || d.RetryAfterMS > 3000 {
		t.Fatalf("%+v, %v", d, err)
	}
	time.Sleep(time.Duration(d.RetryAfterMS) * time.Millisecond) // another process's clock can't be moved
	if d, err = e.Check(t.Context(), r); err != nil || !d.Allowed {
		t.Errorf("after the advised wait: %+v, %v", d, err)
	}
}

// A Redis of the user's own keeps what it keeps.
func TestARealRedisIsLeftAlone(t *testing.T) {
	server := realredis.Start(t)
	dir, ports, url := filepath.Join(t.TempDir(), "data"), freePorts(t), "TOLLGATE_REDIS_URL=redis://"+server.Addr
	_, vars, stop := serving(t, dir, ports, url)
	spend(t, vars)
	stop()
	c, vars, stop := serving(t, dir, ports, url)
	defer stop()
	if strings.Contains(c.out.String(), "restored from the ledger") {
		t.Errorf("it restored:\n%s", c.out)
	}
	e := client.NewEnforcement(vars["TOLLGATE_ENFORCEMENT_URL"], vars["TOLLGATE_SERVICE_TOKEN"])
	defer e.Close()
	if st, err := e.UserStatus(t.Context(), "dave"); err != nil || *st.Remaining["tokens_1d"] > perDay/2 {
		t.Errorf("%+v, %v: Redis itself remembers", st, err)
	}
}
