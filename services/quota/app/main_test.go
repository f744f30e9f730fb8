package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestMain(m *testing.M) { stores.Main(m, realkafka.StopShared) }

const adminToken = "admin-token-canary-1"

// logBuffer may be written by a service and read by a test at once.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// service is one running instance.
type service struct {
	t    *testing.T
	url  string
	log  *logBuffer
	stop func() // waits; may be called twice
}

func start(t *testing.T, postgres, redis, brokers string) *service {
	t.Helper()
	return startWith(t, postgres, redis, brokers, func(*Config) {})
}

func startWith(t *testing.T, postgres, redis, brokers string, edit func(*Config)) *service {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, url: "http://" + l.Addr().String(), log: &logBuffer{}}
	cfg := Config{AttemptBurst: 1000, AttemptEvery: time.Second, Addr: l.Addr().String(), PostgresURL: postgres, RedisURL: redis, KafkaBrokers: []string{brokers}, AdminToken: adminToken,
		Listener: l, Log: observe.NewLogger(s.log, slog.LevelDebug, "quota", "test")}
	edit(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the service ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the service did not stop within 30 s")
		}
	})
	t.Cleanup(s.stop)
	await(t, 30*time.Second, "ready", func() bool {
		resp, err := http.Get(s.url + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return s
}

func await(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(within); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func (s *service) call(method, path, body string) (int, map[string]any) {
	s.t.Helper()
	return s.callAs(adminToken, method, path, body)
}

// keys are the ids of all keys.
func (s *service) keys() (ids []string) {
	s.t.Helper()
	_, m := s.call(http.MethodGet, "/internal/api-keys", "")
	list, _ := m["api_keys"].([]any)
	for _, k := range list {
		one, _ := k.(map[string]any)
		ids = append(ids, fmt.Sprint(one["api_key_id"]))
	}
	return ids
}

// callAs calls with a token; headers are name, value pairs.
func (s *service) callAs(token, method, path, body string, headers ...string) (int, map[string]any) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var m map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, m
}

// put changes a quota and returns its version and propagation.
func (s *service) put(user, body string) (version int64, propagation string) {
	s.t.Helper()
	status, m := s.call(http.MethodPut, "/internal/quota/"+user, body)
	if status != http.StatusOK {
		s.t.Fatalf("PUT %s: %d %v", user, status, m)
	}
	v, _ := m["version"].(float64)
	p, _ := m["propagation"].(string)
	return int64(v), p
}

// events reads quota.changes.v1 from the beginning until f has seen enough.
func events(t *testing.T, broker string, f func(kafka.Message) (enough bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for p := range usage.Partitions {
		r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{broker}, Topic: usage.QuotaTopic, Partition: p, MaxWait: 100 * time.Millisecond})
		wg.Go(func() {
			defer r.Close()
			for {
				m, err := r.ReadMessage(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				if f(m) {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("the topic did not hold enough")
	}
}

func TestEveryFaultOfTheConfigurationIsNamed(t *testing.T) {
	err := config.Load([]string{"TOLLGATE_QUOTA_ADDR=nonsense", "TOLLGATE_REDIS_URL=http://user:hunter2@x", "TOLLGATE_POSTGRES_URL=postgres://u:hunter2@h:port/db",
		"TOLLGATE_KAFKA_BROKERS=a", "TOLLGATE_ADMIN_TOKEN=short-canary", "TOLLGATE_VIEWER_TOKEN=short-canary"}, &Config{})
	for _, want := range []string{"TOLLGATE_QUOTA_ADDR", "TOLLGATE_REDIS_URL", "TOLLGATE_POSTGRES_URL", "TOLLGATE_KAFKA_BROKERS", "TOLLGATE_ADMIN_TOKEN", "TOLLGATE_VIEWER_TOKEN"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s is not named in: %v", want, err)
		}
	}
	if s := fmt.Sprint(err); strings.Contains(s, "hunter2") || strings.Contains(s, "canary") {
		t.Errorf("a secret was printed: %s", s)
	}
	good := []string{"TOLLGATE_REDIS_URL=redis://h:1/0", "TOLLGATE_POSTGRES_URL=postgres://u:p@h:1/db", "TOLLGATE_KAFKA_BROKERS=a:1,b:2",
		"TOLLGATE_ADMIN_TOKEN=" + adminToken}
	cfg := &Config{}
	if err := config.Load(good, cfg); err != nil || cfg.Addr != ":8082" || len(cfg.KafkaBrokers) != 2 {
		t.Errorf("%v, %+v", err, cfg)
	}
}
