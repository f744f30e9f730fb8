package decide

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
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
	Fresh       bool   // RequestID was made for this request, by this service
	Model       string // as the client asked for it
	InputTokens int64
	MaxOutput   int64
	Split       bool // InputTokens is a count of the input; else it is an estimate of everything
	InputOnly   bool // reserve the input, let the stream pay for the output
	DryRun      bool

	served string // what is served instead of Model; "" for Model itself
}

// serves is the model that is served, by whose limits the request is checked.
func (r Request) serves() string { return cmp.Or(r.served, r.Model) }

// cost is what the request reserves.
func (r Request) cost() limit.Amounts {
	if r.InputOnly {
		return limit.Usage(r.InputTokens, 0)
	}
	return limit.Usage(r.InputTokens, r.MaxOutput)
}

// refusal gives the reason that no counter is needed for, or "".
func refusal(p tier.Plan, r Request) string {
	switch most := p.MaxContext(); {
	case p.Suspended():
		return ReasonSuspended
	case !p.Allows(r.Model):
		return ReasonModelNotAllowed
	case most > 0 && r.InputTokens+r.MaxOutput > most:
		return ReasonContextTooLong
	}
	return ""
}

// ask turns a request into the limiter's question.
func ask(r Request, p tier.Plan, lease time.Duration) (limit.CheckRequest, error) {
	meta, err := checkMetaOf(r, p)
	drawn := limit.Amounts{limit.Requests: 1}
	if r.Split {
		drawn = limit.Usage(r.InputTokens, 0)
	}
	home, sp := spreadOf(p, r.RequestID)
	return limit.CheckRequest{Shard: home, Earlier: earlier(p, r.RequestID), Spread: sp, Subject: r.Subject, RequestID: r.RequestID, Fresh: r.Fresh, Scopes: Scopes(p, r.serves()),
		Cost: r.cost(), Drawn: drawn, Lease: lease, DryRun: r.DryRun, Fences: fences(p), Meta: meta, Away: limit.Away(p.Base().RedisAway)}, err
}

// checkMeta is kept with the reservation: what the event of its end says about its beginning. Its names are short because Redis
// holds one for each request in flight.
type checkMeta struct {
	Tier           string `json:"t"`
	OrgID          string `json:"o,omitempty"`
	Owner          string `json:"u,omitempty"` // the user who owns the key
	RequestedModel string `json:"q"`
	Served         string `json:"m,omitempty"` // if it is another one
	Input          *int64 `json:"i,omitempty"` // counted input tokens; absent where all was estimated together
	Attempt        string `json:"n,omitempty"` // of this check among those with the same request id: who takes one back takes no other
}

func checkMetaOf(r Request, p tier.Plan) (string, error) {
	m := checkMeta{Tier: p.Base().Tier, OrgID: p.OrgID, Owner: ownerOf(p), RequestedModel: r.Model, Served: r.served, Attempt: strconv.FormatUint(rand.Uint64(), 36)} //nolint:gosec // tells attempts apart, nothing to guess
	if r.Split {
		m.Input = &r.InputTokens
	}
	b, err := json.Marshal(m)
	return string(b), err
}

// ownerOf is the user who owns the subject, if it is a key; "" for a user, who is its own.
func ownerOf(p tier.Plan) string {
	if p.Subject.Kind == subject.User {
		return ""
	}
	return p.UserID()
}

// Answer is what a check says. A refusal is an answer, too.
type Answer struct {
	Allowed      bool
	RequestID    uuid.UUID
	Model        string        // served
	Reserved     int64         // tokens held: 0 for a refusal or a dry run
	Lease        time.Duration // for which the slot is kept from now on, by the clock that keeps it; 0 if nothing is held
	RetryAfter   time.Duration
	Reason       string
	Scope        limit.ScopeKind // which scope refused; "" where no scope is to blame
	Rooms        []Room
	Tier         string
	QuotaVersion int64
	Degraded     bool
}

// decided is the answer that the limiter's decision gives.
func decided(r Request, p tier.Plan, d limit.Decision) Answer {
	a := Answer{Allowed: d.Allowed, RequestID: r.RequestID, Model: r.serves(), Rooms: Rooms(d.Scopes), Tier: p.Base().Tier, QuotaVersion: p.Own().Version,
		Degraded: d.Degraded}
	switch {
	case !a.Allowed:
		a.Reason, a.Scope, a.RetryAfter = d.Reason, d.Scope, d.RetryAfter
	case !r.DryRun:
		a.Reserved, a.Lease = d.Reserved[limit.Tokens], max(d.LeaseUntil.Sub(d.At), 0)
	}
	return a
}

// refusedBy is the answer to a request that needs no decision: no scope is to blame, and no wait helps.
func refusedBy(reason string, r Request, p tier.Plan, s limit.Status) Answer {
	return Answer{RequestID: r.RequestID, Model: r.serves(), Reason: reason, Rooms: Rooms(s.Scopes), Tier: p.Base().Tier, QuotaVersion: p.Own().Version,
		Degraded: s.Degraded}
}
