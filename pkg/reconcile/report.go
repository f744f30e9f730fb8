package reconcile

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Kinds of differences: a closed set, fit for a metric's label.
const (
	KindOffsets     = "offsets"      // the group has not got where it should, is beyond the log's end, or has lost messages to retention
	KindDeadLetters = "dead_letters" // a message that can't be used is not in the dead letters
	KindEvents      = "events"       // events are on one side only, more than once, or other than on the other side
	KindFigures     = "figures"      // sums differ: in all, or of an hour
	KindViews       = "views"        // a view disagrees with usage_events
)

// Kinds are all of them.
var Kinds = []string{KindOffsets, KindDeadLetters, KindEvents, KindFigures, KindViews}

// LostToRetention is the name of a difference of KindOffsets: the messages between what the group has committed and the log's beginning were removed
// before they were consumed.
const LostToRetention = "lost to retention before it was consumed"

// Difference is one thing on which the sides disagree.
type Difference struct {
	Kind   string `json:"kind"`
	Where  string `json:"where"`  // "in all", an hour, a partition, or a view, its period, and perhaps who
	Name   string `json:"name"`   // which figure; "figures of other groups": the sums are right, but not of the same payers, minutes or reasons (Log and Ledger are checksums)
	Log    int64  `json:"log"`    // of KindViews: what usage_events says; of KindOffsets: the log's end, or its beginning if LostToRetention
	Ledger int64  `json:"ledger"` // of KindViews: what the view says; of KindOffsets: what the group committed
}

func (d Difference) String() string {
	left, right := "log", "ledger"
	if d.Name == figureGroups {
		return d.Where + ": the sums are right, but they are not of the same groups as those of " + ViewEvents
	}
	switch d.Kind {
	case KindViews:
		left, right = ViewEvents, "the view"
	case KindOffsets:
		left, right = "end of the log", "committed"
		if d.Name == LostToRetention {
			left = "beginning of the log"
		}
	case KindDeadLetters:
		right = "dead letters"
	}
	return fmt.Sprintf("%s: %s: %s %d, %s %d (%+d)", d.Where, d.Name, left, d.Log, right, d.Ledger, d.Ledger-d.Log)
}

// Sample is one event that differs.
type Sample struct {
	What    string    `json:"what"` // missing: not in the ledger; extra: not in the log; repeated: in usage_events more than once; different
	EventID uuid.UUID `json:"event_id"`
	Hour    time.Time `json:"hour"`
	Place             // in the log, of the message or as the row says
	Differs []string  `json:"differs,omitempty"` // of a different one: figures, timestamp, "other columns" (of Rest), or why the row is of the wrong message
}

// What of a Sample.
const (
	Missing   = "missing"
	Extra     = "extra"
	Repeated  = "repeated"
	Different = "different"
)

// Hour is what both sides say of one hour.
type Hour struct {
	Hour   time.Time `json:"hour"`
	Log    Figures   `json:"log"`
	Ledger Figures   `json:"ledger"`
}

// Report is what a comparison found.
type Report struct {
	Began       time.Time        `json:"began"`
	Since       time.Time        `json:"since,omitzero"`
	Partitions  []Partition      `json:"partitions"`
	Log         Figures          `json:"log"`                 // of distinct events
	Ledger      Figures          `json:"ledger"`              // of the rows of usage_events that come from the same part of the log
	Hours       []Hour           `json:"hours"`               // ascending
	StoredRows  int64            `json:"stored_rows"`         // below the views, repeats that are not merged away included, of all time
	Messages    int64            `json:"messages"`            // of the log, repeats included
	DeadLetters map[string]int64 `json:"dead_letters"`        // messages put aside, each once, by reason
	PutAside    int64            `json:"put_aside"`           // events that are in the dead letters, and rightly not in the ledger
	Outside     int64            `json:"outside"`             // rows that come from beyond the part of the log that was read, or from before: not compared
	Unsettled   []string         `json:"unsettled,omitempty"` // figures of views that moved while they were asked
	Counts      map[string]int64 `json:"counts"`              // events by Sample.What
	Samples     []Sample         `json:"samples,omitempty"`
	Differences []Difference     `json:"differences"` // in a fixed order; empty if the sides agree
}

// Agree tells whether log and ledger hold the same events with the same figures, in every view.
func (r *Report) Agree() bool { return len(r.Differences) == 0 }

func (r *Report) String() string {
	if r.Agree() {
		return fmt.Sprintf("log and ledger agree: %d events, %d requests, %d refused, %d input and %d output tokens",
			r.Ledger.Events, r.Ledger.Requests, r.Ledger.RejectedRequests, r.Ledger.InputTokens, r.Ledger.OutputTokens)
	}
	lines := make([]string, len(r.Differences))
	for i, d := range r.Differences {
		lines[i] = d.String()
	}
	return "log and ledger differ: " + strings.Join(lines, "; ")
}

const hourFormat = "2006-01-02T15:04Z"
