package chaos

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// serviceEnv names the service that this executable, started again, runs.
const serviceEnv = "TOLLGATE_CHAOS_SERVICE"

// MaybeRunChild must be called first in main, and in TestMain, of an executable that calls Run: the services are that executable
// itself. In such a child it does not return.
func MaybeRunChild() {
	name := os.Getenv(serviceEnv)
	if name == "" {
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // a file that may not grow is an error of the write, as a full disk is
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := system.Run(ctx, name, os.Environ(), os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}
