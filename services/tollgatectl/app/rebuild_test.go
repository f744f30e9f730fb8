package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestASpoiledLedgerIsRebuiltFromTheLogThenReconciles(t *testing.T) {
	b, events := ledgerBook(t), sampleEvents()
	env := append([]string{"TOLLGATE_CLICKHOUSE_URL=" + b.dsn, "TOLLGATE_KAFKA_BROKERS=" + strings.Join(logOf(t, events, int64(len(events))), ",")}, b.env...)
	b.exec(t, "ALTER TABLE usage_ledger DELETE WHERE grain = 'event' AND org_id = 'acme' OR grain = 'quarter' AND org_id = 'zoned' SETTINGS mutations_sync = 1")
	if code, stdout, _ := run(t, env, "reconcile", "--wait", "20s"); code != 1 {
		t.Fatalf("the spoiled ledger agrees: this proves nothing\n%s", stdout)
	}
	code, stdout, stderr := run(t, env, "rebuild", "ledger", "--keep", "-o", "json")
	var r struct {
		Events, Messages, Unusable int
		Seconds                    float64
		Kept                       string
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || r.Events != len(events) || r.Messages != len(events) || r.Unusable != 0 || r.Seconds <= 0 {
		t.Fatalf("exit %d: %v\n%s%s", code, err, stdout, stderr)
	}
	b.exec(t, "DROP TABLE "+r.Kept)
	if code, stdout, stderr = run(t, env, "reconcile", "--wait", "20s"); code != 0 || !strings.Contains(stdout, "✓ log and ledger agree") {
		t.Errorf("after the rebuild: exit %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr = run(t, env, "rebuild", "ledger"); code != 0 || !strings.Contains(stdout, fmt.Sprintf("✓ %d events stored from %d messages, 0 of them unusable", len(events), len(events))) {
		t.Errorf("again: exit %d\n%s%s", code, stdout, stderr)
	}

	env[1] = "TOLLGATE_KAFKA_BROKERS=" + strings.Join(logOf(t, events[:5], 0), ",")
	if code, _, stderr = run(t, env, "rebuild", "ledger"); code != 1 || !strings.Contains(stderr, fmt.Sprintf("it lacks %d of the ledger's events, ", len(events)-5)) {
		t.Errorf("a log that lacks events: exit %d, %s", code, stderr)
	}
	if code, stdout, _ = b.run(t, "usage", "--from", "2026-03", "--to", "2026-03", "--org", "acme", "--by", "org"); code != 0 || !strings.Contains(stdout, "1,729") && !strings.Contains(stdout, "1729") {
		t.Errorf("after the refusal: exit %d\n%s", code, stdout)
	}
	if code, _, stderr = run(t, env[2:], "rebuild", "ledger"); code != 2 || !strings.Contains(stderr, "TOLLGATE_KAFKA_BROKERS, TOLLGATE_CLICKHOUSE_URL: not set") {
		t.Errorf("no address: exit %d, %s", code, stderr)
	}
	if code, _, stderr = run(t, []string{env[1], "TOLLGATE_CLICKHOUSE_URL=clickhouse://u:secret@%zz"}, "rebuild", "ledger"); code != 2 || strings.Contains(stderr, "secret") {
		t.Errorf("a bad URL: exit %d, %s", code, stderr)
	}
}

func TestLeftoversOfRebuildsAreDroppedWithoutTheLog(t *testing.T) {
	b := ledgerBook(t)
	env := []string{"TOLLGATE_CLICKHOUSE_URL=" + b.dsn}
	if code, stdout, stderr := run(t, env, "rebuild", "ledger", "--drop-leftovers"); code != 0 || stdout != "there are no leftovers\n" {
		t.Errorf("none: exit %d\n%s%s", code, stdout, stderr)
	}
	b.exec(t, "CREATE TABLE usage_ledger_5 AS usage_ledger")
	code, stdout, stderr := run(t, env, "rebuild", "ledger", "--drop-leftovers", "-o", "json")
	var r struct{ Dropped, Unfinished []string }
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || len(r.Dropped) != 0 || len(r.Unfinished) != 1 || r.Unfinished[0] != "usage_ledger_5" {
		t.Errorf("a young one: exit %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if code, stdout, stderr = run(t, env, "rebuild", "ledger", "--drop-leftovers"); code != 0 || !strings.Contains(stdout, "usage_ledger_5 was made or written to within ten minutes") {
		t.Errorf("a young one: exit %d\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr = run(t, env, "rebuild", "ledger", "--drop-leftovers", "--force"); code == 0 || !strings.Contains(stderr, "drop-leftovers") {
		t.Errorf("with --force: exit %d, %s", code, stderr)
	}
	if code, _, stderr = run(t, nil, "rebuild", "ledger", "--drop-leftovers"); code != 2 || !strings.Contains(stderr, "TOLLGATE_CLICKHOUSE_URL: not set") {
		t.Errorf("no address: exit %d, %s", code, stderr)
	}
}
