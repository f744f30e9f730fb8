package migrations

import (
	"database/sql"
	"slices"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

// postgresSchema is what the migrations have made, column by column, with constraints, indexes and triggers.
const postgresSchema = `SELECT line FROM (
	SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || COALESCE(column_default, '') AS line
	FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'goose_db_version'
	UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
	WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND conrelid::regclass::text <> 'goose_db_version'
	UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'goose_db_version'
	UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
	UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
) AS s ORDER BY line`

// Each migration's Down undoes its Up, also where the tables hold what only it knows.
func TestPostgresMigrationsGoUpAndDown(t *testing.T) {
	db, err := sql.Open("pgx", stores.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, postgresDir())
	if err != nil {
		t.Fatal(err)
	}
	sources := p.ListSources()
	var schemas [][]string
	for i, s := range sources {
		if s.Version != int64(i+1) {
			t.Fatalf("%s is number %d", s.Path, i+1)
		}
		schemas = append(schemas, lines(t, db, postgresSchema))
		if _, err := p.UpByOne(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	whole := lines(t, db, postgresSchema)
	for _, stmt := range []string{
		`UPDATE tiers SET limits = '[{"counts":"requests","window":"1d","capacity":5}]'`,
		`INSERT INTO quotas (subject, org_id, tier, shards, suspended, version, created_at, updated_at) VALUES
			('user:u1', 'acme', 'plus', 4, false, 1, now(), now()), ('api_key:k1', '', NULL, NULL, false, 1, now(), now()), ('api_key:k2', 'acme', 'api', NULL, false, 1, now(), now())`,
		`INSERT INTO api_keys (key_id, user_id, org_id, name, secret_hash, prefix, rotations, created_at, revoked_at) VALUES
			('k1', 'u1', '', '', decode(repeat('00', 32), 'hex'), 'tg-abcdef', 0, now(), now()), ('k2', '', 'acme', '', decode(repeat('01', 32), 'hex'), 'tg-abcdef', 0, now(), NULL)`,
		`INSERT INTO outbox (kind, name, version, shards, event_id, payload, created_at) VALUES ('price', 'price:m:2026-01-01T00:00:00.000Z', 1, '{}', gen_random_uuid(), '{}', now())`,
		`INSERT INTO org_quotas (org_id, rpm_limit, tpm_limit, tpd_limit, concurrent_limit, limits, shards, time_zone, deleted, version, created_at, updated_at)
			VALUES ('acme', 1, 2, 3, 4, '[]', 2, 'UTC', false, 1, now(), now())`,
	} {
		if _, err := db.ExecContext(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	for i := range slices.Backward(sources) {
		if _, err := p.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := lines(t, db, postgresSchema); !slices.Equal(got, schemas[i]) {
			t.Errorf("down to %d leaves\n%q\nwant\n%q", i, got, schemas[i])
		}
		if sources[i].Version == 4 { // who was refused stays refused
			got := lines(t, db, `SELECT subject || ' ' || tier || ' ' || suspended AS line FROM quotas ORDER BY subject`)
			if want := []string{"api_key:k1 api true", "api_key:k2 api false", "user:u1 plus false"}; !slices.Equal(got, want) {
				t.Errorf("down to 3 leaves %q, want %q", got, want)
			}
		}
	}
	if err := Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, db, postgresSchema); !slices.Equal(got, whole) {
		t.Errorf("up again makes\n%q\nwant\n%q", got, whole)
	}
}
