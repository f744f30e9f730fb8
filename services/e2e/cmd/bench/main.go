// Command bench measures the decision path on this machine and prints a table for the README.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/bench"
)

func main() {
	embedded.MaybeRunChild() // PostgreSQL, when root runs this
	os.Exit(run())
}

func run() int {
	o := bench.Options{Out: os.Stdout, Log: os.Stderr}
	flag.IntVar(&o.Callers, "callers", 16, "calls at once")
	flag.DurationVar(&o.Duration, "duration", 5*time.Second, "how long to measure each")
	flag.IntVar(&o.Users, "users", 500, "users that share the requests")
	flag.Parse()
	if o.Callers < 1 || o.Users < 1 || o.Duration < time.Second || flag.NArg() > 0 {
		flag.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench.Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}
