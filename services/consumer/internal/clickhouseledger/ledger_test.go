package clickhouseledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

func TestMain(m *testing.M) { stores.Main(m) }

func openMigrated(t testing.TB) *Ledger {
	t.Helper()
	dsn := stores.ClickHouse(t).DSN
	db, err := OpenSQL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrations.ClickHouse(context.Background(), db); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func rows(from, n int) []consume.Row {
	out := make([]consume.Row, n)
	for i := range out {
		id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, from+i))
		out[i] = consume.Row{
			Record: usage.Record{EventID: id, SchemaVersion: 1, UserID: "u" + fmt.Sprint(i%500), OrgID: "o" + fmt.Sprint(i%50), Tier: "plus", RequestID: id, RequestedModel: "grok-2",
				Model: "grok-2", InputTokens: 1000, OutputTokens: 200, ReservedTokens: 2000, LatencyMS: 300, Timestamp: usage.At(time.Date(2026, 1, 1, 0, 0, i%86400, 0, time.UTC)),
				Outcome: usage.Completed, Reservation: usage.Held, Region: "eu", Instance: "i1"},
			Message: consume.Message{Position: consume.Position{Topic: usage.Topic, Partition: i % 12, Offset: int64(from+i) / 12}},
		}
	}
	return out
}

func count(t *testing.T, l *Ledger, query string) (n uint64) {
	t.Helper()
	if err := l.conn.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// A block whose answer was lost is sent again: nothing is stored. The same rows under another token are, and the view hides them.
func TestARepeatedBlockIsStoredOnce(t *testing.T) {
	l := openMigrated(t)
	block := rows(0, 1000)
	if err := l.conn.Exec(t.Context(), "SYSTEM STOP MERGES usage_event_rows"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := l.Insert(t.Context(), consume.Token(block), block); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, l, "SELECT count() FROM usage_event_rows"); n != 1000 {
		t.Errorf("%d rows after the block was inserted three times, want 1000", n)
	}
	for _, part := range [][]consume.Row{block[:300], block[200:]} { // cut elsewhere
		if err := l.Insert(t.Context(), consume.Token(part), part); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, l, "SELECT count() FROM usage_event_rows"); n != 2100 {
		t.Errorf("%d rows after other blocks, want 2100", n)
	}
	if n := count(t, l, "SELECT count() FROM usage_events"); n != 1000 {
		t.Errorf("%d events, want 1000", n)
	}
	if n := count(t, l, "SELECT count() FROM system.parts WHERE database = currentDatabase() AND table = 'usage_event_rows' AND active"); n != 3 {
		t.Errorf("%d parts, want one for each block: a block must be stored whole or not at all", n)
	}
}

// Only a row that the table's constraints refuse is hopeless; everything else may be tried again.
func TestARowThatSpoilsASumIsRefused(t *testing.T) {
	l := openMigrated(t)
	for name, spoil := range map[string]func(*usage.Record){
		"negative usage":      func(r *usage.Record) { r.InputTokens = -1 },
		"refusal with tokens": func(r *usage.Record) { r.WasRateLimited, r.Outcome = true, usage.Rejected },
	} {
		block := rows(0, 10)
		spoil(&block[4].Record)
		if err := l.Insert(t.Context(), consume.Token(block), block); !errors.Is(err, consume.ErrRefused) {
			t.Errorf("%s: got %v, want ErrRefused", name, err)
		}
	}
	if n := count(t, l, "SELECT count() FROM usage_events"); n != 0 {
		t.Errorf("%d events of refused blocks are stored", n)
	}
	if err := l.conn.Exec(t.Context(), "RENAME TABLE usage_event_rows TO elsewhere"); err != nil {
		t.Fatal(err)
	}
	block := rows(0, 10)
	if err := l.Insert(t.Context(), consume.Token(block), block); err == nil || errors.Is(err, consume.ErrRefused) {
		t.Errorf("without the table: got %v, want an error that is no refusal", err)
	}
}

func TestFaultsOfADSNAreToldWithoutItsPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"clickhouse://u:hunter2@h:9000":          "must name the database",
		"http://u:hunter2@h:8123/tollgate":       "native protocol",
		"clickhouse://u:hunter2@h:port/%zz":      "not a ClickHouse DSN",
		"clickhouse://u:hunter2@h:9000/tollgate": "",
	} {
		_, err := Options(dsn)
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) && want != "" || strings.Contains(got, "hunter2") {
			t.Errorf("%s: got %s, want %q", dsn, got, want)
		}
	}
}

// BenchmarkInsert tells rows a second in the consumer's default blocks.
func BenchmarkInsert(b *testing.B) {
	l := openMigrated(b)
	const size = 5000
	blocks := make([][]consume.Row, 20)
	for i := range blocks {
		blocks[i] = rows(i*size, size)
	}
	n := 0
	b.ResetTimer()
	for b.Loop() {
		if err := l.Insert(b.Context(), fmt.Sprint(n), blocks[n%len(blocks)]); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(n*size)/b.Elapsed().Seconds(), "rows/s")
}
