package consume

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// order sorts rows by partition and offset: the same messages make the same block, in whatever order the partitions were read.
func order(rows []Row) {
	slices.SortFunc(rows, func(a, b Row) int { return comparePositions(a.Message.Position, b.Message.Position) })
}

func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
}

// Token names a block of rows by their places and ids. The same rows in the same order have the same token, however often and by
// whomever they are inserted. The ids are part of it because offsets alone are not unique: a topic that was made anew begins at
// 0 again, and a ledger that knows the token would drop its rows.
func Token(rows []Row) string {
	h := sha256.New()
	var n [8]byte
	for _, r := range rows {
		at := r.Message.Position
		h.Write([]byte(at.Topic))
		h.Write([]byte{0})
		for _, v := range []uint64{uint64(at.Partition), uint64(at.Offset)} {
			binary.BigEndian.PutUint64(n[:], v)
			h.Write(n[:])
		}
		h.Write(r.Record.EventID[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
