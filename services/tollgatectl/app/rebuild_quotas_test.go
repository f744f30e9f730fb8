package app

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

func TestASpoiledTierIsNamedThenRepairedFromItsEvents(t *testing.T) {
	pg := stores.Postgres(t)
	db, err := sql.Open("pgx", pg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrations.Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	env := []string{"TOLLGATE_POSTGRES_URL=" + pg}
	if code, stdout, stderr := run(t, env, "rebuild", "quotas"); code != 0 || !strings.Contains(stdout, "0 differed, 0 are left") {
		t.Fatalf("as migrated: exit %d\n%s%s", code, stdout, stderr)
	}
	if _, err := db.ExecContext(context.Background(), "UPDATE tiers SET rpm_limit = rpm_limit + 1 WHERE tier = 'plus'"); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := run(t, env, "rebuild", "quotas")
	if code != 1 || !strings.Contains(stdout, "✗ tier:plus.") || !strings.Contains(stderr, "✗ 1 differences are left") {
		t.Errorf("spoiled: exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run(t, env, "rebuild", "quotas", "--repair", "-o", "json")
	var r struct {
		Projections, Left int
		Differences       []struct {
			Name     string
			Repaired bool
		}
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || r.Left != 0 || r.Projections == 0 || len(r.Differences) != 1 || r.Differences[0].Name != "tier:plus" || !r.Differences[0].Repaired {
		t.Errorf("repair: exit %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if code, stdout, stderr = run(t, env, "rebuild", "quotas"); code != 0 || !strings.Contains(stdout, "0 differed, 0 are left") {
		t.Errorf("after the repair: exit %d\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr = run(t, nil, "rebuild", "quotas"); code != 2 || !strings.Contains(stderr, "TOLLGATE_POSTGRES_URL: not set") {
		t.Errorf("no address: exit %d, %s", code, stderr)
	}
}
