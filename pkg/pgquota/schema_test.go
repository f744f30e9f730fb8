package pgquota_test

import (
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func TestMigratingTwiceIsANoOp(t *testing.T) {
	s, db := newDB(t)
	count := func() (n int) {
		if err := db.QueryRow("SELECT count(*) FROM goose_db_version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	if _, err := db.Exec("UPDATE tiers SET rpm_limit = 11 WHERE tier = 'free'"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if after := count(); after != before {
		t.Errorf("%d migrations, then %d", before, after)
	}
	if free, err := s.Tier(t.Context(), tier.Free); err != nil || free.RPMLimit != 11 {
		t.Errorf("an edited tier was overwritten: %+v, %v", free, err)
	}
}

func TestSeveralInstancesMayMigrateAtOnce(t *testing.T) {
	url := stores.Postgres(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			db, err := sql.Open("pgx", url)
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			if err := migrations.Postgres(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestShippedTiersAreInTheCatalogue(t *testing.T) {
	s, _ := newDB(t)
	got, err := s.Tiers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i].UpdatedAt.IsZero() {
			t.Errorf("%s has no updated_at", got[i].Name)
		}
		got[i].UpdatedAt = time.Time{}
	}
	if diff := cmp.Diff(tier.Shipped(), got); diff != "" {
		t.Errorf("pkg/tier and the migration differ (-shipped +stored):\n%s", diff)
	}
}

func TestHistoryIsAppendOnly(t *testing.T) {
	s, db := newDB(t)
	put(t, s, change("u1", nil))
	putPrice(t, s, priced(t, time.Time{}, "1"))
	for _, table := range []string{"quota_events", "tier_events", "price_events"} {
		for _, stmt := range []string{"UPDATE " + table + " SET actor = 'nobody'", "DELETE FROM " + table, "TRUNCATE " + table} {
			_, err := db.Exec(stmt)
			var pe *pgconn.PgError
			if !errors.As(err, &pe) || pe.Code != "23001" {
				t.Errorf("%s: %v, want it refused", stmt, err)
			}
		}
		var n int
		if err := db.QueryRow("SELECT count(*) FROM " + table + " WHERE actor <> 'nobody'").Scan(&n); err != nil || n == 0 {
			t.Errorf("%s: %d events left, %v", table, n, err)
		}
	}
}

func TestDatabaseRefusesWhatTheCodeWould(t *testing.T) {
	_, db := newDB(t)
	insert := func(subject, org, tier string, rpm int64) error {
		_, err := db.Exec(`INSERT INTO quotas (subject, org_id, tier, rpm_limit, suspended, version, created_at, updated_at)
			VALUES ($1, $2, $3, $4, false, 1, now(), now())`, subject, org, tier, rpm)
		return err
	}
	if err := insert("user:good", "", "free", 0); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"forged subject": insert("user:a:b", "", "free", 1), "unknown kind": insert("robot:a", "", "free", 1), "forged org": insert("user:a", "o 1", "free", 1),
		"unknown tier": insert("user:a", "", "gold", 1), "negative limit": insert("user:a", "", "free", -1), "over 2^53-1": insert("user:a", "", "free", 1<<53),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
