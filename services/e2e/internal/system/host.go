package system

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// Host lets the testkit, whose servers end with the test that started them, start servers for a whole test binary or for a command. Of
// testing.TB it has what the starters use.
type Host struct {
	testing.TB // nil: whatever is not below would panic
	dir        string
	cleanups   []func()
}

// failure is how Host's Fatal ends the starter.
type failure struct{ error }

// NewHost makes a host whose servers keep their data below dir.
func NewHost(dir string) *Host { return &Host{dir: dir} }

// Run calls start and turns its Fatal into an error.
func (t *Host) Run(start func(testing.TB)) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.error
		default:
			panic(v)
		}
	}()
	start(t)
	return nil
}

// Close ends what was started, last first.
func (t *Host) Close() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

func (t *Host) Helper()                           {}
func (t *Host) Name() string                      { return "host" }
func (t *Host) Context() context.Context          { return context.Background() }
func (t *Host) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *Host) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (t *Host) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (t *Host) Error(args ...any)                 { t.Log(args...) }
func (t *Host) Errorf(format string, args ...any) { t.Logf(format, args...) }
func (t *Host) Fatal(args ...any)                 { panic(failure{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (t *Host) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }
func (t *Host) TempDir() string {
	dir, err := os.MkdirTemp(t.dir, "store-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
