package decide

import (
	"context"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Payer is a subject, or an org with its pool, whose past usage is known: which scopes it was charged to, and where they lie.
type Payer struct {
	Scopes []limit.Scope // of its own, those that limit something
	Shard  int
	Spread limit.Spread // if the scopes are split
	Fences []limit.Fence

	groups []tier.ModelLimits // by scope; of all but model groups, empty
}

// PayerOf gives a subject's own scopes: of a key not those of its user, and of neither the org's pool, which others use, too.
func PayerOf(p tier.Plan) Payer {
	own := p
	own.Quotas = p.Quotas[:1]
	home, sp := spreadOf(p, uuid.Nil)
	out := Payer{Shard: home, Fences: fences(p)}
	if p.OrgID == "" {
		out.Spread = sp
	}
	out.add(subjects(own)[0], tier.ModelLimits{})
	for _, g := range p.Own().ModelLimits {
		for _, s := range groups(own, func(o tier.ModelLimits) bool { return o.Group == g.Group }) {
			out.add(s, g)
		}
	}
	return out
}

// PoolPayer gives the pool of an org.
func PoolPayer(o tier.Pool) Payer {
	p := tier.Plan{OrgID: o.OrgID, Pool: o}
	out := Payer{Shard: subject.Shard(o.OrgID, subject.Subject{}), Fences: []limit.Fence{{Name: tier.OrgName(o.OrgID), Version: o.Version}}}
	if o.Shards > 1 {
		out.Spread = limit.Spread{First: out.Shard, Shards: int(o.Shards)}
	}
	out.add(pool(p)[0], tier.ModelLimits{})
	return out
}

func (p *Payer) add(s limit.Scope, g tier.ModelLimits) {
	if len(s.Limits) > 0 {
		p.Scopes, p.groups = append(p.Scopes, s), append(p.groups, g)
	}
}

// Charged tells whether scope i was charged for a request: a group of models is, by the check for the model that was asked for, and by the record for
// the one that served.
func (p Payer) Charged(i int, served, asked string) bool {
	return p.Scopes[i].Kind != limit.ScopeModel || covers(p.groups[i], served) || covers(p.groups[i], asked)
}

// Carry makes the moves of a plan that was read elsewhere, as a load by Carrying does.
func Carry(ctx context.Context, p tier.Plan, to limit.Carrier) error {
	_, err := Carrying{Plans: known{p}, Carrier: to}.Plan(ctx, p.Subject)
	return err
}

// known gives a plan that was read before.
type known struct{ plan tier.Plan }

func (k known) Plan(context.Context, subject.Subject) (tier.Plan, error) { return k.plan, nil }
