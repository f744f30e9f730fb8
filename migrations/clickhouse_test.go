package migrations

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	_ "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

// emptyClickHouse gives a pool on an empty database.
func emptyClickHouse(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("clickhouse", stores.ClickHouse(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func lines(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

const schemaQuery = `SELECT concat(name, '|', engine, '|', create_table_query) AS line FROM system.tables
	WHERE database = currentDatabase() AND name != 'goose_db_version' ORDER BY name`

const versionsQuery = `SELECT concat(toString(version_id), '|', toString(is_applied)) AS line FROM goose_db_version ORDER BY line`

func TestClickHouseUpTwiceIsANoOp(t *testing.T) {
	db := emptyClickHouse(t)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatalf("on an empty database: %v", err)
	}
	schema, versions := lines(t, db, schemaQuery), lines(t, db, versionsQuery)
	if len(schema) == 0 || len(versions) < 2 {
		t.Fatalf("nothing was made: %v, %v", schema, versions)
	}
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatalf("the second time: %v", err)
	}
	if got := lines(t, db, schemaQuery); !slices.Equal(got, schema) {
		t.Errorf("the schema changed:\n%v\n%v", schema, got)
	}
	if got := lines(t, db, versionsQuery); !slices.Equal(got, versions) {
		t.Errorf("the versions changed:\n%v\n%v", versions, got)
	}
}

// Goose has no lock for ClickHouse, and a process may die between a file's statements and the note that it was applied.
func TestClickHouseMigrationsRunAtOnceAndAgain(t *testing.T) {
	db := emptyClickHouse(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := ClickHouse(t.Context(), db); err != nil {
				t.Errorf("four at once: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO usage_ledger (grain, event_id, events, generation) VALUES ('event', generateUUIDv4(), 1, 1)`); err != nil {
		t.Fatal(err)
	}
	schema := lines(t, db, schemaQuery)
	if _, err := db.ExecContext(t.Context(), `TRUNCATE TABLE goose_db_version`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatalf("after the notes were lost: %v", err)
	}
	if got := lines(t, db, schemaQuery); !slices.Equal(got, schema) {
		t.Errorf("the schema changed:\n%v\n%v", schema, got)
	}
	if got := lines(t, db, `SELECT toString(count()) AS line FROM usage_events`); !slices.Equal(got, []string{"1"}) {
		t.Errorf("a repeated migration lost rows: %v", got)
	}
}

// Columns are a contract with finance: names, order and types.
func TestClickHouseViewsHaveTheColumnsOfTheContract(t *testing.T) {
	db := emptyClickHouse(t)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	const usage = "period DateTime('UTC'),org_id String,user_id String,api_key_id String,tier LowCardinality(String),model LowCardinality(String)," +
		"requests UInt64,rejected_requests UInt64,input_tokens Int64,output_tokens Int64,cached_input_tokens Int64,total_tokens Int64"
	for view, want := range map[string]string{
		"usage_minutely": usage, "usage_quarterly": usage, "usage_hourly": usage, "usage_daily": usage,
		"rejections_hourly": "period DateTime('UTC'),tier LowCardinality(String),reason LowCardinality(String),scope LowCardinality(String),requests UInt64",
	} {
		got := lines(t, db, `SELECT concat(name, ' ', type) AS line FROM system.columns WHERE database = currentDatabase() AND table = '`+view+`' ORDER BY position`)
		if strings.Join(got, ",") != want {
			t.Errorf("%s has %v\nwant %s", view, got, want)
		}
	}
	readme, err := os.ReadFile("clickhouse/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range lines(t, db, `SELECT DISTINCT name AS line FROM system.columns WHERE database = currentDatabase() AND table != 'goose_db_version'`) {
		if !strings.Contains(string(readme), "`"+c+"`") {
			t.Errorf("clickhouse/README.md does not explain `%s`", c)
		}
	}
}

// Every example query of the README runs as it stands there.
func TestClickHouseReadmeQueriesRun(t *testing.T) {
	db := emptyClickHouse(t)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("clickhouse/README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no example")
	}
	for _, b := range blocks {
		for q := range strings.SplitSeq(b[1], ";") {
			if strings.TrimSpace(q) == "" {
				continue
			}
			rows, err := db.QueryContext(t.Context(), q)
			if err != nil {
				t.Errorf("%s\n%v", q, err)
				continue
			}
			for rows.Next() { // the rows must arrive; what they hold is the reader's
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // closed in a loop, with its error
				t.Errorf("%s\n%v", q, err)
			}
		}
	}
}

func TestClickHouseFilesAreNumberedWithoutGaps(t *testing.T) {
	names, err := fs.Glob(ClickHouseFS(), "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	slices.Sort(names)
	for i, n := range names {
		if !regexp.MustCompile(`^\d{5}_[a-z0-9_]+\.sql$`).MatchString(n) {
			t.Errorf("%s: the name must be five digits, _, and what it makes", n)
			continue
		}
		if got, err := strconv.Atoi(n[:5]); err != nil || got != i+1 {
			t.Errorf("%s: is number %d, want %d", n, got, i+1)
		}
	}
}

// Each file says what it is for, can run twice, needs no database name, and names its columns.
func TestClickHouseFilesKeepTheRules(t *testing.T) {
	names, err := fs.Glob(ClickHouseFS(), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b, err := fs.ReadFile(ClickHouseFS(), n)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range clickhouseFaults(string(b)) {
			t.Errorf("%s: %s", n, fault)
		}
	}
	for sql, want := range map[string]string{
		"-- why\n-- +goose NO TRANSACTION\n-- +goose Up\nCREATE TABLE t (a Int8) ENGINE = Memory;":                        "run twice",
		"-- why\n-- +goose NO TRANSACTION\n-- +goose Up\nINSERT INTO t VALUES (1);":                                       "names no columns",
		"-- why\n-- +goose NO TRANSACTION\n-- +goose Up\nCREATE OR REPLACE VIEW v AS SELECT * FROM t;":                    "SELECT *",
		"-- why\n-- +goose NO TRANSACTION\n-- +goose Up\nCREATE TABLE IF NOT EXISTS tollgate.t (a Int8) ENGINE = Memory;": "database",
		"-- +goose NO TRANSACTION\n-- +goose Up\nSELECT 1;":                                                               "header",
		"-- why\n-- +goose Up\nSELECT 1;":                                                                                 "NO TRANSACTION",
		"-- why\n-- +goose NO TRANSACTION\n-- +goose Up\nALTER TABLE t ADD COLUMN a Int8;":                                "run twice",
		"-- why\n-- +goose NO TRANSACTION\n-- +goose Up\nDROP VIEW v;":                                                    "run twice",
	} {
		if got := fmt.Sprint(clickhouseFaults(sql)); !strings.Contains(got, want) {
			t.Errorf("%q: found %s, want %q", sql, got, want)
		}
	}
}

// clickhouseFaults tells which of the rules of README.md a migration breaks.
func clickhouseFaults(text string) (faults []string) {
	header, _, _ := strings.Cut(text, "-- +goose")
	if !strings.HasPrefix(strings.TrimSpace(header), "-- ") {
		faults = append(faults, "has no header that tells input, output and units")
	}
	if !strings.Contains(text, "-- +goose NO TRANSACTION") {
		faults = append(faults, "must say NO TRANSACTION: ClickHouse has none")
	}
	code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(text, "")
	for s := range strings.SplitSeq(code, ";") {
		s = strings.Join(strings.Fields(s), " ")
		for _, rule := range []struct{ bad, unless, fault string }{
			{`(?i)^CREATE `, `(?i)^CREATE( [A-Z]+)? (TABLE|MATERIALIZED VIEW|VIEW|DICTIONARY) IF NOT EXISTS|^CREATE OR REPLACE`, "can't run twice"},
			{`(?i)^DROP `, `(?i)^DROP [A-Z ]+ IF EXISTS`, "can't run twice"},
			{`(?i)^ALTER .*(ADD|DROP|RENAME) (COLUMN|INDEX|CONSTRAINT)`, `(?i)IF (NOT )?EXISTS`, "can't run twice"},
			{`(?i)^INSERT INTO`, `(?i)^INSERT INTO \S+ ?\(`, "names no columns"},
			{`(?i)SELECT \*`, `^$`, "SELECT * names no columns"},
			{`(?i)\btollgate\.`, `^$`, "names the database, which the connection chooses"},
		} {
			if regexp.MustCompile(rule.bad).MatchString(s) && !regexp.MustCompile(rule.unless).MatchString(s) {
				faults = append(faults, rule.fault+": "+s[:min(len(s), 60)])
			}
		}
	}
	return faults
}

// The embedded server can't create users, but it can parse: the statements for real servers are at least well-formed.
func TestClickHouseAccessStatementsParse(t *testing.T) {
	db := emptyClickHouse(t)
	files, err := os.ReadDir("clickhouse/access")
	if err != nil || len(files) == 0 {
		t.Fatalf("no access statements: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile("clickhouse/access/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for s := range strings.SplitSeq(regexp.MustCompile(`--[^\n]*`).ReplaceAllString(string(b), ""), ";") {
			if strings.TrimSpace(s) == "" {
				continue
			}
			quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
			if got := lines(t, db, "SELECT formatQuery("+quoted+") AS line"); len(got) != 1 {
				t.Errorf("%s: %v", s, got)
			}
		}
	}
}

// statements are those of a file's way up.
func statements(t *testing.T, name string) (out []string) {
	t.Helper()
	b, err := fs.ReadFile(ClickHouseFS(), name)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "-- +goose Up")
	text, _, _ = strings.Cut(text, "-- +goose Down")
	for s := range strings.SplitSeq(regexp.MustCompile(`--[^\n]*`).ReplaceAllString(text, ""), ";") {
		if strings.TrimSpace(s) != "" {
			out = append(out, s)
		}
	}
	return out
}

// A view that has lost its security to a race of migrators gets it back from the next one, and a view that is not ours keeps what it has.
func TestViewThatLostItsSecurityGetsItBack(t *testing.T) {
	db := emptyClickHouse(t)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	schema := lines(t, db, schemaQuery)
	for _, v := range views {
		if _, err := db.ExecContext(t.Context(), "ALTER TABLE "+v+" MODIFY SQL SECURITY INVOKER"); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Equal(lines(t, db, schemaQuery), schema) {
		t.Fatal("nothing was lost")
	}
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, db, schemaQuery); !slices.Equal(got, schema) {
		t.Errorf("the schema is\n%v\nwant\n%v", got, schema)
	}
	if _, err := db.ExecContext(t.Context(), `CREATE VIEW their_own SQL SECURITY INVOKER AS SELECT * FROM usage_daily`); err != nil {
		t.Fatal(err)
	}
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, db, `SELECT create_table_query AS line FROM system.tables WHERE database = currentDatabase() AND name = 'their_own'`); strings.Contains(got[0], "SECURITY DEFINER") {
		t.Errorf("somebody's own view reads for its readers: %v", got)
	}
	if got := lines(t, db, `SELECT name AS line FROM system.tables WHERE database = currentDatabase() AND engine = 'View' AND name != 'their_own' ORDER BY name`); !slices.Equal(got, views) {
		t.Errorf("the views are %v, known are %v", got, views)
	}
}
