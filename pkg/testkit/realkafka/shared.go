package realkafka

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is this test binary's one server, if a test asked for it.
var shared struct {
	once   sync.Once
	dir    string
	server *Server
	err    error
}

// Shared returns the test binary's server and starts it first if need be. Tests that share it use topics and groups of their
// own, and neither kill nor pause it.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "tollgate-kafka-"); shared.err == nil {
			shared.server, shared.err = start(shared.dir)
		}
	})
	if shared.err != nil {
		t.Fatalf("realkafka: %v", shared.err)
	}
	return shared.server
}

// StopShared ends the shared server, if there is one, and removes its data. Nothing may call Shared after it.
func StopShared() {
	if shared.server != nil {
		shared.server.Kill()
	}
	if shared.dir != "" {
		if err := os.RemoveAll(shared.dir); err != nil {
			fmt.Fprintln(os.Stderr, "realkafka: remove the shared server's data:", err)
		}
	}
}

// Main runs the tests, ends the shared server and exits.
func Main(m *testing.M) {
	code := m.Run()
	StopShared()
	os.Exit(code)
}
