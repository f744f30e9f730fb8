package realredis

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// parentEnv makes the test binary start a server, say so, and wait to be killed.
const parentEnv = "TOLLGATE_TEST_REALREDIS_PARENT"

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: 300 * time.Millisecond})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAcknowledgedWritesSurviveKillWithAOF(t *testing.T) {
	s := Start(t, WithAOF())
	c := client(t, s.Addr)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Restart()
	if v, err := client(t, s.Addr).Get(t.Context(), "k").Result(); err != nil || v != "v" {
		t.Fatalf("after a restart: %q, %v", v, err)
	}
}

func TestNothingSurvivesARestartWithoutAOF(t *testing.T) {
	s := Start(t)
	if err := client(t, s.Addr).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Restart()
	if err := client(t, s.Addr).Get(t.Context(), "k").Err(); err != redis.Nil {
		t.Fatalf("after a restart: %v", err)
	}
}

func TestPausedServerAnswersOnlyWhenResumed(t *testing.T) {
	s := Start(t)
	c := client(t, s.Addr)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a paused server answers")
	}
	s.Resume()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestClusterServesEverySlot(t *testing.T) {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: StartCluster(t).Addrs()})
	defer c.Close()
	for i := range 100 {
		if err := c.Set(t.Context(), fmt.Sprint("key", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChildDiesWithItsParent kills a process that started a server, as a crash or `go test -timeout` would.
func TestChildDiesWithItsParent(t *testing.T) {
	if os.Getenv(parentEnv) != "" {
		s := Start(t)
		fmt.Printf("addr %s\n", s.Addr)
		select {} // until killed
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), parentEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	if _, err := fmt.Fscanf(out, "addr %s\n", &addr); err != nil {
		t.Fatal(err)
	}
	c := client(t, strings.TrimSpace(addr))
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	deadline := time.Now().Add(5 * time.Second)
	for c.Ping(t.Context()).Err() == nil {
		if time.Now().After(deadline) {
			t.Fatal("the server outlives its parent")
		}
	}
}
