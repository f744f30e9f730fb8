package tier

import (
	"slices"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Plan is everything that decides over one subject's requests, read at one moment.
//
// A user has its quota and its org's pool. A key that a user owns has its own quota, which only narrows (an omitted limit is unlimited at the
// key's level, and it has no tier), then all that its owner has. A key that an org owns has a quota on a tier of its own, and the org's pool.
type Plan struct {
	Subject   subject.Subject
	Quotas    []Quota // the key's, if the subject is one; then the user's, if there is one. Never empty; the last one has the tier
	OrgID     string  // "" if none pays
	Pool      Pool    // of OrgID
	Moves     []Move  // of the subject's consumption, the oldest first, of the last MovesKept
	PoolMoves []Move  // of the pool's
}

// Version is what a decision depends on: it is refused once a newer version of what Name names has been published.
type Version struct {
	Name    string
	Version int64
}

// PlanOf is the plan of a subject with one quota: a user, or a key that no user owns.
func PlanOf(q Quota, pool Pool) Plan {
	return Plan{Subject: q.Subject, Quotas: []Quota{q}, OrgID: q.OrgID, Pool: pool}
}

// Own is the subject's own quota.
func (p Plan) Own() Quota { return p.Quotas[0] }

// Base is the quota that has the tier, the org and the priority: the owner's, for a key that a user owns.
func (p Plan) Base() Quota { return p.Quotas[len(p.Quotas)-1] }

// UserID is the user who is limited, or owns the key; "" for a key that no user owns.
func (p Plan) UserID() string {
	if s := p.Base().Subject; s.Kind == subject.User {
		return s.ID
	}
	return ""
}

// Suspended reports whether the key or its user is.
func (p Plan) Suspended() bool {
	for _, q := range p.Quotas {
		if q.Suspended {
			return true
		}
	}
	return false
}

// Allows reports whether every quota covers a model.
func (p Plan) Allows(model string) bool {
	for _, q := range p.Quotas {
		if !q.Allows(model) {
			return false
		}
	}
	return true
}

// MaxContext is the smallest of the quotas'; 0 if none limits it.
func (p Plan) MaxContext() int64 {
	var least int64
	for _, q := range p.Quotas {
		if q.MaxContext > 0 && (least == 0 || q.MaxContext < least) {
			least = q.MaxContext
		}
	}
	return least
}

// Shard is where the payer's keys lie, or the first of the Shards that they are spread over: subject.Spread(Shard, Shards). The payer is
// the org; without one the user, whoever of its keys asks; else the key itself.
func (p Plan) Shard() int { return subject.Shard(p.OrgID, p.Base().Subject) }

// Shards is how many hash slots the payer is spread over. Only the payer's counts.
func (p Plan) Shards() int {
	n := p.Base().Shards
	if p.OrgID != "" {
		n = p.Pool.Shards
	}
	return int(max(n, 1))
}

// Versions names all that a decision by this plan depends on: key, user, tier, org.
func (p Plan) Versions() []Version {
	vs := make([]Version, 0, 4)
	for _, q := range p.Quotas {
		vs = append(vs, Version{q.Subject.String(), q.Version})
		if q.Tier != "" {
			vs = append(vs, Version{"tier:" + q.Tier, q.TierVersion})
		}
	}
	if p.OrgID != "" {
		vs = append(vs, Version{OrgName(p.OrgID), p.Pool.Version})
	}
	return vs
}

// NewerThan reports whether p depends on a newer version of anything than the other plan of its subject, or on something else. (Who leaves an
// org has a newer version itself.)
func (p Plan) NewerThan(other Plan) bool {
	old := other.Versions()
	for _, v := range p.Versions() {
		if !slices.ContainsFunc(old, func(o Version) bool { return o.Name == v.Name && o.Version >= v.Version }) {
			return true
		}
	}
	return false
}

// OrgName is an org's name in events, fences and scopes.
func OrgName(orgID string) string { return "org:" + orgID }
