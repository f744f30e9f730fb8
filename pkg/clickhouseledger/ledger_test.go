package clickhouseledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestMain(m *testing.M) { stores.Main(m) }

// migrated gives the DSN of a ledger without events, and a pool to read it with.
func migrated(t testing.TB) (string, *sql.DB) {
	t.Helper()
	dsn := stores.ClickHouse(t).DSN
	return dsn, migrate(t, dsn)
}

func migrate(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := OpenSQL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := migrations.ClickHouse(context.Background(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

// writer opens a ledger for the test's time.
func writer(t testing.TB, dsn string) *Ledger {
	t.Helper()
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

func store(t testing.TB, l *Ledger, events []Event) Stored {
	t.Helper()
	s, err := l.Store(context.Background(), events)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func number(t testing.TB, db *sql.DB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func exec(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// event makes a completed event of 10 tokens. i tells it apart, and where it lies in the log.
func event(i int) Event {
	id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))
	return Event{Record: usage.Record{EventID: id, SchemaVersion: 1, UserID: fmt.Sprint("u", i%500), OrgID: fmt.Sprint("o", i%5), Tier: "plus", RequestID: id,
		RequestedModel: "grok-2", Model: "grok-2", InputTokens: 7, OutputTokens: 3, ReservedTokens: 2000, LatencyMS: 300,
		Timestamp: usage.At(time.Date(2026, 1, 1, 0, 0, i%86400, 0, time.UTC)), Outcome: usage.Completed, Reservation: usage.Held, Region: "eu", Instance: "i1"},
		Topic: usage.Topic, Partition: i % 12, Offset: int64(i) / 12}
}

func events(from, n int) []Event {
	out := make([]Event, n)
	for i := range out {
		out[i] = event(from + i)
	}
	return out
}

// Only an event that the table's constraints refuse is hopeless; everything else may be tried again.
func TestAnEventThatSpoilsASumIsRefused(t *testing.T) {
	dsn, db := migrated(t)
	l := writer(t, dsn)
	for name, spoil := range map[string]func(*usage.Record){
		"negative usage":      func(r *usage.Record) { r.InputTokens = -1 },
		"refusal with tokens": func(r *usage.Record) { r.WasRateLimited, r.Outcome = true, usage.Rejected },
		"one that quotes":     func(r *usage.Record) { r.InputTokens, r.Model = -1, "Constraint `generation` for table" },
	} {
		batch := events(0, 10)
		spoil(&batch[4].Record)
		if _, err := l.Store(t.Context(), batch); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: got %v, want ErrRefused", name, err)
		}
	}
	if n := number(t, db, "SELECT count() FROM usage_events"); n != 0 {
		t.Errorf("%d events of refused batches are stored", n)
	}
	if s := store(t, l, events(0, 10)); s.Added != 10 {
		t.Errorf("after refusals: %+v", s)
	}
	exec(t, db, "RENAME TABLE usage_ledger TO elsewhere")
	if _, err := l.Store(t.Context(), events(10, 10)); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("without the table: got %v, want an error that is no refusal", err)
	}
	exec(t, db, "RENAME TABLE elsewhere TO usage_ledger")
	if s := store(t, l, events(5, 15)); s.Added != 10 || s.Known != 5 {
		t.Errorf("after the table came back: %+v", s)
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
