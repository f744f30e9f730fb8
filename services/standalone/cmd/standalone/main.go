// Command standalone runs all of Tollgate in one process, on embedded stores.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/services/standalone/app"
)

func main() {
	embedded.MaybeRunChild() // the embedded ClickHouse is this executable, started again
	os.Exit(run())
}

func run() int {
	cfg, err := app.Load(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "standalone:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := app.Run(ctx, cfg); err != nil {
		fmt.Fprintln(os.Stderr, "standalone:", err)
		return 1
	}
	return 0
}
