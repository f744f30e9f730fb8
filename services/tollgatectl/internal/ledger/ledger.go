// Package ledger reads from the LEDGER in ClickHouse what was counted for a replay's users.
package ledger

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
)

//go:embed totals.sql
var totalsSQL string

// Reader reads totals.
type Reader struct{ conn driver.Conn }

// Open connects by a native DSN. An error names no password.
func Open(dsn string) (*Reader, error) {
	o, err := clickhouseledger.Options(dsn)
	if err != nil {
		return nil, fmt.Errorf("the ClickHouse URL %w", err)
	}
	o.MaxOpenConns = 1
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Reader{conn}, nil
}

// Close closes the connection.
func (r *Reader) Close() error { return r.conn.Close() }

// Totals sums up all users whose id begins with prefix.
func (r *Reader) Totals(ctx context.Context, prefix string) (replay.Totals, error) {
	var t replay.Totals
	row := r.conn.QueryRow(ctx, totalsSQL, clickhouse.Named("prefix", prefix))
	if err := row.Scan(&t.Requests, &t.Rejected, &t.InputTokens, &t.OutputTokens); err != nil {
		return t, fmt.Errorf("read the ledger: %w", err)
	}
	return t, nil
}
