// Command tollgatectl is Tollgate's command line.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/app"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tollgatectl:", err)
		return 1
	}
	return app.Run(ctx, os.Args[1:], app.IO{Environ: os.Environ(), Dir: dir, Stdout: os.Stdout, Stderr: os.Stderr, Ask: app.Terminal(os.Stdin, os.Stderr)})
}
