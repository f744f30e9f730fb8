package reconcile

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Partition is what the log holds in one partition, and how far the consumer group is.
type Partition struct {
	Partition int   `json:"partition"`
	Earliest  int64 `json:"earliest"`  // the first offset that the log still holds
	Start     int64 `json:"start"`     // where reading begins: Earliest, or later with Since
	Latest    int64 `json:"latest"`    // the next offset to be written, at the start
	Committed int64 `json:"committed"` // by the group, when waiting for it ended; -1: nothing, or no group was asked for
	Lag       int64 `json:"lag"`       // messages below Latest that the group has not committed, when waiting ended; 0 without a group
	End       int64 `json:"end"`       // where reading ended: Latest, or less if the group did not get there
	Messages  int64 `json:"messages"`  // read, repeats included
	Unusable  int64 `json:"unusable"`  // of these, not a valid usage record
}

// Span is a part of a partition: from Start up to End, which is not in it.
type Span struct {
	Partition  int
	Start, End int64
}

// Message is one message of the log. If Unusable is a reason, only Event.Place is set.
type Message struct {
	Event    Event
	Unusable string
}

// Log is EVENT.
type Log interface {
	// Partitions tells what the log holds now. Start is the first message that was written at since or later; since may be zero.
	Partitions(ctx context.Context, since time.Time) ([]Partition, error)
	// Committed gives the group's next offset by partition; ok is false if no group is watched. What was never committed is missing.
	Committed(ctx context.Context) (at map[int]int64, ok bool, err error)
	// Read gives every message of the spans, those of a partition in order; add is called by several goroutines at once.
	Read(ctx context.Context, spans []Span, add func(Message) error) error
	// DeadLetters gives the place in the log of every message that was put aside, perhaps more than once.
	DeadLetters(ctx context.Context, add func(at Place, reason string)) error
}

// Rows says which rows of usage_events are wanted: ids from From up to To (not in it, none if To is nil) in the order of ClickHouse's UUIDs,
// that is by the lower half first; and of these, with Since, those whose timestamp is not before it, or which lie in the log at Starts
// or behind.
type Rows struct {
	From, To uuid.UUID
	Since    time.Time
	Starts   []int64 // by partition; nil without Since
}

// Sum is a line of a view, summed up over who and what.
type Sum struct {
	View    string
	Period  time.Time // start of the hour, or of the day in usage_daily
	Figures Figures
	Groups  Checksums
}

// Checksums tell whose a period's figures are: modulo 2^64, sums over groups of the group's hash times its figures. usage_events has all of
// them, a view the one of its own groups. They are as good as chance: figures n that went to the wrong group are missed once in 2^64/gcd(n, 2^64).
type Checksums struct {
	Payers   uint64 // by org, user, key, tier and model
	Minutes  uint64 // by these and the minute
	Quarters uint64 // by these and the quarter of an hour
	Refusals uint64 // by tier, reason and scope
}

// Group is one of a view, of which the view says another thing than the events.
type Group struct {
	At           time.Time // start of its period
	Who          string    // for people
	Events, View Figures
}

// Names of views in Sum.
const (
	ViewEvents     = "usage_events"
	ViewMinutely   = "usage_minutely"
	ViewQuarterly  = "usage_quarterly"
	ViewHourly     = "usage_hourly"
	ViewDaily      = "usage_daily"
	ViewRejections = "rejections_hourly"
)

// Views are all of them, as bounded values of a metric's label.
var Views = []string{ViewEvents, ViewMinutely, ViewQuarterly, ViewHourly, ViewDaily, ViewRejections}

// Ledger is LEDGER.
type Ledger interface {
	// Events gives rows of usage_events.
	Events(ctx context.Context, which Rows, add func(Event) error) error
	// StoredRows counts what lies below the views, repeats that are not merged away included.
	StoredRows(ctx context.Context) (int64, error)
	// Groups names groups of a view that differ from the events, in the hour (of usage_daily: day) that begins at period; at most limit.
	Groups(ctx context.Context, view string, period time.Time, limit int) ([]Group, error)
	Sums
}

// Sums asks the views.
type Sums interface {
	// Sums sums up every view by hour (usage_daily: by day) from since on, all of them in one query.
	Sums(ctx context.Context, since time.Time) ([]Sum, error)
}
