package limit

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

const day = 86_400_000

// The reference: exact rational arithmetic.
func bigDrained(rate, window, credit, ms int64) (*big.Int, *big.Int) {
	n := new(big.Int).Add(new(big.Int).Mul(big.NewInt(rate), big.NewInt(ms)), big.NewInt(credit))
	return new(big.Int).DivMod(n, big.NewInt(window), new(big.Int))
}

func randAmount(r *rand.Rand) int64 {
	switch r.IntN(3) {
	case 0:
		return 1 + r.Int64N(100)
	case 1:
		return 1 + r.Int64N(1e12)
	}
	return 1 + r.Int64N(MaxAmount)
}

func TestDrainIsExactUpToTwoToThe53(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		window := 1 + r.Int64N(day)
		rate, credit, ms := randAmount(r), r.Int64N(window), r.Int64N(3*day)
		tokens, left := drained(rate, window, credit, ms)
		want, wantLeft := bigDrained(rate, window, credit, ms)
		if !want.IsInt64() || want.Int64() > MaxAmount {
			if tokens != MaxAmount {
				t.Fatalf("rate %d window %d credit %d ms %d: %d tokens, want saturation", rate, window, credit, ms, tokens)
			}
			continue
		}
		if tokens != want.Int64() || left != wantLeft.Int64() {
			t.Fatalf("rate %d window %d credit %d ms %d: %d+%d, want %d+%d", rate, window, credit, ms, tokens, left, want, wantLeft)
		}
	}
}

func TestWaitIsTheLeastTimeThatDrainsEnough(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200_000 {
		window := 1 + r.Int64N(day)
		rate, credit := randAmount(r), r.Int64N(window)
		need := min(randAmount(r), satMul(rate, 1000))
		w := waitFor(rate, window, credit, need)
		enough, _ := bigDrained(rate, window, credit, w)
		short, _ := bigDrained(rate, window, credit, w-1)
		if enough.Cmp(big.NewInt(need)) < 0 || (w > 0 && short.Cmp(big.NewInt(need)) >= 0) {
			t.Fatalf("rate %d window %d credit %d need %d: wait %d drains %s, one less %s", rate, window, credit, need, w, enough, short)
		}
	}
}

// Whether the time passes in one step or in a thousand must not matter: no drift, and no starving by polling.
func TestPollingChangesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2_000 {
		window := 1 + r.Int64N(day)
		b := bucket{consumed: randAmount(r), capacity: randAmount(r)}
		b.credit = r.Int64N(window)
		if r.IntN(2) == 0 {
			b.advance(max(1, b.capacity/(1+r.Int64N(50))), window, 0)
		}
		once, often := b, b
		total := int64(0)
		for range 100 {
			ms := r.Int64N(window/20 + 2)
			often.drain(window, ms)
			total += ms
		}
		once.drain(window, total)
		if once != often {
			t.Fatalf("from %+v, window %d: in one step %+v, in a hundred %+v", b, window, once, often)
		}
	}
}

func TestExcessOfADowngradeIsGoneWithinOneWindow(t *testing.T) {
	for _, c := range []struct{ consumed, from, to int64 }{{100, 100, 10}, {1000, 1000, 999}, {1_000_000_000_000, 1_000_000_000_000, 1}, {55, 100, 50}, {100, 100, 1}} {
		b := bucket{consumed: c.consumed, capacity: c.from}
		b.advance(c.to, day, 0)
		if b.consumed != c.consumed {
			t.Errorf("%+v: the downgrade itself changed consumed to %d", c, b.consumed)
		}
		b.advance(c.to, day, day)
		if b.consumed > c.to {
			t.Errorf("%+v: after one window %d are still consumed", c, b.consumed)
		}
	}
}

func TestDebtIsNotForgivenByADowngrade(t *testing.T) {
	b := bucket{consumed: 5_000, capacity: 1_000} // 4,000 of debt
	b.advance(900, day, 0)
	b.advance(900, day, day)
	if want := int64(5_000 - 900); b.consumed != want {
		t.Errorf("after one window %d are consumed, want %d: debt drains at the plan's rate", b.consumed, want)
	}
}

func TestTogglingPlansGainsNoToken(t *testing.T) {
	const n = 2000
	toggled, steady := bucket{consumed: 100, capacity: 100}, bucket{consumed: 100, capacity: 101}
	for i := range n {
		toggled.advance(100+int64(i%2), 60_000, 10)
		steady.advance(101, 60_000, 10)
		if toggled.consumed < steady.consumed {
			t.Fatalf("step %d: toggling left %d consumed, staying on the better plan %d", i, toggled.consumed, steady.consumed)
		}
	}
}

func TestUpgradeGivesItsNewRoomAtOnce(t *testing.T) {
	b := bucket{consumed: 10, capacity: 10}
	b.advance(40, 60_000, 0)
	if room := b.capacity - b.consumed; room != 30 {
		t.Errorf("room is %d, want 30", room)
	}
}

func TestRefundBelowZeroLeavesAFullBucket(t *testing.T) {
	b := bucket{consumed: 100, credit: 7, capacity: 1000}
	b.add(-800)
	if b.consumed != 0 || b.credit != 0 {
		t.Errorf("got %+v, want an empty bucket without credit", b)
	}
}

func TestDebtSaturatesInsteadOfOverflowing(t *testing.T) {
	b := bucket{consumed: MaxAmount - 1, capacity: 1}
	b.add(MaxAmount)
	if b.consumed != MaxAmount {
		t.Errorf("consumed is %d", b.consumed)
	}
	if w := b.wait(day, 0); w != MaxAmount {
		t.Errorf("wait is %d, want saturation", w)
	}
}

// What was used late is charged exactly: over any number of debits no more than a fraction of one is lost or gained.
func TestLateDebitsAreExactToAFraction(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		window, want := 1+r.Int64N(day), new(big.Int)
		b := bucket{capacity: 1 << 40}
		for range 50 {
			n, age := r.Int64N(1<<30), r.Int64N(2*window)
			b.addLate(n, window, age)
			want.Add(want, new(big.Int).Mul(big.NewInt(n), big.NewInt(window-min(age, window)))) // in 1/window
			if b.consumed == 0 {
				want.SetInt64(0) // an empty bucket forgets its fraction
			}
		}
		got := new(big.Int).Mul(big.NewInt(b.consumed), big.NewInt(window))
		if got.Sub(got, big.NewInt(b.credit)).Cmp(want) != 0 {
			t.Fatalf("window %d: %d tokens less %d/%d, want %d/%d", window, b.consumed, b.credit, window, want, window)
		}
	}
}
