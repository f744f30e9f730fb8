package app

import (
	"slices"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
)

// Whichever column of the ledger's events is changed, reconcile sees it, but for the log's name and the moment of storing.
func TestReconcileSeesAChangeInEveryColumnOfAnEvent(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	a := used("acme", "m", "2026-05-06T12:00:01.000Z", 1000, 0, 0)
	r.send(a, corrects(a, -10, 0, 0))
	r.awaitEvents(2)
	r.awaitCommitted()
	db, err := clickhouseledger.OpenSQL(r.cfg.ClickHouseURL.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	compare := func() *reconcile.Report {
		t.Helper()
		report, err := reconcile.Run(t.Context(), reconcile.Config{Log: &kafkalog.Log{Brokers: r.cfg.KafkaBrokers, Topic: r.cfg.Topic, DeadLetterTopic: r.cfg.DeadLetterTopic, Group: r.cfg.Group},
			Ledger: clickhousetotals.Ledger{DB: db}, Wait: deadline})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	if report := compare(); !report.Agree() {
		t.Fatalf("%s", report)
	}
	exec := func(statement string) {
		t.Helper()
		if err := r.ch.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec("CREATE TABLE was ENGINE = Memory AS SELECT * FROM usage_ledger WHERE grain = 'event'")
	changes := map[string]string{"was_rate_limited": "true AS was_rate_limited, 0 AS input_tokens", "outcome": "if(outcome = 'adjustment', outcome, 'failed') AS outcome"}
	for column, value := range map[string]string{"event_id": "generateUUIDv4()", "request_id": "generateUUIDv4()", "corrects_event_id": "generateUUIDv4()", "schema_version": "9", "estimated": "NOT estimated",
		"kafka_partition": "kafka_partition + 1", "kafka_offset": "kafka_offset + 1", "timestamp": "timestamp + 1"} {
		changes[column] = value + " AS " + column
	}
	for _, text := range []string{"user_id", "api_key_id", "org_id", "tier", "model", "reason", "scope", "requested_model", "reservation", "region", "instance"} {
		changes[text] = "'x' AS " + text
	}
	for _, number := range []string{"input_tokens", "output_tokens", "cached_input_tokens", "reserved_tokens", "latency_ms"} {
		changes[number] = number + " + 1 AS " + number
	}
	put := func(change string) {
		t.Helper()
		exec("ALTER TABLE usage_ledger DELETE WHERE grain = 'event' SETTINGS mutations_sync = 1")
		exec("INSERT INTO usage_ledger SELECT * " + change + " FROM was SETTINGS insert_deduplicate = 0")
	}
	columns := r.say("SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'usage_events'")
	for _, column := range columns {
		change, ok := changes[column]
		if !ok {
			if !slices.Contains([]string{"kafka_topic", "ingested_at"}, column) {
				t.Errorf("nobody knows whether %s is compared", column)
			}
			continue
		}
		put("REPLACE (" + change + ")")
		report := compare()
		named := report.Counts[reconcile.Different]+report.Counts[reconcile.Extra]+report.Counts[reconcile.Missing] > 0
		if report.Agree() || !named && column != "kafka_offset" { // a row from beyond the log's end is named by its partition
			t.Errorf("%s was changed: %s", column, report)
		}
	}
	put("")
	if report := compare(); !report.Agree() || len(columns) < 25 {
		t.Errorf("as it was: %s; columns %v", report, columns)
	}
}
