package app

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Log and ledger agree after repeats and poison, and each way to break the ledger is named.
func TestReconcileNamesEveryDifference(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		r.start()
		again := record("acme", 3) // a repeat with other figures, elsewhere
		again.InputTokens = 999
		rejected := record("acme", 200)
		rejected.InputTokens, rejected.OutputTokens, rejected.ReservedTokens, rejected.WasRateLimited, rejected.Outcome = 0, 0, 0, true, usage.Rejected
		rejected.Reason, rejected.Scope, rejected.Reservation = "rpm", "user", ""
		used, guess := record("acme", 300), record("acme", 300) // the guess that a request expired gives way to what it used
		guess.Outcome, guess.InputTokens = usage.Expired, 500
		r.produce(append(family("acme", 100), in(1, again), in(2, rejected), in(2, guess), in(2, used), kafka.Message{Key: []byte("0"), Value: []byte("poison")})...)
		r.awaitEvents(102)
		r.awaitCommitted()

		db, err := sql.Open("clickhouse", r.cfg.ClickHouseURL.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var done, total int64
		log := &kafkalog.Log{Brokers: r.cfg.KafkaBrokers, Topic: r.cfg.Topic, Progress: func(d, n int64) { done, total = d, n }}
		compare := func() reconcile.Report {
			t.Helper()
			report, err := reconcile.LogAndLedger(t.Context(), log, clickhousetotals.Ledger{DB: db})
			if err != nil {
				t.Fatal(err)
			}
			return report
		}
		if report := compare(); !report.Agree() || report.Log.Events != 102 || report.Log.Requests != 101 || report.Log.InputTokens != 707 {
			t.Fatalf("%s: %+v", report, report)
		}
		if log.Messages != 105 || log.Unusable != 1 || done != 105 || total != 105 {
			t.Errorf("%d messages, %d unusable, progress %d of %d", log.Messages, log.Unusable, done, total)
		}
		for _, c := range []struct{ change, want string }{
			{"ALTER TABLE usage_ledger UPDATE output_tokens = 4 WHERE grain = 'event' AND org_id = 'acme' AND kafka_offset = 1 AND kafka_partition = 0 SETTINGS mutations_sync = 1", "output_tokens"},
			{"ALTER TABLE usage_ledger DELETE WHERE was_rate_limited SETTINGS mutations_sync = 1", "events rejected_requests output_tokens event_ids"},
			{"INSERT INTO usage_ledger (grain, events, generation, event_id, outcome, input_tokens, kafka_offset) VALUES ('event', 1, 1, generateUUIDv4(), 'completed', 5, 7)", "requests input_tokens output_tokens event_ids rejected_requests"},
		} {
			if err := r.ch.Exec(t.Context(), c.change); err != nil {
				t.Fatal(err)
			}
			report := compare()
			for name := range strings.FieldsSeq(c.want) {
				if !strings.Contains(report.String(), name) {
					t.Errorf("after %s: %s does not name %s", c.change, report, name)
				}
			}
			if report.Agree() {
				t.Errorf("after %s: they agree", c.change)
			}
		}
	})
}
