package e2e

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// limits are a user's own; 0 is unlimited. The user is of the enterprise tier with every limit stated.
type limits struct{ rpm, tpm, tpd, concurrent int64 }

// newUser makes a user that no other test has.
func newUser(t testing.TB, q *client.Quotas, l limits) string {
	t.Helper()
	user := "e2e-" + uuid.NewString()
	_, err := q.PutQuota(t.Context(), user, client.QuotaChange{Tier: tier.Enterprise, Overrides: tier.Overrides{RPMLimit: &l.rpm, TPMLimit: &l.tpm,
		TPDLimit: &l.tpd, ConcurrentLimit: &l.concurrent, MaxContext: new(int64(0))}})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func check(t *testing.T, e *client.Enforcement, user string, tokens int64) client.Decision {
	t.Helper()
	d, err := e.Check(t.Context(), client.CheckRequest{UserID: user, Model: "grok-2", EstimatedTokens: &tokens})
	if err != nil {
		t.Fatalf("check of %d tokens: %v", tokens, err)
	}
	return d
}

func allowed(t *testing.T, e *client.Enforcement, user string, tokens int64) client.Decision {
	t.Helper()
	d := check(t, e, user, tokens)
	if !d.Allowed {
		t.Fatalf("%d tokens were refused: %s", tokens, d.Reason)
	}
	return d
}

func refused(t *testing.T, e *client.Enforcement, user string, tokens int64, reason string) {
	t.Helper()
	if d := check(t, e, user, tokens); d.Allowed || d.Reason != reason || d.Scope != "user" {
		t.Fatalf("%d tokens: allowed %v, reason %q, scope %q; want a refusal by %s of the user", tokens, d.Allowed, d.Reason, d.Scope, reason)
	}
}

func record(t *testing.T, e *client.Enforcement, user string, id uuid.UUID, input, output int64) client.Receipt {
	t.Helper()
	rec, err := e.Record(t.Context(), client.RecordRequest{UserID: user, RequestID: id, Model: "grok-2", InputTokens: input, OutputTokens: output, LatencyMS: 5, Outcome: "completed"})
	if err != nil {
		t.Fatalf("record: %v", err)
	}
	return rec
}

func status(t *testing.T, e *client.Enforcement, user string) client.Status {
	t.Helper()
	s, err := e.UserStatus(t.Context(), user)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func remaining(t *testing.T, s client.Status, dimension string) int64 {
	t.Helper()
	if s.Remaining[dimension] == nil {
		t.Fatalf("%s is not limited: %v", dimension, s.Limit)
	}
	return *s.Remaining[dimension]
}

func TestUpgradeHoldsOnTheVeryNextCheck(t *testing.T) {
	_, e, q := services(t)
	for range 20 {
		user := "e2e-" + uuid.NewString() // unknown, hence free: 10 requests a minute, one at a time
		for range 10 {
			d := allowed(t, e, user, 10)
			record(t, e, user, d.RequestID, 5, 5)
		}
		refused(t, e, user, 10, "rpm")
		got, err := q.PutQuota(t.Context(), user, client.QuotaChange{Tier: tier.Plus})
		if err != nil || got.Propagation != "done" {
			t.Fatalf("propagation %q, %v", got.Propagation, err)
		}
		if d := allowed(t, e, user, 10); d.QuotaVersion != got.Version || *d.Limit["requests"] != 40 {
			t.Fatalf("decided by version %d with %d requests a minute, want version %d with 40", d.QuotaVersion, *d.Limit["requests"], got.Version)
		}
	}
}

// Case B01.
func TestRefusedRequestChangesNoCounter(t *testing.T) {
	_, e, q := services(t)
	t.Run("B01", func(t *testing.T) {
		user := newUser(t, q, limits{rpm: 2, concurrent: 1})
		a := allowed(t, e, user, 10)
		for range 5 {
			refused(t, e, user, 10, "concurrent")
		}
		record(t, e, user, a.RequestID, 5, 5)
		c := allowed(t, e, user, 10)
		record(t, e, user, c.RequestID, 5, 5)
		refused(t, e, user, 10, "rpm")
	})
	for reason, c := range map[string]struct {
		limits
		first, next int64 // tokens of the request that uses up, and of those that are refused
	}{
		"rpm":        {limits{rpm: 1, tpm: 1e6, tpd: 1e7, concurrent: 100}, 10, 10},
		"tpm":        {limits{rpm: 1000, tpm: 1000, tpd: 1e7, concurrent: 100}, 900, 800},
		"tpd":        {limits{rpm: 1000, tpm: 1e6, tpd: 1000, concurrent: 100}, 900, 800},
		"concurrent": {limits{rpm: 1000, tpm: 1e6, tpd: 1e7, concurrent: 1}, 10, 10},
	} {
		t.Run(reason, func(t *testing.T) {
			user := newUser(t, q, c.limits)
			allowed(t, e, user, c.first)
			before := status(t, e, user)
			for range 5 {
				refused(t, e, user, c.next, reason)
			}
			after := status(t, e, user)
			for _, dimension := range []string{"requests", "tokens_1m", "tokens_1d", "concurrent"} {
				if b, a := remaining(t, before, dimension), remaining(t, after, dimension); a < b { // more is the refill
					t.Errorf("%s: %d were left, after the refusals %d", dimension, b, a)
				}
			}
			if before.InFlight != 1 || after.InFlight != 1 {
				t.Errorf("in flight: %d, after the refusals %d", before.InFlight, after.InFlight)
			}
		})
	}
}

// Case B03.
func TestSettleBelowReservationFreesTheDifference(t *testing.T) {
	_, e, q := services(t)
	user := newUser(t, q, limits{tpm: 1000})
	d := allowed(t, e, user, 1000)
	if left := remaining(t, status(t, e, user), "tokens_1m"); left > 100 {
		t.Fatalf("%d tokens are left of a reservation of all", left)
	}
	record(t, e, user, d.RequestID, 150, 50)
	if left := remaining(t, status(t, e, user), "tokens_1m"); left < 800 || left > 1000 {
		t.Errorf("%d tokens are left, want 800 and the refill since", left)
	}
	allowed(t, e, user, 700)
}

func TestSettlingTwiceChargesOnce(t *testing.T) {
	p, e, q := services(t)
	user := newUser(t, q, limits{tpd: 1000})
	d := allowed(t, e, user, 500)
	first := record(t, e, user, d.RequestID, 200, 100)
	for range 3 {
		if again := record(t, e, user, d.RequestID, 200, 100); !again.AlreadyRecorded || again.EventID != first.EventID {
			t.Errorf("a repeat answers %+v, the first %+v", again, first)
		}
	}
	if first.AlreadyRecorded {
		t.Error("the first record says that it was recorded already")
	}
	if left := remaining(t, status(t, e, user), "tokens_1d"); left < 700 || left > 705 {
		t.Errorf("%d tokens are left, want 700", left)
	}
	// One more request behind them in the same partition: once it is counted, a second charge would be too.
	d = allowed(t, e, user, 10)
	record(t, e, user, d.RequestID, 1, 1)
	p.awaitLedger(t, user, counted{requests: 2, input: 201, output: 101})
}

func TestRefusalsAreInTheLedger(t *testing.T) {
	p, e, q := services(t)
	user := newUser(t, q, limits{rpm: 1})
	d := allowed(t, e, user, 10)
	for range 3 {
		refused(t, e, user, 10, "rpm")
	}
	record(t, e, user, d.RequestID, 4, 6)
	p.awaitLedger(t, user, counted{requests: 1, rejected: 3, input: 4, output: 6})
}
