package replay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// script is a ledger that gives its totals one after the other, then the last for ever.
type script struct {
	totals []Totals
	err    error
	asked  int
}

func (s *script) Totals(context.Context, string) (Totals, error) {
	i := min(s.asked, len(s.totals)-1)
	s.asked++
	return s.totals[i], s.err
}

func TestAwaitWaitsForLateEventsAndSeesWhatIsTooMuch(t *testing.T) {
	before, want := Totals{Requests: 100}, Totals{Requests: 10, InputTokens: 50}
	for name, c := range map[string]struct {
		ledger   []Totals
		got      Totals
		patience time.Duration
	}{
		"late":          {[]Totals{{Requests: 100}, {Requests: 104, InputTokens: 20}, {Requests: 110, InputTokens: 50}}, want, time.Minute},
		"counted twice": {[]Totals{{Requests: 110, InputTokens: 50}, {Requests: 111, InputTokens: 55}}, Totals{Requests: 11, InputTokens: 55}, time.Minute},
		"lost":          {[]Totals{{Requests: 109, InputTokens: 45}}, Totals{Requests: 9, InputTokens: 45}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := Await(t.Context(), &script{totals: c.ledger}, "p", before, want, c.patience, func(Totals) {})
				if err != nil || got != c.got {
					t.Errorf("got %+v, %v; want %+v", got, err, c.got)
				}
			})
		})
	}
}

func TestAwaitReportsALedgerThatCanNotBeRead(t *testing.T) {
	cause := errors.New("away")
	if _, err := Await(t.Context(), &script{totals: []Totals{{}}, err: cause}, "p", Totals{}, Totals{}, time.Second, func(Totals) {}); !errors.Is(err, cause) {
		t.Fatalf("error is %v", err)
	}
}
