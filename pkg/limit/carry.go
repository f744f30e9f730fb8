package limit

import (
	"context"
	"slices"
	"time"
)

// Carrier takes consumption along when a payer moves: to another org, or to another number of shards.
type Carrier interface {
	// Carry makes what was consumed and open in scopes, wherever in the chain it lies, consumed and open in the last To shards: once for each scope and
	// last move, however often and from wherever it is called. It publishes the versions of the moves in all shards of the chain, so that nothing more
	// is granted there by an older quota, and leaves word where anything was, for whoever ends a request that was granted there.
	// Nothing may be granted in the last To shards by the new quota before it has returned. Reservations stay where they are: Earlier names the place.
	//
	// A *StaleError says that the payer has moved on: nothing is lost, the next move takes it along.
	Carry(ctx context.Context, r CarryRequest) error
	// Carried tells of each chain whether it was carried before, for all its scopes: such a one needs no Carry.
	Carried(ctx context.Context, rs []CarryRequest) ([]bool, error)
}

// CarryRequest names what moves, and all moves of CarryFor that have brought it to where it is, the oldest first.
type CarryRequest struct {
	Moves  []Move
	Scopes []string // names
	Fences []Fence  // of all that may move it on
}

// Move is one move, and the version of the payer that made it.
type Move struct {
	From, To []int // shards
	Fence    Fence
}

// CarryFor is how long a move is remembered: longer than any bucket takes to drain.
const CarryFor = MaxWindow + time.Hour

// Last is the move that brought the scopes to where they are.
func (r CarryRequest) Last() Move { return r.Moves[len(r.Moves)-1] }

// Shards are all that the chain touches, each once.
func (r CarryRequest) Shards() []int {
	var out []int
	for _, m := range r.Moves {
		out = append(append(out, m.From...), m.To...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Newest gives the fences of the moves, of each name the newest.
func (r CarryRequest) Newest() []Fence {
	var out []Fence
	for _, m := range slices.Backward(r.Moves) {
		if !slices.ContainsFunc(out, func(f Fence) bool { return f.Name == m.Fence.Name }) {
			out = append(out, m.Fence)
		}
	}
	return out
}

// Drain gives the state of a bucket of so much capacity and such a window after ms have passed.
func (b Bucket) Drain(capacity int64, window time.Duration, ms int64) Bucket {
	s := bucket{consumed: b.Consumed, credit: b.Credit, fast: b.Fast, capacity: capacity}
	s.drain(window.Milliseconds(), ms)
	return Bucket{Consumed: s.consumed, Credit: s.credit, Fast: s.fast}
}

// Part is part i of n of an amount. The parts add up to it.
func Part(whole int64, i, n int) int64 {
	if whole < 0 {
		return -Part(-whole, i, n)
	}
	part := whole / int64(n)
	if int64(i) < whole%int64(n) {
		part++
	}
	return part
}

// Part is part i of n of amounts.
func (a Amounts) Part(i, n int) Amounts {
	for c := range a {
		a[c] = Part(a[c], i, n)
	}
	return a
}

// Minus is a without b.
func (a Amounts) Minus(b Amounts) Amounts {
	for c := range a {
		a[c] -= b[c]
	}
	return a
}
