package clickhouse

import (
	"context"
	"fmt"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

// The tests here pin down what the ledger needs of ClickHouse, on the embedded one: run them at every upgrade.

func ledger(t *testing.T) driver.Conn {
	t.Helper()
	return connect(t, start(t, testOptions(t.TempDir())).DSN(Database))
}

func TestEveryTypeOfTheLedgerComesBackAsItWent(t *testing.T) {
	c := ledger(t)
	mustExec(t, c, `CREATE TABLE types (s String, l LowCardinality(String), u UInt64, i Int64, id UUID, ts DateTime64(3, 'UTC'),
		d Decimal(38, 12), n Nullable(String), a Array(String), b Bool, day Date) ENGINE = MergeTree ORDER BY s`)
	const huge = "12345678901234567890123456.123456789012" // all 38 digits
	id, ts := uuid.New(), time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	b, err := c.PrepareBatch(t.Context(), "INSERT INTO types (s, l, u, i, id, ts, d, n, a, b, day)")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append("ü\x00x", "plus", uint64(1<<64-1), int64(-1<<63), id, ts, decimal.RequireFromString(huge), nil, []string{"a", ""}, true, ts); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(); err != nil {
		t.Fatal(err)
	}
	var (
		s, l string
		u    uint64
		i    int64
		gid  uuid.UUID
		gts  time.Time
		d    decimal.Decimal
		n    *string
		a    []string
		bo   bool
		day  time.Time
	)
	if err := c.QueryRow(t.Context(), "SELECT s, l, u, i, id, ts, d, n, a, b, day FROM types").Scan(&s, &l, &u, &i, &gid, &gts, &d, &n, &a, &bo, &day); err != nil {
		t.Fatal(err)
	}
	if s != "ü\x00x" || l != "plus" || u != 1<<64-1 || i != -1<<63 || gid != id || !gts.Equal(ts) || d.String() != huge || n != nil || len(a) != 2 || !bo || day.Day() != 2 {
		t.Fatal(s, l, u, i, gid, gts, d, n, a, bo, day)
	}
}

func TestQueryParametersAreTypedAndCannotInject(t *testing.T) {
	c := ledger(t)
	ctx := clickhousego.Context(t.Context(), clickhousego.WithParameters(clickhousego.Parameters{
		"s": `x' OR '1'='1`, "n": "18446744073709551615", "ts": "2026-01-02 03:04:05.678", "a": "['p','q']"}))
	var s string
	var n uint64
	var ts time.Time
	var a []string
	if err := c.QueryRow(ctx, "SELECT {s:String}, {n:UInt64}, {ts:DateTime64(3, 'UTC')}, {a:Array(String)}").Scan(&s, &n, &ts, &a); err != nil {
		t.Fatal(err)
	}
	if s != `x' OR '1'='1` || n != 1<<64-1 || !ts.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)) || len(a) != 2 {
		t.Fatal(s, n, ts, a)
	}
}

func insert(ctx context.Context, t *testing.T, c driver.Conn, id string, tokens uint64) {
	t.Helper()
	b, err := c.PrepareBatch(ctx, "INSERT INTO events (id, ts, tokens)")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(id, time.Now(), tokens); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(); err != nil {
		t.Fatal(err)
	}
}

func withSettings(t *testing.T, s clickhousego.Settings) context.Context {
	t.Helper()
	return clickhousego.Context(t.Context(), clickhousego.WithSettings(s))
}

// TestBatchWithTheSameTokenCountsOnce: in the table and in what a materialized view derives from it, over a restart too.
func TestBatchWithTheSameTokenCountsOnce(t *testing.T) {
	dir := t.TempDir()
	s := start(t, testOptions(dir))
	c := connect(t, s.DSN(Database))
	mustExec(t, c,
		`CREATE TABLE events (id String, ts DateTime64(3, 'UTC'), tokens UInt64) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 1000`,
		`CREATE TABLE sums (total AggregateFunction(sum, UInt64)) ENGINE = AggregatingMergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 1000`,
		`CREATE MATERIALIZED VIEW sums_mv TO sums AS SELECT sumState(tokens) AS total FROM events`)
	settings := func(token string) context.Context {
		return withSettings(t, clickhousego.Settings{"insert_deduplication_token": token, "deduplicate_blocks_in_dependent_materialized_views": 1, "max_threads": 2})
	}
	check := func(when string, rows, total uint64) {
		t.Helper()
		if n := value[uint64](t, c, "SELECT count() FROM events"); n != rows {
			t.Fatalf("%s: %d rows, not %d", when, n, rows)
		}
		if n := value[uint64](t, c, "SELECT sumMerge(total) FROM sums"); n != total {
			t.Fatalf("%s: total %d, not %d", when, n, total)
		}
	}
	insert(settings("batch-1"), t, c, "a", 5)
	insert(settings("batch-1"), t, c, "a", 5)
	check("repeated", 1, 5)
	insert(settings("batch-2"), t, c, "b", 7)
	check("another", 2, 12)
	c.Close()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = connect(t, start(t, testOptions(dir)).DSN(Database))
	insert(settings("batch-1"), t, c, "a", 5)
	check("repeated after a restart", 2, 12)
}

func TestReplacingMergeTreeFinalGivesOneRowBeforeAnyMerge(t *testing.T) {
	c := ledger(t)
	mustExec(t, c, "CREATE TABLE events (id String, ts DateTime64(3, 'UTC'), tokens UInt64) ENGINE = ReplacingMergeTree(ts) ORDER BY id", "SYSTEM STOP MERGES events")
	for i := range uint64(3) {
		insert(t.Context(), t, c, "a", i)
	}
	if n := value[uint64](t, c, "SELECT count() FROM events"); n != 3 {
		t.Fatalf("merged already: %d rows", n)
	}
	if n := value[uint64](t, c, "SELECT tokens FROM events FINAL"); n != 2 {
		t.Fatalf("FINAL gives %d", n)
	}
	mustExec(t, c, "SYSTEM START MERGES events", "OPTIMIZE TABLE events FINAL")
	if n := value[uint64](t, c, "SELECT count() FROM events"); n != 1 {
		t.Fatalf("%d rows after the merge", n)
	}
}

func TestExchangeTablesIsAtomic(t *testing.T) {
	c := ledger(t)
	mustExec(t, c, "CREATE TABLE a (v UInt8) ENGINE = MergeTree ORDER BY v", "CREATE TABLE b (v UInt8) ENGINE = MergeTree ORDER BY v",
		"INSERT INTO a (v) VALUES (1)", "INSERT INTO b (v) VALUES (2)", "EXCHANGE TABLES a AND b")
	if v := value[uint8](t, c, "SELECT v FROM a"); v != 2 {
		t.Fatalf("a has %d", v)
	}
}

// TestDaysFollowTheZoneOfEachRow: the org's time zone is data, in a table or a dictionary.
func TestDaysFollowTheZoneOfEachRow(t *testing.T) {
	s := start(t, testOptions(t.TempDir()))
	c := connect(t, s.DSN(Database))
	mustExec(t, c, "CREATE TABLE orgs (org String, zone String) ENGINE = ReplacingMergeTree ORDER BY org",
		"INSERT INTO orgs (org, zone) VALUES ('ny', 'America/New_York'), ('de', 'Europe/Berlin'), ('np', 'Asia/Kathmandu')",
		"CREATE TABLE events (org String, ts DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY org",
		"INSERT INTO events (org, ts) VALUES ('ny', '2026-03-01 03:00:00'), ('de', '2026-03-01 23:30:00'), ('np', '2026-03-01 18:15:00')")
	days := func(query string) string {
		t.Helper()
		return fmt.Sprint(value[[]string](t, c, "SELECT groupArray(org || ' ' || toString(day)) FROM (SELECT org, day FROM ("+query+") ORDER BY org)"))
	}
	const want = "[de 2026-03-02 np 2026-03-02 ny 2026-02-28]"
	if got := days("SELECT e.org AS org, toDate(formatDateTime(e.ts, '%F', o.zone)) AS day FROM events AS e LEFT JOIN orgs AS o FINAL ON e.org = o.org"); got != want {
		t.Fatalf("by a join: %s", got)
	}
	mustExec(t, c, `CREATE DICTIONARY zones (org String, zone String DEFAULT 'UTC') PRIMARY KEY org
		SOURCE(CLICKHOUSE(TABLE 'orgs' DB 'tollgate' USER '`+AppUser+`' PASSWORD '`+s.AppPassword+`')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(MIN 0 MAX 1)`)
	if got := days("SELECT org, toDate(formatDateTime(ts, '%F', dictGet('tollgate.zones', 'zone', org))) AS day FROM events"); got != want {
		t.Fatalf("by a dictionary: %s", got)
	}
	// The functions made for it take a constant zone only.
	for _, f := range []string{"toStartOfDay(ts, org)", "toDate(ts, org)", "toTimeZone(ts, org)"} {
		if err := c.Exec(t.Context(), "SELECT "+f+" FROM events"); code(err) != 44 {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestLargeBatchInOneInsert(t *testing.T) {
	c := ledger(t)
	mustExec(t, c, "CREATE TABLE events (id UUID, org String, ts DateTime64(3, 'UTC'), tokens UInt64) ENGINE = MergeTree ORDER BY (org, ts)")
	const rows = 200_000
	began := time.Now()
	b, err := c.PrepareBatch(t.Context(), "INSERT INTO events (id, org, ts, tokens)")
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if err := b.Append(uuid.New(), fmt.Sprint("org-", i%100), began, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Send(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rows in %s", rows, time.Since(began))
	if n := value[uint64](t, c, "SELECT uniqExact(id) FROM events"); n != rows {
		t.Fatalf("%d rows", n)
	}
}

func TestDecimalSumsAreExactAndRoundHalfEven(t *testing.T) {
	c := ledger(t)
	got := value[string](t, c, "SELECT toString(roundBankers(sum(toDecimal128('0.125', 12) * toDecimal128(n, 0)), 2)) FROM (SELECT arrayJoin([1, 2, 4]) AS n)")
	if d := decimal.RequireFromString(got); !d.Equal(decimal.RequireFromString("0.88")) { // 0.875: half to the even 0.88
		t.Fatalf("got %s", got)
	}
}

func TestQueryLogIsKeptWhenAskedFor(t *testing.T) {
	o := testOptions(t.TempDir())
	o.QueryLog = true
	c := connect(t, start(t, o).DSN(Database))
	mustExec(t, c, "SELECT 4711", "SYSTEM FLUSH LOGS")
	if n := value[uint64](t, c, "SELECT count() FROM system.query_log WHERE query LIKE '%4711%' AND type = 'QueryFinish' AND user = 'tollgate'"); n == 0 {
		t.Fatal("the query is not in the log")
	}
}
