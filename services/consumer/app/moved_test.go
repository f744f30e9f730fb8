package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Sums whose totals are right but that lie with another payer, in another minute or quarter, or under another reason: both the consumer's comparison
// and the tool's see it, and the tool names who has too little and who too much.
func TestReconcileNamesSumsThatWereMoved(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	refused := func(reason, scope string) usage.Record {
		e := used("acme", "m", "2026-05-06T12:20:01.000Z", 0, 0, 0)
		e.ReservedTokens, e.WasRateLimited, e.Outcome, e.Reason, e.Scope, e.Reservation = 0, true, usage.Rejected, reason, scope, ""
		return e
	}
	guess := used("acme", "m", "2026-05-06T12:00:01.000Z", 70, 0, 0)
	guess.Outcome = usage.Expired
	real := guess
	real.Outcome, real.InputTokens, real.Timestamp = usage.Completed, 60, usage.At(noon.Add(3*time.Minute))
	first := used("acme", "m", "2026-05-06T12:00:01.000Z", 1000, 10, 0)
	r.send(guess, first, used("globex", "m", "2026-05-06T12:00:01.000Z", 1000, 0, 0), used("acme", "m", "2026-05-06T12:20:01.000Z", 500, 0, 0),
		refused("rpm", "user"), refused("tpm", "org"), corrects(first, -100, 0, 0))
	r.awaitEvents(7)
	r.send(real)
	r.awaitCommitted()
	db, err := clickhouseledger.OpenSQL(r.cfg.ClickHouseURL.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ledger := clickhousetotals.Ledger{DB: db}
	differences := func() (views, all []string) {
		t.Helper()
		found, unsettled, err := reconcile.CompareViews(t.Context(), ledger, noon.Truncate(24*time.Hour))
		if err != nil || len(unsettled) > 0 {
			t.Fatal(unsettled, err)
		}
		for _, d := range found {
			views = append(views, strings.Fields(d.Where)[0])
		}
		report, err := reconcile.Run(t.Context(), reconcile.Config{Log: &kafkalog.Log{Brokers: r.cfg.KafkaBrokers, Topic: r.cfg.Topic, DeadLetterTopic: r.cfg.DeadLetterTopic, Group: r.cfg.Group}, Ledger: ledger, Wait: deadline})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range report.Differences {
			all = append(all, d.String())
		}
		return views, all
	}
	if _, all := differences(); all != nil {
		t.Fatalf("as it was stored: %q", all)
	}
	// move takes figures from one group's sums and adds them to another's.
	move := func(grain, column string, n int, from, to map[string]string) {
		t.Helper()
		for sign, group := range map[int]map[string]string{-1: from, 1: to} {
			values := map[string]string{"org_id": "'acme'", "period": "'2026-05-06 12:00:00'", "user_id": "'u1'", "tier": "'plus'", "model": "'m'", "reason": "''", "scope": "''"}
			for k, v := range group {
				values[k] = v
			}
			query := fmt.Sprintf("INSERT INTO usage_ledger (grain, org_id, period, user_id, tier, model, reason, scope, events, %s, ingested_at, generation) SELECT '%s', %s, %s, %s, %s, %s, %s, %s, %d, %d, now64(3), 1",
				column, grain, values["org_id"], values["period"], values["user_id"], values["tier"], values["model"], values["reason"], values["scope"], sign, sign*n)
			if err := r.ch.Exec(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	day := map[string]string{"period": "'2026-05-06 00:00:00'"}
	for _, c := range []struct {
		grain, column string
		n             int
		from, to      map[string]string
		views, named  string
	}{
		{"minute", "input_tokens", 900, nil, map[string]string{"org_id": "'globex'"}, "usage_minutely", "usage_minutely 2026-05-06T12:00Z, org globex, user u1, tier plus, model m: input_tokens: usage_events 1000, the view 1900 (+900)"},
		{"quarter", "output_tokens", 1 << 40, nil, map[string]string{"user_id": "'u2'"}, "usage_hourly usage_quarterly", "usage_quarterly 2026-05-06T12:00Z, org acme, user u2, tier plus, model m: output_tokens: usage_events 0, the view 1099511627776 (+1099511627776)"},
		{"day", "cached_input_tokens", 1, day, map[string]string{"period": day["period"], "model": "'n'"}, "usage_daily", "usage_daily 2026-05-06, org acme, user u1, tier plus, model n: cached_input_tokens: usage_events 0, the view 1 (+1)"},
		{"day", "requests", 1, day, map[string]string{"period": day["period"], "tier": "'free'"}, "usage_daily", "usage_daily 2026-05-06, org acme, user u1, tier free, model m: requests: usage_events 0, the view 1 (+1)"},
		{"minute", "input_tokens", 3, nil, map[string]string{"period": "'2026-05-06 12:59:00'"}, "usage_minutely", "usage_minutely 2026-05-06T12:00Z, 12:59, org acme, user u1, tier plus, model m: input_tokens: usage_events 0, the view 3 (+3)"},
		{"quarter", "requests", 1, nil, map[string]string{"period": "'2026-05-06 12:15:00'"}, "usage_quarterly", "usage_quarterly 2026-05-06T12:00Z, 12:15, org acme, user u1, tier plus, model m: requests: usage_events 1, the view 2 (+1)"},
		{"refusals", "rejected_requests", 1, map[string]string{"org_id": "''", "user_id": "''", "model": "''", "reason": "'rpm'", "scope": "'user'"},
			map[string]string{"org_id": "''", "user_id": "''", "model": "''", "reason": "'tpm'", "scope": "'org'"}, "rejections_hourly", "rejections_hourly 2026-05-06T12:00Z, tier plus, reason tpm, scope org: rejected_requests: usage_events 1, the view 2 (+1)"},
	} {
		move(c.grain, c.column, c.n, c.from, c.to)
		views, all := differences()
		if got := strings.Join(views, " "); got != c.views {
			t.Errorf("%s %s: the consumer sees a difference in %q, want %q", c.grain, c.column, got, c.views)
		}
		if !strings.Contains(strings.Join(all, "\n"), c.named) {
			t.Errorf("%s %s: %q\nlacks %q", c.grain, c.column, all, c.named)
		}
		move(c.grain, c.column, c.n, c.to, c.from)
		if views, all := differences(); views != nil || all != nil {
			t.Fatalf("moved back: %q", all)
		}
	}
}
