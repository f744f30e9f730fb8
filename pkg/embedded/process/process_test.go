package process_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

func sleeper(t *testing.T, extra ...*os.File) *process.Child {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.ExtraFiles = extra
	c, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	return c
}

func TestChildDiesWithItsParent(t *testing.T) {
	victim, pid := crash.Start(t, func() int { return sleeper(t).Pid() })
	victim.Kill()
	crash.AwaitGone(t, pid)
}

func TestStopGoesThroughTheStepsAndKillsInTheEnd(t *testing.T) {
	if !sleeper(t).Stop(t.Context(), process.Step{Wait: time.Millisecond}, process.Step{Signal: syscall.SIGTERM, Wait: time.Minute}) {
		t.Fatal("killed, where SIGTERM would do")
	}
	c := sleeper(t)
	if c.Stop(t.Context(), process.Step{Wait: time.Millisecond}) {
		t.Fatal("nothing asked it to go")
	}
	<-c.Done()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if sleeper(t).Stop(ctx, process.Step{Wait: time.Hour}) {
		t.Fatal("waited for in spite of the ended context")
	}
}

func TestMissingProgramIsAnError(t *testing.T) {
	if _, err := process.Start(exec.Command(filepath.Join(t.TempDir(), "none")), syscall.SIGKILL); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

func TestLockIsHeldUntilTheLastHeirIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := process.Lock(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	server := sleeper(t, lock)
	heir := sleeper(t, lock)
	if err := errors.Join(process.NoteServer(lock, server.Pid()), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := process.Lock(t.Context(), path, time.Hour); !errors.Is(err, process.ErrLocked) { // at once
		t.Fatalf("while the server runs: %v", err)
	}
	server.Kill()
	if _, err := process.Lock(t.Context(), path, time.Millisecond); !errors.Is(err, process.ErrLocked) {
		t.Fatalf("while an heir runs: %v", err)
	}
	if err := heir.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	lock, err = process.Lock(t.Context(), path, time.Minute) // waits
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

func TestLockWaitEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := process.LockWait(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := process.LockWait(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

func TestPortInUseIsNamed(t *testing.T) {
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.CheckPort("x", port); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", process.Addr(port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := process.CheckPort("x", port); !errors.Is(err, process.ErrPortInUse) {
		t.Fatalf("got %v", err)
	}
}
