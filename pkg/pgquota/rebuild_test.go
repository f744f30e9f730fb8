package pgquota_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// filled makes a history of everything that has one.
func filled(t *testing.T, s *pgquota.Store) {
	t.Helper()
	for i := range 30 {
		put(t, s, change(fmt.Sprintf("u%d", i%10), func(c *pgquota.Change) {
			n := int64(i)
			c.OrgID, c.Own = new(fmt.Sprintf("o%d", i%3)), tier.Overrides{RPMLimit: &n, AllowedModels: &[]string{"m"}, Limits: &[]tier.Limit{}}
		}))
	}
	for i, owner := range []pgquota.NewKey{{ID: "k1", UserID: "u1"}, {ID: "k2", OrgID: "o1"}, {ID: "k3", OrgID: "o1"}} {
		owner.Secret, owner.Actor, owner.Name = pgquota.SecretOf(fmt.Sprintf("tg-secret-%d", i)), "admin", "key"
		if _, err := s.CreateKey(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.RotateKey(t.Context(), pgquota.KeyChange{ID: "k1", Actor: "admin"}, pgquota.SecretOf("tg-another-secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RevokeKey(t.Context(), pgquota.KeyChange{ID: "k2", Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
	pool := tier.NoPool("o1")
	pool.TPMLimit, pool.TimeZone, pool.Limits = 7, "Europe/Berlin", []tier.Limit{{Counts: "requests", Window: "1d", Capacity: 5}}
	for _, id := range []string{"o1", "o2"} {
		pool.OrgID = id
		if _, err := s.PutOrg(t.Context(), pgquota.OrgChange{Pool: pool, Actor: "admin"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.DeleteOrg(t.Context(), pgquota.OrgChange{Pool: pool, Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 { // the first two begin at two instants, the others replace them
		putPrice(t, s, priced(t, time.Date(2026, 1+time.Month(i%2), 1, 0, 0, 0, 0, time.UTC), fmt.Sprintf("%d.50", i)))
	}
	plus, err := s.Tier(t.Context(), tier.Plus)
	if err != nil {
		t.Fatal(err)
	}
	plus.RPMLimit, plus.ModelLimits = 41, []tier.ModelLimits{{Group: "big", Models: []string{"m"}, RPMLimit: 2}}
	if _, err := s.PutTier(t.Context(), pgquota.TierChange{Tier: plus, Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
}

func rebuilt(t *testing.T, s *pgquota.Store, repair bool) pgquota.RebuildReport {
	t.Helper()
	var last, total int64
	r, err := pgquota.RebuildQuotas(t.Context(), s, pgquota.RebuildOptions{Repair: repair, Progress: func(done, all int64) {
		if done < last || done > all {
			t.Errorf("progress went from %d to %d of %d", last, done, all)
		}
		last, total = done, all
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last != total || r.Projections != total {
		t.Errorf("progress ended at %d of %d; %d projections", last, total, r.Projections)
	}
	return r
}

func TestRebuildFindsNothingWhereTheFoldIsTheProjection(t *testing.T) {
	s, _ := newDB(t)
	filled(t, s)
	if r := rebuilt(t, s, false); len(r.Differences) != 0 || r.Projections != 10+3+2+4+1 || r.Events != 30+5+3+5+4 {
		t.Errorf("%+v", r)
	}
}

func TestRebuildNamesEachDifferenceAndRepairsIt(t *testing.T) {
	s, db := newDB(t)
	filled(t, s)
	before := projections(t, db)
	for _, stmt := range []string{
		"UPDATE quotas SET rpm_limit = 99, org_id = 'o9' WHERE subject = 'user:u1'",
		"UPDATE quotas SET created_at = created_at - interval '1 day', allowed_models = NULL WHERE subject = 'user:u2'",
		"DELETE FROM quotas WHERE subject = 'user:u3'",
		"INSERT INTO quotas (subject, org_id, tier, suspended, version, created_at, updated_at) VALUES ('user:ghost', '', 'plus', false, 1, now(), now())",
		"UPDATE org_quotas SET tpm_limit = 8 WHERE org_id = 'o1'",
		"UPDATE org_quotas SET deleted = false WHERE org_id = 'o2'",
		"UPDATE api_keys SET revoked_at = NULL WHERE key_id = 'k2'",
		"UPDATE api_keys SET name = 'other', rotations = 3 WHERE key_id = 'k1'",
		"UPDATE tiers SET rpm_limit = 1, model_limits = '[]' WHERE tier = 'plus'",
		"DELETE FROM api_keys WHERE key_id = 'k3'",
		"UPDATE prices SET input_per_million = 9 WHERE valid_from = '2026-01-01Z'",
		"DELETE FROM prices WHERE valid_from = '2026-02-01Z'",
		"INSERT INTO prices SELECT model, valid_from + interval '1 year', currency, 1, 1, 1, version, actor, reason, updated_at FROM prices",
		"INSERT INTO prices SELECT 'ghost', valid_from, currency, 1, 1, 1, version, actor, reason, updated_at FROM prices LIMIT 1",
	} {
		exec(t, db, stmt)
	}
	r := rebuilt(t, s, false)
	var found []string
	for _, d := range r.Differences {
		found = append(found, strings.TrimSuffix(d.Name+"."+d.Field, "."))
	}
	slices.Sort(found)
	want := []string{"api_key:k1.name", "api_key:k1.rotations", "api_key:k2.revoked", "api_key:k2.revoked_at", "api_key:k3.key_created_at", "api_key:k3.name", "api_key:k3.owner", "org:o1.tpm_limit",
		"org:o2.deleted", "org:o2.concurrent_limit", "org:o2.limits", "org:o2.rpm_limit", "org:o2.shards", "org:o2.time_zone", "org:o2.tpd_limit", "org:o2.tpm_limit",
		"price:ghost", "price:grok-2.2026-01-01T00:00:00.000Z", "price:grok-2.2026-02-01T00:00:00.000Z", "price:grok-2.2027-01-01T00:00:00.000Z",
		"tier:plus.model_limits", "tier:plus.rpm_limit", "user:ghost", "user:u1.org_id", "user:u1.rpm_limit", "user:u2.allowed_models", "user:u2.created_at", "user:u3"}
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
	if i := slices.IndexFunc(r.Differences, func(d pgquota.Difference) bool { return d.Name == "user:u1" && d.Field == "rpm_limit" }); r.Differences[i].String() != "user:u1.rpm_limit: stored is 99, the events say 21" {
		t.Error(r.Differences[i])
	}
	if r = rebuilt(t, s, true); r.Left() != 3 { // the key whose row is gone
		t.Errorf("left after the repair: %v", r.Differences)
	}
	for _, d := range rebuilt(t, s, false).Differences {
		if d.Name != "api_key:k3" {
			t.Errorf("found again: %s", d)
		}
	}
	without := func(s string) string {
		var lines []string
		for l := range strings.Lines(s) {
			if !strings.Contains(l, "k3") {
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}
	if after := projections(t, db); without(after) != without(before) {
		t.Errorf("the repair made\n%s\nof\n%s", after, before)
	}
}

func TestRebuildTellsAHistoryThatDoesNotAddUp(t *testing.T) {
	s, db := newDB(t)
	filled(t, s)
	exec(t, db, "ALTER TABLE quota_events DISABLE TRIGGER quota_events_append_only_rows")
	exec(t, db, "DELETE FROM quota_events WHERE subject = 'user:u1' AND version = 2")
	exec(t, db, "ALTER TABLE price_events DISABLE TRIGGER price_events_append_only_rows")
	exec(t, db, "UPDATE price_events SET before = NULL WHERE version = 3")
	r := rebuilt(t, s, true)
	if len(r.Differences) == 2 && r.Differences[0].Name == "price:grok-2" && strings.Contains(r.Differences[0].Why, "version 3 does not follow") {
		r.Differences = r.Differences[1:]
	}
	if len(r.Differences) != 1 || r.Left() != 1 || r.Differences[0].Name != "user:u1" || !strings.Contains(r.Differences[0].Why, "version 3") {
		t.Errorf("%v", r.Differences)
	}
}

// projections is all that a rebuild derives, row by row.
func projections(t *testing.T, db *sql.DB) string {
	t.Helper()
	var all strings.Builder
	for _, q := range []string{"SELECT string_agg(q::text, E'\n' ORDER BY subject) FROM quotas AS q", "SELECT string_agg(q::text, E'\n' ORDER BY org_id) FROM org_quotas AS q",
		"SELECT string_agg(q::text, E'\n' ORDER BY key_id) FROM api_keys AS q", "SELECT string_agg(q::text, E'\n' ORDER BY tier) FROM tiers AS q",
		"SELECT string_agg(q::text, E'\n' ORDER BY model, valid_from) FROM prices AS q"} {
		var s sql.NullString
		if err := db.QueryRow(q).Scan(&s); err != nil {
			t.Fatal(err)
		}
		all.WriteString(s.String + "\n")
	}
	return all.String()
}

// What held at an instant: the subject's own limits of then on the tier of then.
func TestQuotaAtAnInstant(t *testing.T) {
	s, _ := newDB(t)
	plus, err := s.Tier(t.Context(), tier.Plus)
	if err != nil {
		t.Fatal(err)
	}
	type seen struct {
		at time.Time
		e  pgquota.Entry
	}
	var moments []seen
	look := func() {
		t.Helper()
		e, err := s.Entry(t.Context(), user("u1"))
		if err != nil {
			t.Fatal(err)
		}
		moments = append(moments, seen{e.UpdatedAt, e})
	}
	for i := range 6 {
		r := put(t, s, change("u1", func(c *pgquota.Change) {
			c.Tier, c.OrgID, c.Suspended = new(tier.Plus), new(fmt.Sprintf("o%d", i%2)), new(i%3 == 0)
			c.Own.TPMLimit = new(int64(i))
		}))
		look()
		plus.RPMLimit = int64(100 + i)
		pt, err := s.PutTier(t.Context(), pgquota.TierChange{Tier: plus, Actor: "admin"})
		if err != nil {
			t.Fatal(err)
		}
		look()
		moments[len(moments)-1].at = pt.Tier.UpdatedAt
		if r.Version != int64(i+1) {
			t.Fatal(r.Version)
		}
		time.Sleep(2 * time.Millisecond) // the clock of histories has milliseconds
	}
	for i, m := range moments {
		if i+1 < len(moments) && !moments[i+1].at.After(m.at) {
			continue // of several changes in one millisecond only the last one's state can be asked for
		}
		got, err := s.EntryAt(t.Context(), user("u1"), m.at)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.e, got); diff != "" {
			t.Errorf("moment %d (-then +told now):\n%s", i, diff)
		}
	}
	first := moments[0].at
	if e, err := s.EntryAt(t.Context(), user("u1"), first.Add(-time.Millisecond)); err != nil || e.Version != 0 || e.Tier != tier.Free {
		t.Errorf("before the first change: %+v, %v", e, err)
	}
	if _, err := s.EntryAt(t.Context(), user("u1"), time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil || !strings.Contains(err.Error(), pgquota.ErrUnknownThen.Error()) {
		t.Errorf("before the catalogue: %v", err)
	}
}
