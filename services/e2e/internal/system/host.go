package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// Host lets the testkit, whose servers end with the test that started them, start servers for a whole test binary or for a command.
type Host struct{ tb tb }

// NewHost makes a host whose servers keep their data below dir.
func NewHost(dir string) *Host { return &Host{tb{dir: dir}} }

// Run calls start and turns its Fatal into an error.
func (h *Host) Run(start func(testing.TB)) error {
	h.tb.err = errors.New("the start was given up without a reason")
	done := make(chan struct{})
	go func() { // a goroutine of its own, which Fatal can end, as package testing does
		defer close(done)
		start(&h.tb)
		h.tb.err = nil
	}()
	<-done
	return h.tb.err
}

// Close ends what was started, last first.
func (h *Host) Close() {
	for i := len(h.tb.cleanups) - 1; i >= 0; i-- {
		h.tb.cleanups[i]()
	}
}

// tb is as much of testing.TB as starters of servers use.
type tb struct {
	testing.TB // nil: a method that is not below would panic
	dir        string
	cleanups   []func()
	err        error
}

func (t *tb) Helper()                           {}
func (t *tb) Name() string                      { return "host" }
func (t *tb) Context() context.Context          { return context.Background() }
func (t *tb) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *tb) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (t *tb) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (t *tb) Error(args ...any)                 { t.Log(args...) }
func (t *tb) Errorf(format string, args ...any) { t.Logf(format, args...) }
func (t *tb) Fatal(args ...any)                 { t.fail(fmt.Errorf("%s", fmt.Sprint(args...))) }
func (t *tb) Fatalf(format string, args ...any) { t.fail(fmt.Errorf(format, args...)) }

func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp(t.dir, "store-")
	if err != nil {
		t.fail(err)
	}
	return dir
}

func (t *tb) fail(err error) {
	t.err = err
	runtime.Goexit()
}
