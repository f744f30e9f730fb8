package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"
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
// each statement can run twice and a version noted twice reads as noted once. An error may leave a file half applied: the next
// call finishes it.
func ClickHouse(ctx context.Context, db *sql.DB) error {
	p, err := goose.NewProvider(goose.DialectClickHouse, db, ClickHouseFS(), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return fmt.Errorf("read the ClickHouse migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("apply the ClickHouse migrations: %w", err)
	}
	return nil
}
