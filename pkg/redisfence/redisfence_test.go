package redisfence

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

// onEach runs a test on miniredis, on a real server and on a real cluster.
func onEach(t *testing.T, f func(t *testing.T, c redis.UniversalClient)) {
	t.Run("miniredis", func(t *testing.T) {
		c := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
		defer c.Close()
		f(t, c)
	})
	t.Run("redis", func(t *testing.T) {
		c := redis.NewClient(&redis.Options{Addr: realredis.Start(t).Addr})
		defer c.Close()
		f(t, c)
	})
	t.Run("cluster", func(t *testing.T) {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: realredis.StartCluster(t).Addrs()})
		defer c.Close()
		f(t, c)
	})
}

func TestOlderVersionNeverOverwritesANewerOne(t *testing.T) {
	onEach(t, func(t *testing.T, c redis.UniversalClient) {
		ctx := t.Context()
		const name = "user:u1"
		get := func() string {
			v, err := c.Get(ctx, Key(3, name)).Result()
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		for _, step := range []struct {
			publish int64
			want    string
		}{{5, "5"}, {4, "5"}, {5, "5"}, {6, "6"}, {1<<53 - 2, "9007199254740990"}, {1<<53 - 1, "9007199254740991"}, {1<<53 - 2, "9007199254740991"}} {
			if err := Publish(ctx, c, []int{3}, Change{name, step.publish}); err != nil {
				t.Fatal(err)
			}
			if got := get(); got != step.want {
				t.Errorf("after %d: %s, want %s", step.publish, got, step.want)
			}
		}
		if ttl := c.PTTL(ctx, Key(3, name)).Val(); ttl <= TTL-5*time.Second || ttl > TTL {
			t.Errorf("time to live %v, want %v", ttl, TTL)
		}
		if n := c.Exists(ctx, Key(4, name)).Val(); n != 0 {
			t.Error("another shard was touched")
		}
		if err := Publish(ctx, c, []int{3}, Change{name, 0}); err == nil {
			t.Error("version 0 was published")
		}
	})
}

func TestConcurrentPublishersLeaveTheHighestVersion(t *testing.T) {
	onEach(t, func(t *testing.T, c redis.UniversalClient) {
		var wg sync.WaitGroup
		for v := int64(1); v <= 50; v++ {
			wg.Go(func() {
				if err := Publish(t.Context(), c, []int{1, 2}, Change{"user:u1", v}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, shard := range []int{1, 2} {
			if v := c.Get(t.Context(), Key(shard, "user:u1")).Val(); v != "50" {
				t.Errorf("shard %d is at %s", shard, v)
			}
		}
	})
}

func TestTierChangeIsLeftInEveryShard(t *testing.T) {
	onEach(t, func(t *testing.T, c redis.UniversalClient) {
		if err := Publish(t.Context(), c, nil, Change{TierName("plus"), 2}); err != nil {
			t.Fatal(err)
		}
		for shard := range subject.Shards {
			if v := c.Get(t.Context(), Key(shard, "tier:plus")).Val(); v != "2" {
				t.Fatalf("shard %d: %q", shard, v)
			}
		}
	})
}

// listener counts what Subscribe tells.
type listener struct {
	reconnects atomic.Int64
	changes    chan Change
}

func listen(t *testing.T, c redis.UniversalClient) *listener {
	l := &listener{changes: make(chan Change, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Subscribe(ctx, c, func(ch Change) { l.changes <- ch }, func() { l.reconnects.Add(1) })
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Subscribe did not end with its context")
		}
	})
	return l
}

func (l *listener) awaitReconnects(t *testing.T, n int64, within time.Duration) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(within); l.reconnects.Load() < n; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d confirmed subscriptions within %v, want %d", l.reconnects.Load(), within, n)
		}
	}
}

func (l *listener) await(t *testing.T, want Change) {
	t.Helper()
	select {
	case got := <-l.changes:
		if got != want {
			t.Errorf("heard %+v, want %+v", got, want)
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("%+v was not heard", want)
	}
}

func TestEveryChangeIsHeard(t *testing.T) {
	onEach(t, func(t *testing.T, c redis.UniversalClient) {
		l := listen(t, c)
		l.awaitReconnects(t, 1, 5*time.Second)
		for v := int64(1); v <= 20; v++ {
			if err := Publish(t.Context(), c, []int{0}, Change{"user:u1", v}); err != nil {
				t.Fatal(err)
			}
			l.await(t, Change{"user:u1", v})
		}
		if n := l.reconnects.Load(); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
	})
}

func TestUnreadableMessageCountsAsALostOne(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: realredis.Start(t).Addr})
	defer c.Close()
	l := listen(t, c)
	l.awaitReconnects(t, 1, 5*time.Second)
	for i, m := range []string{"hello", `{"name":""}`, `{"version":1}`} {
		if err := c.Publish(t.Context(), Channel, m).Err(); err != nil {
			t.Fatal(err)
		}
		l.awaitReconnects(t, int64(i)+2, 5*time.Second)
	}
}

func TestLostConnectionIsToldOnceItIsBack(t *testing.T) {
	s := realredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer c.Close()
	l := listen(t, c)
	l.awaitReconnects(t, 1, 5*time.Second)
	if err := c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	l.awaitReconnects(t, 2, 5*time.Second)
	s.Stop()
	s.Restart()
	l.awaitReconnects(t, 3, 10*time.Second)
	if err := Publish(t.Context(), c, []int{0}, Change{"user:u1", 1}); err != nil {
		t.Fatal(err)
	}
	l.await(t, Change{"user:u1", 1})
}

// The server is stopped with its sockets open: nothing on the wire says so.
func TestSilentlyDeadConnectionIsReplaced(t *testing.T) {
	s := realredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr, DialTimeout: time.Second})
	defer c.Close()
	l := listen(t, c)
	l.awaitReconnects(t, 1, 5*time.Second)
	s.Pause()
	<-time.After(silence + 2*time.Second) // nothing can be seen of it from here: the server is stopped
	s.Resume()
	l.awaitReconnects(t, 2, 10*time.Second)
	if err := Publish(t.Context(), c, []int{0}, Change{"user:u1", 1}); err != nil {
		t.Fatal(err)
	}
	l.await(t, Change{"user:u1", 1})
}

func TestIdleSubscriptionStays(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: realredis.Start(t).Addr})
	defer c.Close()
	l := listen(t, c)
	l.awaitReconnects(t, 1, 5*time.Second)
	for end := time.After(silence + 2*pingEvery); ; {
		select {
		case c := <-l.changes:
			t.Errorf("heard %+v", c)
		case <-end:
			if n := l.reconnects.Load(); n != 1 {
				t.Errorf("an idle connection was replaced: %d subscriptions", n)
			}
			return
		}
	}
}

func TestPublishFailsInTimeWhenRedisIsBlackHoled(t *testing.T) {
	s := realredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr, ContextTimeoutEnabled: true})
	defer c.Close()
	if err := Publish(t.Context(), c, []int{0}, Change{"user:u1", 1}); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	defer s.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := Publish(ctx, c, []int{0}, Change{"user:u1", 2}); err == nil {
		t.Error("published into a black hole")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
}
