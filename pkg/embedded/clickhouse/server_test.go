package clickhouse

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

func TestMain(m *testing.M) {
	MaybeRunChild()
	os.Exit(m.Run())
}

// testOptions are small enough for several test binaries at once.
func testOptions(dir string) Options { return Options{Dir: dir, MaxMemory: 2 << 30, Log: os.Stderr} }

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(context.Background(), o)
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

func connect(t *testing.T, dsn string) driver.Conn {
	t.Helper()
	o, err := clickhousego.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clickhousego.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustExec(t *testing.T, c driver.Conn, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if err := c.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func value[T any](t *testing.T, c driver.Conn, query string, args ...any) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestStartsFastAndStopsOrderly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cold", "warm"} {
		began := time.Now()
		s := start(t, testOptions(dir))
		ready := time.Since(began)
		c := connect(t, s.DSN(Database))
		t.Logf("%s start %s, version %s, zone %s", name, ready, value[string](t, c, "SELECT version()"), value[string](t, c, "SELECT timezone()"))
		c.Close()
		began = time.Now()
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		t.Logf("stop %s", time.Since(began))
	}
}

// TestNoAcknowledgedInsertIsLostByKill kills the server under concurrent writers.
func TestNoAcknowledgedInsertIsLostByKill(t *testing.T) {
	dir := t.TempDir()
	s := start(t, testOptions(dir))
	c := connect(t, s.DSN(Database))
	mustExec(t, c, "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
	const writers, enough = 4, 400
	var mu sync.Mutex
	acked := map[uint64]bool{}
	var wg sync.WaitGroup
	for g := range uint64(writers) {
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				v := g<<32 | i
				b, err := c.PrepareBatch(context.Background(), "INSERT INTO t (a)")
				if err != nil || b.Append(v) != nil || b.Send() != nil {
					return // killed
				}
				mu.Lock()
				acked[v] = true
				if len(acked) == enough {
					_ = syscall.Kill(s.Pid(), syscall.SIGKILL)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	<-s.Done()
	c = connect(t, start(t, testOptions(dir)).DSN(Database))
	rows, err := c.Query(t.Context(), "SELECT a FROM t")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	total := len(acked)
	for rows.Next() {
		var a uint64
		if err := rows.Scan(&a); err != nil {
			t.Fatal(err)
		}
		delete(acked, a)
	}
	if err := rows.Err(); err != nil || len(acked) > 0 || total < enough {
		t.Fatalf("%d of %d acknowledged inserts lost, %v", len(acked), total, err)
	}
}

func TestServerDiesWithItsParentAndItsDataServesTheNext(t *testing.T) {
	type left struct {
		Pid int
		Dir string
	}
	victim, l := crash.Start(t, func() left {
		dir := t.TempDir()
		s := start(t, testOptions(dir))
		c := connect(t, s.DSN(Database))
		mustExec(t, c, "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a", "INSERT INTO t (a) VALUES (7)")
		return left{s.Pid(), dir}
	})
	victim.Kill()
	s := start(t, testOptions(l.Dir)) // at once: it waits for the orphan
	crash.AwaitGone(t, l.Pid)
	if v := value[uint64](t, connect(t, s.DSN(Database)), "SELECT a FROM t"); v != 7 {
		t.Fatalf("read %d", v)
	}
}

func TestSecondServerOnADirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	start(t, testOptions(dir))
	_, err := Start(t.Context(), testOptions(dir))
	if !errors.Is(err, process.ErrLocked) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
}

func TestPortInUseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for _, o := range []Options{{TCPPort: port}, {HTTPPort: port}} {
		o.Dir = t.TempDir()
		_, err := Start(t.Context(), o)
		if !errors.Is(err, process.ErrPortInUse) {
			t.Fatalf("got %v", err)
		}
		t.Log(err)
	}
}

func TestGivenPortsAndPasswordsAreKept(t *testing.T) {
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	o := testOptions(t.TempDir())
	o.TCPPort, o.HTTPPort, o.AppPassword, o.FinancePassword = ports[0], ports[1], "p@ss/wo:rd'<&>", "another?"
	s := start(t, o)
	if s.TCPAddr != process.Addr(ports[0]) || s.HTTPAddr != process.Addr(ports[1]) {
		t.Fatalf("listens on %s and %s", s.TCPAddr, s.HTTPAddr)
	}
	for _, dsn := range []string{s.DSN(Database), s.FinanceDSN(Database)} {
		if err := connect(t, dsn).Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCrashClosesDone(t *testing.T) {
	s := start(t, testOptions(t.TempDir()))
	if err := syscall.Kill(s.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
}

func TestBrokenLibraryIsAnErrorAtOnce(t *testing.T) {
	o := testOptions(t.TempDir())
	o.LibPath = filepath.Join(o.Dir, "none.so")
	_, err := Start(t.Context(), o)
	if err == nil {
		t.Fatal("started")
	}
	t.Log(err)
}

func TestStrayConfigurationIsNotPickedUp(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "data")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "config.xml"), []byte("<broken"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	start(t, testOptions(dir))
}

func TestOpenClientsDoNotHoldUpTheEnd(t *testing.T) {
	s := start(t, testOptions(t.TempDir()))
	c := connect(t, s.DSN(Database))
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Fatalf("took %s", d)
	}
}
