// Command standalone runs all of Tollgate in one process, on embedded stores.
package main

import (
	"os"

	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/services/standalone/app"
)

func main() {
	embedded.MaybeRunChild() // the embedded ClickHouse is this executable, started again
	os.Exit(app.Main(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
