package stores

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	"github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/embedded/postgres"
	"github.com/tollgate-dev/tollgate/pkg/embedded/redis"
)

const (
	startTimeout = 5 * time.Minute // the first start may download a server
	stopTimeout  = 20 * time.Second
	memory       = 2 << 30 // bytes for ClickHouse: several test binaries run at once
)

// shared is what this test binary has started; Main makes it.
var shared *servers

type servers struct {
	dir        string
	postgres   lazy[*postgres.Server]
	clickhouse lazy[*clickhouse.Server]
}

// lazy starts a server once; later calls get the same answer, an error included.
type lazy[T interface{ Close(context.Context) error }] struct {
	once    sync.Once
	server  T
	err     error
	started bool
}

func (l *lazy[T]) get(t testing.TB, start func(context.Context) (T, error)) T {
	t.Helper()
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		l.server, l.err = start(ctx)
		l.started = l.err == nil
	})
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.server
}

func (l *lazy[T]) stop(ctx context.Context) error {
	if !l.started {
		return nil
	}
	return l.server.Close(ctx)
}

// Main runs the tests and exits. stop is called after them, before the stores stop. It must be all that TestMain does, or come
// last; then embedded.MaybeRunChild must come first.
func Main(m *testing.M, stop ...func()) {
	embedded.MaybeRunChild()
	os.Exit(run(m, stop))
}

func run(m *testing.M, stop []func()) (code int) {
	dir, err := os.MkdirTemp("", "tollgate-stores-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "stores:", err)
		return 1
	}
	shared = &servers{dir: dir}
	code = m.Run()
	for _, f := range stop {
		f()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := errors.Join(shared.clickhouse.stop(ctx), shared.postgres.stop(ctx), os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "stores:", err)
		return max(code, 1)
	}
	return code
}

func all(t testing.TB) *servers {
	t.Helper()
	if shared == nil {
		t.Fatal("stores: TestMain must call stores.Main")
	}
	return shared
}

// Postgres returns the DSN of a fresh database; its user is a superuser.
func Postgres(t testing.TB) string {
	t.Helper()
	s := all(t)
	server := s.postgres.get(t, func(ctx context.Context) (*postgres.Server, error) {
		return postgres.Start(ctx, postgres.Options{Dir: filepath.Join(s.dir, "postgres"), Unsafe: true, Log: os.Stderr})
	})
	name := freshName()
	do := func(query string) {
		t.Helper()
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, server.DSN("postgres"))
		if err != nil {
			t.Fatalf("stores: connect to PostgreSQL: %v", err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, query); err != nil {
			t.Fatalf("stores: %s: %v", query, err)
		}
	}
	do("CREATE DATABASE " + name)
	t.Cleanup(func() { do("DROP DATABASE " + name + " WITH (FORCE)") })
	return server.DSN(name)
}

// ClickHouseDB is a database of the shared ClickHouse server.
type ClickHouseDB struct {
	Name                         string
	DSN                          string // native protocol, clickhouse.AppUser
	HTTPURL                      string // http://host:port
	AppPassword, FinancePassword string // FinanceUser may read the database clickhouse.Database only, which is not this one
}

// ClickHouse returns a fresh database.
func ClickHouse(t testing.TB) ClickHouseDB {
	t.Helper()
	s := all(t)
	server := s.clickhouse.get(t, func(ctx context.Context) (*clickhouse.Server, error) {
		return clickhouse.Start(ctx, clickhouse.Options{Dir: filepath.Join(s.dir, "clickhouse"), MaxMemory: memory, Log: os.Stderr})
	})
	name := freshName()
	do := func(query string) {
		t.Helper()
		o, err := clickhousego.ParseDSN(server.DSN("default"))
		if err != nil {
			t.Fatalf("stores: parse the ClickHouse DSN: %v", err)
		}
		conn, err := clickhousego.Open(o)
		if err != nil {
			t.Fatalf("stores: connect to ClickHouse: %v", err)
		}
		defer conn.Close()
		if err := conn.Exec(context.Background(), query); err != nil {
			t.Fatalf("stores: %s: %v", query, err)
		}
	}
	do("CREATE DATABASE " + name)
	t.Cleanup(func() { do("DROP DATABASE " + name + " SYNC") })
	return ClickHouseDB{Name: name, DSN: server.DSN(name), HTTPURL: server.HTTPURL(),
		AppPassword: server.AppPassword, FinancePassword: server.FinancePassword}
}

// Kafka returns a fresh broker with the topics.
func Kafka(t testing.TB, topics ...kafka.Topic) *kafka.Server {
	t.Helper()
	s, err := kafka.Start(context.Background(), kafka.Options{Dir: t.TempDir(), Topics: topics, NoSync: true})
	if err != nil {
		t.Fatalf("stores: %v", err)
	}
	t.Cleanup(func() { closeStore(t, s.Close) })
	return s
}

// Redis returns a fresh server.
func Redis(t testing.TB) *redis.Server {
	t.Helper()
	s, err := redis.Start(context.Background(), redis.Options{})
	if err != nil {
		t.Fatalf("stores: %v", err)
	}
	t.Cleanup(func() { closeStore(t, s.Close) })
	return s
}

func closeStore(t testing.TB, stop func(context.Context) error) {
	t.Helper()
	if err := stop(context.Background()); err != nil {
		t.Errorf("stores: stop: %v", err)
	}
}

// freshName is a database name that no other test has.
func freshName() string {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return "test_" + hex.EncodeToString(b[:])
}
