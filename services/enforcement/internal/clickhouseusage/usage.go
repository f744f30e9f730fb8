// Package clickhouseusage reads from the LEDGER what the DECISION stage has forgotten: who has used how much, and when. It only reads, and only the
// view usage_events; a user that may do no more, such as finance, is enough. The ledger's answer is of the moment at which it was asked.
package clickhouseusage

import (
	"context"
	_ "embed" // the queries
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

var (
	//go:embed usage.sql
	usageSQL string
	//go:embed payers.sql
	payersSQL string
)

// By is whose usage is told.
type By string

// Who may use something. A user's usage includes that of the keys that the user owns.
const (
	User By = "user"
	Key  By = "key"
	Org  By = "org"
)

// Span is the time that is looked at.
type Span struct {
	From time.Time
	Now  time.Time // by the clock that stamps the events: Redis's
}

// What lies longer ago than this is told by the hour, and by the minute.
const (
	byMinute = 25 * time.Hour
	bySecond = 2 * time.Minute
)

// Usage is what one payer has used within a short time, all of it counted at its end.
type Usage struct {
	ID            string
	Served, Asked string // models; "" for an org
	At            time.Time
	Requests      int64
	Input, Output int64
}

// Ledger reads one database.
type Ledger struct{ conn driver.Conn }

// Open makes a reader from a native DSN, clickhouse://user:password@host:9000/tollgate. Nothing is dialled yet.
func Open(dsn string) (*Ledger, error) {
	o, err := clickhouse.ParseDSN(dsn)
	if err != nil || o.Protocol != clickhouse.Native || o.Auth.Database == "" {
		return nil, errors.New("TOLLGATE_CLICKHOUSE_URL can't be read; want clickhouse://user:password@host:port/tollgate") // the cause may quote the password
	}
	o.MaxOpenConns, o.DialTimeout = 2, 5*time.Second
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Ledger{conn}, nil
}

// Close closes the connections.
func (l *Ledger) Close() error { return l.conn.Close() }

// Payers counts who has used something since a time.
func (l *Ledger) Payers(ctx context.Context, s Span) (users, keys, orgs int64, err error) {
	if err = l.conn.QueryRow(bounded(ctx), payersSQL, clickhouse.Named("from", s.From.UnixMilli())).Scan(&users, &keys, &orgs); err != nil {
		err = fmt.Errorf("count who has used something: %w", err)
	}
	return users, keys, orgs, err
}

// Each calls f with all usage, ordered by payer and time. It holds one block of the answer at a time.
func (l *Ledger) Each(ctx context.Context, by By, s Span, f func(Usage) error) (err error) {
	rows, err := l.conn.Query(bounded(ctx), usageSQL, clickhouse.Named("by", string(by)), clickhouse.Named("from", s.From.UnixMilli()), clickhouse.Named("now", s.Now.UnixMilli()),
		clickhouse.Named("recent", s.Now.Add(-bySecond).UnixMilli()), clickhouse.Named("minutes", s.Now.Add(-byMinute).UnixMilli()))
	if err != nil {
		return fmt.Errorf("read usage by %s: %w", by, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var u Usage
		var at int64
		if err := rows.Scan(&u.ID, &u.Served, &u.Asked, &at, &u.Requests, &u.Input, &u.Output); err != nil {
			return fmt.Errorf("read usage by %s: %w", by, err)
		}
		u.At = time.UnixMilli(at).UTC()
		if err := f(u); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read usage by %s: %w", by, err)
	}
	return nil
}

// bounded has the server group and sort on disk what is more than a GiB.
func bounded(ctx context.Context) context.Context {
	return clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_bytes_before_external_group_by": 1 << 30, "max_bytes_before_external_sort": 1 << 30}))
}
