package clickhouse

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// childEnv holds the library's path in the environment of the child, and marks it as one.
const childEnv = "TOLLGATE_INTERNAL_CLICKHOUSE_LIBRARY"

// confinedEnv marks a child that has gone through confine.
const confinedEnv = "TOLLGATE_INTERNAL_CLICKHOUSE_CONFINED"

// errUnconfined tells that this system can't keep the server from files that are not its own.
var errUnconfined = errors.New("the system can't confine the server to its own files: whoever may query it can read what this process can")

// inherited are the variables of the environment that the child gets: none that may hold a secret, as the child's is a file that it can read.
var inherited = []string{"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "GOCOVERDIR", "GODEBUG", "GOTRACEBACK"}

func childEnvironment(library string) []string {
	env := []string{childEnv + "=" + library, "TERM=dumb", "TZ=UTC"}
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// childReady tells that this executable can be its own child: one that does not call MaybeRunChild would start itself for ever.
var childReady atomic.Bool

// MaybeRunChild runs the server and exits, in the child process that Start makes; elsewhere it returns at once. It must be the
// first call in main and in TestMain.
func MaybeRunChild() {
	library := os.Getenv(childEnv)
	if library == "" {
		childReady.Store(true)
		return
	}
	if err := confined(library); err != nil {
		fmt.Fprintln(os.Stderr, "clickhouse:", err)
		if !errors.Is(err, errUnconfined) {
			os.Exit(1)
		}
	}
	if err := runChild(library, append([]string{"clickhouse"}, os.Args[1:]...)); err != nil {
		fmt.Fprintln(os.Stderr, "clickhouse:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// confined starts this executable again, confined, in this process: rules hold for the thread that makes them and for what it executes.
func confined(library string) error {
	if os.Getenv(confinedEnv) != "" {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := confine(library); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if err := syscall.Exec(self, os.Args, append(os.Environ(), confinedEnv+"=1")); err != nil {
		return fmt.Errorf("start %s again: %w", self, err)
	}
	return nil
}

// runChild returns when the server ends: at the end of its standard input.
func runChild(library string, args []string) error {
	h, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return fmt.Errorf("load %s: %w", library, err)
	}
	var run func(argc int32, argv unsafe.Pointer) unsafe.Pointer
	var resultError func(unsafe.Pointer) string
	purego.RegisterLibFunc(&run, h, "chdb_query_cmdline")
	purego.RegisterLibFunc(&resultError, h, "chdb_result_error")

	var pin runtime.Pinner // C sees these addresses for as long as the server runs
	defer pin.Unpin()
	argv := make([]unsafe.Pointer, len(args)+1)
	for i, a := range args {
		b := append([]byte(a), 0)
		pin.Pin(&b[0])
		argv[i] = unsafe.Pointer(&b[0])
	}
	pin.Pin(&argv[0])
	if res := run(int32(len(args)), unsafe.Pointer(&argv[0])); res != nil {
		if msg := resultError(res); msg != "" {
			return fmt.Errorf("server ended: %s", msg)
		}
	}
	return nil
}
