package crash

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

const (
	// victimEnv holds the test's name in the environment of the victim.
	victimEnv = "TOLLGATE_TEST_CRASH_VICTIM"
	mark      = "tollgate-crash-victim "
	goneAfter = 10 * time.Second
	pollEvery = 10 * time.Millisecond // how often a dying process is looked at: another's child cannot be waited for
)

// Victim is a running process.
type Victim struct {
	child *process.Child
}

// Start runs the calling test in another process up to body there, and returns when body has returned; the victim then waits
// to be killed. What body returned comes back by way of JSON. In the victim,
// Start does not return. Call it before anything that the victim should not do.
func Start[T any](t *testing.T, body func() T) (*Victim, T) {
	t.Helper()
	if os.Getenv(victimEnv) == t.Name() {
		b, err := json.Marshal(body())
		if err != nil {
			t.Fatalf("crash: encode the result: %v", err)
		}
		fmt.Printf("\n%s%s\n", mark, b)
		for {
			time.Sleep(time.Hour) // until killed
		}
	}
	var result T
	// The run pattern of a subtest is one pattern for each level.
	levels := strings.Split(t.Name(), "/")
	for i, l := range levels {
		levels[i] = "^" + l + "$"
	}
	cmd := exec.Command(os.Args[0], "-test.run="+strings.Join(levels, "/"))
	// What the victim cannot remove goes with this test's temporary directory.
	cmd.Env = append(os.Environ(), victimEnv+"="+t.Name(), "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("crash: %v", err)
	}
	cmd.Stdout = w
	child, err := process.Start(cmd, syscall.SIGKILL)
	w.Close()
	if err != nil {
		out.Close()
		t.Fatalf("crash: %v", err)
	}
	t.Cleanup(child.Kill)
	var seen strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if b, ok := strings.CutPrefix(lines.Text(), mark); ok {
			if err := json.Unmarshal([]byte(b), &result); err != nil {
				t.Fatalf("crash: decode the victim's result: %v", err)
			}
			go func() { // a closed pipe would end a victim that prints
				defer out.Close()
				_, _ = io.Copy(io.Discard, out)
			}()
			return &Victim{child: child}, result
		}
		seen.WriteString(lines.Text() + "\n")
	}
	out.Close()
	t.Fatalf("crash: the victim failed:\n%s", seen.String())
	return nil, result
}

// Kill ends the victim with SIGKILL and waits until it is gone.
func (v *Victim) Kill() { v.child.Kill() }

// AwaitGone returns when the process has ended, and fails the test if it does not within some seconds.
func AwaitGone(t *testing.T, pid int) {
	t.Helper()
	timeout := time.After(goneAfter)
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for Running(pid) {
		select {
		case <-timeout:
			t.Fatalf("crash: process %d still runs after %s", pid, goneAfter)
		case <-ticker.C:
		}
	}
}

// Running says whether the process exists and is not just waiting for its parent to note its end.
func Running(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}
