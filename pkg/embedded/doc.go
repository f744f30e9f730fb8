// Package embedded starts the stores of `make run` and of tests without Docker, root or installed servers: see its
// subpackages kafka (events), redis (decisions), postgres (control) and clickhouse (ledger). Each has Start and Close, listens
// on loopback, keeps its data in a directory that one server at a time may use, and says in its doc.go what it promises and
// what it lacks beside the real thing.
package embedded

import (
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	"github.com/tollgate-dev/tollgate/pkg/embedded/postgres"
)

// MaybeRunChild must be the first call in main, and in TestMain, of an executable that starts embedded stores: some run as
// that executable itself, started again. In such a child it does not return.
func MaybeRunChild() {
	clickhouse.MaybeRunChild()
	postgres.MaybeRunChild()
}
