package app

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestMain(m *testing.M) { stores.Main(m, realkafka.StopShared) }

const token = "service-token"

// backends are fresh stores: a real Postgres and Redis, and a Kafka.
type backends struct {
	postgres string
	redis    string
	brokers  []string
	quotas   *pgquota.Store
	rdb      redis.UniversalClient
}

func start(t *testing.T, brokers []string) *backends {
	t.Helper()
	return startOn(t, brokers, realredis.Start(t).Addr)
}

func startOn(t *testing.T, brokers []string, redisAddr string) *backends {
	t.Helper()
	b := &backends{postgres: stores.Postgres(t), redis: "redis://" + redisAddr, brokers: brokers}
	db, err := sql.Open("pgx", b.postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrations.Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if b.quotas, err = pgquota.Open(t.Context(), b.postgres, pgquota.Options{}); err != nil {
		t.Fatal(err)
	}
	if b.rdb, err = openRedis(b.redis); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.quotas.Close(); _ = b.rdb.Close() })
	return b
}

func broker(t *testing.T) *kafka.Server {
	t.Helper()
	return stores.Kafka(t, kafka.Topic{Name: usage.Topic, Partitions: usage.Partitions})
}

// put does what the quota service's PUT does before it answers: commit, then publish.
func (b *backends) put(t *testing.T, user, tierName string, own tier.Overrides) {
	t.Helper()
	s := subject.Subject{Kind: subject.User, ID: user}
	if _, err := b.quotas.PutQuota(t.Context(), pgquota.Change{Subject: s, Tier: &tierName, Own: own, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	q, err := b.quotas.Quota(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := redisfence.Publish(t.Context(), b.rdb, []int{subject.Shard(q.OrgID, s)}, redisfence.Change{Name: s.String(), Version: q.Version}); err != nil {
		t.Fatal(err)
	}
}

func (b *backends) config() Config {
	// Machines that run tests are slow at times; the budget has its own tests.
	return Config{Addr: "127.0.0.1:0", RedisURL: b.redis, PostgresURL: b.postgres, KafkaBrokers: b.brokers, ServiceToken: token, Region: "eu", CheckBudget: 5 * time.Second}
}

// service is a running instance.
type service struct {
	t    *testing.T
	url  string
	logs *lines
	stop context.CancelFunc
	done chan error
}

func run(t *testing.T, cfg Config) *service {
	t.Helper()
	s := &service{t: t, logs: &lines{}, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = cancel
	addr := make(chan net.Addr, 1)
	cfg.Log = slog.New(slog.NewJSONHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Listen = func(a net.Addr) { addr <- a }
	go func() { s.done <- Run(ctx, cfg); close(s.done) }()
	select {
	case a := <-addr:
		s.url = "http://" + a.String()
	case err := <-s.done:
		t.Fatalf("did not start: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-s.done; err != nil {
			t.Errorf("stopped with %v", err)
		}
	})
	return s
}

// lines keeps JSON log lines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.Write(p) }

// parts gives the names of the stopped parts, in order.
func (l *lines) parts() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.buf.String()) {
		var v struct{ Msg, Part string }
		if json.Unmarshal([]byte(line), &v) == nil && v.Msg == "stopped" {
			out = append(out, v.Part)
		}
	}
	return out
}

func (s *service) send(method, path, body string) (int, map[string]any) {
	s.t.Helper()
	return s.sendAs(token, method, path, body)
}

func (s *service) sendAs(token, method, path, body string) (int, map[string]any) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Errorf("%s %s: %v", method, path, err)
		return 0, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var v map[string]any
	if json.Unmarshal(b, &v) != nil && path != "/metrics" {
		s.t.Errorf("%s %s: %d %s", method, path, resp.StatusCode, b)
	}
	return resp.StatusCode, v
}

func (s *service) check(user string, id uuid.UUID, tokens int) map[string]any {
	s.t.Helper()
	code, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":%q,"model":"grok-2","estimated_tokens":%d,"request_id":%q}`, user, tokens, id))
	if code != 200 {
		s.t.Errorf("check: %d %v", code, v)
	}
	return v
}

func (s *service) record(user string, id uuid.UUID, tokens int) (int, map[string]any) {
	s.t.Helper()
	return s.send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{"user_id":%q,"request_id":%q,"model":"grok-2","input_tokens":%d,"output_tokens":0,"latency_ms":1,"outcome":"completed"}`, user, id, tokens))
}

func (s *service) remaining(user, dimension string) float64 {
	s.t.Helper()
	code, v := s.send("GET", "/internal/rate-limit/status/user/"+user, "")
	rem, _ := v["remaining"].(map[string]any)
	left, ok := rem[dimension].(float64)
	if code != 200 || !ok {
		s.t.Errorf("status: %d %v", code, v)
	}
	return left
}

// events gives how often each event is in the log, once at least n distinct ones are.
func events(t *testing.T, brokers []string, n int) map[uuid.UUID][]usage.Record {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(usage.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen := map[uuid.UUID][]usage.Record{}
	for len(seen) < n {
		f := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d distinct events in the log, want %d", len(seen), n)
		}
		f.EachRecord(func(r *kgo.Record) {
			rec, err := usage.Decode(r.Value)
			if err != nil {
				t.Error(err)
				return
			}
			seen[rec.EventID] = append(seen[rec.EventID], rec)
		})
	}
	return seen
}
