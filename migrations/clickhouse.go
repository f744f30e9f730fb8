package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/pressly/goose/v3"
)

const (
	tries = 4 // of a process that another one has overtaken
	pause = 500 * time.Millisecond
)

//go:embed clickhouse/*.sql
var clickhouseFiles embed.FS

// ClickHouseFS gives the ledger's migrations, numbered files at its root.
func ClickHouseFS() fs.FS {
	sub, err := fs.Sub(clickhouseFiles, "clickhouse")
	if err != nil {
		panic(err) //nolint:forbidigo // the directory is compiled in: this can't happen
	}
	return sub
}

// ClickHouse brings the schema of the ledger in db's current database up to date; on one that is, it does nothing. The database
// itself must exist. It may run in several processes at once: goose has no lock for ClickHouse, and ClickHouse none to offer, so
// each statement can run twice and a version noted twice reads as noted once. A process that is a file ahead may have removed, and one
// behind may be replacing, what a statement of this one needs; files that are noted stay behind another try. An error may leave a
// file half applied: the next call finishes it. At its end it gives views back what such a race has taken from them.
func ClickHouse(ctx context.Context, db *sql.DB) error {
	p, err := goose.NewProvider(goose.DialectClickHouse, db, ClickHouseFS(), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return fmt.Errorf("read the ClickHouse migrations: %w", err)
	}
	for try := 1; ; try++ {
		_, err := p.Up(ctx)
		if err == nil {
			err = secure(ctx, db)
		}
		if err == nil {
			return nil
		}
		if try == tries || ctx.Err() != nil {
			return fmt.Errorf("apply the ClickHouse migrations: %w", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// views are those that read for their readers.
var views = []string{"cost_daily", "invoice_lines", "org_zones", "priced_daily", "prices", "rejections_hourly", "usage_daily", "usage_events", "usage_hourly",
	"usage_minutely", "usage_quarterly"}

//go:embed unsecured_views.sql
var unsecuredViews string

// secure lets views read for their readers that do not: where several processes replace a view and alter it at once, the alteration may be lost. Whoever ends
// last sees that.
func secure(ctx context.Context, db *sql.DB) error {
	lost, err := unsecured(ctx, db)
	for _, v := range lost {
		if err == nil {
			_, err = db.ExecContext(ctx, "ALTER TABLE "+v+" MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER")
		}
	}
	if err != nil {
		return fmt.Errorf("have views read for their readers: %w", err)
	}
	return nil
}

func unsecured(ctx context.Context, db *sql.DB) (names []string, err error) {
	rows, err := db.QueryContext(ctx, unsecuredViews, views)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err tells what failed
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
