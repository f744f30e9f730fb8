package consume

import (
	"context"
	"errors"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Position is a message's place in the log.
type Position struct {
	Topic     string
	Partition int
	Offset    int64
}

// Message is one message of the log. A tombstone's Value is nil.
type Message struct {
	Position
	usage.Message
}

// Row is a usage record and the message that bore it.
type Row struct {
	Record  usage.Record
	Message Message
}

// DeadLetter is a message that can't be used, and why. Reason is one of usage.Reason… or ReasonRefused.
type DeadLetter struct {
	Message
	Reason string
	Err    error
}

// ReasonRefused tells that a record is well-formed, but the ledger refuses its row.
const ReasonRefused = "refused_by_ledger"

// Reasons are all values of a dead letter's reason, and of the metric's label.
var Reasons = []string{usage.ReasonEmpty, usage.ReasonNotJSON, usage.ReasonSchemaVersion, usage.ReasonInvalid, ReasonRefused}

// ErrRefused is what a Ledger's error wraps if at least one of the rows can never be stored, however often it is tried.
var ErrRefused = errors.New("a row is refused by the ledger")

// Source gives the log's messages, each partition's in order.
type Source interface {
	// Fetch waits for the next message. It ends with ctx.
	Fetch(ctx context.Context) (Message, error)
	// Commit tells that the messages at these positions, and all before them in their partitions, need not come again. One
	// position a partition.
	Commit(ctx context.Context, at []Position) error
}

// Ledger stores rows. Once it returned nil all of a call's rows count and stay; after an error some may. A row whose event was stored
// before, in whatever call, must not count twice.
type Ledger interface {
	Store(ctx context.Context, rows []Row) error
}

// DeadLetters keeps what can't be used. It returns nil once all of it is durable.
type DeadLetters interface {
	Write(ctx context.Context, letters []DeadLetter) error
}

// Limits bound a batch: it is stored when one of them is reached.
type Limits struct {
	Count int           // messages
	Bytes int           // of keys and values
	Wait  time.Duration // since its first message
}

// Timing is how long the loop waits when something fails.
type Timing struct {
	RetryMin, RetryMax time.Duration // backoff between tries, doubling
	Attempt            time.Duration // one try of an insert or of dead letters
	Commit             time.Duration // the one try of a commit
	Drain              time.Duration // for the last batch, once a stop was asked for
}

// DefaultTiming suits a consumer whose stop may take 30 s in all.
var DefaultTiming = Timing{RetryMin: 100 * time.Millisecond, RetryMax: 5 * time.Second, Attempt: 30 * time.Second,
	Commit: 8 * time.Second, Drain: 15 * time.Second}
