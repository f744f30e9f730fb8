package consume

import (
	"cmp"
	"errors"
	"slices"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// batch is what is stored and committed together.
type batch struct {
	rows  []Row
	dead  []DeadLetter
	count int
	bytes int
}

func newBatch() *batch { return &batch{} }

// add decodes a message into the batch, as a row or as a dead letter.
func (b *batch) add(m Message) {
	b.count++
	b.bytes += len(m.Key) + len(m.Value)
	r, err := usage.Decode(m.Value)
	if err != nil {
		reason := usage.ReasonInvalid
		var de *usage.DecodeError
		if errors.As(err, &de) {
			reason = de.Reason
		}
		b.dead = append(b.dead, DeadLetter{m, reason, err})
		return
	}
	b.rows = append(b.rows, Row{r, m})
}

func (b *batch) full(l Limits) bool { return b.count >= l.Count || b.bytes >= l.Bytes }

// positions are what to commit.
func (b *batch) positions() []Position {
	all := make([]Position, 0, b.count)
	for _, r := range b.rows {
		all = append(all, r.Message.Position)
	}
	for _, d := range b.dead {
		all = append(all, d.Position)
	}
	return Ends(all)
}

// Ends gives the highest position of each partition among those of all messages that are done with: what to commit, in a fixed order.
func Ends(all []Position) []Position {
	slices.SortFunc(all, comparePositions)
	var ends []Position
	for i, p := range all {
		if next := i + 1; next == len(all) || all[next].Topic != p.Topic || all[next].Partition != p.Partition {
			ends = append(ends, p)
		}
	}
	return ends
}

// order sorts rows by partition and offset: of an event's repeats in a batch the first in the log is stored.
func order(rows []Row) {
	slices.SortFunc(rows, func(a, b Row) int { return comparePositions(a.Message.Position, b.Message.Position) })
}

func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
}
