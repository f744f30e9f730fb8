package pgquota_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func apiKey(id string) subject.Subject { return subject.Subject{Kind: subject.APIKey, ID: id} }

// newKey makes a key of a user, or of an org where user is "".
func newKey(t *testing.T, s *pgquota.Store, id, user, org string, own tier.Overrides) pgquota.QuotaResult {
	t.Helper()
	r, err := s.CreateKey(t.Context(), pgquota.NewKey{ID: id, UserID: user, OrgID: org, Name: "key " + id, Secret: pgquota.SecretOf("tg-secret-of-" + id), Own: own, Actor: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pool(org string, edit func(*tier.Pool)) pgquota.OrgChange {
	c := pgquota.OrgChange{Pool: tier.NoPool(org), Actor: "admin"}
	if edit != nil {
		edit(&c.Pool)
	}
	return c
}

func putOrg(t *testing.T, s *pgquota.Store, c pgquota.OrgChange) pgquota.OrgResult {
	t.Helper()
	r, err := s.PutOrg(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func plan(t *testing.T, s *pgquota.Store, sub subject.Subject) tier.Plan {
	t.Helper()
	p, err := s.Plan(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanOfAKeyIsItsOwnThenItsUsersThenTheOrgs(t *testing.T) {
	s, _ := newDB(t)
	putOrg(t, s, pool("acme", func(p *tier.Pool) {
		p.TPMLimit, p.Limits = 1000, []tier.Limit{{Counts: "requests", Window: "1d", Capacity: 9}}
	}))
	put(t, s, change("u1", func(c *pgquota.Change) {
		c.OrgID, c.Tier = new("acme"), new(tier.Plus)
		c.Own = tier.Overrides{TPMLimit: new(int64(300)), MaxContext: new(int64(500)), AllowedModels: &[]string{"a", "b"}}
	}))
	newKey(t, s, "k1", "u1", "", tier.Overrides{TPMLimit: new(int64(600)), MaxContext: new(int64(900)), AllowedModels: &[]string{"b", "c"}})
	p := plan(t, s, apiKey("k1"))
	want := []tier.Version{{Name: "api_key:k1", Version: 1}, {Name: "user:u1", Version: 1}, {Name: "tier:plus", Version: 1}, {Name: "org:acme", Version: 1}}
	if diff := cmp.Diff(want, p.Versions()); diff != "" {
		t.Error(diff)
	}
	k, u := p.Own(), p.Base()
	if k.TPMLimit != 600 || k.RPMLimit != 0 || k.Tier != "" || u.TPMLimit != 300 || u.RPMLimit != 40 || u.Tier != tier.Plus || p.OrgID != "acme" || p.UserID() != "u1" ||
		p.Pool.TPMLimit != 1000 || len(p.Pool.Limits) != 1 || p.Shard() != subject.Shard("acme", apiKey("k1")) {
		t.Errorf("%+v", p)
	}
	if p.Allows("a") || !p.Allows("b") || p.Allows("c") || p.MaxContext() != 500 || p.Suspended() {
		t.Errorf("narrowed: %+v", p)
	}
	put(t, s, change("u1", func(c *pgquota.Change) { c.Suspended, c.OrgID = new(true), new("") }))
	if p = plan(t, s, apiKey("k1")); !p.Suspended() || p.OrgID != "" || p.Shard() != subject.Shard("", user("u1")) {
		t.Errorf("its user is suspended and in no org: %+v", p)
	}
}

func TestPlansOfOthers(t *testing.T) {
	s, _ := newDB(t)
	newKey(t, s, "ko", "", "acme", tier.Overrides{RPMLimit: new(int64(5))})
	newKey(t, s, "ku", "never-seen", "", tier.Overrides{})
	for _, c := range []struct {
		sub      subject.Subject
		versions string
		org      string
	}{
		{apiKey("ko"), "[{api_key:ko 1} {tier:api 1} {org:acme 0}]", "acme"},
		{apiKey("ku"), "[{api_key:ku 1} {user:never-seen 0} {tier:free 1}]", ""},
		{apiKey("unknown"), "[{api_key:unknown 0} {tier:api 1}]", ""},
		{user("unknown"), "[{user:unknown 0} {tier:free 1}]", ""},
	} {
		p := plan(t, s, c.sub)
		if got := fmt.Sprint(p.Versions()); got != c.versions || p.OrgID != c.org || p.Shards() != 1 || len(p.Moves) != 0 {
			t.Errorf("%s: %s, %+v", c.sub, got, p)
		}
	}
	if p := plan(t, s, apiKey("ko")); p.Own().RPMLimit != 5 || p.Own().TPMLimit != 300_000 {
		t.Errorf("a key of an org is on the api tier: %+v", p)
	}
	if _, err := s.PutQuota(t.Context(), pgquota.Change{Subject: apiKey("by-hand"), Tier: new(tier.Plus), Actor: "admin"}); err != nil {
		t.Errorf("a key that nobody has made has no quota of its own any more: %v", err)
	}
}

// A change is published wherever a decision that depends on it can be made.
func TestFencesNameEveryShardOfThePayer(t *testing.T) {
	s, _ := newDB(t)
	shards := func(fs []pgquota.Fence) []int { return fs[len(fs)-1].Shards }
	spread := func(org string, n int, u subject.Subject) []int { return subject.Spread(subject.Shard(org, u), n) }
	is := func(what string, got []int, want ...[]int) {
		t.Helper()
		all := slices.Concat(want...)
		if all = sorted(all...); !slices.Equal(got, all) {
			t.Errorf("%s: %v, want %v", what, got, all)
		}
	}
	u, k := user("u1"), apiKey("k1")
	is("an org is spread over 3", shards(putOrg(t, s, pool("acme", func(p *tier.Pool) { p.Shards = 3 })).Fences), spread("acme", 3, u))
	is("a user joins", shards(put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID = new("acme") })).Fences), spread("", 1, u), spread("acme", 3, u))
	is("a key is made, unknown till now", shards(newKey(t, s, "k1", "u1", "", tier.Overrides{}).Fences), spread("", 1, k), spread("acme", 3, u))
	is("an org's key is made", shards(newKey(t, s, "k2", "", "acme", tier.Overrides{}).Fences), spread("", 1, apiKey("k2")), spread("acme", 3, u))
	keyPut := func() []int {
		r, err := s.PutQuota(t.Context(), pgquota.Change{Subject: k, Own: tier.Overrides{RPMLimit: new(time.Now().UnixMicro())}, Actor: "admin"})
		if err != nil {
			t.Fatal(err)
		}
		return shards(r.Fences)
	}
	is("a key is changed", keyPut(), spread("acme", 3, u))
	is("an org is spread over 2", shards(putOrg(t, s, pool("acme", func(p *tier.Pool) { p.Shards = 2 })).Fences), spread("acme", 3, u))
	deleted, err := s.DeleteOrg(t.Context(), pool("acme", nil))
	if err != nil {
		t.Fatal(err)
	}
	is("a pool is deleted", shards(deleted.Fences), spread("acme", 2, u))
	is("a user leaves and is spread", shards(put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID, c.Own.Shards = new(""), new(int64(2)) })).Fences), spread("acme", 1, u), spread("", 2, u))
	is("its key is changed", keyPut(), spread("", 2, u))
	r, err := s.RotateKey(t.Context(), pgquota.KeyChange{ID: "k1", Actor: "admin"}, pgquota.SecretOf("tg-another-secret"))
	if err != nil {
		t.Fatal(err)
	}
	is("it is rotated", shards(r.Fences), spread("", 2, u))
	if r, err = s.RevokeKey(t.Context(), pgquota.KeyChange{ID: "k1", Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
	is("it is revoked", shards(r.Fences), spread("", 2, u))
	if last := subject.Spread(subject.Shards-1, 2); !slices.Equal(last, []int{subject.Shards - 1, 0}) {
		t.Errorf("the last shard's neighbour: %v", last)
	}
}

func TestMovesTellWhereConsumptionLies(t *testing.T) {
	s, db := newDB(t)
	u := user("u1")
	all := func(org string, n int) []int { return subject.Spread(subject.Shard(org, u), n) }
	at := func(org string, n int) []int {
		if org == "" {
			return all(org, n)
		}
		return []int{limit.Spread{First: subject.Shard(org, u), Shards: n}.Home(u.String())}
	}
	put(t, s, change("u1", nil))
	newKey(t, s, "k1", "u1", "", tier.Overrides{})
	put(t, s, change("u1", func(c *pgquota.Change) { c.Own.Shards = new(int64(2)) }))
	put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID, c.Tier = new("a"), new(tier.Plus) })) // shards is omitted: 1
	putOrg(t, s, pool("a", func(p *tier.Pool) { p.Shards = 4 }))
	put(t, s, change("u1", func(c *pgquota.Change) { c.Own.RPMLimit, c.Own.Shards = new(int64(4)), new(int64(9)) })) // in an org: moves nothing
	putOrg(t, s, pool("b", func(p *tier.Pool) { p.Shards = 2 }))                                                     // before it came
	put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID = new("b") }))
	putOrg(t, s, pool("a", func(p *tier.Pool) { p.Shards = 8 })) // it has left
	if _, err := s.DeleteOrg(t.Context(), pool("b", nil)); err != nil {
		t.Fatal(err)
	}
	want := []tier.Move{
		{Name: "user:u1", Version: 2, From: at("", 1), To: at("", 2)},
		{Name: "user:u1", Version: 3, From: at("", 2), To: at("a", 1)},
		{Name: "org:a", Version: 1, From: at("a", 1), To: at("a", 4)},
		{Name: "user:u1", Version: 5, From: at("a", 4), To: at("b", 2)},
		{Name: "org:b", Version: 2, From: at("b", 2), To: at("b", 1)},
	}
	want = slices.DeleteFunc(want, func(m tier.Move) bool { return slices.Equal(m.From, m.To) }) // its home may be the same shard
	wantPool := []tier.Move{{Name: "org:b", Version: 1, From: all("b", 1), To: all("b", 2)}, {Name: "org:b", Version: 2, From: all("b", 2), To: all("b", 1)}}
	for _, sub := range []subject.Subject{u, apiKey("k1")} {
		p := plan(t, s, sub)
		if diff := cmp.Diff(want, p.Moves); diff != "" {
			t.Errorf("%s: %s", sub, diff)
		}
		if diff := cmp.Diff(wantPool, p.PoolMoves); diff != "" {
			t.Errorf("%s: the pool's: %s", sub, diff)
		}
	}
	// What is older than the longest window has drained away.
	exec(t, db, "ALTER TABLE quota_events DISABLE TRIGGER ALL")
	exec(t, db, "UPDATE quota_events SET at = at - interval '25 hours' WHERE subject = 'org:a' OR (subject = 'user:u1' AND version < 5)")
	if p := plan(t, s, u); len(p.Moves) == 0 || p.Moves[0].Name != "user:u1" || !slices.Equal(p.Moves[0].From, at("a", 8)) { // by now a has had its 8 for long
		t.Errorf("%+v", p.Moves)
	}
}

func TestPoolsVersionGrowsThroughItsDeletion(t *testing.T) {
	s, _ := newDB(t)
	if p, err := s.Org(t.Context(), "acme"); err != nil || !cmp.Equal(p, tier.NoPool("acme")) {
		t.Errorf("%+v, %v", p, err)
	}
	if r, err := s.DeleteOrg(t.Context(), pool("acme", nil)); err != nil || r.Changed {
		t.Errorf("nothing to delete: %+v, %v", r, err)
	}
	full := func(p *tier.Pool) {
		p.RPMLimit, p.TPDLimit, p.ConcurrentLimit, p.TimeZone, p.Shards = 5, 6, 7, "Europe/Berlin", 3
		p.Limits = []tier.Limit{{Counts: "output_tokens", Window: "1h", Capacity: 8}}
	}
	for version := int64(1); version < 5; version += 2 {
		for range 2 {
			r := putOrg(t, s, pool("acme", full))
			want := tier.NoPool("acme")
			full(&want)
			if want.Version = version; !cmp.Equal(want, r.Pool, cmpopts.IgnoreFields(tier.Pool{}, "UpdatedAt")) {
				t.Errorf("%+v", r)
			}
			if p, err := s.Org(t.Context(), "acme"); err != nil || !cmp.Equal(p, r.Pool) {
				t.Errorf("read %+v, %v", p, err)
			}
		}
		if _, err := s.DeleteOrg(t.Context(), pgquota.OrgChange{Pool: tier.Pool{OrgID: "acme"}, Actor: "admin", If: pgquota.Precondition{Versions: []int64{99}}}); !errors.Is(err, pgquota.ErrVersionMismatch) {
			t.Error(err)
		}
		for range 2 {
			r, err := s.DeleteOrg(t.Context(), pool("acme", nil))
			want := tier.NoPool("acme")
			if want.Version = version + 1; err != nil || !cmp.Equal(want, r.Pool, cmpopts.IgnoreFields(tier.Pool{}, "UpdatedAt")) {
				t.Errorf("%+v, %v", r, err)
			}
		}
	}
	var bad []string
	_, err := s.PutOrg(t.Context(), pgquota.OrgChange{Actor: "admin", Pool: tier.Pool{OrgID: "a b", RPMLimit: -1, Limits: []tier.Limit{{Counts: "tokens", Window: "1m", Capacity: 1}}, TimeZone: "Mars/Base"}})
	for line := range strings.Lines(err.Error()) {
		field, _, _ := strings.Cut(line, ":")
		bad = append(bad, field)
	}
	if want := []string{"rpm_limit", "limits[0]", "shards", "time_zone", "org_id"}; !slices.Equal(bad, want) {
		t.Errorf("named %v, want %v", bad, want)
	}
}

func TestFoldOfKeysAndPoolsEqualsTheirProjection(t *testing.T) {
	s, _ := newDB(t)
	newKey(t, s, "k1", "u1", "", tier.Overrides{Limits: &[]tier.Limit{}, ModelLimits: &[]tier.ModelLimits{{Group: "g", Models: []string{"m"}}}})
	newKey(t, s, "k2", "", "acme", tier.Overrides{})
	if _, err := s.PutQuota(t.Context(), pgquota.Change{Subject: apiKey("k1"), Own: tier.Overrides{RPMLimit: new(int64(3))}, Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RotateKey(t.Context(), pgquota.KeyChange{ID: "k1", Actor: "admin"}, pgquota.SecretOf("tg-new-secret")); err != nil {
		t.Fatal(err)
	}
	if r, err := s.RevokeKey(t.Context(), pgquota.KeyChange{ID: "k1", Actor: "admin"}); err != nil || !r.Suspended {
		t.Fatal(r, err)
	}
	putOrg(t, s, pool("acme", func(p *tier.Pool) { p.RPMLimit = 5 }))
	if _, err := s.DeleteOrg(t.Context(), pool("acme", nil)); err != nil {
		t.Fatal(err)
	}
	fold := func(name string) *pgquota.Projection {
		es, err := s.EventsOf(t.Context(), name, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		p, err := pgquota.Fold(es)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, id := range []string{"k1", "k2"} {
		e, err := s.Entry(t.Context(), apiKey(id))
		if err != nil {
			t.Fatal(err)
		}
		p := fold("api_key:" + id)
		if p.Owner != e.Key.Owner() || p.Name != e.Key.Name || p.Rotations != e.Key.Rotations || p.Revoked != (e.Key.RevokedAt != nil) || p.OrgID != e.OrgID || p.Tier != e.Tier ||
			p.Version != e.Version || !cmp.Equal(p.Overrides, e.Own) || !p.UpdatedAt.Equal(e.UpdatedAt) || !p.CreatedAt.Equal(e.CreatedAt) {
			t.Errorf("%+v is not %+v", p, e)
		}
	}
	org, err := s.Org(t.Context(), "acme")
	if p := fold("org:acme"); err != nil || !p.Deleted || p.Version != org.Version || !p.UpdatedAt.Equal(org.UpdatedAt) {
		t.Errorf("%+v is not %+v, %v", p, org, err)
	}
}

func TestSecretIsKnownToItsBearerOnly(t *testing.T) {
	s, db := newDB(t)
	const first, second = "tg-FIRSTsecretFIRSTsecret", "tg-SECONDsecretSECONDsecret"
	for id, n := range map[string]pgquota.NewKey{"k1": {UserID: "u1"}, "k2": {OrgID: "acme"}} {
		n.ID, n.Actor, n.Secret = id, "admin", pgquota.SecretOf(first+id)
		if _, err := s.CreateKey(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if k, err := s.KeyOf(t.Context(), first+id); err != nil || k.ID != id || k.Prefix != first[:pgquota.VisibleLen] {
			t.Errorf("%+v, %v", k, err)
		}
		if _, err := s.RotateKey(t.Context(), pgquota.KeyChange{ID: id, Actor: "admin"}, pgquota.SecretOf(second+id)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.KeyOf(t.Context(), first+id); !errors.Is(err, pgquota.ErrKeyMissing) {
			t.Errorf("the old secret: %v", err)
		}
		if k, err := s.KeyOf(t.Context(), second+id); err != nil || k.ID != id || k.RotatedAt == nil || k.Rotations != 1 {
			t.Errorf("the new secret: %+v, %v", k, err)
		}
		if _, err := s.CreateKey(t.Context(), n); !errors.Is(err, pgquota.ErrVersionMismatch) {
			t.Errorf("the same key again: %v", err)
		}
	}
	for _, table := range []string{"api_keys", "quotas", "quota_events", "outbox"} {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM " + table + " AS x WHERE x::text ~ 'secret'").Scan(&n); err != nil || n != 0 {
			t.Errorf("%s tells a secret in %d rows, %v", table, n, err)
		}
		hash := pgquota.SecretOf(second + "k1").Hash
		if err := db.QueryRow("SELECT count(*) FROM "+table+" AS x WHERE strpos(x::text, $1) > 0", fmt.Sprintf("%x", hash)).Scan(&n); err != nil || (n > 0) != (table == "api_keys") {
			t.Errorf("%s tells the hash in %d rows, %v", table, n, err)
		}
	}
}

func TestOwnerOfAKeyNeverChanges(t *testing.T) {
	s, db := newDB(t)
	newKey(t, s, "k1", "u1", "", tier.Overrides{})
	newKey(t, s, "k2", "", "acme", tier.Overrides{})
	for _, stmt := range []string{"user_id = 'u2'", "user_id = '', org_id = 'acme'", "key_id = 'k9'"} {
		if _, err := db.Exec("UPDATE api_keys SET " + stmt + " WHERE key_id = 'k1'"); err == nil {
			t.Errorf("%s: accepted", stmt)
		}
	}
	for name, c := range map[string]pgquota.Change{
		"org_id": {Subject: apiKey("k2"), OrgID: new("other")}, "tier": {Subject: apiKey("k1"), Tier: new(tier.Plus)}, "shards": {Subject: apiKey("k1"), Own: tier.Overrides{Shards: new(int64(2))}},
	} {
		c.Actor = "admin"
		var fe *tier.FieldError
		if _, err := s.PutQuota(t.Context(), c); !errors.As(err, &fe) || fe.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := s.PutQuota(t.Context(), pgquota.Change{Subject: apiKey("k2"), Tier: new(tier.Plus), Actor: "admin"}); err != nil || r.OrgID != "acme" || r.Tier != tier.Plus {
		t.Errorf("a tier of an org's key: %+v, %v", r, err)
	}
	if _, err := s.RevokeKey(t.Context(), pgquota.KeyChange{ID: "k2", Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"put": func() error {
			_, err := s.PutQuota(t.Context(), pgquota.Change{Subject: apiKey("k2"), Actor: "admin"})
			return err
		}(),
		"rotate": func() error {
			_, err := s.RotateKey(t.Context(), pgquota.KeyChange{ID: "k2", Actor: "admin"}, pgquota.SecretOf("tg-x"))
			return err
		}(),
	} {
		if !errors.Is(err, pgquota.ErrKeyRevoked) {
			t.Errorf("%s of a revoked key: %v", what, err)
		}
	}
	if r, err := s.RevokeKey(t.Context(), pgquota.KeyChange{ID: "k2", Actor: "admin"}); err != nil || r.Changed || r.Version != 3 {
		t.Errorf("revoked twice: %+v, %v", r, err)
	}
	if _, err := s.RevokeKey(t.Context(), pgquota.KeyChange{ID: "nobody", Actor: "admin"}); !errors.Is(err, pgquota.ErrKeyMissing) {
		t.Error(err)
	}
}

// A key's change waits for a change of its user that is under way, and finds the place after it; and the other way round.
func TestKeysChangeWaitsForItsUsers(t *testing.T) {
	s, db := newDB(t)
	put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID = new("a") }))
	newKey(t, s, "k1", "u1", "", tier.Overrides{})
	for _, lock := range []string{"user:u1", "org:b"} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))", lock); err != nil {
			t.Fatal(err)
		}
		done := make(chan pgquota.QuotaResult, 1)
		go func() {
			r, err := s.RotateKey(context.WithoutCancel(t.Context()), pgquota.KeyChange{ID: "k1", Actor: "admin"}, pgquota.SecretOf("tg-for-"+lock))
			if err != nil {
				t.Error(err)
			}
			done <- r
		}()
		waiting := func() (n int) {
			if err := db.QueryRow("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for deadline := time.Now().Add(10 * time.Second); waiting() == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the key's change did not wait", lock)
			}
		}
		// The user moves on, as far as the waiting change can see: it reads the place when it has the lock.
		if _, err := tx.Exec("UPDATE quotas SET org_id = 'b' WHERE subject = 'user:u1' AND $1 = 'user:u1'", lock); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("INSERT INTO org_quotas SELECT 'b', 0, 0, 0, 0, '[]', 3, 'UTC', false, 1, now(), now() WHERE $1 = 'org:b'", lock); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		r, n := <-done, map[string]int{"user:u1": 1, "org:b": 3}[lock]
		if f := r.Fences[len(r.Fences)-1]; !slices.Equal(f.Shards, sorted(subject.Spread(subject.Shard("b", user("u1")), n)...)) {
			t.Errorf("%s: %+v", lock, f)
		}
	}
}
