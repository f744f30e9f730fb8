// Command fetch downloads the embedded servers into the cache, with progress, and exits: for `make setup` and CI.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tollgate-dev/tollgate/pkg/embedded/npmstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pg, err := npmstore.Postgres(ctx, os.Stderr)
	if err == nil {
		fmt.Println(pg)
		var ch string
		if ch, err = npmstore.ClickHouse(ctx, os.Stderr); err == nil {
			fmt.Println(ch)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "fetch:", err)
	os.Exit(1) //nolint:gocritic // exitAfterDefer: the process ends, there is nothing left to release
}
