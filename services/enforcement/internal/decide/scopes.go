package decide

import (
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Scopes gives every scope that covers a subject's requests for a model: the key, the user, the model's groups, the org's pool. An unlimited
// dimension has no limit. Key, user and org are there even if nothing limits them: what is in flight is known when a limit comes.
func Scopes(p tier.Plan, model string) []limit.Scope {
	return append(append(subjects(p), groups(p, func(g tier.ModelLimits) bool { return covers(g, model) })...), pool(p)...)
}

// plainScopes are those that cover every request of the subject, whatever its model.
func plainScopes(p tier.Plan) []limit.Scope { return append(subjects(p), pool(p)...) }

// allScopes are those that may cover a request whose model isn't known here.
func allScopes(p tier.Plan) []limit.Scope {
	return append(append(subjects(p), groups(p, func(tier.ModelLimits) bool { return true })...), pool(p)...)
}

func covers(g tier.ModelLimits, model string) bool {
	_, in := tier.GroupOf([]tier.ModelLimits{g}, model)
	return in
}

func subjects(p tier.Plan) []limit.Scope {
	scopes := make([]limit.Scope, 0, 4)
	for _, q := range p.Quotas {
		kind := limit.ScopeUser
		if q.Subject.Kind == subject.APIKey {
			kind = limit.ScopeKey
		}
		scopes = append(scopes, limit.Scope{Kind: kind, Name: q.Subject.String(), Slots: q.ConcurrentLimit, Split: p.OrgID == "",
			Limits: limits(q.RPMLimit, q.TPMLimit, q.TPDLimit, q.Limits)})
	}
	return scopes
}

// groups gives the chosen groups of models; both a key's own and its user's may apply.
func groups(p tier.Plan, chosen func(tier.ModelLimits) bool) []limit.Scope {
	var scopes []limit.Scope
	for _, q := range p.Quotas {
		for _, g := range q.ModelLimits {
			if chosen(g) {
				scopes = append(scopes, limit.Scope{Kind: limit.ScopeModel, Name: groupName(q.Subject, g.Group), Slots: g.ConcurrentLimit, Split: p.OrgID == "",
					Limits: limits(g.RPMLimit, g.TPMLimit, g.TPDLimit, g.Limits)})
			}
		}
	}
	return scopes
}

// groupName is unique: no id holds a colon.
func groupName(s subject.Subject, group string) string { return s.String() + "/model:" + group }

func pool(p tier.Plan) []limit.Scope {
	if p.OrgID == "" {
		return nil
	}
	return []limit.Scope{{Kind: limit.ScopeOrg, Name: tier.OrgName(p.OrgID), Slots: p.Pool.ConcurrentLimit, Split: true,
		Limits: limits(p.Pool.RPMLimit, p.Pool.TPMLimit, p.Pool.TPDLimit, p.Pool.Limits)}}
}

var counted = map[string]limit.Counted{"requests": limit.Requests, "tokens": limit.Tokens, "input_tokens": limit.InputTokens, "output_tokens": limit.OutputTokens}

func limits(rpm, tpm, tpd int64, further []tier.Limit) []limit.Limit {
	var out []limit.Limit
	for _, l := range []limit.Limit{
		{Counted: limit.Requests, Capacity: rpm, Window: time.Minute},
		{Counted: limit.Tokens, Capacity: tpm, Window: time.Minute},
		{Counted: limit.Tokens, Capacity: tpd, Window: 24 * time.Hour},
	} {
		if l.Capacity > 0 {
			out = append(out, l)
		}
	}
	for _, l := range further {
		out = append(out, limit.Limit{Counted: counted[l.Counts], Capacity: l.Capacity, Window: l.Span()})
	}
	return out
}

// spreadOf tells over which shards the payer lies, and in which of them a request is decided. Of an org that is spread only the pool is split:
// a user and its keys have one home in it. A user without an org is split itself, so each of its requests has a home of its own.
func spreadOf(p tier.Plan, requestID uuid.UUID) (home int, sp limit.Spread) {
	if p.Shards() < 2 {
		return p.Shard(), limit.Spread{}
	}
	sp = limit.Spread{First: p.Shard(), Shards: p.Shards()}
	if p.OrgID == "" {
		return sp.Home(requestID.String()), sp
	}
	return sp.Home(p.Base().Subject.String()), sp
}

// fences names every version that a decision by the plan depends on.
func fences(p tier.Plan) []limit.Fence {
	var fs []limit.Fence
	for _, v := range p.Versions() {
		fs = append(fs, limit.Fence(v))
	}
	return fs
}
