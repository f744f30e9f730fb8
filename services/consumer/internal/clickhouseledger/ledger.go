// Package clickhouseledger is the LEDGER stage's writer: blocks of rows into ClickHouse by the native protocol.
//
// What repeats: a block whose answer was lost is inserted again with the same token, at once or by the next process. What removes
// the repeat: the table's deduplication window drops a block with a known token; a repeat in another block is hidden by the views
// (migrations/clickhouse/README.md). A block is one part: a crash of the server leaves all of it or nothing.
//
// When ClickHouse is away or refuses for its own reasons (memory, too many parts, no disk), Insert fails and may be repeated. Only a
// row that breaks a constraint of the table is a consume.ErrRefused.
package clickhouseledger

import (
	"context"
	"database/sql"
	_ "embed" // the insert statement
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

//go:embed insert.sql
var insertStatement string

const (
	dialTimeout = 5 * time.Second
	readTimeout = 60 * time.Second

	codeViolatedConstraint = 469
)

// Ledger writes to one database.
type Ledger struct{ conn driver.Conn }

var _ consume.Ledger = (*Ledger)(nil)

// Options reads a native DSN, clickhouse://user:password@host:9000/tollgate. The error names no password.
func Options(dsn string) (*clickhouse.Options, error) {
	o, err := clickhouse.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("is not a ClickHouse DSN, such as clickhouse://user:password@host:9000/tollgate")
	}
	if o.Protocol != clickhouse.Native {
		return nil, errors.New("must use the native protocol: clickhouse://…, not http://…")
	}
	if o.Auth.Database == "" {
		return nil, errors.New("must name the database, as in clickhouse://host:9000/tollgate")
	}
	o.DialTimeout, o.ReadTimeout = dialTimeout, readTimeout
	if o.Compression == nil {
		o.Compression = &clickhouse.Compression{Method: clickhouse.CompressionLZ4}
	}
	return o, nil
}

// OpenSQL makes a database/sql pool, for the migrations. Nothing is dialled yet.
func OpenSQL(dsn string) (*sql.DB, error) {
	o, err := Options(dsn)
	if err != nil {
		return nil, err
	}
	return clickhouse.OpenDB(o), nil
}

// Open makes a ledger. Nothing is dialled yet.
func Open(dsn string) (*Ledger, error) {
	o, err := Options(dsn)
	if err != nil {
		return nil, err
	}
	o.MaxOpenConns, o.MaxIdleConns = 3, 1 // one insert at a time, and probes
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Ledger{conn}, nil
}

// Insert implements consume.Ledger.
func (l *Ledger) Insert(ctx context.Context, token string, rows []consume.Row) error {
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{
		"insert_deduplicate": 1, "insert_deduplication_token": token, "async_insert": 0,
	}))
	b, err := l.conn.PrepareBatch(ctx, insertStatement, driver.WithCloseOnFlush())
	if err != nil {
		return fmt.Errorf("begin an insert of %d rows: %w", len(rows), err)
	}
	defer func() { _ = b.Close() }() // after Send it does nothing; before, the error is already told
	for _, row := range rows {
		r, at := row.Record, row.Message.Position
		err := b.Append(r.EventID, uint16(r.SchemaVersion), r.UserID, r.APIKeyID, r.OrgID, r.Tier, r.RequestID, r.RequestedModel, r.Model,
			r.InputTokens, r.OutputTokens, r.CachedInputTokens, r.ReservedTokens, r.LatencyMS, time.Time(r.Timestamp), r.WasRateLimited,
			r.Reason, r.Scope, string(r.Outcome), string(r.Reservation), r.Estimated, r.Region, r.Instance,
			at.Topic, uint16(at.Partition), uint64(at.Offset))
		if err != nil {
			return fmt.Errorf("add event %s to an insert: %w", r.EventID, err)
		}
	}
	if err := b.Send(); err != nil {
		var refused *clickhouse.Exception
		if errors.As(err, &refused) && refused.Code == codeViolatedConstraint {
			return fmt.Errorf("insert %d rows: %w: %w", len(rows), consume.ErrRefused, err)
		}
		return fmt.Errorf("insert %d rows: %w", len(rows), err)
	}
	return nil
}

// Ping asks whether ClickHouse answers.
func (l *Ledger) Ping(ctx context.Context) error { return l.conn.Ping(ctx) }

// Close closes the connections.
func (l *Ledger) Close() error { return l.conn.Close() }
