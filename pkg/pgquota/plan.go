package pgquota

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Plan reads all that decides over a subject's requests, in one query, hence of one moment. An unknown user is on the free tier, an unknown
// key on the api tier, in no org. Error: ErrTierMissing, or Postgres could not be asked.
func (s *Store) Plan(ctx context.Context, sub subject.Subject) (tier.Plan, error) {
	var p tier.Plan
	err := s.read(ctx, func() error {
		var r planRow
		err := s.pool.QueryRow(ctx, sqlSelectPlan, sub.String(), keyID(sub), DefaultTier(sub.Kind), DefaultTier(subject.User), tier.MovesKept).Scan(r.targets()...)
		if err != nil {
			return err
		}
		p, err = r.plan(sub)
		return err
	})
	if err != nil {
		return tier.Plan{}, fmt.Errorf("read plan of %s: %w", sub, err)
	}
	return p, nil
}

// planRow is the row of select_plan.sql.
type planRow struct {
	own      currentQuota
	user     ownColumns
	userTier tierColumns
	orgID    string
	pool     orgColumns
	placings []placing
	shards   map[string]int64
}

func (r *planRow) targets() []any {
	all := append(append(r.own.targets(), r.user.targets()...), r.userTier.targets()...)
	return append(append(append(all, &r.orgID), r.pool.targets()...), &r.placings, &r.shards)
}

// placing is one element of the query's list of events.
type placing struct {
	Name          string
	Version       int64
	Before, After *json.RawMessage
}

func (e placing) placing() (tier.Placing, error) {
	p := tier.Placing{Name: e.Name, Version: e.Version, BeforeShards: 1, AfterShards: 1}
	for _, side := range []struct {
		from   *json.RawMessage
		org    *string
		shards *int64
	}{{e.Before, &p.BeforeOrg, &p.BeforeShards}, {e.After, &p.AfterOrg, &p.AfterShards}} {
		if side.from == nil {
			continue
		}
		st, err := stateFromJSON(*side.from)
		if err != nil {
			return p, err
		}
		if st == nil {
			continue
		}
		*side.org = st.OrgID
		if st.Shards != nil {
			*side.shards = *st.Shards
		}
	}
	if org, ok := strings.CutPrefix(e.Name, tier.OrgName("")); ok {
		p.BeforeOrg, p.AfterOrg = org, org
	}
	return p, nil
}

func (r *planRow) plan(sub subject.Subject) (tier.Plan, error) {
	if r.own.missesTier() || (r.own.ofUser() && r.userTier.name == nil) {
		return tier.Plan{}, ErrTierMissing
	}
	p := tier.Plan{Subject: sub, Quotas: []tier.Quota{r.own.entry(sub).Quota}, OrgID: r.orgID}
	if r.own.ofUser() {
		owner := subject.Subject{Kind: subject.User, ID: *r.own.key.userID}
		p.Quotas = append(p.Quotas, r.user.effective(owner, r.userTier.tier()))
	}
	if p.OrgID != "" {
		p.Pool = r.pool.pool(p.OrgID)
	}
	placings := make([]tier.Placing, len(r.placings))
	for i, e := range r.placings {
		var err error
		if placings[i], err = e.placing(); err != nil {
			return tier.Plan{}, fmt.Errorf("%s version %d: %w", e.Name, e.Version, err)
		}
	}
	p.Moves, p.PoolMoves = tier.Moves(p.Base().Subject, p.OrgID, p.Base().Shards, placings, r.shards)
	return p, nil
}
