package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/embedded/npmstore"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// User is the only user, a superuser of the server; Database always exists.
const (
	User     = "tollgate"
	Database = "tollgate"
)

const (
	startTimeout = 60 * time.Second      // recovery after a crash reads the log
	connectEvery = 20 * time.Millisecond // how often a starting server is asked
	orphanWait   = 10 * time.Second      // for the server of a parent that was just killed
	portTries    = 3                     // a port found free may be taken before the server has it
	logTail      = 2000                  // bytes of the log that an error quotes
)

// ErrNoChildHook says that the executable, run by root, does not call MaybeRunChild.
var ErrNoChildHook = errors.New("postgres.MaybeRunChild must be the first call in main (or TestMain)")

// Options say how to start a server. Only Dir is required.
type Options struct {
	Dir    string    // data, password and log; made if absent; one server at a time
	BinDir string    // directory with PostgreSQL's bin, lib and share; empty: npmstore.Postgres, which may download it
	Port   int       // 0: a free one
	Unsafe bool      // no fsync: faster, for tests that throw the data away
	Log    io.Writer // progress of a download, for people; may be nil
}

// Server is a running server.
type Server struct {
	Addr     string // host:port, loopback
	Password string // of User
	LogPath  string // the server's log; the one before is beside it (.old)

	child *process.Child
	close sync.Once
}

// Start starts a server, after initdb the first time, and returns when it answers and Database exists. ctx covers the start
// only. Errors: process.ErrPortInUse, process.ErrLocked (another server has the directory), ErrNoChildHook, those of npmstore.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if o.BinDir == "" {
		if o.BinDir, err = npmstore.Postgres(ctx, o.Log); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve the PostgreSQL directory: %w", err)
	}
	as, err := serverAccount(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the PostgreSQL directory: %w", err)
	}
	if err := as.own(dir); err != nil {
		return nil, err
	}
	lock, err := process.Lock(ctx, filepath.Join(dir, "lock"), orphanWait)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL directory %s is used by another server: %w", dir, err)
	}
	defer lock.Close() // the child has its own copy
	if err := process.CheckPort("PostgreSQL", o.Port); err != nil {
		return nil, err
	}
	password, err := initialize(ctx, o, as, dir)
	if err != nil {
		return nil, err
	}
	s := &Server{Password: password, LogPath: filepath.Join(dir, "server.log")}
	for try := 1; ; try++ {
		err := s.run(ctx, o, as, dir, lock)
		if err == nil {
			return s, nil
		}
		if o.Port != 0 || try == portTries || ctx.Err() != nil {
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
	}
}

// run starts the server process and waits until it answers.
func (s *Server) run(ctx context.Context, o Options, as account, dir string, lock *os.File) error {
	port := o.Port
	if port == 0 {
		var err error
		if port, err = process.FreePort(); err != nil {
			return err
		}
	}
	s.Addr = process.Addr(port)
	data := filepath.Join(dir, "data")
	// The lock is ours, so no server runs here: this file is of one that was killed.
	if err := os.Remove(filepath.Join(data, "postmaster.pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a stale postmaster.pid: %w", err)
	}
	if err := os.Rename(s.LogPath, s.LogPath+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the last log: %w", err)
	}
	log, err := os.OpenFile(s.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close() // the child has its own copy
	if err := as.own(s.LogPath); err != nil {
		return err
	}
	args := []string{"-D", data}
	settings := [][2]string{
		{"listen_addresses", "127.0.0.1"}, {"port", strconv.Itoa(port)}, {"unix_socket_directories", ""},
		{"max_connections", "200"}, {"timezone", "UTC"}, {"log_timezone", "UTC"},
	}
	if o.Unsafe {
		settings = append(settings, [2]string{"fsync", "off"}, [2]string{"synchronous_commit", "off"}, [2]string{"full_page_writes", "off"})
	}
	for _, kv := range settings {
		args = append(args, "-c", kv[0]+"="+kv[1])
	}
	bin := filepath.Join(o.BinDir, "bin", "postgres")
	cmd, err := as.command([]string{bin, data}, bin, args...)
	if err != nil {
		return err
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.ExtraFiles = []*os.File{lock} // held until the last process of the server is gone
	if s.child, err = process.Start(cmd, syscall.SIGQUIT); err != nil {
		return err
	}
	if err := process.NoteServer(lock, s.child.Pid()); err != nil {
		s.child.Kill()
		return err
	}
	return s.awaitReady(ctx)
}

// awaitReady returns when the server accepts User and Database exists; after a failure no server runs.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	ticker := time.NewTicker(connectEvery)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			err = errors.Join(createDatabase(ctx, conn), conn.Close(ctx))
			if err == nil {
				return nil
			}
		}
		select {
		case <-s.child.Done():
			return fmt.Errorf("the server ended: %w: %s", s.child.Err(), s.tail())
		case <-ctx.Done():
			s.child.Kill()
			return fmt.Errorf("%w: %w: %s", context.Cause(ctx), err, s.tail())
		case <-ticker.C:
		}
	}
}

func createDatabase(ctx context.Context, conn *pgx.Conn) error {
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", Database).Scan(&exists); err != nil {
		return fmt.Errorf("look for the database: %w", err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{Database}.Sanitize()); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	return nil
}

func (s *Server) tail() string {
	b, err := os.ReadFile(s.LogPath)
	if err != nil {
		return "no log: " + err.Error()
	}
	return string(b[max(0, len(b)-logTail):])
}

// DSN is a connection URL for User.
func (s *Server) DSN(db string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(User, s.Password), Host: s.Addr, Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// Pid is the process id of the server's first process.
func (s *Server) Pid() int { return s.child.Pid() }

// Done is closed when the server has ended, by Close or by itself.
func (s *Server) Done() <-chan struct{} { return s.child.Done() }

// Close stops the server: open transactions are rolled back, what is committed is written out. After 15 seconds, or when ctx
// ends, it is stopped less kindly; that loses nothing committed either, only the next start takes longer.
func (s *Server) Close(ctx context.Context) error {
	s.close.Do(func() {
		s.child.Stop(ctx, process.Step{Signal: syscall.SIGINT, Wait: 15 * time.Second}, process.Step{Signal: syscall.SIGQUIT, Wait: 5 * time.Second})
	})
	return nil
}
