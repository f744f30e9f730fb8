package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed postgres/*.sql
var postgresFS embed.FS

// Postgres brings the quota database up to date. Several instances may call it at once: a session lock lets one of them migrate, the
// others wait up to five minutes and find nothing left to do. A migration that fails changes nothing: each is one transaction.
func Postgres(ctx context.Context, db *sql.DB) error {
	// Ask every second instead of every five: a waiting instance should start as soon as the first is done.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("migrate postgres: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, postgresDir(), goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("migrate postgres: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate postgres: %w", err)
	}
	return nil
}

// postgresDir gives the migrations of the quota database, numbered files at its root.
func postgresDir() fs.FS {
	dir, err := fs.Sub(postgresFS, "postgres")
	if err != nil {
		panic(err) //nolint:forbidigo // the directory is compiled in: this can't happen
	}
	return dir
}
