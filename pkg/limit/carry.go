package limit

import (
	"context"
	"time"
)

// Carrier takes consumption along when a payer moves: to another org, or to another number of shards.
type Carrier interface {
	// Carry makes what was consumed and open in scopes in the From shards consumed and open in the To shards, once for each scope and
	// version of the fence, however often and from wherever it is called. It publishes the fence in the From shards first, so that nothing more
	// is granted there by an older quota; nothing may be granted in the To shards by the new one before it has returned. Reservations stay
	// where they are: settle them there (Known), then move the difference by Transfer.
	Carry(ctx context.Context, r CarryRequest) error
	// Carried tells of each move whether it was made before, for all its scopes: such a one needs no Carry.
	Carried(ctx context.Context, rs []CarryRequest) ([]bool, error)
}

// CarryRequest names what moves, and the version of the payer that moved it.
type CarryRequest struct {
	From, To []int // shards
	Fence    Fence
	Scopes   []string // names
}

// CarryFor is how long a move is remembered: longer than any bucket takes to drain.
const CarryFor = MaxWindow + time.Hour

// Drain gives the state of a bucket of so much capacity and such a window after ms have passed.
func (b Bucket) Drain(capacity int64, window time.Duration, ms int64) Bucket {
	s := bucket{consumed: b.Consumed, credit: b.Credit, fast: b.Fast, capacity: capacity}
	s.drain(window.Milliseconds(), ms)
	return Bucket{Consumed: s.consumed, Credit: s.credit, Fast: s.fast}
}

// Part is part i of n of an amount. The parts add up to it.
func Part(whole int64, i, n int) int64 {
	part := whole / int64(n)
	if int64(i) < whole%int64(n) {
		part++
	}
	return part
}
