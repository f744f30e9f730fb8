// Package ledger watches the LEDGER count and price the sample traffic.
package ledger

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/traffic"
)

var (
	//go:embed events.sql
	eventsSQL string
	//go:embed billed.sql
	billedSQL string
	//go:embed bills.sql
	billsSQL string
	//go:embed reasons.sql
	reasonsSQL string
)

// Reader reads what the ledger has of some keys.
type Reader struct{ conn driver.Conn }

var _ traffic.Book = (*Reader)(nil)

// Open connects by a native DSN.
func Open(dsn string) (*Reader, error) {
	o, err := clickhouseledger.Options(dsn)
	if err != nil {
		return nil, fmt.Errorf("TOLLGATE_CLICKHOUSE_URL %w", err)
	}
	o.MaxOpenConns = 1
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Reader{conn}, nil
}

// Close closes the connection. Do it before ClickHouse is stopped.
func (r *Reader) Close() error { return r.conn.Close() }

// Events is how many requests and refusals of the keys the ledger counts.
func (r *Reader) Events(ctx context.Context, keys []string) (int64, error) {
	var n int64
	if err := r.conn.QueryRow(ctx, eventsSQL, clickhouse.Named("keys", keys)).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the ledger: %w", err)
	}
	return n, nil
}

// Billed implements traffic.Book.
func (r *Reader) Billed(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]traffic.Billed, error) {
	out := map[uuid.UUID]traffic.Billed{}
	err := r.rows(ctx, billedSQL, clickhouse.Named("ids", ids), func(scan func(...any) error) error {
		var id uuid.UUID
		var b traffic.Billed
		err := scan(&id, &b.Input, &b.Output, &b.Outcome, &b.Reason)
		out[id] = b
		return err
	})
	return out, err
}

// Bills is what the users of the keys have used and what they owe for it; all of them together come last.
func (r *Reader) Bills(ctx context.Context, keys []string) ([]traffic.Bill, error) {
	var out []traffic.Bill
	err := r.rows(ctx, billsSQL, clickhouse.Named("keys", keys), func(scan func(...any) error) error {
		var b traffic.Bill
		err := scan(&b.User, &b.Requests, &b.Refused, &b.Input, &b.Output, &b.Cost)
		out = append(out, b)
		return err
	})
	return out, err
}

// Reason is why so many requests were refused.
type Reason struct {
	Name     string
	Requests int64
}

// Reasons is why requests of the keys were refused, the most frequent reason first.
func (r *Reader) Reasons(ctx context.Context, keys []string) ([]Reason, error) {
	var out []Reason
	err := r.rows(ctx, reasonsSQL, clickhouse.Named("keys", keys), func(scan func(...any) error) error {
		var n Reason
		err := scan(&n.Name, &n.Requests)
		out = append(out, n)
		return err
	})
	return out, err
}

func (r *Reader) rows(ctx context.Context, query string, arg any, row func(scan func(...any) error) error) error {
	rows, err := r.conn.Query(ctx, query, arg)
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
	}
	return rows.Err()
}
