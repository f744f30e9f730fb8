package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func event(id string, input int64) usage.Record {
	return usage.Record{EventID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(id)), InputTokens: input, OutputTokens: 1, CachedInputTokens: 1, Outcome: usage.Completed}
}

func totals(rs ...usage.Record) (t Totals) {
	for _, r := range rs {
		t.Add(r)
	}
	return t
}

func TestEachDifferenceIsNamed(t *testing.T) {
	rejected, adjustment := event("r", 0), event("a", -5)
	rejected.WasRateLimited, rejected.Outcome = true, usage.Rejected
	adjustment.Outcome = usage.Adjustment
	base := totals(event("1", 10), event("2", 20), rejected, adjustment)
	if base.Events != 4 || base.Requests != 2 || base.RejectedRequests != 1 || base.InputTokens != 25 {
		t.Fatalf("totals %+v", base)
	}
	for name, c := range map[string]struct {
		ledger Totals
		want   string
	}{
		"the same in another order": {totals(adjustment, rejected, event("2", 20), event("1", 10)), ""},
		"one missing":               {totals(event("1", 10), rejected, adjustment), "events requests input_tokens output_tokens cached_input_tokens event_ids"},
		"a refusal missing":         {totals(event("1", 10), event("2", 20), adjustment), "events rejected_requests output_tokens cached_input_tokens event_ids"},
		"one counted twice":         {totals(event("1", 10), event("1", 10), event("2", 20), rejected, adjustment), "events requests input_tokens output_tokens cached_input_tokens event_ids"},
		"another tokens":            {totals(event("1", 11), event("2", 20), rejected, adjustment), "input_tokens"},
		"one stands for another":    {totals(event("1", 10), event("3", 20), rejected, adjustment), "event_ids"},
	} {
		r := Compare(base, c.ledger)
		var names []string
		for _, d := range r.Differences {
			names = append(names, d.Name)
			if !strings.Contains(r.String(), d.Name) {
				t.Errorf("%s: %q does not name %s", name, r, d.Name)
			}
		}
		if got := strings.Join(names, " "); got != c.want || r.Agree() != (c.want == "") {
			t.Errorf("%s: differ in %q, want %q", name, got, c.want)
		}
	}
}

type side struct {
	t   Totals
	err error
}

func (s side) Totals(context.Context) (Totals, error) { return s.t, s.err }

func TestASideThatCannotBeAskedIsNotAgreement(t *testing.T) {
	boom := errors.New("boom")
	for _, sides := range [][2]side{{{err: boom}, {}}, {{}, {err: boom}}} {
		if _, err := LogAndLedger(t.Context(), sides[0], sides[1]); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	}
}
