// Package ledger watches the LEDGER count the sample traffic.
package ledger

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

//go:embed events.sql
var eventsSQL string

// Reader counts the events of some users.
type Reader struct {
	conn  driver.Conn
	users []string
}

// Open connects by a native DSN.
func Open(dsn string, users []string) (*Reader, error) {
	o, err := clickhouse.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("TOLLGATE_CLICKHOUSE_URL can't be read; want clickhouse://user:password@host:port/tollgate") // the cause may quote the password
	}
	o.MaxOpenConns, o.DialTimeout, o.ReadTimeout = 1, 5*time.Second, 30*time.Second
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Reader{conn, users}, nil
}

// Close closes the connection. Do it before ClickHouse is stopped.
func (r *Reader) Close() error { return r.conn.Close() }

// Events is how many requests and refusals the ledger counts.
func (r *Reader) Events(ctx context.Context) (int64, error) {
	var n int64
	if err := r.conn.QueryRow(ctx, eventsSQL, clickhouse.Named("users", r.users)).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the ledger: %w", err)
	}
	return n, nil
}
