package pgquota_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func TestPlansAndOrgsOfManyAreThoseOfEach(t *testing.T) {
	s, _ := newDB(t)
	putOrg(t, s, pool("acme", func(p *tier.Pool) { p.TPDLimit, p.Shards = 1000, 3 }))
	put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID, c.Own = new("acme"), tier.Overrides{TPDLimit: new(int64(300))} }))
	put(t, s, change("u1", func(c *pgquota.Change) { c.OrgID = new("") })) // a move
	put(t, s, change("u2", func(c *pgquota.Change) { c.OrgID = new("acme") }))
	newKey(t, s, "k1", "u2", "", tier.Overrides{TPMLimit: new(int64(60))})
	newKey(t, s, "k2", "", "acme", tier.Overrides{})
	var subs []subject.Subject
	for _, id := range []string{"u1", "u2", "nobody"} {
		subs = append(subs, subject.Subject{Kind: subject.User, ID: id})
	}
	subs = append(subs, apiKey("k1"), apiKey("k2"), apiKey("none"))
	plans, err := s.Plans(t.Context(), subs)
	if err != nil {
		t.Fatal(err)
	}
	for i, sub := range subs {
		if diff := cmp.Diff(plan(t, s, sub), plans[i]); diff != "" {
			t.Errorf("%s: %s", sub, diff)
		}
	}
	pools, err := s.Orgs(t.Context(), []string{"none", "acme"})
	if err != nil || len(pools) != 2 {
		t.Fatal(pools, err)
	}
	for i, id := range []string{"none", "acme"} {
		one, err := s.Org(t.Context(), id)
		if diff := cmp.Diff(one, pools[i]); err != nil || diff != "" {
			t.Errorf("%s: %s %v", id, diff, err)
		}
	}
	if plans, err := s.Plans(t.Context(), nil); err != nil || len(plans) != 0 {
		t.Error("of nobody: ", plans, err)
	}
}
