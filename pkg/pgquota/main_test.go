package pgquota_test

import (
	"context"
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

func TestMain(m *testing.M) { stores.Main(m) }

// newDB gives a migrated database of its own.
func newDB(t *testing.T) (*pgquota.Store, *sql.DB) {
	t.Helper()
	url := stores.Postgres(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s, err := pgquota.Open(context.Background(), url, pgquota.Options{Application: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); _ = db.Close() })
	return s, db
}
