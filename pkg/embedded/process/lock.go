package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another live process holds the lock.
var ErrLocked = errors.New("locked by another process")

// lockPoll is how often a held lock is tried again: flock cannot be waited for together with a context.
const lockPoll = 20 * time.Millisecond

// Lock takes the exclusive lock on the file at path, which it creates, and writes the caller's process id into it. Closing
// the file releases the lock, unless a child inherited it: then the child's exit does. A lock held by a process whose owner
// is alive fails at once with ErrLocked; one held by an orphan that is just ending is waited for, up to wait.
func Lock(ctx context.Context, path string, wait time.Duration) (*os.File, error) {
	return lock(ctx, path, wait, false)
}

// LockWait is Lock, but it waits for a live owner too, until ctx ends.
func LockWait(ctx context.Context, path string) (*os.File, error) {
	return lock(ctx, path, 0, true)
}

func lock(ctx context.Context, path string, wait time.Duration, patient bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	deadline := time.Now().Add(wait)
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		owner := readPid(f)
		if !patient && (alive(owner) || time.Now().After(deadline)) {
			f.Close()
			return nil, fmt.Errorf("lock %s (process %d): %w", path, owner, ErrLocked)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s (process %d): %w", path, owner, ctx.Err())
		case <-ticker.C:
		}
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write lock file %s: %w", path, err)
	}
	return f, nil
}

func readPid(f *os.File) int {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}

func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
