// Package ledger reads from the LEDGER in ClickHouse what was counted for a replay's users.
package ledger

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
)

//go:embed totals.sql
var totalsSQL string

// Reader reads totals.
type Reader struct{ conn driver.Conn }

// Open connects by a clickhouse:// (native) or http:// DSN.
func Open(dsn string) (*Reader, error) {
	o, err := clickhouse.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("the ClickHouse URL can't be read; want clickhouse://user:password@host:port/tollgate") // the cause may quote the password
	}
	o.MaxOpenConns, o.DialTimeout, o.ReadTimeout = 1, 5*time.Second, 60*time.Second
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
