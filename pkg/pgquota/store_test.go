package pgquota_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func user(id string) subject.Subject { return subject.Subject{Kind: subject.User, ID: id} }

// change states a quota of user id; edit may be nil.
func change(id string, edit func(*pgquota.Change)) pgquota.Change {
	c := pgquota.Change{Subject: user(id), Actor: "admin"}
	if edit != nil {
		edit(&c)
	}
	return c
}

func put(t *testing.T, s *pgquota.Store, c pgquota.Change) pgquota.QuotaResult {
	t.Helper()
	r, err := s.PutQuota(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestUnknownSubjectHasTheDefaultTier(t *testing.T) {
	s, db := newDB(t)
	q, err := s.Quota(t.Context(), user("nobody"))
	if err != nil || q.Tier != tier.Free || q.RPMLimit != 10 || q.Version != 0 || q.TierVersion != 1 || q.Priority != 20 || len(q.AllowedModels) != 2 || q.UpdatedAt.IsZero() {
		t.Errorf("user: %+v, %v", q, err)
	}
	q, err = s.Quota(t.Context(), subject.Subject{Kind: subject.APIKey, ID: "k"})
	if err != nil || q.Tier != tier.API || q.Version != 0 {
		t.Errorf("key: %+v, %v", q, err)
	}
	if _, err := db.Exec("DELETE FROM tiers WHERE tier = 'free'"); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Quota(t.Context(), user("nobody")); !errors.Is(err, pgquota.ErrTierMissing) {
		t.Errorf("without the free tier: %v", err)
	}
}

// The rule of PUT, spelled out: limits are replaced as a set, tier, org and suspended are kept where omitted.
func TestOmittedLimitsComeFromTheTierAndTheRestIsKept(t *testing.T) {
	s, _ := newDB(t)
	r := put(t, s, change("u1", func(c *pgquota.Change) {
		c.Tier, c.OrgID, c.Suspended = new(tier.Plus), new("o1"), new(true)
		c.Own = tier.Overrides{RPMLimit: new(int64(7)), TPDLimit: new(int64(0)), AllowedModels: &[]string{}}
	}))
	if !r.Changed || r.Version != 1 || r.RPMLimit != 7 || r.TPDLimit != 0 || r.TPMLimit != 40_000 || len(r.AllowedModels) != 0 || !r.Suspended || r.OrgID != "o1" {
		t.Errorf("created: %+v", r)
	}
	r = put(t, s, change("u1", func(c *pgquota.Change) { c.Own = tier.Overrides{TPMLimit: new(int64(5))} }))
	if r.Version != 2 || r.Tier != tier.Plus || r.OrgID != "o1" || !r.Suspended || r.RPMLimit != 40 || r.TPMLimit != 5 || r.TPDLimit != 500_000 {
		t.Errorf("changed: %+v", r)
	}
	if r.Own.RPMLimit != nil || *r.Own.TPMLimit != 5 {
		t.Errorf("own limits: %+v", r.Own)
	}
	r = put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID, c.Suspended, c.Tier = new(""), new(false), new(tier.Free) }))
	if r.Version != 3 || r.OrgID != "" || r.Suspended || r.TPMLimit != 10_000 || r.Tier != tier.Free {
		t.Errorf("left the org: %+v", r)
	}
	e, err := s.Entry(t.Context(), user("u1"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Entry, e); diff != "" {
		t.Errorf("what PUT answered is not what is read (-put +read):\n%s", diff)
	}
}

func TestChangeThatChangesNothingMakesNoVersion(t *testing.T) {
	s, _ := newDB(t)
	c := change("u1", func(c *pgquota.Change) { c.Own.AllowedModels = &[]string{"m1"} })
	put(t, s, c)
	r := put(t, s, c)
	if r.Changed || r.Version != 1 {
		t.Errorf("%+v", r)
	}
	if len(r.Fences) != 1 {
		t.Errorf("the first change is not published yet, but the second answer doesn't list it: %+v", r.Fences)
	}
	if es, err := s.Events(t.Context(), user("u1"), 0, 10); err != nil || len(es) != 1 {
		t.Errorf("%d events, %v", len(es), err)
	}
}

func TestPreconditionsGuard(t *testing.T) {
	s, _ := newDB(t)
	try := func(p pgquota.Precondition, rpm int64) error {
		_, err := s.PutQuota(t.Context(), change("u1", func(c *pgquota.Change) { c.If, c.Own.RPMLimit = p, &rpm }))
		return err
	}
	for i, step := range []struct {
		p    pgquota.Precondition
		good bool
	}{
		{pgquota.Precondition{Exists: true}, false}, {pgquota.Precondition{Versions: []int64{1}}, false}, {pgquota.Precondition{Versions: []int64{}}, false},
		{pgquota.Precondition{Versions: []int64{0}}, true}, {pgquota.Precondition{Absent: true}, false}, {pgquota.Precondition{Versions: []int64{0}}, false},
		{pgquota.Precondition{Exists: true}, true}, {pgquota.Precondition{Versions: []int64{9, 2}}, true}, {pgquota.Precondition{Versions: []int64{2}}, false},
	} {
		err := try(step.p, int64(i+1))
		if (err == nil) != step.good || (err != nil && !errors.Is(err, pgquota.ErrVersionMismatch)) {
			t.Errorf("step %d, %+v: %v", i, step.p, err)
		}
	}
}

func TestConcurrentPutsWithIfMatchLoseNoUpdate(t *testing.T) {
	s, _ := newDB(t)
	const users, clients, puts = 5, 8, 200
	var left atomic.Int64
	left.Store(puts)
	var mismatches atomic.Int64
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := c; left.Add(-1) >= 0; i++ {
				id := fmt.Sprintf("u%d", i%users)
				for { // add one to rpm_limit, as a read-modify-write guarded by the version
					e, err := s.Entry(t.Context(), user(id))
					if err != nil {
						t.Error(err)
						return
					}
					own := e.Own
					next := int64(1)
					if own.RPMLimit != nil {
						next = *own.RPMLimit + 1
					}
					own.RPMLimit = &next
					_, err = s.PutQuota(t.Context(), change(id, func(c *pgquota.Change) {
						c.Own, c.If = own, pgquota.Precondition{Versions: []int64{e.Version}}
					}))
					if errors.Is(err, pgquota.ErrVersionMismatch) {
						mismatches.Add(1)
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					break
				}
			}
		})
	}
	wg.Wait()
	var sum, versions int64
	for i := range users {
		e, err := s.Entry(t.Context(), user(fmt.Sprintf("u%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		sum, versions = sum+e.RPMLimit, versions+e.Version
	}
	if sum != puts || versions != puts {
		t.Errorf("%d additions made %d and %d versions", puts, sum, versions)
	}
	t.Logf("%d lost races were told", mismatches.Load())
	assertFold(t, s)
}

func assertFold(t *testing.T, s *pgquota.Store) {
	t.Helper()
	es, err := s.Entries(t.Context(), pgquota.Filter{Limit: 1000})
	if err != nil || len(es) == 0 {
		t.Fatalf("%d quotas, %v", len(es), err)
	}
	for _, e := range es {
		events, err := s.Events(t.Context(), e.Subject, 0, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgquota.Fold(events)
		if err != nil {
			t.Fatal(err)
		}
		want := &pgquota.Projection{State: pgquota.State{OrgID: e.OrgID, Tier: e.Tier, Suspended: e.Suspended, Overrides: e.Own},
			Version: e.Version, CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the fold is not the projection (-projection +fold):\n%s", e.Subject, diff)
		}
	}
}

func TestFoldOfEventsEqualsProjection(t *testing.T) {
	s, _ := newDB(t)
	for i := range 40 {
		put(t, s, change(fmt.Sprintf("u%d", i%7), func(c *pgquota.Change) {
			n := int64(i)
			switch i % 4 {
			case 0:
				c.Tier = new(tier.Plus)
			case 1:
				c.Own = tier.Overrides{RPMLimit: &n, AllowedModels: &[]string{"m", "n"}, MaxContext: new(tier.MaxLimit)}
			case 2:
				c.OrgID, c.Own.AllowedModels = new(fmt.Sprintf("o%d", i)), &[]string{}
			case 3:
				c.Suspended, c.Reason = new(i%8 == 3), "because <&> \"so\""
			}
		}))
	}
	assertFold(t, s)
	events, err := s.Events(t.Context(), user("u1"), 0, 100)
	if err != nil || len(events) < 3 {
		t.Fatal(len(events), err)
	}
	for name, broken := range map[string][]pgquota.Event{
		"a gap": slices.Delete(slices.Clone(events), 1, 2), "no beginning": events[1:], "repeated": slices.Insert(slices.Clone(events), 1, events[0]),
	} {
		if _, err := pgquota.Fold(broken); err == nil {
			t.Errorf("%s: folded", name)
		}
	}
	if p, err := pgquota.Fold(nil); p != nil || err != nil {
		t.Error(p, err)
	}
}

// Every step of the transaction is made to fail once, by an error and by the death of the connection.
func TestChangeEventProjectionAndOutboxAreOneTransaction(t *testing.T) {
	for _, table := range []string{"quota_events", "quotas", "outbox"} {
		for name, crash := range map[string]string{"error": "RAISE EXCEPTION 'injected'", "crash": "PERFORM pg_terminate_backend(pg_backend_pid())"} {
			t.Run(table+" "+name, func(t *testing.T) {
				s, db := newDB(t)
				put(t, s, change("u1", nil))
				before := snapshot(t, db)
				exec(t, db, "CREATE FUNCTION inject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "+crash+"; RETURN NEW; END $$")
				exec(t, db, "CREATE TRIGGER inject AFTER INSERT OR UPDATE ON "+table+" FOR EACH ROW EXECUTE FUNCTION inject()")
				for _, id := range []string{"u1", "u2"} {
					if _, err := s.PutQuota(t.Context(), change(id, func(c *pgquota.Change) { c.Tier = new(tier.Plus) })); err == nil {
						t.Fatalf("%s: no error", id)
					}
				}
				if after := snapshot(t, db); after != before {
					t.Errorf("half a change was kept:\n%s\nwas:\n%s", after, before)
				}
				exec(t, db, "DROP TRIGGER inject ON "+table)
				if r := put(t, s, change("u1", func(c *pgquota.Change) { c.Tier = new(tier.Plus) })); r.Version != 2 {
					t.Errorf("after the fault: %+v", r)
				}
			})
		}
	}
}

func exec(t *testing.T, db *sql.DB, stmt string) {
	t.Helper()
	if _, err := db.Exec(stmt); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, db *sql.DB) string {
	t.Helper()
	var all strings.Builder
	for _, q := range []string{"SELECT string_agg(e::text, E'\\n' ORDER BY subject, version) FROM quota_events AS e",
		"SELECT string_agg(q::text, E'\\n' ORDER BY subject) FROM quotas AS q", "SELECT string_agg(o::text, E'\\n' ORDER BY id) FROM outbox AS o"} {
		var s sql.NullString
		if err := db.QueryRow(q).Scan(&s); err != nil {
			t.Fatal(err)
		}
		all.WriteString(s.String + "\n")
	}
	return all.String()
}

func TestRestartOfPostgresDoesNotBreakThePool(t *testing.T) {
	s, db := newDB(t)
	for range 3 {
		if _, err := s.Quota(t.Context(), user("u1")); err != nil {
			t.Fatal(err)
		}
		exec(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		if _, err := s.Quota(t.Context(), user("u1")); err != nil {
			t.Errorf("first read after the connections died: %v", err)
		}
	}
	put(t, s, change("u1", nil))
}

func TestMoveBetweenOrgsFencesBothShards(t *testing.T) {
	s, _ := newDB(t)
	u := user("u1")
	r := put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID = new("o1") }))
	want := sorted(subject.Shard("", u), subject.Shard("o1", u))
	if len(r.Fences) != 1 || !slices.Equal(r.Fences[0].Shards, want) {
		t.Errorf("joined: %+v, want shards %v", r.Fences, want)
	}
	r = put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID = new("o2") }))
	want = sorted(subject.Shard("o1", u), subject.Shard("o2", u))
	if len(r.Fences) != 2 || !slices.Equal(r.Fences[1].Shards, want) || r.Fences[1].Version != 2 || r.Fences[1].Name != "user:u1" {
		t.Errorf("moved: %+v, want both changes, the second with shards %v", r.Fences, want)
	}
	if err := s.MarkFenced(t.Context(), []int64{r.Fences[0].ID, r.Fences[1].ID}); err != nil {
		t.Fatal(err)
	}
	if fs, err := s.PendingFences(t.Context(), 10); err != nil || len(fs) != 0 {
		t.Errorf("%+v, %v", fs, err)
	}
}

func sorted(s ...int) []int { slices.Sort(s); return slices.Compact(s) }

func TestTierChangeReachesEveryoneOnIt(t *testing.T) {
	s, _ := newDB(t)
	put(t, s, change("u1", func(c *pgquota.Change) { c.Own.RPMLimit = new(int64(3)) }))
	free, err := s.Tier(t.Context(), tier.Free)
	if err != nil {
		t.Fatal(err)
	}
	free.RPMLimit, free.TPMLimit = 99, 98
	r, err := s.PutTier(t.Context(), pgquota.TierChange{Tier: free, Actor: "admin", If: pgquota.Precondition{Versions: []int64{1}}})
	if err != nil || !r.Changed || r.Tier.Version != 2 || len(r.Fences) != 1 || len(r.Fences[0].Shards) != 0 || r.Fences[0].Name != redisfence.TierName("free") {
		t.Fatalf("%+v, %v", r, err)
	}
	q, err := s.Quota(t.Context(), user("u1"))
	if err != nil || q.RPMLimit != 3 || q.TPMLimit != 98 || q.Version != 1 || q.TierVersion != 2 {
		t.Errorf("%+v, %v", q, err)
	}
	if r, err = s.PutTier(t.Context(), pgquota.TierChange{Tier: free, Actor: "admin"}); err != nil || r.Changed || r.Tier.Version != 2 {
		t.Errorf("same again: %+v, %v", r, err)
	}
	if _, err = s.PutTier(t.Context(), pgquota.TierChange{Tier: free, Actor: "admin", If: pgquota.Precondition{Versions: []int64{1}}}); !errors.Is(err, pgquota.ErrVersionMismatch) {
		t.Errorf("stale: %v", err)
	}
}

func TestOneLeaderAtATime(t *testing.T) {
	s, db := newDB(t)
	led, err := s.Lead(t.Context(), func(ctx context.Context, l *pgquota.Leader) error {
		second, err := s.Lead(ctx, func(context.Context, *pgquota.Leader) error { return nil })
		if second || err != nil {
			t.Errorf("a second leader: %t, %v", second, err)
		}
		exec(t, db, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2")
		if _, err := l.Pending(ctx, 1); err == nil {
			t.Error("a leader without its lock went on")
		}
		return nil
	})
	if !led || err != nil {
		t.Fatal(led, err)
	}
	if led, err := s.Lead(t.Context(), func(context.Context, *pgquota.Leader) error { return nil }); !led || err != nil {
		t.Errorf("the next leader: %t, %v", led, err)
	}
}
