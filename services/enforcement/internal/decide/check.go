package decide

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Reasons for a refusal that needs no counter. The others are the limiter's.
const (
	ReasonSuspended       = "suspended"
	ReasonModelNotAllowed = "model_not_allowed"
	ReasonContextTooLong  = "context_too_long"
)

// Request is one check, already validated: ids are well formed, tokens and their sum lie between 0 and limit.MaxAmount.
type Request struct {
	Subject     subject.Subject
	RequestID   uuid.UUID
	Model       string // as the client asked for it
	InputTokens int64
	MaxOutput   int64
	Split       bool // InputTokens is a count of the input; else it is an estimate of everything
	InputOnly   bool // reserve the input, let the stream pay for the output
	DryRun      bool
}

// cost is what the request reserves.
func (r Request) cost() limit.Amounts {
	if r.InputOnly {
		return limit.Usage(r.InputTokens, 0)
	}
	return limit.Usage(r.InputTokens, r.MaxOutput)
}

// refusal gives the reason that no counter is needed for, or "".
func refusal(q tier.Quota, r Request) string {
	switch {
	case q.Suspended:
		return ReasonSuspended
	case !q.Allows(r.Model):
		return ReasonModelNotAllowed
	case q.MaxContext > 0 && r.InputTokens+r.MaxOutput > q.MaxContext:
		return ReasonContextTooLong
	}
	return ""
}

// Scopes gives every scope that covers a subject's requests: its own, by its quota. An unlimited dimension has no limit.
func Scopes(s subject.Subject, q tier.Quota) []limit.Scope {
	own := limit.Scope{Kind: limit.ScopeUser, Name: s.String(), Slots: q.ConcurrentLimit}
	if s.Kind == subject.APIKey {
		own.Kind = limit.ScopeKey
	}
	for _, l := range []limit.Limit{
		{Counted: limit.Requests, Capacity: q.RPMLimit, Window: time.Minute},
		{Counted: limit.Tokens, Capacity: q.TPMLimit, Window: time.Minute},
		{Counted: limit.Tokens, Capacity: q.TPDLimit, Window: 24 * time.Hour},
	} {
		if l.Capacity > 0 {
			own.Limits = append(own.Limits, l)
		}
	}
	return []limit.Scope{own}
}

// fences names every version that a decision by q depends on.
func fences(s subject.Subject, q tier.Quota) []limit.Fence {
	return []limit.Fence{
		{Name: s.String(), Version: q.Version},
		{Name: redisfence.TierName(q.Tier), Version: q.TierVersion},
	}
}

// look asks for what is left, by a quota that is still the published one.
func look(s subject.Subject, q tier.Quota) limit.StatusRequest {
	return limit.StatusRequest{Shard: subject.Shard(q.OrgID, s), Scopes: Scopes(s, q), Fences: fences(s, q)}
}

// ask turns a request into the limiter's question.
func ask(r Request, q tier.Quota, lease time.Duration) (limit.CheckRequest, error) {
	meta, err := checkMetaOf(r, q)
	drawn := limit.Amounts{limit.Requests: 1}
	if r.Split {
		drawn = limit.Usage(r.InputTokens, 0)
	}
	return limit.CheckRequest{Shard: subject.Shard(q.OrgID, r.Subject), Subject: r.Subject, RequestID: r.RequestID, Scopes: Scopes(r.Subject, q),
		Cost: r.cost(), Drawn: drawn, Lease: lease, DryRun: r.DryRun, Fences: fences(r.Subject, q), Meta: meta, Away: limit.Away(q.RedisAway)}, err
}

// checkMeta is kept with the reservation: what the event of its end says about its beginning. Its names are short because Redis
// holds one for each request in flight.
type checkMeta struct {
	Tier           string `json:"t"`
	OrgID          string `json:"o,omitempty"`
	RequestedModel string `json:"q"`
	Input          *int64 `json:"i,omitempty"` // counted input tokens; absent where all was estimated together
}

func checkMetaOf(r Request, q tier.Quota) (string, error) {
	m := checkMeta{Tier: q.Tier, OrgID: q.OrgID, RequestedModel: r.Model}
	if r.Split {
		m.Input = &r.InputTokens
	}
	b, err := json.Marshal(m)
	return string(b), err
}

// Answer is what a check says. A refusal is an answer, too.
type Answer struct {
	Allowed      bool
	RequestID    uuid.UUID
	Model        string // served
	Reserved     int64  // tokens held: 0 for a refusal or a dry run
	RetryAfter   time.Duration
	Reason       string
	Scope        limit.ScopeKind // which scope refused; "" where no scope is to blame
	Rooms        []Room
	Tier         string
	QuotaVersion int64
	Degraded     bool
}

// decided is the answer that the limiter's decision gives.
func decided(r Request, q tier.Quota, d limit.Decision) Answer {
	a := Answer{Allowed: d.Allowed, RequestID: r.RequestID, Model: r.Model, Rooms: Rooms(d.Scopes), Tier: q.Tier, QuotaVersion: q.Version,
		Degraded: d.Degraded}
	switch {
	case !a.Allowed:
		a.Reason, a.Scope, a.RetryAfter = d.Reason, d.Scope, d.RetryAfter
	case !r.DryRun:
		a.Reserved = d.Reserved[limit.Tokens]
	}
	return a
}

// refusedBy is the answer to a request that needs no decision: no scope is to blame, and no wait helps.
func refusedBy(reason string, r Request, q tier.Quota, s limit.Status) Answer {
	return Answer{RequestID: r.RequestID, Model: r.Model, Reason: reason, Rooms: Rooms(s.Scopes), Tier: q.Tier, QuotaVersion: q.Version,
		Degraded: s.Degraded}
}
