package app

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestMain(m *testing.M) { stores.Main(m) }

// book is the one ledger of this package's tests: finance may read no other database than tollgate.
type book struct {
	stores.ClickHouseDB
	dsn string // of the database tollgate
	db  *sql.DB
	env []string
}

var (
	bookOnce sync.Once
	theBook  *book
)

// ledgerBook gives the ledger with the events of sampleEvents. Its tests read only, or clean up.
func ledgerBook(t *testing.T) *book {
	t.Helper()
	bookOnce.Do(func() {
		ch := stores.ClickHouse(t)
		b := &book{ClickHouseDB: ch, dsn: strings.Replace(ch.DSN, ch.Name, ledgerDatabase, 1)}
		var err error
		if b.db, err = sql.Open("clickhouse", b.dsn); err != nil {
			t.Fatal(err)
		}
		if err := migrations.ClickHouse(t.Context(), b.db); err != nil {
			t.Fatal(err)
		}
		b.env = []string{"TOLLGATE_CLICKHOUSE_HTTP_URL=" + ch.HTTPURL, "TOLLGATE_FINANCE_USER=finance", "TOLLGATE_FINANCE_PASSWORD=" + ch.FinancePassword}
		b.store(t, sampleEvents())
		b.exec(t, `INSERT INTO price_rows (model, valid_from, currency, input_per_million, cached_input_per_million, output_per_million, version, changed_at, actor) VALUES
			('grok-2', '2026-01-01 00:00:00', 'EUR', 20000, 5000, 100000, 1, '2026-01-01 00:00:00', 'a'), ('grok-2', '2026-03-02 08:30:00', 'EUR', 40000, 10000, 200000, 2, '2026-01-01 00:00:00', 'a'),
			('tiny', '2026-01-01 00:00:00', 'EUR', 1, 1, 1, 1, '2026-01-01 00:00:00', 'a'), ('nothing', '2026-01-01 00:00:00', 'EUR', 0, 0, 0, 1, '2026-01-01 00:00:00', 'a')`)
		b.exec(t, "INSERT INTO org_zone_rows (org_id, time_zone, version, changed_at) VALUES ('zoned', 'Europe/Berlin', 1, '2026-01-01 00:00:00')")
		theBook = b
	})
	if theBook == nil {
		t.Fatal("the ledger could not be made")
	}
	return theBook
}

// store puts events into the ledger, each twice, as a log that repeats itself would.
func (b *book) store(t *testing.T, events []usage.Record) {
	t.Helper()
	ledger, err := clickhouseledger.Open(b.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	batch := make([]clickhouseledger.Event, len(events))
	for i, r := range events {
		if err := r.Validate(); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		batch[i] = clickhouseledger.Event{Record: r, Topic: usage.Topic, Offset: int64(i)}
	}
	for range 2 {
		if _, err := ledger.Store(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
}

// on is one event at a time of 2026, such as "03-29 00:30".
func on(at, org, user, model string, input, output int64, change ...func(*usage.Record)) usage.Record {
	when, err := time.Parse("2006-01-02 15:04", "2026-"+at)
	if err != nil {
		panic(err)
	}
	id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, at, org, user, model, input, output))
	r := usage.Record{EventID: id, SchemaVersion: 1, UserID: user, OrgID: org, Tier: "plus", RequestID: uuid.NewSHA1(id, nil), RequestedModel: model, Model: model,
		InputTokens: input, OutputTokens: output, ReservedTokens: input + output, LatencyMS: 7, Timestamp: usage.At(when), Outcome: usage.Completed, Reservation: usage.Held,
		Region: "eu", Instance: "i1"}
	for _, f := range change {
		f(&r)
	}
	return r
}

func cached(n int64) func(*usage.Record) { return func(r *usage.Record) { r.CachedInputTokens = n } }
func ended(o usage.Outcome) func(*usage.Record) {
	return func(r *usage.Record) { r.Outcome = o }
}
func refused(reason, scope, tier string) func(*usage.Record) {
	return func(r *usage.Record) {
		r.WasRateLimited, r.Outcome, r.Reason, r.Scope, r.Tier, r.Reservation, r.ReservedTokens = true, usage.Rejected, reason, scope, tier, "", 0
	}
}

// sampleEvents are of March 2026, when Berlin's clocks go forward on the 29th at 01:00 UTC, and of October, when they go back on the 25th.
func sampleEvents() []usage.Record {
	expired := on("03-02 09:00", "acme", "ann", "grok-2", 60, 6, ended(usage.Expired), func(r *usage.Record) { r.Estimated = true })
	return []usage.Record{
		on("03-01 00:00", "acme", "ann", "grok-2", 100, 20, cached(40)),
		on("03-01 12:00", "acme", "bob", "grok-4", 1000, 500),
		on("03-02 08:00", "acme", "ann", "grok-2", 50, 5, ended(usage.Failed)),
		expired,
		on("03-03 09:00", "acme", "ann", "grok-2", -10, -2, ended(usage.Adjustment), func(r *usage.Record) { r.ReservedTokens = 0; r.CorrectsEventID = expired.EventID }),
		on("03-31 23:59", "globex", "+eve@x", "grok-2", 7, 3, ended(usage.Cancelled)),
		on("03-05 10:00", "", "zoe", "grok-2", 0, 0, refused("tpm", "user", "free")),
		on("03-05 10:10", "", "zoe", "grok-2", 0, 0, refused("tpm", "user", "free")),
		on("03-06 10:10", "", "zoe", "grok-2", 0, 0, refused("rpm", "user", "free")),
		on("03-06 11:10", "acme", "bob", "grok-4", 0, 0, refused("tpd", "org", "plus")),
		on("03-28 22:59", "zoned", "ann", "grok-2", 1, 0), // the 28th in Berlin
		on("03-28 23:30", "zoned", "ann", "grok-2", 2, 0), // 00:30 of the 29th
		on("03-29 00:30", "zoned", "ann", "grok-2", 4, 0), // 01:30
		on("03-29 01:30", "zoned", "ann", "grok-2", 8, 0), // 03:30: there is no 02:30
		on("03-29 21:59", "zoned", "ann", "grok-2", 16, 0),
		on("03-29 22:00", "zoned", "ann", "grok-2", 32, 0), // the 30th
		on("05-05 10:00", "small", "ann", "tiny", 100, 0),  // 0.0001
		on("05-05 10:01", "small", "ann", "nothing", 100, 0),
		on("10-25 00:30", "zoned", "ann", "grok-2", 64, 0),  // 02:30, summer
		on("10-25 01:30", "zoned", "ann", "grok-2", 128, 0), // 02:30 again, winter
		on("10-31 22:59", "zoned", "ann", "grok-2", 256, 0), // 23:59 of the last of October
		on("10-31 23:00", "zoned", "ann", "grok-2", 512, 0), // the first of November
	}
}

func (b *book) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return run(t, b.env, args...)
}

// exec runs a statement of the application's user, whatever becomes of the test's own context.
func (b *book) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := b.db.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
