package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main is the whole of the command: it runs until SIGINT or SIGTERM and gives the exit code. 0: stopped as asked, or log and ledger agree.
// 1: something failed, or they differ. 2: the command line or the configuration is wrong. A second signal ends the process at once.
func Main(args, environ []string, stdout, stderr io.Writer) int {
	cfg, err := Load(args, environ, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "standalone:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := Run(ctx, cfg); err != nil {
		_, _ = fmt.Fprintln(stderr, "standalone:", err)
		return 1
	}
	return 0
}
