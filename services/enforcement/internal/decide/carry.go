package decide

import (
	"context"
	"fmt"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Plans reads a plan from where it was sold.
type Plans interface {
	Plan(ctx context.Context, s subject.Subject) (tier.Plan, error)
}

// Carrying reads plans, and has the payer's consumption follow it to where the plan says that it is, before anybody decides by the plan.
//
// Carry is called once for each move of the last tier.MovesKept (25 h), oldest first, by one load after the other: moves that another load
// or instance has made already are asked for again. The scopes are all of the subject's own, those of its model groups included; the org's
// pool moves apart from them, and only when the org is spread over more or fewer shards, for a member takes nothing of it along.
// In a spread org what is a member's own lies in its home, limit.Spread.Home of the user's name (a key of an org: the key's); only the pool is
// split. A user, u1, that went from org a to org b by its version 7, and then b from 1 to 2 shards by its version 4:
//
//	{From: [a], To: [b],      Fence: {user:u1 7}, Scopes: [user:u1 user:u1/model:big]}
//	{From: [b], To: [b+1],    Fence: {org:b 4},   Scopes: [user:u1 user:u1/model:big]}  if b+1 is its home; else nothing moves
//	{From: [b], To: [b b+1],  Fence: {org:b 4},   Scopes: [org:b]}
//
// A user without an org that goes from 1 to 2 shards is split itself: {From: [u], To: [u u+1], Fence: {user:u1 8}, Scopes: […]}.
//
// An error fails the load: nobody decides where the old consumption isn't known. Cached plans go on; the next request tries again.
type Carrying struct {
	Plans
	Carrier limit.Carrier
}

// Plan reads a subject's plan and makes its moves.
func (c Carrying) Plan(ctx context.Context, s subject.Subject) (tier.Plan, error) {
	p, err := c.Plans.Plan(ctx, s)
	if err != nil {
		return p, err
	}
	for _, part := range []struct {
		moves  []tier.Move
		scopes []limit.Scope
	}{{p.Moves, append(subjects(p), groups(p, func(tier.ModelLimits) bool { return true })...)}, {p.PoolMoves, pool(p)}} {
		for _, m := range part.moves {
			r := limit.CarryRequest{From: m.From, To: m.To, Fence: limit.Fence{Name: m.Name, Version: m.Version}}
			for _, sc := range part.scopes {
				r.Scopes = append(r.Scopes, sc.Name)
			}
			if err := c.Carrier.Carry(ctx, r); err != nil {
				return tier.Plan{}, fmt.Errorf("carry what %s has used along with %s version %d: %w", s, m.Name, m.Version, err)
			}
		}
	}
	return p, nil
}
