package redis

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func client(t *testing.T, url string) *goredis.Client {
	t.Helper()
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := goredis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestWhatTheLimiterNeeds: one script with the server's time, hashes, a scored set and an expiry; and pub/sub.
func TestWhatTheLimiterNeeds(t *testing.T) {
	c := client(t, start(t, Options{}).URL())
	script := goredis.NewScript(`
		local now = redis.call('TIME')
		redis.call('HSET', KEYS[1], 'consumed', ARGV[1])
		redis.call('PEXPIRE', KEYS[1], 60000)
		redis.call('ZADD', KEYS[2], now[1], ARGV[2])
		redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now[1] - 10)
		return {redis.call('HGET', KEYS[1], 'consumed'), redis.call('ZCARD', KEYS[2]), redis.call('PTTL', KEYS[1])}`)
	got, err := script.Run(t.Context(), c, []string{"{o}b", "{o}s"}, 5, "r1").Slice()
	if err != nil || got[0] != "5" || got[1] != int64(1) {
		t.Fatalf("%v, %v", got, err)
	}
	if err := c.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := script.Run(t.Context(), c, []string{"{o}b", "{o}s"}, 5, "r1").Err(); err != nil { // loads it again
		t.Fatal(err)
	}
	sub := c.Subscribe(t.Context(), "quota_invalidation")
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(t.Context(), "quota_invalidation", "user:u1").Err(); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.ReceiveMessage(t.Context()); err != nil || m.Payload != "user:u1" {
		t.Fatalf("%v, %v", m, err)
	}
}

func TestKeysExpireByTheWallClock(t *testing.T) {
	c := client(t, start(t, Options{}).URL())
	if err := c.Set(t.Context(), "k", "v", 200*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for c.Exists(t.Context(), "k").Val() == 1 {
		if time.Since(began) > 5*time.Second {
			t.Fatal("never expires")
		}
	}
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Fatalf("expired after %s", d)
	}
}

func TestPasswordIsAskedFor(t *testing.T) {
	s := start(t, Options{Password: "se@cret/"})
	if err := client(t, s.URL()).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client(t, "redis://"+s.Addr).Ping(t.Context()).Err(); err == nil {
		t.Fatal("let in without the password")
	}
}

func TestPortInUseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Start(t.Context(), Options{Port: l.Addr().(*net.TCPAddr).Port}); !errors.Is(err, process.ErrPortInUse) {
		t.Fatalf("got %v", err)
	}
}
