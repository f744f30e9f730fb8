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
// Carry is called for each move of the last tier.MovesKept (25 h), oldest first, by one load after the other, unless another load or instance has made it
// already: that is asked of all of them at once, for a payer may have made hundreds. The scopes are all of the subject's own, those of its model groups included; the org's
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
	moves := movesOf(p)
	if len(moves) == 0 {
		return p, nil
	}
	made, err := c.Carrier.Carried(ctx, moves)
	if err != nil {
		return tier.Plan{}, fmt.Errorf("look whether what %s has used was carried along: %w", s, err)
	}
	for i, r := range moves {
		if made[i] {
			continue
		}
		if err := c.Carrier.Carry(ctx, r); err != nil {
			return tier.Plan{}, fmt.Errorf("carry what %s has used along with %s version %d: %w", s, r.Fence.Name, r.Fence.Version, err)
		}
	}
	return p, nil
}

// movesOf gives a plan's moves, those of each scope oldest first.
func movesOf(p tier.Plan) []limit.CarryRequest {
	var out []limit.CarryRequest
	for _, part := range []struct {
		moves  []tier.Move
		scopes []limit.Scope
	}{{p.Moves, append(subjects(p), groups(p, func(tier.ModelLimits) bool { return true })...)}, {p.PoolMoves, pool(p)}} {
		names := make([]string, len(part.scopes))
		for i, sc := range part.scopes {
			names[i] = sc.Name
		}
		for _, m := range part.moves {
			out = append(out, limit.CarryRequest{From: m.From, To: m.To, Fence: limit.Fence{Name: m.Name, Version: m.Version}, Scopes: names})
		}
	}
	return out
}
