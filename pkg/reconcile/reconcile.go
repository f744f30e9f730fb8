// Package reconcile compares EVENT with LEDGER: what the log says was used with what the ledger says, total by total.
//
// The package is pure. Where the totals come from is for the adapters below it: kafkalog and clickhousetotals. Nothing is written, so
// nothing repeats; the two sides are asked one after the other, so that a comparison means something once the producers are
// quiet, or if it is repeated until it agrees.
package reconcile

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Totals are over distinct events. Tokens are counts.
type Totals struct {
	Events            int64
	Requests          int64 // admitted ones
	RejectedRequests  int64
	InputTokens       int64
	OutputTokens      int64
	CachedInputTokens int64
	EventIDs          [2]uint64 // exclusive or of all event ids, upper and lower half: differs if one event stands for another
}

// Add counts one distinct event.
func (t *Totals) Add(r usage.Record) {
	t.Events++
	switch {
	case r.WasRateLimited:
		t.RejectedRequests++
	case r.Outcome != usage.Adjustment:
		t.Requests++
	}
	t.InputTokens += r.InputTokens
	t.OutputTokens += r.OutputTokens
	t.CachedInputTokens += r.CachedInputTokens
	t.addID(r.EventID)
}

func (t *Totals) addID(id uuid.UUID) {
	t.EventIDs[0] ^= binary.BigEndian.Uint64(id[:8])
	t.EventIDs[1] ^= binary.BigEndian.Uint64(id[8:])
}

// Side is one of the two that must agree.
type Side interface {
	Totals(ctx context.Context) (Totals, error)
}

// Difference is one total on which the sides disagree.
type Difference struct {
	Name        string // such as input_tokens
	Log, Ledger int64  // 0 for event_ids, which has no size
}

func (d Difference) String() string {
	if d.Name == "event_ids" {
		return "event_ids: the sides hold different events"
	}
	return fmt.Sprintf("%s: log %d, ledger %d (%+d)", d.Name, d.Log, d.Ledger, d.Ledger-d.Log)
}

// Report is what a comparison found.
type Report struct {
	Log, Ledger Totals
	Differences []Difference // in a fixed order; empty if the sides agree
}

// Agree tells whether log and ledger hold the same events with the same figures.
func (r Report) Agree() bool { return len(r.Differences) == 0 }

func (r Report) String() string {
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

// LogAndLedger asks the log, then the ledger, and compares.
func LogAndLedger(ctx context.Context, log, ledger Side) (Report, error) {
	l, err := log.Totals(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("totals of the log: %w", err)
	}
	s, err := ledger.Totals(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("totals of the ledger: %w", err)
	}
	return Compare(l, s), nil
}

// Compare names every total that differs.
func Compare(log, ledger Totals) Report {
	r := Report{Log: log, Ledger: ledger}
	for _, c := range []struct {
		name        string
		log, ledger int64
	}{
		{"events", log.Events, ledger.Events},
		{"requests", log.Requests, ledger.Requests},
		{"rejected_requests", log.RejectedRequests, ledger.RejectedRequests},
		{"input_tokens", log.InputTokens, ledger.InputTokens},
		{"output_tokens", log.OutputTokens, ledger.OutputTokens},
		{"cached_input_tokens", log.CachedInputTokens, ledger.CachedInputTokens},
	} {
		if c.log != c.ledger {
			r.Differences = append(r.Differences, Difference{c.name, c.log, c.ledger})
		}
	}
	if log.EventIDs != ledger.EventIDs {
		r.Differences = append(r.Differences, Difference{Name: "event_ids"})
	}
	return r
}
