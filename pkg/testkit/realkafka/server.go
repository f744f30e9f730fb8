package realkafka

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

//go:embed server.properties.tmpl
var propertiesTemplate string

const (
	fetchTimeout = 10 * time.Minute
	startTimeout = 90 * time.Second // of a JVM on a busy machine
	stopTimeout  = 30 * time.Second
	pollEvery    = 50 * time.Millisecond // how often a starting server is asked
	heap         = "-Xmx512m"
	portTries    = 3
)

// Server is a Kafka process. Its methods fail the test they are given.
type Server struct {
	Addr string // host:port, loopback; the same after Restart

	dir   string
	lib   string
	java  string
	child *process.Child
}

// Brokers is the address list that clients take.
func (s *Server) Brokers() []string { return []string{s.Addr} }

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := start(t.TempDir())
	if err != nil {
		t.Fatalf("realkafka: %v", err)
	}
	t.Cleanup(func() { s.child.Kill() })
	return s
}

// start makes a server with its data in dir and waits until it answers.
func start(dir string) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	java, err := findJava()
	if err != nil {
		return nil, err
	}
	lib, err := Fetch(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, lib: lib, java: java}
	for try := 1; ; try++ {
		if err = s.format(); err == nil {
			err = s.run()
		}
		if err == nil {
			return s, nil
		}
		if try == portTries {
			return nil, err
		}
	}
}

// format writes the configuration, with new ports, and an empty log.
func (s *Server) format() error {
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(); err != nil {
			return err
		}
	}
	s.Addr = process.Addr(ports[0])
	data := filepath.Join(s.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("empty the data directory: %w", err)
	}
	f, err := os.Create(s.properties())
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	err = template.Must(template.New("").Parse(propertiesTemplate)).Execute(f, map[string]any{"Port": ports[0], "ControllerPort": ports[1], "Dir": data})
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	id[0] &= 0x7f    // a leading dash would be taken for an option
	child, err := s.exec("kafka.tools.StorageTool", "format", "--cluster-id", base64.RawURLEncoding.EncodeToString(id[:]), "--config", s.properties())
	if err == nil {
		err = child.Err()
	}
	if err != nil {
		return fmt.Errorf("format the log directory: %w: %s", err, s.log())
	}
	return nil
}

// run starts the broker and waits until it answers.
func (s *Server) run() (err error) {
	if s.child, err = s.exec("kafka.Kafka", s.properties()); err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	if err := s.awaitReady(); err != nil {
		s.child.Kill()
		return fmt.Errorf("start Kafka: %w: %s", err, s.log())
	}
	return nil
}

// exec starts a main class of Kafka, output to the log file. The flags make a short-lived JVM start fast.
func (s *Server) exec(class string, args ...string) (*process.Child, error) {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(s.java, append([]string{heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(s.lib, "*"), class}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	return process.Start(cmd, syscall.SIGKILL)
}

// awaitReady returns when the broker names itself in its metadata and its controller takes requests.
func (s *Server) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.RequestRetries(0))
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	defer client.Close()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		meta, err := kadm.NewClient(client).BrokerMetadata(ctx)
		if err == nil && len(meta.Brokers) == 1 {
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

func (s *Server) properties() string { return filepath.Join(s.dir, "server.properties") }
func (s *Server) logPath() string    { return filepath.Join(s.dir, "kafka.log") }

func (s *Server) log() string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return "no log: " + err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// Kill ends the server with SIGKILL and waits until it is gone.
func (s *Server) Kill() { s.child.Kill() }

// Stop ends the server with SIGTERM.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if !s.child.Stop(context.Background(), process.Step{Signal: syscall.SIGTERM, Wait: stopTimeout}) {
		t.Fatalf("realkafka: the server did not stop: %s", s.log())
	}
}

// Restart starts the server again with its data, on the same port, after ending it with SIGKILL if it still runs.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.child.Kill()
	if err := s.run(); err != nil {
		t.Fatalf("realkafka: %v", err)
	}
}

// Pause stops the process in its tracks: connections stay open and nothing answers.
func (s *Server) Pause(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.child.Signal(sig); err != nil {
		t.Fatalf("realkafka: %v", err)
	}
}

// Pid is the server's process id.
func (s *Server) Pid() int { return s.child.Pid() }

// CreateTopic makes a topic and waits until the broker leads all its partitions.
func (s *Server) CreateTopic(t testing.TB, name string, partitions int32, configs map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr))
	if err != nil {
		t.Fatalf("realkafka: make a client: %v", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	values := map[string]*string{}
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := admin.CreateTopic(ctx, partitions, 1, values, name); err != nil {
		t.Fatalf("realkafka: make topic %s: %v", name, err)
	}
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		topics, err := admin.ListTopics(ctx, name)
		if d := topics[name]; err == nil && d.Err == nil && len(d.Partitions) == int(partitions) && led(d.Partitions) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("realkafka: topic %s has no leaders: %v", name, err)
		case <-ticker.C:
		}
	}
}

func led(ps kadm.PartitionDetails) bool {
	for _, p := range ps {
		if p.Err != nil || p.Leader < 0 {
			return false
		}
	}
	return true
}

// FreshTopic makes a topic with a name that nothing else has, and returns the name.
func (s *Server) FreshTopic(t testing.TB, partitions int32) string {
	t.Helper()
	var b [6]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	name := "test." + hex.EncodeToString(b[:])
	s.CreateTopic(t, name, partitions, nil)
	return name
}
