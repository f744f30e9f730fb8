package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// restartAfter is how long the supervisor lets a dead process lie.
const restartAfter = 300 * time.Millisecond

// member is one process of a service, started again whenever it has ended, as a supervisor does in production.
type member struct {
	name, url string
	cmd       func() *exec.Cmd

	mu      sync.Mutex
	child   *process.Child
	killed  bool // the child's end was ours
	exits   atomic.Int64
	stopped chan struct{} // closed by stop
	done    chan struct{} // closed when the supervisor has ended
}

// startMember starts a service and supervises it. Its log goes to log.
func startMember(name, service, addrVar string, environ []string, log io.Writer) (*member, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable: %w", err)
	}
	addr := process.Addr(port)
	m := &member{name: name, url: "http://" + addr, stopped: make(chan struct{}), done: make(chan struct{})}
	env := append(append(os.Environ(), environ...), serviceEnv+"="+service, "TOLLGATE_INSTANCE="+name, addrVar+"="+addr)
	m.cmd = func() *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
		return cmd
	}
	if err := m.start(); err != nil {
		return nil, err
	}
	go m.supervise()
	return m, nil
}

func (m *member) start() error {
	child, err := process.Start(m.cmd(), syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.child, m.killed = child, false
	return nil
}

func (m *member) supervise() {
	defer close(m.done)
	for {
		select {
		case <-m.current().Done():
		case <-m.stopped:
			return
		}
		m.mu.Lock()
		if !m.killed {
			m.exits.Add(1)
		}
		m.mu.Unlock()
		select {
		case <-time.After(restartAfter):
		case <-m.stopped:
			return
		}
		if err := m.start(); err != nil {
			m.exits.Add(1) // the old child's end is seen again, and another start tried
		}
	}
}

func (m *member) current() *process.Child {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.child
}

// kill ends the process with SIGKILL.
func (m *member) kill() {
	m.mu.Lock()
	m.killed = true
	child := m.child
	m.mu.Unlock()
	child.Kill()
}

// growTo bounds the size of every file that the process writes, in bytes: a write beyond it fails, as on a full disk.
func (m *member) growTo(size uint64) error {
	limit := unix.Rlimit{Cur: size, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(m.current().Pid(), unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		return fmt.Errorf("bound the files of %s: %w", m.name, err)
	}
	return nil
}

func (m *member) awaitReady(ctx context.Context) error {
	if err := system.AwaitReady(ctx, m.url, nil); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return nil
}

// stop ends the process in order and its supervisor with it. It says whether the process ended by itself within 30 s, with status 0.
func (m *member) stop() error {
	close(m.stopped)
	<-m.done
	child := m.current()
	if !child.Stop(context.Background(), process.Step{Signal: syscall.SIGTERM, Wait: 30 * time.Second}) {
		return fmt.Errorf("%s did not end within 30 s of SIGTERM", m.name)
	}
	if err := child.Err(); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return nil
}

// metric reads one series of the process, 0 if it has none yet.
func (m *member) metric(ctx context.Context, series string) (v float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of %s: %w", m.name, err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			if v, err = strconv.ParseFloat(rest, 64); err != nil {
				return 0, fmt.Errorf("metric %s of %s: %w", series, m.name, err)
			}
		}
	}
	return v, nil
}
