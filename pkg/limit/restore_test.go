package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestLevelingRaisesTheLowestAndNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for range 20_000 {
		had := make([]int64, 1+r.IntN(9))
		var sum int64
		for i := range had {
			had[i] = r.Int64N(1 + 1<<r.IntN(30))
			sum += had[i]
		}
		due := sum + r.Int64N(1+1<<r.IntN(30))
		got := leveled(had, due)
		var all, highest int64
		lowest := MaxAmount
		for i, n := range got {
			all += n
			if n < had[i] {
				t.Fatalf("%v to %d: %v lowers one", had, due, got)
			}
			if n > had[i] {
				highest = max(highest, n)
			}
			lowest = min(lowest, n)
		}
		if all != due {
			t.Fatalf("%v to %d: %v", had, due, got)
		}
		if highest > lowest+1 {
			t.Fatalf("%v to %d: %v raises one above another that is lower", had, due, got)
		}
	}
}

// What is consumed depends on how long ago it was used, on the capacity that drained it, and on how far it was above that.
func TestReplayDrainsBetweenUses(t *testing.T) {
	day := Limit{Counted: Tokens, Capacity: 2400, Window: 24 * time.Hour}
	requests := Limit{Counted: Requests, Capacity: 10, Window: time.Minute}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		full bool
		uses map[int]int64 // hours after the beginning: tokens
		want int64         // at the last use
	}{
		{"nothing before it", false, map[int]int64{10: 500}, 500},
		{"half an hour's drain", false, map[int]int64{10: 500, 11: 100}, 500},
		{"drained to the last token, not below", false, map[int]int64{10: 500, 20: 100}, 100},
		{"debt is kept", false, map[int]int64{10: 5000, 11: 100}, 5000},
		{"a correction gives no room back", false, map[int]int64{10: 500, 11: -300}, 400},
		{"full at the beginning", true, map[int]int64{1: 100}, 2400},
		{"full, and drained since", true, map[int]int64{24: 100}, 100},
	} {
		r := NewReplay([]Limit{day, requests}, begin, c.full)
		for h := range 30 {
			if n, used := c.uses[h]; used {
				r.Charge(begin.Add(time.Duration(h)*time.Hour), Amounts{Tokens: n, Requests: 1})
			}
		}
		b := r.Bill(false)
		if b.Buckets[0].Consumed != c.want || b.Buckets[1].Consumed != 1 || b.Buckets[0].Fast != 0 {
			t.Errorf("%s: %+v, want %d", c.name, b, c.want)
		}
	}
	r := NewReplay([]Limit{day}, begin, false)
	r.Charge(begin.Add(time.Hour), Amounts{Tokens: 700})
	r.Charge(begin, Amounts{Tokens: 100}) // an hour earlier: counted, and nothing drains
	if b := r.Bill(true); b.Buckets[0] != (Bucket{Consumed: 800}) || !b.At.Equal(begin.Add(time.Hour)) {
		t.Errorf("%+v", b)
	}
	r.Charge(begin.Add(time.Hour), Amounts{Tokens: 2000})
	if b := r.Bill(true); b.Buckets[0] != (Bucket{Consumed: 2800, Fast: 400}) {
		t.Errorf("%+v", b)
	}
	if !slices.Equal(r.Bill(false).Buckets, []Bucket{{Consumed: 2800}}) {
		t.Errorf("%+v", r.Bill(false))
	}
}
