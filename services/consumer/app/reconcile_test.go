package app

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

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
		log := &kafkalog.Log{Brokers: r.cfg.KafkaBrokers, Topic: r.cfg.Topic, DeadLetterTopic: r.cfg.DeadLetterTopic, Group: r.cfg.Group}
		compare := func(since time.Time) *reconcile.Report {
			t.Helper()
			report, err := reconcile.Run(t.Context(), reconcile.Config{Log: log, Ledger: clickhousetotals.Ledger{DB: db}, Since: since, Wait: deadline,
				Progress: func(_ string, d, n int64) { done, total = d, n }})
			if err != nil {
				t.Fatal(err)
			}
			return report
		}
		if report := compare(time.Time{}); !report.Agree() || report.Log.Events != 102 || report.Log.Requests != 101 || report.Log.InputTokens != 707 {
			t.Fatalf("%s: %+v", report, report)
		}
		if report := compare(time.Time{}); report.Messages != 105 || report.DeadLetters[usage.ReasonNotJSON] != 1 || report.StoredRows < 102 || done != 104 || total != 104 {
			t.Errorf("%+v, progress %d of %d", report, done, total)
		}
		if report := compare(noon.Add(time.Hour)); !report.Agree() || report.Log.Events != 0 || report.Messages != 105 { // the messages are young, their timestamps are not
			t.Errorf("since an hour later: %s: %+v", report, report)
		}
		if report := compare(time.Now().Add(3 * time.Hour)); !report.Agree() || report.Messages != 0 {
			t.Errorf("since the future: %s: %+v", report, report)
		}
		for _, c := range []struct{ change, want string }{
			{"ALTER TABLE usage_ledger UPDATE output_tokens = 4 WHERE grain = 'event' AND org_id = 'acme' AND kafka_offset = 1 AND kafka_partition = 0 SETTINGS mutations_sync = 1", "output_tokens"},
			{"ALTER TABLE usage_ledger UPDATE latency_ms = 1234567 WHERE grain = 'event' AND kafka_offset = 2 AND kafka_partition = 0 SETTINGS mutations_sync = 1", "events that differ"},
			{"ALTER TABLE usage_ledger DELETE WHERE was_rate_limited SETTINGS mutations_sync = 1", "rejected_requests output_tokens 2026-05-06T12:00Z"},
			{"INSERT INTO usage_ledger (grain, events, generation, event_id, outcome, input_tokens, kafka_offset) VALUES ('event', 1, 1, generateUUIDv4(), 'completed', 5, 7)", "requests input_tokens output_tokens rejected_requests"},
			{"DROP VIEW usage_daily", ""},
			{"CREATE VIEW usage_daily AS SELECT toDateTime(toStartOfDay(period), 'UTC') AS period, org_id, user_id, api_key_id, tier, model, requests, rejected_requests, input_tokens + 1 AS input_tokens, output_tokens, cached_input_tokens, total_tokens FROM usage_hourly", "usage_daily"},
		} {
			if err := r.ch.Exec(t.Context(), c.change); err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				continue
			}
			report := compare(time.Time{})
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

// The consumer itself says, as a metric, whether the views of today agree.
func TestTheConsumerShowsWhetherTheViewsAgree(t *testing.T) {
	r := newRig(t, embeddedBroker(t), newDatabase(t))
	r.cfg.Reconcile = time.Second
	c := r.start()
	today := record("acme", 1)
	today.Timestamp = usage.At(time.Now())
	r.produce(in(0, today))
	r.awaitEvents(1)
	const last, views = "tollgate_reconcile_last_success_timestamp_seconds", `tollgate_reconcile_differences{kind="views"}`
	await := func(want float64) {
		t.Helper()
		since := c.metric(last)
		r.eventually(func() string {
			if got := c.metric(views); c.metric(last) <= since || got != want {
				return fmt.Sprintf("%s is %v, want %v; compared at %v", views, got, want, c.metric(last))
			}
			return ""
		})
	}
	await(0)
	if got := c.metric(`tollgate_reconcile_differences{kind="offsets"}`); got != 0 {
		t.Errorf("offsets: %v", got)
	}
	if err := r.ch.Exec(t.Context(), "CREATE OR REPLACE VIEW rejections_hourly AS SELECT period, tier, 'rpm' AS reason, 'user' AS scope, requests FROM usage_hourly"); err != nil {
		t.Fatal(err)
	}
	await(1)
	if !strings.Contains(c.log.String(), "rejected_requests: usage_events 0, the view 1 (+1)") {
		t.Error("the difference is not in the log by name")
	}
}
