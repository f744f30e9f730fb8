package clickhouseledger

import (
	"testing"
	"time"
)

// BenchmarkGuard looks for every event of the ledger (-events) in a table that has all of them, as a rebuild does before the exchange. The
// yardstick is to read the same table's ids once.
func BenchmarkGuard(b *testing.B) {
	db := filled(b, *benchEvents)
	exec(b, db, "CREATE TABLE usage_ledger_5 AS usage_ledger")
	exec(b, db, "ALTER TABLE usage_ledger_5 DROP CONSTRAINT fresh")
	exec(b, db, "INSERT INTO usage_ledger_5 (grain, event_id, org_id, events, outcome, generation) SELECT grain, event_id, org_id, events, outcome, 1 FROM usage_ledger WHERE grain = 'event'")
	r := &rebuild{db: db, generation: 5}
	var guarded, read time.Duration
	for b.Loop() {
		now, err := r.clock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		n, _, err := r.lacking(b.Context(), now, guardRange)
		if err != nil || n != 0 {
			b.Fatal(n, err)
		}
		guarded += time.Since(began)
		began = time.Now()
		exec(b, db, "SELECT uniqExact(event_id) FROM usage_ledger WHERE grain = 'event' FORMAT Null")
		read += time.Since(began)
	}
	b.ReportMetric(guarded.Seconds()/float64(b.N), "guard-s")
	b.ReportMetric(read.Seconds()/float64(b.N), "read-ids-s")
}
