package limit

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// MaxAmount is the largest capacity, cost or count: 2^53-1, up to which Lua's numbers are exact.
const MaxAmount int64 = 1<<53 - 1

// MaxWindow is the longest window. Up to it the drain of one window is exact in Lua's numbers: 86,400,000² < 2^53.
const MaxWindow = 24 * time.Hour

// Counted is what a limit counts.
type Counted int

// What can be counted. Tokens is input and output together.
const (
	Requests Counted = iota
	Tokens
	InputTokens
	OutputTokens
	countedKinds
)

// Amounts is how much of each Counted something costs or used.
type Amounts [countedKinds]int64

// Usage gives the amounts of one request with so many tokens.
func Usage(input, output int64) Amounts {
	return Amounts{Requests: 1, Tokens: input + output, InputTokens: input, OutputTokens: output}
}

// Limit is one bucket: at most Capacity of Counted, drained at Capacity per Window. Capacity 0 is not a limit: leave it out.
type Limit struct {
	Counted  Counted
	Capacity int64
	Window   time.Duration // whole milliseconds, up to MaxWindow
}

// Reasons for a refusal that no Limit names.
const (
	ReasonConcurrent      = "concurrent"
	ReasonRequestTooLarge = "request_too_large"
)

var shortNames = [countedKinds]string{"r", "t", "it", "ot"}
var longNames = [countedKinds]string{"requests", "tokens", "input_tokens", "output_tokens"}

func windowName(w time.Duration) (short, long string) {
	switch w {
	case time.Minute:
		return "pm", "1m"
	case time.Hour:
		return "ph", "1h"
	case 24 * time.Hour:
		return "pd", "1d"
	}
	s := fmt.Sprintf("%dms", w.Milliseconds())
	return "p" + s, s
}

// Name is the reason code of a refusal by this limit: rpm, tpm, tpd, rpd, itpm, otpm …
func (l Limit) Name() string {
	short, _ := windowName(l.Window)
	return shortNames[l.Counted] + short
}

// Dimension is the limit's name in answers: requests, tokens_1m, tokens_1d, requests_1d, input_tokens_1m …
func (l Limit) Dimension() string {
	if l.Counted == Requests && l.Window == time.Minute {
		return "requests"
	}
	_, long := windowName(l.Window)
	return longNames[l.Counted] + "_" + long
}

// ScopeKind is a place where limits apply.
type ScopeKind string

// The kinds of scope of DESIGN §2.
const (
	ScopeKey   ScopeKind = "key"
	ScopeUser  ScopeKind = "user"
	ScopeModel ScopeKind = "model"
	ScopeOrg   ScopeKind = "org"
)

// Scope is a key and a list of limits. Name is unique among all scopes ("user:u1", "org:o1"). Slots is how many reservations may be
// open in it at once; 0 is unlimited.
type Scope struct {
	Kind   ScopeKind
	Name   string
	Limits []Limit
	Slots  int64
	Split  bool // over the shards of the request's Spread, if it has one

	lent     []int64 // what other shards have lent, by limit: it is not charged here
	loans    []Loan  // by whom, for whoever gives back what was not used
	slotLent bool    // the slot is another shard's,
	slotAt   int     // this one's
	bare     []bool  // by limit: this shard has no share of it
	slotless bool    // this shard has no share of the slots
	own      bool    // its limits aren't known: those that its state has
}

// Lent is what other shards lend to the scope in one check: nil, or an amount for each limit.
func (s Scope) Lent() []int64 { return s.lent }

// Loan is what a shard has lent to a scope, by limit.
type Loan struct {
	Shard   int
	Amounts []int64
}

// Loans are those of this check or consume.
func (s Scope) Loans() []Loan { return s.loans }

// SlotAt tells which other shard holds the scope's slot, if one does.
func (s Scope) SlotAt() (shard int, lent bool) { return s.slotAt, s.slotLent }

// Own says that the scope's limits aren't known to whoever ends a request: its state names them.
func (s Scope) Own() bool { return s.own }

// OwnScope is a scope whose limits aren't known.
func OwnScope(s Scope) Scope {
	s.Limits, s.own = nil, true
	return s
}

// Fence refuses a decision made with an old quota: it passes only while no newer version of what Name names was published.
type Fence struct {
	Name    string // "user:u1", "tier:plus"
	Version int64
}

// StaleError says that a decision was asked for with an old version. Nothing was consumed: reload what Name names, then try again.
type StaleError struct {
	Name      string
	Published int64
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%s was changed: version %d is published", e.Name, e.Published)
}

// CheckRequest asks for one reservation in all of its scopes at once.
type CheckRequest struct {
	Shard     int // subject.Shard of the payer, or the request's Home in Spread: the scopes' keys all lie there
	Spread    Spread
	Subject   subject.Subject
	RequestID uuid.UUID
	Scopes    []Scope
	Cost      Amounts
	Lease     time.Duration // of the slot and the reservation, ending at a whole second; DefaultLease if 0
	DryRun    bool          // answer, change nothing
	Fresh     bool          // RequestID was made for this call: nobody has used it, and nothing is looked up by it
	Known     bool          // answer if it was granted before (Repeated), else grant nothing
	Earlier   []int         // where else it may have been granted: the shards that its payer has left
	Fences    []Fence
	Drawn     Amounts // the part of Cost that is spent from the start, such as the prompt; Consume draws from the rest
	Meta      string  // kept with the reservation for whoever ends it; opaque here
	Away      Away    // what it meets while the store can't be asked; AwayLocal if ""
}

// Away is what a check meets while the store of the limiter can't be asked. A limiter that has no store doesn't read it.
type Away string

// Decide in process memory, let it pass uncounted (what it used is counted later), or give an error.
const (
	AwayLocal  Away = "local"
	AwayOpen   Away = "open"
	AwayClosed Away = "closed"
)

// DefaultLease is how long a caller may be silent before its slot returns by itself.
const DefaultLease = 600 * time.Second

// DefaultTombstone is how long a settled reservation is remembered once its event is durable.
const DefaultTombstone = 10 * time.Minute

// Retention is how long a reservation is remembered whose lease has ended, or whose event is not known to be durable.
const Retention = 7 * 24 * time.Hour

// EmitGrace is how long whoever settled a reservation has for making its event durable before Due offers it to others.
const EmitGrace = 10 * time.Second

// SlotHint is the wait that a refusal for want of a slot advises.
const SlotHint = time.Second

// Decision is the answer to a check. A refusal is a Decision too, and changed no counter.
type Decision struct {
	Allowed    bool
	Repeated   bool          // the request id was granted before: the same answer, nothing charged again
	Reason     string        // of a refusal: a Limit's Name, ReasonConcurrent or ReasonRequestTooLarge
	Scope      ScopeKind     // which scope refused
	RetryAfter time.Duration // exact, whole milliseconds; 0 when allowed or when no wait helps
	At         time.Time     // the limiter's clock when it decided
	Reserved   Amounts       // what the granted request holds; for a repeat, what was granted first
	LeaseUntil time.Time     // zero if refused, or settled meanwhile
	Scopes     []ScopeState  // in the request's order, after the decision
	Degraded   bool          // decided without the store
}

// ScopeState is what is left in a scope.
type ScopeState struct {
	Kind   ScopeKind
	Name   string
	Limits []LimitState // in the scope's order
	Slots  int64        // capacity, 0: unlimited
	InUse  int64        // open reservations
}

// LimitState is one bucket's state. Remaining is floored and never negative. ResetAt is when the bucket is full again.
type LimitState struct {
	Limit
	Remaining int64
	ResetAt   time.Time

	bucket bucket
}

// SettleRequest ends a reservation with what was used: in every scope that the reservation holds, wherever the scope's state lies now, whether or
// not the subject still has it. Scopes are those that the subject has now, as far as the caller knows. A model's group among them that the check did not
// reserve in is charged in full, for another model may have been served; another payer is not. If no reservation is known all of them are
// charged. A bucket that exists keeps its capacity: a settle by an old quota puts back no old one, and needs no Fences.
//
// A *StaleError says that a scope is on its way to where its payer has moved: reload what it names, which carries it there, then try again, or
// have it ended Anyway.
type SettleRequest struct {
	Shard     int
	Earlier   []int // as in a CheckRequest
	Spread    Spread
	Subject   subject.Subject
	RequestID uuid.UUID
	Scopes    []Scope
	Actual    Amounts
	Meta      string // replaces the reservation's; given back to a repeat
	Known     bool   // change nothing if the reservation is unknown here
	Anyway    bool   // a scope that is still on its way is passed over: what it holds drains

	// Age is how long ago it was used, if that could not be told at once. Where nothing was held for it, what has drained of it meanwhile is not
	// debited: an outage of an hour is no reason to refuse a minute's limit for an hour. To the millisecond.
	Age time.Duration
}

// CancelRequest takes back an open reservation as if it had never been granted.
type CancelRequest struct {
	Shard     int
	Earlier   []int // as in a CheckRequest
	Spread    Spread
	Subject   subject.Subject
	RequestID uuid.UUID
	Scopes    []Scope // those of the check, as far as the caller knows
	Meta      string  // of the check; if given, a reservation that another check has made meanwhile, with another meta, stays
}

// SettleStatus tells what a settle met.
type SettleStatus string

// A settle meets an open reservation, one that has ended (nothing is changed), or none (debited in full).
const (
	Settled        SettleStatus = "settled"
	AlreadySettled SettleStatus = "already_settled"
	Unknown        SettleStatus = "unknown"
)

// Settlement is the answer to a settle.
type Settlement struct {
	Status    SettleStatus
	At        time.Time // the limiter's clock now
	CheckedAt time.Time // when the reservation was made; zero if Unknown
	Reserved  Amounts
	LeaseWas  time.Time // when the lease that was settled would have ended; zero if AlreadySettled or Unknown
	CheckMeta string    // the Meta of the check; "" once Emitted or if Unknown
	Meta      string    // the Meta of the settle that counted: the request's own, or the first one's if AlreadySettled
	Emitted   bool      // MarkEmitted was called: its event is durable
	Degraded  bool      // made without the store, and applied to it later
	Shard     int       // where the reservation was found; MarkEmitted asks for it
	Charged   []bool    // by scope of the request: it was charged in Shard; nil if nothing was charged by this call
}

// ConsumeRequest draws output tokens of an open reservation while they are produced, and renews its lease. Scopes and Fences are those of a
// check. What goes beyond the reservation is drawn from every scope that it holds, wherever the scope's state lies now; one that is not among Scopes
// any more is charged, and stops nothing.
type ConsumeRequest struct {
	Shard     int
	Earlier   []int // as in a CheckRequest
	Spread    Spread
	Subject   subject.Subject
	RequestID uuid.UUID
	Scopes    []Scope
	Tokens    int64
	Lease     time.Duration // from now; DefaultLease if 0
	Fences    []Fence
	Known     bool // asks whether there is a reservation: one that can't be looked for is unknown. Else it is taken for one that goes on
}

// Consumption is the answer to a consume.
type Consumption struct {
	Status     ReservationStatus
	Allowed    bool          // the tokens were drawn: from the reservation, and from the buckets once that is used up
	Reason     string        // why not, as in a Decision; "" if the reservation isn't open
	Scope      ScopeKind     // which scope refused
	RetryAfter time.Duration // as in a Decision
	At         time.Time
	LeaseUntil time.Time // renewed, also when nothing could be drawn; zero if the reservation isn't open
	LeaseWas   time.Time // when it would have ended before; zero likewise
	CheckMeta  string    // the Meta of the check, of an open reservation
	Scopes     []ScopeState
	Degraded   bool // drawn without the store

	extra Amounts // what the buckets had to give
}

// ReservationStatus tells in which state a consume found its reservation.
type ReservationStatus string

// A reservation is open until it is settled or has expired.
const (
	ReservationOpen    ReservationStatus = "open"
	ReservationEnded   ReservationStatus = "ended"
	ReservationUnknown ReservationStatus = "unknown"
)

// DueRequest asks for what must be emitted in one shard: reservations whose lease has ended, which expire by this call, and settled ones
// whose event has not become durable within EmitGrace.
type DueRequest struct {
	Shard int
	Most  int    // about how many at a time
	Meta  string // the settle's Meta of those that expire now
}

// Due is one ended reservation whose event must be made durable, then noted by MarkEmitted. It is offered again after EmitGrace until
// that is done, to any instance that asks.
type Due struct {
	Subject   subject.Subject
	RequestID uuid.UUID
	Settlement
}

// StatusRequest reads scopes without changing them. Fences are those of a check: what is told is by the quota of the moment.
type StatusRequest struct {
	Shard  int
	Spread Spread
	Scopes []Scope
	Fences []Fence
}

// Status is what is left now.
type Status struct {
	At       time.Time
	Scopes   []ScopeState
	Degraded bool // looked at without the store
}

// Limiter decides. Both implementations, Memory and redisbucket, pass the same conformance suite (limittest) and give the same
// answers to the same sequence of calls.
//
// Errors are failures, never denials: *StaleError, or the store could not be asked. After an error of Check the caller doesn't know
// whether the reservation was made; checking again with the same RequestID is safe.
type Limiter interface {
	Check(ctx context.Context, r CheckRequest) (Decision, error)
	Settle(ctx context.Context, r SettleRequest) (Settlement, error)
	Consume(ctx context.Context, r ConsumeRequest) (Consumption, error)
	// Cancel is for a check whose answer nobody got, and for nothing that was served: no event, and the id is free again. false: there is no open
	// reservation, nothing was changed.
	Cancel(ctx context.Context, r CancelRequest) (bool, error)
	// Due gives what must be emitted, in any order. An expired reservation's tokens stay consumed; its slots are free.
	Due(ctx context.Context, r DueRequest) ([]Due, error)
	// MarkEmitted notes that the event of a settled reservation is durable, so that a repeated settle needn't emit it again.
	MarkEmitted(ctx context.Context, shard int, s subject.Subject, requestID uuid.UUID) error
	Status(ctx context.Context, r StatusRequest) (Status, error)
}
