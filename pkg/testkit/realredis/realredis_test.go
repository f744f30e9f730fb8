package realredis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

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
	if err := client(t, s.Addr).Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
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

func TestServerDiesWithItsParent(t *testing.T) {
	victim, pid := crash.Start(t, func() int { return Start(t).Pid() })
	victim.Kill()
	crash.AwaitGone(t, pid)
}
