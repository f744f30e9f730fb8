package realredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

const (
	startTimeout = 20 * time.Second
	pollEvery    = 10 * time.Millisecond // how often a starting server is asked
	portTries    = 5
)

// Option changes how a server is started.
type Option func(*Server)

// WithAOF keeps an append-only file, synced at every write: what is acknowledged survives Kill and Restart.
func WithAOF() Option {
	return func(s *Server) { s.args = append(s.args, "--appendonly", "yes", "--appendfsync", "always") }
}

// WithDir keeps the data in dir instead of a temporary directory.
func WithDir(dir string) Option { return func(s *Server) { s.dir = dir } }

// WithArgs adds arguments to redis-server's command line, such as "--maxmemory", "64mb".
func WithArgs(args ...string) Option { return func(s *Server) { s.args = append(s.args, args...) } }

// Server is a redis-server process. Its methods fail the test; they belong to one goroutine.
type Server struct {
	Addr string // host:port, loopback; the same after Restart

	t     testing.TB
	path  string
	dir   string
	port  int
	args  []string
	child *process.Child
}

// Start starts a server that ends with the test. Without options it keeps nothing over a restart.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatalf("realredis: %v", err)
	}
	s := &Server{t: t, path: path}
	for _, o := range opts {
		o(s)
	}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	for try := 1; ; try++ {
		err := s.tryPort()
		if err == nil {
			break
		}
		if try == portTries {
			t.Fatalf("realredis: %v", err)
		}
	}
	t.Cleanup(func() {
		if s.child != nil {
			s.child.Kill()
		}
	})
	return s
}

func (s *Server) tryPort() (err error) {
	if s.port, err = process.FreePort(); err != nil {
		return err
	}
	s.Addr = process.Addr(s.port)
	return s.start()
}

// start starts the process on the server's port and waits until it answers.
func (s *Server) start() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	args := append([]string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--daemonize", "no",
		"--appendonly", "no"}, s.args...)
	cmd := exec.Command(s.path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	if s.child, err = process.Start(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	if err := s.awaitReady(); err != nil {
		s.child.Kill()
		return fmt.Errorf("start redis-server: %w: %s", err, s.log())
	}
	return nil
}

// awaitReady returns when the server, and not something else on its port, answers.
func (s *Server) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, Protocol: 2})
	defer client.Close()
	for {
		info, err := client.InfoMap(ctx, "server").Result()
		if err == nil && info["Server"]["process_id"] != strconv.Itoa(s.child.Pid()) {
			return fmt.Errorf("another server has port %d", s.port)
		}
		if err == nil {
			err = client.Ping(ctx).Err() // fails while the data is loaded
		}
		if err == nil {
			return nil
		}
		select {
		case <-s.child.Done():
			return fmt.Errorf("it ended: %w", s.child.Err())
		case <-ctx.Done():
			return fmt.Errorf("not ready after %s: %w", startTimeout, err)
		case <-ticker.C:
		}
	}
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

func (s *Server) log() string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return "no log: " + err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// Kill ends the server with SIGKILL and waits until it is gone.
func (s *Server) Kill() { s.child.Kill() }

// Stop ends the server with SIGTERM.
func (s *Server) Stop() {
	s.t.Helper()
	if !s.child.Stop(context.Background(), process.Step{Signal: syscall.SIGTERM, Wait: startTimeout}) {
		s.t.Fatalf("realredis: the server did not stop: %s", s.log())
	}
}

// Restart starts the server again on the same port and directory, after ending it with SIGKILL if it still runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.child.Kill()
	if err := s.start(); err != nil {
		s.t.Fatalf("realredis: %v", err)
	}
}

// Pause stops the process in its tracks: connections stay open and nothing answers.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.child.Signal(sig); err != nil {
		s.t.Fatalf("realredis: %v", err)
	}
}

// Pid is the server's process id.
func (s *Server) Pid() int { return s.child.Pid() }

// freeClusterPort finds a port whose cluster bus port, 10,000 above, exists and is free too.
func freeClusterPort() (int, error) {
	for range 100 {
		port, err := process.FreePort()
		if err != nil {
			return 0, err
		}
		if port+10000 > 65535 {
			port -= 20000
		}
		if port < 1024 || process.CheckPort("redis", port) != nil {
			continue
		}
		l, err := net.Listen("tcp", process.Addr(port+10000))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port is free together with its cluster bus port")
}
