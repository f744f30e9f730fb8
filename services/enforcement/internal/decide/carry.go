package decide

import (
	"context"
	"errors"
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
// The moves of the last tier.MovesKept (25 h) are carried as one, however many there are, unless another load or instance has done so already: that is asked
// of all scopes at once. The scopes are all of the subject's own, those of its model groups included; the org's
// pool moves apart from them, and only when the org is spread over more or fewer shards, for a member takes nothing of it along.
// In a spread org what is a member's own lies in its home, limit.Spread.Home of the user's name (a key of an org: the key's); only the pool is
// split. A user, u1, that went from org a to org b by its version 7, and then b from 1 to 2 shards by its version 4:
//
//	{Moves: [{From: [a], To: [b], Fence: {user:u1 7}}, {From: [b], To: [b+1], Fence: {org:b 4}}], Scopes: [user:u1 user:u1/model:big]}
//	{Moves: [{From: [b], To: [b b+1], Fence: {org:b 4}}], Scopes: [org:b]}
//
// The second move of the user's is there if b+1 is its home; else it stays in b. A user without an org that goes from 1 to 2 shards is split itself:
// {From: [u], To: [u u+1], Fence: {user:u1 8}}.
//
// An error fails the load: nobody decides where the old consumption isn't known. Cached plans go on; the next request tries again.
type Carrying struct {
	Plans
	Carrier limit.Carrier
}

// maxMoved is how often a plan is read again because its payer has moved on while it was carried along.
const maxMoved = 3

// Plan reads a subject's plan and makes its moves.
func (c Carrying) Plan(ctx context.Context, s subject.Subject) (tier.Plan, error) {
	for try := 1; ; try++ {
		p, err := c.Plans.Plan(ctx, s)
		if err != nil {
			return p, err
		}
		var stale *limit.StaleError
		switch err = c.carry(ctx, p); {
		case err == nil:
			return p, nil
		case !errors.As(err, &stale) || try == maxMoved:
			return tier.Plan{}, fmt.Errorf("carry what %s has used along: %w", s, err)
		}
	}
}

func (c Carrying) carry(ctx context.Context, p tier.Plan) error {
	moves := movesOf(p)
	if len(moves) == 0 {
		return nil
	}
	made, err := c.Carrier.Carried(ctx, moves)
	if err != nil {
		return err
	}
	for i, r := range moves {
		if made[i] {
			continue
		}
		if err := c.Carrier.Carry(ctx, r); err != nil {
			return fmt.Errorf("%s version %d: %w", r.Last().Fence.Name, r.Last().Fence.Version, err)
		}
	}
	return nil
}

// movesOf gives a plan's moves: its own, and its pool's.
func movesOf(p tier.Plan) []limit.CarryRequest {
	var out []limit.CarryRequest
	for _, part := range []struct {
		moves  []tier.Move
		scopes []limit.Scope
	}{{p.Moves, append(subjects(p), groups(p, func(tier.ModelLimits) bool { return true })...)}, {p.PoolMoves, pool(p)}} {
		if len(part.moves) == 0 {
			continue
		}
		r := limit.CarryRequest{Fences: fences(p)}
		for _, sc := range part.scopes {
			r.Scopes = append(r.Scopes, sc.Name)
		}
		for _, m := range part.moves {
			r.Moves = append(r.Moves, limit.Move{From: m.From, To: m.To, Fence: limit.Fence{Name: m.Name, Version: m.Version}})
		}
		out = append(out, r)
	}
	return out
}
