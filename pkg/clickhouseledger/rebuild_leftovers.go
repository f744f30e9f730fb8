package clickhouseledger

import (
	"context"
	"database/sql"
	_ "embed" // the statement
	"fmt"
	"strconv"
	"strings"
	"time"
)

//go:embed sql/rebuild_leftovers.sql
var rebuildLeftoversSQL string

const (
	leftoverAge = 24 * time.Hour   // a table that nobody has written to for so long is dropped unasked: it is of a rebuild that was killed
	runningAge  = 10 * time.Minute // one that somebody has written to within this time may be of a rebuild that runs: never dropped
)

// DropLeftovers drops the tables that killed rebuilds have left, each as large as the ledger, but for those that somebody has made or written to within
// ten minutes: running has these, for they may be of a rebuild that goes on. The live table and kept ones are none.
//
// Nothing is lost: a leftover is a copy of what is in the log, or the table that the live one replaced, whose events are in the log, too,
// unless the rebuild was forced. A running rebuild whose table goes all the same, because it has read for so long without storing anything, fails
// before the exchange.
func DropLeftovers(ctx context.Context, dsn string) (dropped, running []string, err error) {
	db, err := OpenSQL(dsn)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = db.Close() }()
	return clearLeftovers(ctx, db, runningAge)
}

// clearLeftovers drops the tables that nobody has made or written to for a time, and names the others.
func clearLeftovers(ctx context.Context, db *sql.DB, idle time.Duration) (dropped, unfinished []string, err error) {
	old, unfinished, err := leftovers(ctx, db, idle)
	if err != nil {
		return nil, nil, fmt.Errorf("look for leftovers: %w", err)
	}
	for _, g := range old {
		if _, err := db.ExecContext(ctx, of64(rebuildDropSQL, g)); err != nil {
			return dropped, unfinished, fmt.Errorf("drop a leftover: %w", err)
		}
		dropped = append(dropped, ownTable(g))
	}
	return dropped, unfinished, nil
}

func leftovers(ctx context.Context, db *sql.DB, idle time.Duration) (old []uint64, young []string, err error) {
	rows, err := db.QueryContext(ctx, strings.ReplaceAll(rebuildLeftoversSQL, "@idle", strconv.FormatInt(int64(idle/time.Second), 10)))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var generation uint64
		var idle bool
		if err := rows.Scan(&generation, &idle); err != nil {
			return nil, nil, err
		}
		if idle {
			old = append(old, generation)
		} else {
			young = append(young, ownTable(generation))
		}
	}
	return old, young, rows.Err()
}

// ownTable is the name of a rebuild's own table.
func ownTable(generation uint64) string { return table + "_" + strconv.FormatUint(generation, 10) }
