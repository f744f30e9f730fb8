package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

func TestMain(m *testing.M) {
	MaybeRunChild()
	os.Exit(m.Run())
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	o.Log = os.Stderr
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

func connect(t *testing.T, s *Server) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.DSN(Database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func mustExec(t *testing.T, c *pgx.Conn, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := c.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func value[T any](t *testing.T, c *pgx.Conn, query string) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestDataAndPasswordOutliveAnOrderlyStop(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	s := start(t, Options{Dir: dir})
	t.Logf("cold start %s", time.Since(began))
	c := connect(t, s)
	t.Log(value[string](t, c, "SELECT version()"))
	mustExec(t, c, "CREATE TABLE t (a bigint)", "INSERT INTO t (a) VALUES (7)")
	password := s.Password
	began = time.Now()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	t.Logf("stop with an open client %s", time.Since(began))
	began = time.Now()
	s = start(t, Options{Dir: dir})
	t.Logf("warm start %s", time.Since(began))
	if s.Password != password {
		t.Fatal("another password after a restart")
	}
	if v := value[int64](t, connect(t, s), "SELECT a FROM t"); v != 7 {
		t.Fatalf("read %d", v)
	}
	info, err := os.Stat(filepath.Join(dir, "password"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("password file: %v, %v", info, err)
	}
}

func TestCommittedRowsSurviveKillOfTheServer(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	mustExec(t, connect(t, s), "CREATE TABLE t (a bigint)", "INSERT INTO t (a) VALUES (7)")
	if err := syscall.Kill(s.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	s = start(t, Options{Dir: dir}) // over the postmaster.pid that is left
	if v := value[int64](t, connect(t, s), "SELECT a FROM t"); v != 7 {
		t.Fatalf("read %d", v)
	}
}

func TestServerDiesWithItsParentAndItsDataServesTheNext(t *testing.T) {
	type left struct {
		Pid int
		Dir string
	}
	victim, l := crash.Start(t, func() left {
		dir := t.TempDir()
		s := start(t, Options{Dir: dir})
		mustExec(t, connect(t, s), "CREATE TABLE t (a bigint)", "INSERT INTO t (a) VALUES (7)")
		return left{s.Pid(), dir}
	})
	victim.Kill()
	s := start(t, Options{Dir: l.Dir}) // at once: it waits for the orphan
	crash.AwaitGone(t, l.Pid)
	if v := value[int64](t, connect(t, s), "SELECT a FROM t"); v != 7 {
		t.Fatalf("read %d", v)
	}
}

func TestSecondServerOnADirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	start(t, Options{Dir: dir, Unsafe: true})
	_, err := Start(t.Context(), Options{Dir: dir})
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
	_, err = Start(t.Context(), Options{Dir: t.TempDir(), Port: l.Addr().(*net.TCPAddr).Port})
	if !errors.Is(err, process.ErrPortInUse) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
}

// TestOnlyLoopbackWithAPassword: what others on the machine find.
func TestOnlyLoopbackWithAPassword(t *testing.T) {
	s := start(t, Options{Dir: t.TempDir(), Unsafe: true})
	for _, dsn := range []string{strings.Replace(s.DSN(Database), s.Password, "wrong", 1), strings.Replace(s.DSN(Database), ":"+s.Password, "", 1)} {
		c, err := pgx.Connect(t.Context(), dsn)
		if err == nil {
			c.Close(t.Context())
			t.Fatal("let in without the password")
		}
	}
	c := connect(t, s)
	if a := value[string](t, c, "SHOW listen_addresses"); a != "127.0.0.1" {
		t.Fatalf("listens on %s", a)
	}
	if d := value[string](t, c, "SHOW unix_socket_directories"); d != "" {
		t.Fatalf("has a socket in %s", d)
	}
}

// TestServerIsNeverRoot, wherever its directory is: here below one that only its owner may enter.
func TestServerIsNeverRoot(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Dir: filepath.Join(closed, "pg")})
	info, err := os.Stat(filepath.Join(closed, "pg", "data"))
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		t.Fatalf("the data belongs to %v", st.Uid)
	}
	c := connect(t, s)
	pid := value[int](t, c, "SELECT pg_backend_pid()")
	if info, err = os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil && info.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Fatal("the server runs as root")
	}
	mustExec(t, c, "CREATE TABLE t (a bigint)", "CREATE EXTENSION pg_trgm", "CHECKPOINT") // writes, and reads the package
}

func TestUnusableProgramIsAnErrorAtOnce(t *testing.T) {
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), BinDir: t.TempDir()})
	if err == nil {
		t.Fatal("started")
	}
	t.Log(err)
}
