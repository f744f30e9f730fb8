package redisload

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

func TestMain(m *testing.M) { stores.Main(m) }

var (
	models = []string{"grok-2", "grok-2-mini", "grok-4"}
	groups = shed.Groups{"grok-2": "small", "grok-2-mini": "small"}
)

const gauged = `
# HELP tollgate_load_level_ratio Level by which requests are shed, by group of models: the load with its hysteresis.
# TYPE tollgate_load_level_ratio gauge
tollgate_load_level_ratio{group="*"} 0.5
tollgate_load_level_ratio{group="small"} 0.9
# HELP tollgate_load_reported_ratio Load as it was reported last, by group of models; absent once its time to live is over.
# TYPE tollgate_load_reported_ratio gauge
tollgate_load_reported_ratio{group="*"} 0.5
tollgate_load_reported_ratio{group="small"} 0.9
`

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: 300 * time.Millisecond})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func put(t *testing.T, l *Loads, group string, load float64, ttl time.Duration) Group {
	t.Helper()
	g, err := l.Put(t.Context(), group, load, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestReportCountsOnEveryInstanceForItsGroupUntilItsTimeEnds(t *testing.T) {
	for name, addr := range map[string]string{"real": realredis.Start(t).Addr, "embedded": stores.Redis(t).Addr} {
		t.Run(name, func(t *testing.T) {
			rdb := client(t, addr)
			reg := prometheus.NewRegistry()
			o := Options{Groups: groups, Models: models}
			one, two := New(rdb, o), New(rdb, Options{Groups: groups, Models: models, Registry: reg})
			put(t, one, shed.All, 0.5, time.Minute)
			g := put(t, one, "small", 0.9, 2*time.Second)
			if until := time.Until(g.Until); g.Level != 0.9 || until > 2*time.Second || until < time.Second {
				t.Errorf("%+v", g)
			}
			if got := one.Level("grok-2-mini"); got != 0.9 {
				t.Errorf("the instance that was told says %v", got)
			}
			if two.Level("grok-4") != 0 || len(two.Now()) != 0 {
				t.Error("known before it was read")
			}
			if err := two.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			for model, want := range map[string]float64{"grok-2": 0.9, "grok-2-mini": 0.9, "grok-4": 0.5, "unheard-of": 0.5} {
				if got := two.Level(model); got != want {
					t.Errorf("%s: %v, want %v", model, got, want)
				}
			}
			if now := two.Now(); len(now) != 2 || now[0].Name != shed.All || now[1].Name != "small" || now[1].Load != 0.9 {
				t.Errorf("%+v", now)
			}
			if err := testutil.GatherAndCompare(reg, strings.NewReader(gauged)); err != nil {
				t.Error(err)
			}
			for deadline := time.Now().Add(5 * time.Second); two.Level("grok-2") != 0.5; <-time.After(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("a report outlived its time")
				}
			}
			if _, err := one.Put(t.Context(), "grok-2", 1, time.Minute); !errors.Is(err, ErrUnknownGroup) {
				t.Errorf("a model that is in another group: %v", err)
			}
			if ttl, err := rdb.PTTL(t.Context(), key).Result(); err != nil || ttl <= 50*time.Second || ttl > time.Minute {
				t.Errorf("the key lives for %s, %v: as long as the last report", ttl, err)
			}
		})
	}
}

func TestHysteresisIsOneForAllInstances(t *testing.T) {
	rdb := client(t, realredis.Start(t).Addr)
	o := Options{Models: models}
	one, two := New(rdb, o), New(rdb, o)
	put(t, one, shed.All, 0.9, time.Minute)
	if g := put(t, two, shed.All, 0.89, time.Minute); g.Level != 0.9 || g.Load != 0.89 {
		t.Errorf("%+v", g)
	}
	if g := put(t, one, shed.All, 0.6, time.Minute); g.Level != 0.62 {
		t.Errorf("%+v", g)
	}
}

func TestReportsAtOnceAreOneAfterTheOther(t *testing.T) {
	rdb := client(t, realredis.Start(t).Addr)
	var wg sync.WaitGroup
	for i := range 4 {
		l := New(rdb, Options{Models: models})
		wg.Go(func() {
			for j := range 25 {
				if _, err := l.Put(t.Context(), models[j%3], float64(i+1)/10, time.Minute); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	l := New(rdb, Options{Models: models})
	if err := l.Refresh(t.Context()); err != nil || len(l.Now()) != 3 {
		t.Errorf("%v, %+v", err, l.Now())
	}
	for _, g := range l.Now() { // whoever was last: at its load, or the band above
		if g.Load < 0.1 || g.Load > 0.4 || g.Level < g.Load || g.Level > g.Load+shed.Band+1e-9 {
			t.Errorf("%+v", g)
		}
	}
}

func TestLastKnownLoadCountsUntilItsTimeEndsWhileRedisIsAway(t *testing.T) {
	server := realredis.Start(t)
	l := New(client(t, server.Addr), Options{Models: models})
	put(t, l, shed.All, 0.9, 3*time.Second)
	server.Kill()
	if err := l.Refresh(t.Context()); err == nil {
		t.Fatal("redis is not away")
	}
	if _, err := l.Put(t.Context(), shed.All, 0.1, time.Minute); err == nil {
		t.Error("a report that nobody else knows of was accepted")
	}
	if got := l.Level("grok-4"); got != 0.9 {
		t.Errorf("%v while redis is away", got)
	}
	for deadline := time.Now().Add(6 * time.Second); l.Level("grok-4") != 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it counts for ever")
		}
	}
}

func TestRunLearnsWhatOthersWereToldWithinItsAge(t *testing.T) {
	rdb := client(t, realredis.Start(t).Addr)
	one, two := New(rdb, Options{Models: models}), New(rdb, Options{Models: models})
	done := make(chan error, 1)
	go func() { done <- two.Run(t.Context()) }() // ends with the test
	put(t, one, "grok-4", 0.7, time.Minute)
	told := time.Now()
	for two.Level("grok-4") != 0.7 {
		if time.Since(told) > 5*MaxAge { // machines that run tests are slow at times
			t.Fatal("never learned")
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Logf("known to the other instance after %s", time.Since(told).Round(time.Millisecond))
}

func TestWhatCantBeReadIsNoLoadAndIsReplaced(t *testing.T) {
	rdb := client(t, realredis.Start(t).Addr)
	l := New(rdb, Options{Models: models})
	for _, bad := range []string{"", "x", "2 2 0 99999999999999", "NaN NaN 0 99999999999999", "0.5 -1 0 99999999999999", "0.5 0.5 a b", "1 1 1 1 1"} {
		if err := rdb.HSet(t.Context(), key, all, bad).Err(); err != nil {
			t.Fatal(err)
		}
		if err := l.Refresh(t.Context()); err != nil || l.Level("grok-4") != 0 {
			t.Errorf("%q: %v, %v", bad, err, l.Level("grok-4"))
		}
		if g := put(t, l, shed.All, 0.4, time.Minute); g.Level != 0.4 {
			t.Errorf("%q: %+v", bad, g)
		}
	}
}

func TestNoModelNameBecomesALabel(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := New(client(t, realredis.Start(t).Addr), Options{Models: models, Registry: reg})
	for i := range 100 {
		if _, err := l.Put(t.Context(), fmt.Sprintf("made-up-%d", i), 0.5, time.Minute); !errors.Is(err, ErrUnknownGroup) {
			t.Fatal(err)
		}
		l.Level(fmt.Sprintf("made-up-%d", i))
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("%d series, %v", n, err)
	}
}
