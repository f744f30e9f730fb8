package quotalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0).UTC() }

// history is a key that is made, rotated at 20 and revoked at 30.
func history() []Event {
	states := []State{{Owner: "user:u1"}, {Owner: "user:u1", Rotations: 1}, {Owner: "user:u1", Rotations: 1, Revoked: true}}
	var es []Event
	for i := range states {
		e := Event{Subject: "api_key:k1", Version: int64(i + 1), Actor: "admin", After: &states[i], At: at(10 * (i + 1))}
		if i > 0 {
			e.Before = &states[i-1]
		}
		es = append(es, e)
	}
	return es
}

func TestFoldOfAPrefixIsWhatHeldThen(t *testing.T) {
	es := history()
	for seconds, want := range map[int]int64{9: 0, 10: 1, 19: 1, 20: 2, 29: 2, 30: 3, 1000: 3} {
		p, err := Fold(At(es, at(seconds)))
		if err != nil || (p == nil) != (want == 0) || (p != nil && p.Version != want) {
			t.Errorf("at %d: %+v, %v; want version %d", seconds, p, err, want)
		}
	}
	rotated, revoked := KeyTimes(es)
	if rotated == nil || !rotated.Equal(at(20)) || revoked == nil || !revoked.Equal(at(30)) {
		t.Error(rotated, revoked)
	}
	if rotated, revoked = KeyTimes(es[:1]); rotated != nil || revoked != nil {
		t.Error(rotated, revoked)
	}
}

func TestDeletionIsFoldedAndUndone(t *testing.T) {
	pool := State{TimeZone: "UTC"}
	es := []Event{{Subject: "org:o1", Version: 1, After: &pool, At: at(1)}, {Subject: "org:o1", Version: 2, Before: &pool, At: at(2)}, {Subject: "org:o1", Version: 3, After: &pool, At: at(3)}}
	p, err := Fold(es[:2])
	if diff := cmp.Diff(&Projection{Deleted: true, Version: 2, CreatedAt: at(1), UpdatedAt: at(2)}, p); diff != "" || err != nil {
		t.Error(diff, err)
	}
	p, err = Fold(es)
	if diff := cmp.Diff(&Projection{State: pool, Version: 3, CreatedAt: at(1), UpdatedAt: at(3)}, p); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestHistoriesThatDoNotAddUpAreRefused(t *testing.T) {
	for name, broken := range map[string]func([]Event) []Event{
		"a gap":             func(es []Event) []Event { return slices.Delete(es, 1, 2) },
		"another subject":   func(es []Event) []Event { es[1].Subject = "api_key:k2"; return es },
		"another before":    func(es []Event) []Event { es[2].Before = es[0].After; return es },
		"time runs back":    func(es []Event) []Event { es[2].At = at(1); return es },
		"no first event":    func(es []Event) []Event { return es[1:] },
		"a before at first": func(es []Event) []Event { es[0].Before = &State{}; return es },
	} {
		if p, err := Fold(broken(history())); err == nil {
			t.Errorf("%s: folded to %+v", name, p)
		}
	}
	tiers := func() []TierEvent {
		first, second := tier.Tier{Name: "plus", RPMLimit: 1}, tier.Tier{Name: "plus", RPMLimit: 2}
		return []TierEvent{{Tier: "plus", Version: 1, After: first, At: at(1)}, {Tier: "plus", Version: 2, Before: &first, After: second, At: at(2)}}
	}
	got, made, err := FoldTier(tiers())
	if want := (tier.Tier{Name: "plus", RPMLimit: 2, Version: 2, UpdatedAt: at(2)}); err != nil || !made.Equal(at(1)) || cmp.Diff(want, got) != "" {
		t.Error(got, made, err)
	}
	if got, _, err := FoldTier(nil); err != nil || got.Version != 0 {
		t.Error(got, err)
	}
	for name, broken := range map[string]func([]TierEvent) []TierEvent{
		"a gap":           func(es []TierEvent) []TierEvent { return es[1:] },
		"another tier":    func(es []TierEvent) []TierEvent { es[1].Tier = "free"; return es },
		"another before":  func(es []TierEvent) []TierEvent { es[1].Before = &es[1].After; return es },
		"no before":       func(es []TierEvent) []TierEvent { es[1].Before = nil; return es },
		"time runs back":  func(es []TierEvent) []TierEvent { es[1].At = at(0); return es },
		"versions repeat": func(es []TierEvent) []TierEvent { es[1].Version = 1; return es },
	} {
		if got, _, err := FoldTier(broken(tiers())); err == nil || !strings.Contains(err.Error(), "plus") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
