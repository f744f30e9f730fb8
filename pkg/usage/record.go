package usage

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// SchemaVersion is the version of the record's JSON Schema that this code writes.
const SchemaVersion = 1

// MaxTokens is the largest token count: 2^53-1, up to which JSON numbers are exact everywhere.
const MaxTokens int64 = 1<<53 - 1

// MinYear and MaxYear are the first and the last year of an event. ClickHouse's DateTime ends in 2106: a later one would land in another
// period.
const (
	MinYear = 2000
	MaxYear = 2100
)

// CheckYear tells why an instant can't be told apart in the ledger; nil if it can.
func CheckYear(at time.Time) error {
	if y := at.UTC().Year(); y < MinYear || y > MaxYear {
		return fmt.Errorf("must lie between the years %d and %d", MinYear, MaxYear)
	}
	return nil
}

// instant is the form of RFC 3339; whether the numbers are a day's is for time.Parse.
var instant = regexp.MustCompile(`^[0-9-]{10}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`)

// ParseInstant reads an instant that somebody wrote, for every API and the command line: strictly by RFC 3339 (time.Parse takes more), of the years
// that the ledger knows. The error is fit for whoever wrote it.
func ParseInstant(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !instant.MatchString(text) {
		return time.Time{}, errors.New("must be an RFC 3339 instant, such as 2026-01-02T10:30:00Z")
	}
	if err := CheckYear(at); err != nil {
		return time.Time{}, err
	}
	return at, nil
}

// Outcome tells how a request ended.
type Outcome string

// The outcomes of DESIGN §6.
const (
	Completed  Outcome = "completed"
	Cancelled  Outcome = "cancelled"  // the client left; what was produced is billed
	Failed     Outcome = "failed"     // the upstream failed; what was produced is billed
	Expired    Outcome = "expired"    // the caller died; the reserved tokens stay consumed
	Rejected   Outcome = "rejected"   // refused before it used anything
	Adjustment Outcome = "adjustment" // corrects an earlier event
)

// Reservation tells what the record settled.
type Reservation string

// The reservations of DESIGN §6. A rejection has none ("").
const (
	Held     Reservation = "held"
	Missing  Reservation = "missing"  // no reservation was known: debited in full
	Degraded Reservation = "degraded" // granted while Redis was away
)

// Kind separates the events that one request may leave behind.
type Kind string

// A request leaves at most one usage event, whatever its outcome, and perhaps a rejection from an earlier try with the same id.
const (
	KindUsage      Kind = "usage"
	KindRejection  Kind = "rejection"
	KindAdjustment Kind = "adjustment" // its request id is the adjustment's own
)

// Record is one UsageRecord, field by field as DESIGN §6 lists them. Tokens are counts, LatencyMS milliseconds, Timestamp the
// moment of the check in UTC with milliseconds.
type Record struct {
	EventID           uuid.UUID   `json:"event_id"`
	SchemaVersion     int         `json:"schema_version"`
	UserID            string      `json:"user_id"`
	APIKeyID          string      `json:"api_key_id"`
	OrgID             string      `json:"org_id"`
	Tier              string      `json:"tier"`
	RequestID         uuid.UUID   `json:"request_id"`
	RequestedModel    string      `json:"requested_model"`
	Model             string      `json:"model"`
	InputTokens       int64       `json:"input_tokens"`
	OutputTokens      int64       `json:"output_tokens"`
	CachedInputTokens int64       `json:"cached_input_tokens"` // part of InputTokens
	ReservedTokens    int64       `json:"reserved_tokens"`
	LatencyMS         int64       `json:"latency_ms"`
	Timestamp         Time        `json:"timestamp"`
	WasRateLimited    bool        `json:"was_rate_limited"`
	Reason            string      `json:"reason"`
	Scope             string      `json:"scope"` // which scope refused: key, user, model or org; "" if none did
	Outcome           Outcome     `json:"outcome"`
	Reservation       Reservation `json:"reservation"`
	Estimated         bool        `json:"estimated"`
	Region            string      `json:"region"`
	Instance          string      `json:"instance"`
	CorrectsEventID   uuid.UUID   `json:"corrects_event_id,omitzero"` // the event that an adjustment corrects; nil in all others
}

// eventNamespace is hashed into every event id. Changing it, or anything else below, would bill every replayed event twice.
const eventNamespace = "dev.tollgate.usage.event.v1"

// EventID derives the id of the event of one kind that a subject's request leaves: a UUIDv8. The subject is part of it, so that two
// callers that pick the same request id are still billed each.
//
// All but 32 bits are SHA-256 of namespace, kind, subject and request id. The 32 are the request id's own bits 6 to 37, at the head of
// the second half, which ClickHouse compares first: of a UUIDv7 they are its time in units of 1.024 s, until the year 2109. So the ids
// of requests of one time lie side by side in the ledger, and to look up fresh ones takes as long in a full ledger as in an empty one.
// Ids of another version are as good, but lie anywhere.
func EventID(s subject.Subject, requestID uuid.UUID, k Kind) uuid.UUID {
	sum := sha256.Sum256([]byte(eventNamespace + "|" + string(k) + "|" + s.String() + "|" + requestID.String()))
	id := uuid.UUID(sum[:16])
	seconds := uint32(binary.BigEndian.Uint64(requestID[:8]) >> 26) // of 64 bits the first 6 and the last 26 go
	low := binary.BigEndian.Uint64(id[8:]) & (1<<30 - 1)
	binary.BigEndian.PutUint64(id[8:], 0b10<<62|uint64(seconds)<<30|low) // 0b10: the variant of RFC 9562
	id[6] = id[6]&0x0f | 0x80                                            // version 8
	return id
}

// Subject is who used it: the API key if there was one, else the user.
func (r Record) Subject() subject.Subject {
	if r.APIKeyID != "" {
		return subject.Subject{Kind: subject.APIKey, ID: r.APIKeyID}
	}
	return subject.Subject{Kind: subject.User, ID: r.UserID}
}

// Key is the Kafka key: the org or, without one, the subject. All of one payer's events stay in order in one partition.
func (r Record) Key() string {
	if r.OrgID != "" {
		return "org:" + r.OrgID
	}
	return r.Subject().String()
}

var reasonForm = regexp.MustCompile(`^([a-z][a-z0-9_]{0,63})?$`)

// Validate tells every field that breaks the contract, joined; nil if none does.
func (r Record) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if r.EventID == uuid.Nil {
		bad("event_id", "must be a UUID other than nil")
	}
	if r.RequestID == uuid.Nil {
		bad("request_id", "must be a UUID other than nil")
	}
	if r.SchemaVersion != SchemaVersion {
		bad("schema_version", "is %d, only %d is known", r.SchemaVersion, SchemaVersion)
	}
	if r.UserID == "" && r.APIKeyID == "" {
		bad("user_id", "one of user_id and api_key_id must be given")
	}
	for _, f := range []struct{ name, id string }{{"user_id", r.UserID}, {"api_key_id", r.APIKeyID}, {"org_id", r.OrgID}, {"tier", r.Tier}} {
		if f.id != "" {
			if err := subject.ValidateID(f.id); err != nil {
				bad(f.name, "%v", err)
			}
		}
	}
	least := int64(0)
	if r.Outcome == Adjustment {
		least = -MaxTokens // it may take back what an earlier event billed
	}
	for _, f := range []struct {
		name  string
		n     int64
		least int64
	}{{"input_tokens", r.InputTokens, least}, {"output_tokens", r.OutputTokens, least}, {"cached_input_tokens", r.CachedInputTokens, least}, {"reserved_tokens", r.ReservedTokens, 0}, {"latency_ms", r.LatencyMS, 0}} {
		if f.n < f.least || f.n > MaxTokens {
			bad(f.name, "must be from %d to %d, is %d", f.least, MaxTokens, f.n)
		}
	}
	if r.CachedInputTokens > r.InputTokens && r.Outcome != Adjustment {
		bad("cached_input_tokens", "is %d, more than the %d input_tokens it is part of", r.CachedInputTokens, r.InputTokens)
	}
	if err := CheckYear(time.Time(r.Timestamp)); err != nil {
		bad("timestamp", "%v", err)
	}
	switch r.Outcome {
	case Completed, Cancelled, Failed, Expired, Adjustment:
		if r.WasRateLimited {
			bad("was_rate_limited", "is true, but outcome is %s", r.Outcome)
		}
	case Rejected:
		if !r.WasRateLimited || r.InputTokens != 0 || r.OutputTokens != 0 || r.CachedInputTokens != 0 || r.ReservedTokens != 0 {
			bad("outcome", "a rejected request must be was_rate_limited with 0 tokens")
		}
	default:
		bad("outcome", "%q is not known", r.Outcome)
	}
	switch r.Reservation {
	case Held, Missing, Degraded:
		if r.WasRateLimited {
			bad("reservation", "is %q, but a rejected request has none", r.Reservation)
		}
	case "":
		if !r.WasRateLimited {
			bad("reservation", "is missing")
		}
	default:
		bad("reservation", "%q is not known", r.Reservation)
	}
	if r.CorrectsEventID != uuid.Nil && (r.Outcome != Adjustment || r.CorrectsEventID == r.EventID) {
		bad("corrects_event_id", "only an adjustment corrects an event, and another one than itself")
	}
	if !reasonForm.MatchString(r.Reason) || (r.Reason != "") != r.WasRateLimited {
		bad("reason", "%q: a rejected request has one, no other has", r.Reason)
	}
	switch r.Scope {
	case "":
	case "key", "user", "model", "org":
		if !r.WasRateLimited {
			bad("scope", "is %q, but the request was not rejected", r.Scope)
		}
	default:
		bad("scope", "%q is not known", r.Scope)
	}
	for _, f := range []struct {
		name, text string
		most       int
	}{{"requested_model", r.RequestedModel, 256}, {"model", r.Model, 256}, {"region", r.Region, 128}, {"instance", r.Instance, 256}} {
		if utf8.RuneCountInString(f.text) > f.most {
			bad(f.name, "has more than %d characters", f.most)
		}
	}
	return errors.Join(errs...)
}

// Time is an instant that JSON shows as RFC 3339 in UTC with exactly three decimals.
type Time time.Time

const timeLayout = "2006-01-02T15:04:05.000Z"

// At cuts t to the millisecond, in UTC.
func At(t time.Time) Time { return Time(t.UTC().Truncate(time.Millisecond)) }

// AtOrNil is At for an instant that may be missing.
func AtOrNil(t *time.Time) *Time {
	if t == nil {
		return nil
	}
	at := At(*t)
	return &at
}

func (t Time) String() string { return time.Time(t).UTC().Format(timeLayout) }

// MarshalText gives the wire form.
func (t Time) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the wire form and no other.
func (t *Time) UnmarshalText(b []byte) error {
	v, err := time.Parse(timeLayout, string(b))
	if err != nil || len(b) != len(timeLayout) {
		return fmt.Errorf("must be an RFC 3339 instant in UTC with milliseconds, is %q", b)
	}
	*t = At(v)
	return nil
}
