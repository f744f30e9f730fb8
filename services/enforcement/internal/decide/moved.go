package decide

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// A reservation stays where it was made when its payer moves; what it holds is carried along (Carrying). So a request that isn't known where
// its payer is now is looked for where the payer was. The pool of an org that was left keeps what was reserved of it until it has drained.

// place is where a request may lie that was granted before its payer moved. Its scopes have no limits: they are counted where the payer is.
type place struct {
	shard  int
	spread limit.Spread
	scopes []limit.Scope
}

// earlier gives the places that the payer has left in the last tier.MovesKept, the last one first.
func earlier(p tier.Plan, requestID uuid.UUID) []place {
	var out []place
	for _, m := range slices.Backward(p.Moves) {
		at := place{shard: m.From[0], scopes: append(subjects(p), groups(p, func(tier.ModelLimits) bool { return true })...)}
		if len(m.From) > 1 {
			at.spread = limit.Spread{First: m.From[0], Shards: len(m.From)}
			at.shard = at.spread.Home(requestID.String())
		}
		if m.FromOrg != "" {
			at.scopes = append(at.scopes, limit.Scope{Kind: limit.ScopeOrg, Name: tier.OrgName(m.FromOrg)})
		}
		for i := range at.scopes {
			at.scopes[i].Limits, at.scopes[i].Split = nil, m.FromOrg == "" || at.scopes[i].Kind == limit.ScopeOrg
		}
		out = append(out, at)
	}
	return out
}

// shardMover moves room between shards; the limiters on a store can.
type shardMover interface {
	Transfer(ctx context.Context, r limit.TransferRequest) (limit.Transferred, error)
}

// settleWhereItLies settles a request and tells in which shard it was found.
func (e *Engine) settleWhereItLies(ctx context.Context, p tier.Plan, r limit.SettleRequest) (int, limit.Settlement, error) {
	old := earlier(p, r.RequestID)
	r.Known = len(old) > 0
	s, err := e.limiter.Settle(ctx, r)
	if err != nil || s.Status != limit.Unknown || !r.Known {
		return r.Shard, s, err
	}
	for _, at := range old {
		there := r
		there.Shard, there.Spread, there.Scopes = at.shard, at.spread, at.scopes
		s, err := e.limiter.Settle(ctx, there)
		if err != nil {
			return at.shard, s, err
		}
		if s.Status == limit.Settled {
			return at.shard, s, e.follow(ctx, r, s)
		}
		if s.Status != limit.Unknown {
			return at.shard, s, nil
		}
	}
	r.Known = false
	s, err = e.limiter.Settle(ctx, r)
	return r.Shard, s, err
}

// follow settles the difference where the reservation's amounts have been carried to. If it fails the difference is lost; a repeat finds
// the request settled.
func (e *Engine) follow(ctx context.Context, r limit.SettleRequest, s limit.Settlement) error {
	var difference limit.Amounts
	for c := range difference {
		difference[c] = r.Actual[c] - s.Reserved[c]
	}
	return e.moveAlong(ctx, r.Shard, r.Scopes, difference, s.LeaseWas, time.Time{})
}

// moveAlong charges what has been carried to a shard, and drops or renews its slot. An org's pool has held nothing of it.
func (e *Engine) moveAlong(ctx context.Context, shard int, scopes []limit.Scope, difference limit.Amounts, drop, take time.Time) error {
	t, ok := e.limiter.(shardMover)
	if !ok {
		return nil
	}
	r := limit.TransferRequest{Shard: shard}
	for _, sc := range scopes {
		if sc.Kind == limit.ScopeOrg {
			continue
		}
		r.Add(sc, limit.Line{Amounts: sc.Counted(difference), Drop: drop, Take: take, Debt: true})
	}
	if _, err := t.Transfer(ctx, r); err != nil {
		return fmt.Errorf("follow the payer to where it has moved: %w", err)
	}
	return nil
}

// consumeWhereItLies draws for a stream, wherever it was let in. Where its payer has left, its draws beyond the reservation are counted by the
// record.
func (e *Engine) consumeWhereItLies(ctx context.Context, p tier.Plan, r limit.ConsumeRequest) (limit.Consumption, error) {
	c, err := e.limiter.Consume(ctx, r)
	for _, at := range earlier(p, r.RequestID) {
		if err != nil || c.Status != limit.ReservationUnknown {
			return c, err
		}
		there := r
		there.Shard, there.Spread, there.Scopes = at.shard, at.spread, at.scopes
		found, failed := e.limiter.Consume(ctx, there)
		if err = failed; found.Status != limit.ReservationUnknown {
			found.Scopes = c.Scopes // what is left where the payer is now
			c = found
			if err == nil && c.Status == limit.ReservationOpen {
				err = e.moveAlong(ctx, r.Shard, r.Scopes, limit.Amounts{}, c.LeaseWas, c.LeaseUntil)
			}
		}
	}
	return c, err
}
