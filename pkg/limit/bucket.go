package limit

import "math/bits"

// bucket is the state of one limit in one scope. The Lua script (services/enforcement/internal/redisbucket/*.lua) keeps the same five
// numbers and does the same steps.
type bucket struct {
	consumed int64 // 0 to MaxAmount
	credit   int64 // what has drained of one more token, in 1/window: 0 to window-1
	capacity int64 // the capacity at the last operation
	fast     int64 // after a downgrade: the capacity by which the excess drains; else 0
}

// satMul is a*b, at most MaxAmount.
func satMul(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(MaxAmount) {
		return MaxAmount
	}
	return int64(lo)
}

// satAdd is a+b for a, b from 0 to MaxAmount, at most MaxAmount.
func satAdd(a, b int64) int64 { return min(a+b, MaxAmount) }

// drained tells how many whole tokens drain in ms at rate per window, given credit, and the credit that is left.
func drained(rate, window, credit, ms int64) (tokens, left int64) {
	whole, rest := satMul(ms/window, rate), ms%window
	part := rest*(rate%window) + credit // below window², which is below 2^53
	return satAdd(satAdd(whole, satMul(rest, rate/window)), part/window), part % window
}

// waitFor is the least time in ms in which need tokens drain, at most MaxAmount.
func waitFor(rate, window, credit, need int64) int64 {
	// ceil((need*window - credit) / rate) in 128 bits
	hi, lo := bits.Mul64(uint64(need), uint64(window))
	lo, borrow := bits.Sub64(lo, uint64(credit), 0)
	hi -= borrow
	lo, carry := bits.Add64(lo, uint64(rate-1), 0)
	hi += carry
	if hi >= uint64(rate) {
		return MaxAmount
	}
	q, _ := bits.Div64(hi, lo, uint64(rate))
	return int64(min(q, uint64(MaxAmount)))
}

func (b *bucket) apply(rate, window, ms int64) {
	tokens, credit := drained(rate, window, b.credit, ms)
	b.consumed -= tokens
	b.credit = credit
	if b.consumed <= 0 {
		b.consumed, b.credit = 0, 0
	}
}

// addLate charges what was used age ms ago: what a burst of it would have left by now, to a fraction of one, else many small ones would never drain.
func (b *bucket) addLate(n, window, age int64) {
	if age == 0 {
		b.add(n)
		return
	}
	gone, credit := drained(n, window, b.credit, min(age, window))
	b.credit = credit
	b.add(n - gone)
	if b.consumed == 0 {
		b.credit = 0
	}
}

// drain lets ms pass.
func (b *bucket) drain(window, ms int64) {
	if b.fast > 0 && b.consumed > b.capacity {
		rate := max(b.fast, b.capacity)
		w := waitFor(rate, window, b.credit, b.consumed-b.capacity)
		if ms < w {
			b.apply(rate, window, ms)
			return
		}
		b.apply(rate, window, w)
		ms -= w
	}
	b.fast = 0
	b.apply(b.capacity, window, ms)
}

// advance lets ms pass and then takes on a capacity. It reports whether that is another one. Until an operation sees a new capacity the
// bucket drains at the old one: the state expires by it too, so that whether it has expired makes no difference.
func (b *bucket) advance(capacity, window, ms int64) bool {
	b.drain(window, ms)
	if capacity == b.capacity {
		return false
	}
	// What was legitimately consumed lies below the old capacity plus the excess of an earlier downgrade; the rest is debt.
	excess := min(b.consumed, satAdd(b.capacity, b.fast)) - capacity
	if b.consumed <= capacity {
		b.fast = 0
	} else {
		b.fast = max(b.fast, excess, 0)
	}
	b.capacity = capacity
	return true
}

// wait is the least time in ms until consumed is down at target, which is at most capacity.
func (b bucket) wait(window, target int64) int64 {
	var total int64
	if b.fast > 0 && b.consumed > b.capacity {
		total = waitFor(max(b.fast, b.capacity), window, b.credit, b.consumed-b.capacity)
		b.apply(max(b.fast, b.capacity), window, total)
	}
	if b.consumed > target {
		total = satAdd(total, waitFor(b.capacity, window, b.credit, b.consumed-target))
	}
	return total
}

// add charges, or gives back if n is negative. It never goes below 0 or above MaxAmount.
func (b *bucket) add(n int64) {
	if n < 0 && b.consumed+n <= 0 {
		b.consumed, b.credit = 0, 0
		return
	}
	b.consumed = min(b.consumed+n, MaxAmount)
}
