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
	last  map[partition]Position // the highest position of each partition
	count int
	bytes int
}

type partition struct {
	topic string
	id    int
}

func newBatch() *batch { return &batch{last: map[partition]Position{}} }

// add decodes a message into the batch, as a row or as a dead letter.
func (b *batch) add(m Message) {
	b.count++
	b.bytes += len(m.Key) + len(m.Value)
	p := partition{m.Topic, m.Partition}
	if at, ok := b.last[p]; !ok || m.Offset > at.Offset {
		b.last[p] = m.Position
	}
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

// positions are what to commit, in a fixed order.
func (b *batch) positions() []Position {
	out := make([]Position, 0, len(b.last))
	for _, p := range b.last {
		out = append(out, p)
	}
	slices.SortFunc(out, comparePositions)
	return out
}

// order sorts rows by partition and offset: of an event's repeats in a batch the first in the log is stored.
func order(rows []Row) {
	slices.SortFunc(rows, func(a, b Row) int { return comparePositions(a.Message.Position, b.Message.Position) })
}

func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
}
