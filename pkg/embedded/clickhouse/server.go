package clickhouse

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/tollgate-dev/tollgate/pkg/embedded/npmstore"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

const (
	startTimeout = 60 * time.Second // a large data directory is read at the start
	orphanWait   = 10 * time.Second // for the server of a parent that was just killed
	logTail      = 2000             // bytes of the log that an error quotes
)

// ErrNoChildHook says that the executable does not call MaybeRunChild.
var ErrNoChildHook = errors.New("clickhouse.MaybeRunChild must be the first call in main (or TestMain)")

// Options say how to start a server. Only Dir is required.
type Options struct {
	Dir             string    // data, configuration and logs; made if absent; one server at a time
	LibPath         string    // the shared library; empty: npmstore.ClickHouse, which may download it
	TCPPort         int       // native protocol; 0: chosen by the system
	HTTPPort        int       // 0: chosen by the system
	AppPassword     string    // of AppUser; empty: random, another one at every start
	FinancePassword string    // of FinanceUser; empty: random, another one at every start
	MaxMemory       int64     // bytes the server may use; 0: nine tenths of the machine's memory
	QueryLog        bool      // keep system.query_log, for 7 days
	Log             io.Writer // progress of a download, for people; may be nil
}

// Server is a running server.
type Server struct {
	TCPAddr, HTTPAddr            string // host:port, loopback
	AppPassword, FinancePassword string
	LogPath                      string // what the child prints, errors included; the one before is beside it (.old)

	child *process.Child
	stdin io.Closer // its end stops the server
	close sync.Once
}

// Start starts a server and returns when both ports answer. ctx covers the start only. Errors: process.ErrPortInUse,
// process.ErrLocked (another server has the directory), ErrNoChildHook, those of npmstore.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if !childReady.Load() {
		return nil, ErrNoChildHook
	}
	if o.LibPath == "" {
		if o.LibPath, err = npmstore.ClickHouse(ctx, o.Log); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve the ClickHouse directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the ClickHouse directory: %w", err)
	}
	lock, err := process.Lock(ctx, filepath.Join(dir, "lock"), orphanWait)
	if err != nil {
		return nil, fmt.Errorf("ClickHouse directory %s is used by another server: %w", dir, err)
	}
	defer lock.Close() // the child has its own copy
	for name, port := range map[string]int{"ClickHouse": o.TCPPort, "ClickHouse HTTP": o.HTTPPort} {
		if err := process.CheckPort(name, port); err != nil {
			return nil, err
		}
	}
	s := &Server{
		AppPassword:     cmp.Or(o.AppPassword, randomPassword()),
		FinancePassword: cmp.Or(o.FinancePassword, randomPassword()),
		LogPath:         filepath.Join(dir, "child.log"),
	}
	if err := s.run(ctx, o, dir, lock); err != nil {
		return nil, err
	}
	return s, nil
}

// run starts the child and waits until it listens.
func (s *Server) run(ctx context.Context, o Options, dir string, lock *os.File) error {
	data := templateData{AppUser: AppUser, AppHash: hash(s.AppPassword), FinanceUser: FinanceUser, FinanceHash: hash(s.FinancePassword),
		Database: Database, MaxMemory: o.MaxMemory, QueryLog: o.QueryLog}
	config, err := writeConfig(filepath.Join(dir, "conf"), data)
	if err != nil {
		return err
	}
	boot, err := render("boot.sql.tmpl", data)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if err := os.Rename(s.LogPath, s.LogPath+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keep the last log: %w", err)
	}
	log, err := os.OpenFile(s.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the ClickHouse log: %w", err)
	}
	defer log.Close() // like the other ends below: the child has its own
	ready, readyChild, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for ClickHouse's ports: %w", err)
	}
	defer ready.Close()
	defer readyChild.Close()
	// Not the controlling terminal of anything: Ctrl-C goes to the parent alone, and closing the master is an end of file.
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a pseudo-terminal for ClickHouse: %w", err)
	}
	defer slave.Close()
	cmd := exec.Command(self, "--config-file="+config, "--path="+filepath.Join(dir, "data"), "--listen_host=127.0.0.1",
		fmt.Sprintf("--tcp_port=%d", o.TCPPort), fmt.Sprintf("--http_port=%d", o.HTTPPort),
		"--interactive", "--disable_suggestion", "--history_file=/dev/null", "--query="+string(boot))
	cmd.Dir = dir
	cmd.Env = childEnvironment(o.LibPath)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, log, log
	cmd.ExtraFiles = []*os.File{lock, readyChild} // 3: kept open, 4: written by boot.sql
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.child, err = process.Start(cmd, syscall.SIGKILL) // loses nothing that was acknowledged
	if err != nil {
		master.Close()
		return fmt.Errorf("start ClickHouse: %w", err)
	}
	s.stdin = master
	readyChild.Close()                                 // so that the pipe ends with the child
	go func() { _, _ = io.Copy(io.Discard, master) }() // the terminal's echo; ends with the child
	if err := process.NoteServer(lock, s.child.Pid()); err != nil {
		s.child.Kill()
		return err
	}
	return s.awaitReady(ctx, ready)
}

// awaitReady reads the ports that boot.sql writes once the server listens on both.
func (s *Server) awaitReady(ctx context.Context, ready *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	unblock := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer unblock()
	var tcp, http int
	if _, err := fmt.Fscan(bufio.NewReader(ready), &tcp, &http); err != nil {
		s.stdin.Close()
		s.child.Kill()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("start ClickHouse: %w (%w): %s", err, s.child.Err(), s.tail())
	}
	s.TCPAddr, s.HTTPAddr = process.Addr(tcp), process.Addr(http)
	return nil
}

// tail is the end of the child's log, for an error message.
func (s *Server) tail() string {
	b, err := os.ReadFile(s.LogPath)
	if err != nil {
		return "no log: " + err.Error()
	}
	return string(b[max(0, len(b)-logTail):])
}

// DSN is a clickhouse-go connection string for AppUser, native protocol.
func (s *Server) DSN(db string) string { return s.dsn(db, AppUser, s.AppPassword) }

// FinanceDSN is a clickhouse-go connection string for FinanceUser, native protocol.
func (s *Server) FinanceDSN(db string) string { return s.dsn(db, FinanceUser, s.FinancePassword) }

func (s *Server) dsn(db, user, password string) string {
	u := url.URL{Scheme: "clickhouse", User: url.UserPassword(user, password), Host: s.TCPAddr, Path: "/" + db}
	return u.String()
}

// HTTPURL is the address of the HTTP interface, without credentials.
func (s *Server) HTTPURL() string { return "http://" + s.HTTPAddr }

// Pid is the server's process id.
func (s *Server) Pid() int { return s.child.Pid() }

// Done is closed when the server's process has ended, by Close or by itself.
func (s *Server) Done() <-chan struct{} { return s.child.Done() }

// Close stops the server: end of its input, and half a second for an orderly end, which takes up to 10 seconds after the last
// connection (an idle server thread is waited for); then SIGTERM; after 5 more seconds, or when ctx ends, SIGKILL. Acknowledged
// inserts are safe in each case, so none is an error. Close clients before, lest they see their connections break.
func (s *Server) Close(ctx context.Context) error {
	var err error
	s.close.Do(func() {
		err = s.stdin.Close()
		s.child.Stop(ctx, process.Step{Wait: 500 * time.Millisecond}, process.Step{Signal: syscall.SIGTERM, Wait: 5 * time.Second})
	})
	if err != nil {
		return fmt.Errorf("close ClickHouse's input: %w", err)
	}
	return nil
}
