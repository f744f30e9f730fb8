package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// outputDelay is how long the output of an exited child is read on, if something it started still has it open.
const outputDelay = time.Second

// Child is a started process. Its methods may be called from any goroutine.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// Start starts cmd so that it gets onParentDeath when the calling process dies (Linux only), and waits for it in the
// background. The child gets a process group of its own: Ctrl-C reaches the parent alone, which then stops its children in
// order.
func Start(cmd *exec.Cmd, onParentDeath syscall.Signal) (*Child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if !cmd.SysProcAttr.Setsid {
		cmd.SysProcAttr.Setpgid = true
	}
	cmd.WaitDelay = outputDelay
	signalOnParentDeath(cmd, onParentDeath)
	c := &Child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is sent when this thread ends, not when the process does: hold it until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return c, nil
}

// Pid is the child's process id. It may be reused by the system once Done is closed.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the child has exited.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err says how the child exited: nil for status 0. It waits for the exit.
func (c *Child) Err() error {
	<-c.done
	return c.err
}

// Signal sends a signal. A child that has exited already is no error.
func (c *Child) Signal(s syscall.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", s, c.Pid(), err)
	}
	return nil
}

// Kill ends the child and what it started in its process group at once, and waits until the child is gone.
func (c *Child) Kill() {
	select {
	case <-c.done:
		return
	default:
	}
	_ = syscall.Kill(-c.Pid(), syscall.SIGKILL) // the wait tells whether it worked
	<-c.done
}

// Step is one way of asking a child to exit: Signal (0 for none), then up to Wait for it to go.
type Step struct {
	Signal syscall.Signal
	Wait   time.Duration
}

// Stop goes through the steps until the child has exited, and kills it after the last one or as soon as ctx ends. It says
// whether the child went without being killed.
func (c *Child) Stop(ctx context.Context, steps ...Step) bool {
	for _, s := range steps {
		if s.Signal != 0 {
			_ = c.Signal(s.Signal) // a failed signal shows as a wait that runs out
		}
		timer := time.NewTimer(s.Wait)
		select {
		case <-c.done:
			timer.Stop()
			return true
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			c.Kill()
			return false
		}
	}
	c.Kill()
	return false
}
