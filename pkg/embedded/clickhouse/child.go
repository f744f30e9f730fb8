package clickhouse

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
)

// childEnv holds the library's path in the environment of the child, and marks it as one.
const childEnv = "TOLLGATE_INTERNAL_CLICKHOUSE_LIBRARY"

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
	if err := runChild(library, append([]string{"clickhouse"}, os.Args[1:]...)); err != nil {
		fmt.Fprintln(os.Stderr, "clickhouse:", err)
		os.Exit(1)
	}
	os.Exit(0)
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
