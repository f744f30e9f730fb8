package shed

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func TestShareFollowsTheCurveOfTheDesign(t *testing.T) {
	for _, c := range []struct {
		priority int64
		level    float64
		want     float64
	}{
		{20, 0, 0}, {20, 0.80, 0}, {20, 0.81, 0.2}, {20, 0.825, 0.5}, {20, 0.85, 1}, {20, 1, 1},
		{60, 0.85, 0}, {60, 0.86, 0.2}, {60, 0.90, 1}, {80, 0.90, 0}, {80, 0.93, 0.6}, {80, 0.95, 1},
		{100, 1, 0}, {101, 1, 0},
		{0, 0.82, 0.4}, {19, 0.82, 0.4}, // below free: as free
		{40, 0.825, 0}, {40, 0.85, 0.5}, {70, 0.90, 0.5}, {90, 0.925, 0}, {90, 0.95, 0.5}, {99, 0.9475, 0}, {99, 0.9975, 1}, // added by an admin
	} {
		if got := Share(c.level, c.priority); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("priority %d at %v: %v, want %v", c.priority, c.level, got, c.want)
		}
	}
}

func TestShareIsMonotoneInLoadOrderedByPriorityAndWhole(t *testing.T) {
	for p := int64(0); p <= 110; p++ {
		before := 0.0
		for step := range 1001 {
			level := float64(step) / 1000
			s := Share(level, p)
			if s < before || s < 0 || s > 1 || p > 0 && s > Share(level, p-1) {
				t.Fatalf("priority %d at %v: %v after %v, a lower priority has %v", p, level, s, before, Share(level, p-1))
			}
			before = s
		}
		if (p < Never) != (before == 1) {
			t.Errorf("priority %d: %v at full load", p, before)
		}
	}
}

func TestDrawIsEvenAndAlwaysTheSame(t *testing.T) {
	var buckets [20]int
	const n = 40_000
	for i := range n {
		id := uuid.Must(uuid.NewV7()) // consecutive ones share most of their bits
		if i%2 == 0 {
			id = uuid.New()
		}
		d := Draw(id)
		if d < 0 || d >= 1 || d != Draw(id) {
			t.Fatal(d)
		}
		buckets[int(d*20)]++
	}
	chi := 0.0
	for _, got := range buckets {
		d := float64(got) - n/20
		chi += d * d / (n / 20)
	}
	if chi > 60 { // 19 degrees of freedom: one in 300,000 is above
		t.Errorf("χ² is %.1f: %v", chi, buckets)
	}
	// Golden, by Python's hashlib: every instance of every version draws the same.
	if got := fmt.Sprintf("%.6f %s", Draw(uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")), Hint(uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057"))); got != "0.589732 5.193s" {
		t.Error(got)
	}
}

func TestHintIsWholeMillisecondsWithinItsBounds(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 1000 {
		h := Hint(uuid.New())
		if h < HintLeast || h > HintMost || h%time.Millisecond != 0 {
			t.Fatal(h)
		}
		seen[h] = true
	}
	if len(seen) < 500 {
		t.Errorf("only %d hints", len(seen))
	}
}

// What is shed at one level is shed at every higher one, and at every lower priority.
func TestShedRequestStaysShedAtHigherLevelsAndLowerPriorities(t *testing.T) {
	var f Fallbacks
	allows := func(string) bool { return true }
	for range 300 {
		id := uuid.New()
		shed := func(level float64, p int64) bool {
			return f.Decide(Request{ID: id, Model: "m", Priority: p, Allows: allows}, func(string) float64 { return level }).Shed
		}
		for _, p := range []int64{100, 90, 80, 70, 60, 40, 20, 0} {
			before := false
			for step := 750; step <= 1000; step += 5 {
				level := float64(step) / 1000
				now := shed(level, p)
				if before && !now || now && p > 0 && !shed(level, p-1) {
					t.Fatalf("%s, priority %d at %v", id, p, level)
				}
				before = now
			}
		}
	}
}

func TestLevelRisesAtOnceAndFallsWithItsBandAndHold(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	var r Report
	for _, c := range []struct{ at, load, level float64 }{
		{0, 0.50, 0.50},
		{1, 0.83, 0.83}, // at once
		{2, 0.82, 0.83}, // within the band
		{3, 0.83, 0.83}, // reached again: the hold begins anew
		{12, 0.815, 0.83},
		{12.9, 0.80, 0.82},
		{13, 0.82, 0.82}, // 0.02 above 0.80, reached
		{22, 0.81, 0.82},
		{23, 0.81, 0.81}, // 10 s after it was last reached
		{24, 0.10, 0.12},
		{25, 0.00, 0.02},
		{36, 0.00, 0.00},
	} {
		r = r.Next(c.load, at(c.at), time.Minute)
		if math.Abs(r.Level-c.level) > 1e-9 || math.Abs(r.At(at(c.at))-c.level) > 1e-9 {
			t.Errorf("at %v with %v: level %v, want %v", c.at, c.load, r.Level, c.level)
		}
	}
	r = Report{}.Next(0.9, at(0), time.Minute).Next(0.89, at(1), time.Minute)
	for s, want := range map[float64]float64{1: 0.9, 9.999: 0.9, 10: 0.89, 60.999: 0.89, 61: 0} {
		if got := r.At(at(s)); got != want { // nobody reports again
			t.Errorf("%v s later: %v, want %v", s, got, want)
		}
	}
	if got := r.Next(0.1, at(62), time.Minute); got.Level != 0.1 {
		t.Errorf("what has expired has no hysteresis: %+v", got)
	}
}

// Of two loads reported to the same past the higher one sheds no less; the level is never below the load, never above what was reported since
// the last expiry, and 0 once the time to live is over.
func TestLevelIsMonotoneInTheReportedLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		now, r, top := time.Unix(0, 0), Report{}, 0.0
		for range 30 {
			now = now.Add(time.Duration(rng.Int64N(int64(4 * time.Second))))
			a, b := rng.Float64(), rng.Float64()
			if rng.IntN(2) == 0 { // near the level, where it matters
				a, b = min(1, max(0, r.Level+(a-0.5)/20)), min(1, max(0, r.Level+(b-0.5)/20))
			}
			lo, hi := r.Next(min(a, b), now, 5*time.Second), r.Next(max(a, b), now, 5*time.Second)
			later := now.Add(time.Duration(rng.Int64N(int64(12 * time.Second))))
			if lo.Level > hi.Level || lo.Level < lo.Load || lo.At(later) > lo.Level {
				t.Fatalf("%+v\n%+v\n%+v", r, lo, hi)
			}
			if !lo.Until.After(later) && lo.At(later) != 0 {
				t.Fatal(lo)
			}
			if !r.Until.After(now) {
				top = 0
			}
			r = lo
			if rng.IntN(2) == 0 {
				r = hi
			}
			if top = max(top, r.Load); r.Level > top {
				t.Fatalf("%+v is above every load that was reported, %v", r, top)
			}
		}
	}
}

func TestFallbackIsForThoseBelowPlusWhoMayUseTheSmallModel(t *testing.T) {
	f := Fallbacks{"big": "small"}
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		model       string
		priority    int64
		big, little float64
		allows      func(string) bool
		want        Verdict
	}{
		"before the level":        {"big", 20, 0.799, 0, all, Verdict{"big", false}},
		"free":                    {"big", 20, 0.80, 0, all, Verdict{"small", false}},
		"an admin's tier":         {"big", 59, 0.80, 0, all, Verdict{"small", false}},
		"plus":                    {"big", 60, 0.84, 0, all, Verdict{"big", false}},
		"the small model":         {"small", 20, 1, 0, all, Verdict{"small", false}},
		"another model":           {"other", 20, 1, 0, all, Verdict{"other", false}},
		"may not use it":          {"big", 20, 1, 0, func(m string) bool { return m == "big" }, Verdict{"big", true}},
		"the small one is loaded": {"big", 20, 1, 1, all, Verdict{"small", true}},
		"enterprise":              {"big", 100, 1, 1, all, Verdict{"big", false}},
	} {
		got := f.Decide(Request{ID: uuid.New(), Model: c.model, Priority: c.priority, Allows: c.allows}, func(m string) float64 {
			return map[string]float64{"big": c.big, "small": c.little}[m]
		})
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestBadPairsAreAllNamed(t *testing.T) {
	models := []string{"a", "b", "c", "d"}
	for _, c := range []struct {
		pairs []string
		n     int
	}{
		{[]string{"a:b", "c:b"}, 0}, {nil, 0}, {[]string{"a"}, 1}, {[]string{"a:b:c"}, 1}, {[]string{":b"}, 1}, {[]string{"a:"}, 1}, {[]string{"a:a"}, 1},
		{[]string{"a:b", "b:c"}, 1}, {[]string{"a:x"}, 1}, {[]string{"x:a"}, 1}, {[]string{"a:b", "a:c"}, 1}, {[]string{"a b:c", "x:y", "a:z"}, 3},
	} {
		if _, errs := ParseFallbacks(c.pairs, models); len(errs) != c.n {
			t.Errorf("%v: %v", c.pairs, errs)
		}
	}
	g, errs := ParseGroups([]string{"a:big", "b:big"}, models)
	if len(errs) != 0 || g.Of("a") != "big" || g.Of("c") != "c" || g.Of("unheard") != "unheard" || !slices.Equal(g.Names(models), []string{"big", "c", "d"}) {
		t.Error(g, errs)
	}
	if _, errs := ParseGroups([]string{"x:big", "a:"}, models); len(errs) != 2 {
		t.Error(errs)
	}
}

func TestShippedTiersAreShedInOrder(t *testing.T) {
	begins := map[string]float64{tier.Free: 0.80, tier.Plus: 0.85, tier.API: 0.90}
	for _, s := range tier.Shipped() {
		if want, sheds := begins[s.Name]; sheds && (Begin(s.Priority) != want || Share(want+Ramp, s.Priority) != 1) || !sheds && Share(1, s.Priority) != 0 {
			t.Errorf("%s begins at %v", s.Name, Begin(s.Priority))
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	f, id := Fallbacks{"big": "small"}, uuid.New()
	for _, load := range []float64{0, 0.83} {
		b.Run(fmt.Sprint(load), func(b *testing.B) {
			for b.Loop() {
				f.Decide(Request{ID: id, Model: "big", Priority: 20, Allows: func(string) bool { return true }}, func(string) float64 { return load })
			}
		})
	}
}
