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
// the file releases the lock, unless a child inherited it: then the child's exit does. A lock whose owner, and server if noted
// by NoteServer, are alive fails at once with ErrLocked; one held by what is just ending is waited for, up to wait.
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
		owner, used := holders(f)
		if !patient && (used || time.Now().After(deadline)) {
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
	if err := note(f, os.Getpid()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// NoteServer writes the process id of the server that inherited the lock beside the caller's: once either is gone, what still
// holds the lock is just ending.
func NoteServer(lock *os.File, pid int) error { return note(lock, os.Getpid(), pid) }

func note(f *os.File, pids ...int) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("empty the lock file: %w", err)
	}
	if _, err := f.WriteAt([]byte(strings.Trim(fmt.Sprint(pids), "[]")+"\n"), 0); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	return nil
}

// holders reads the lock file: its owner, and whether all processes named in it live.
func holders(f *os.File) (owner int, used bool) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 64))
	if err != nil {
		return 0, false
	}
	for i, word := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return owner, false
		}
		if i == 0 {
			owner = pid
		}
		if !alive(pid) {
			return owner, false
		}
	}
	return owner, owner != 0
}

func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
