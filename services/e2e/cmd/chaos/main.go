// Command chaos crashes the real services under load and proves that nothing was lost and nothing counted twice: `make chaos`.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/chaos"
)

func main() {
	embedded.MaybeRunChild()
	chaos.MaybeRunChild()
	os.Exit(run())
}

func run() int {
	o := chaos.Options{Out: os.Stdout}
	flag.IntVar(&o.Records, "records", 200_000, "records to be answered")
	flag.IntVar(&o.Kills, "kills", 30, "processes to be killed")
	flag.Uint64Var(&o.Seed, "seed", 1, "plans load and faults")
	logTo := flag.String("log", os.DevNull, "file for what the services print")
	flag.Parse()
	if o.Records < 1 || o.Kills < 0 || flag.NArg() > 0 {
		flag.Usage()
		return 2
	}
	log, err := os.OpenFile(*logTo, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 2
	}
	defer func() { _ = log.Close() }() // a log for people; nothing depends on its last line
	o.Log = struct{ io.Writer }{log}   // not a file to exec: the services get a pipe, and a bound on file sizes leaves their logs alone
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := chaos.Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	return 0
}
