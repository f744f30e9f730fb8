package traffic

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

// system allows what fits three at once for each user and knows what it granted.
type system struct {
	mu      sync.Mutex
	open    map[uuid.UUID]string
	perUser map[string]int
	sent    map[string][]int64 // input tokens asked for, by user
	fail    bool
}

func (s *system) CheckPatiently(_ context.Context, r client.CheckRequest) (client.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail {
		return client.Decision{}, errors.New("away")
	}
	s.sent[r.UserID] = append(s.sent[r.UserID], *r.InputTokens)
	if s.perUser[r.UserID] >= 3 {
		return client.Decision{Reason: "concurrent"}, nil
	}
	s.perUser[r.UserID]++
	s.open[r.RequestID] = r.UserID
	return client.Decision{Allowed: true, Model: r.Model}, nil
}

func (s *system) Record(_ context.Context, r client.RecordRequest) (client.Receipt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[r.RequestID] != r.UserID {
		return client.Receipt{}, errors.New("never granted")
	}
	delete(s.open, r.RequestID)
	s.perUser[r.UserID]--
	return client.Receipt{Success: true}, nil
}

func newSystem() *system {
	return &system{open: map[uuid.UUID]string{}, perUser: map[string]int{}, sent: map[string][]int64{}}
}

func TestTrafficEndsWithEveryAllowedRequestRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ps := newSystem(), Profiles()
		tally := NewTally(ps)
		begin := time.Now()
		Run(t.Context(), s, ps, 2*time.Second, tally)
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("2 s of traffic took %s", d)
		}
		got := tally.Snapshot()
		if len(s.open) != 0 || got.Total.Allowed != got.Total.Recorded || got.Errors != 0 || got.Events() != got.Total.Checks {
			t.Errorf("%d left open; %+v", len(s.open), got)
		}
		for _, r := range got.Rows {
			if r.Checks == 0 || r.Input == 0 {
				t.Errorf("tier %s sent nothing: %+v", r.Tier, r)
			}
		}
		if got.Rows[1].Reasons["concurrent"] == 0 {
			t.Errorf("plus never sent more than three at once: %+v", got.Rows[1])
		}
	})
}

func TestTrafficIsTheSameAtEveryRun(t *testing.T) {
	for _, p := range Profiles() {
		draw := func() []request {
			r := rand.New(rand.NewPCG(1, 7)) //nolint:gosec // reproducible
			out := make([]request, 50)
			for i := range out {
				out[i] = p.next(r, i)
			}
			return out
		}
		a, b := draw(), draw()
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("%s: request %d is %+v, then %+v", p.Tier, i, a[i], b[i])
			}
			if a[i].output > a[i].maxOutput {
				t.Errorf("%s: request %d uses more than it asks for: %+v", p.Tier, i, a[i])
			}
		}
	}
}

func TestFailedCallsAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ps := newSystem(), Profiles()
		s.fail = true
		tally := NewTally(ps)
		Run(t.Context(), s, ps, 100*time.Millisecond, tally)
		lines := Table(tally.Snapshot(), Ledger{}, time.Second, time.Second)
		if last := lines[len(lines)-1]; !strings.Contains(last, "calls failed, last: away") {
			t.Errorf("last line is %q", last)
		}
	})
}

func TestTableFitsAHundredColumnsAndTellsTheLag(t *testing.T) {
	s := Snapshot{Rows: []Row{{Tier: "enterprise", Checks: 234567, Allowed: 234567, Refused: 234567, Input: 9_999_999, Output: 9_999_999,
		Reasons: map[string]int64{"concurrent": 12345, "context_too_long": 2345, "model_not_allowed": 345}}},
		Total: Row{Tier: "all", Checks: 234567, Refused: 1000, Recorded: 500}, CheckP50: 1200 * time.Microsecond, CheckP99: 125 * time.Millisecond, RecordP50: 2500 * time.Microsecond, RecordP99: 225 * time.Millisecond}
	lines := Table(s, Ledger{Events: 1203, Lag: 1300 * time.Millisecond, Known: true}, 10*time.Second, 10*time.Second)
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 100 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"concurrent 12,345, context_too_long 2,3", "ledger: 297 behind, 1.3 s", "23,456 checks/s"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	if l := Line(s, Ledger{Events: 1500, Known: true}, time.Second, 10*time.Second); !strings.HasSuffix(l, "ledger: up to date") {
		t.Errorf("line is %q", l)
	}
}
