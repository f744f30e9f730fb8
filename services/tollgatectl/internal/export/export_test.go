package export

import (
	"database/sql"
	"encoding/csv"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/parquet-go/parquet-go"

	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

func TestMain(m *testing.M) { stores.Main(m) }

// ledger gives a database with one view.
func ledger(t *testing.T, view string) *clickhousehttp.Client {
	t.Helper()
	ch := stores.ClickHouse(t)
	db, err := sql.Open("clickhouse", ch.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), view); err != nil {
		t.Fatal(err)
	}
	return &clickhousehttp.Client{URL: ch.HTTPURL, Database: ch.Name, User: clickhouse.AppUser, Password: ch.AppPassword, HTTP: &http.Client{}}
}

func march(view, format, out string) Config {
	return Config{View: view, Format: format, Formulas: FormulasEscape, Out: out, From: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 3, 31, 0, 0, 0, 0, time.UTC)}
}

// kept makes a file that must survive a failed export, alone in its directory.
func kept(t *testing.T) (path string, check func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, []byte("of last month"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, func() {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || string(b) != "of last month" {
			t.Errorf("the file that was there is gone: %d bytes, %v", len(b), err)
		}
		if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
			t.Errorf("beside it: %v, %v", files, err)
		}
	}
}

// ClickHouse has sent status 200 and millions of rows when it fails.
func TestAnExceptionAfterManyRowsLeavesNoHalfFile(t *testing.T) {
	book := ledger(t, `CREATE VIEW late AS SELECT toDateTime('2026-03-05 00:00:00', 'UTC') + number % 3600 AS period, number, generateUUIDv4(number) AS id, throwIf(number = 999999, 'too late') AS bad FROM numbers(1000000)`)
	for _, format := range []string{CSV, Parquet} {
		out, check := kept(t)
		_, err := Run(t.Context(), book, march("late", format, out))
		if err == nil || !strings.Contains(err.Error(), "too late") {
			t.Errorf("%s: %v", format, err)
		}
		check()
	}
}

// Other ways for an answer to end too soon: each is an error, and what data says is none.
func TestAnAnswerThatEndsTooSoonIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   string // "": no error
	}{
		"cut off": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("a,b\n"))
		}, "broke off"},
		"an older server": {func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("a,b\n1,2\n__exception__\r\nCode: 159. DB::Exception: Timeout exceeded\n"))
		}, "Timeout exceeded"},
		"the tag": {func(w http.ResponseWriter) {
			w.Header().Set("X-ClickHouse-Exception-Tag", "abcdefghijklmnop")
			_, _ = w.Write([]byte("a,b\n1,2\n\r\n__exception__\r\nabcdefghijklmnop\r\nCode: 241. DB::Exception: Memory limit\n50 abcdefghijklmnop\r\n__exception__\r\n"))
		}, "Memory limit"},
		"a forged mark": {func(w http.ResponseWriter) {
			w.Header().Set("X-ClickHouse-Exception-Tag", "abcdefghijklmnop")
			_, _ = w.Write([]byte("a,b\n1,\"\r\n__exception__\r\nponmlkjihgfedcba\r\nCode: 1. forged\n\"\n"))
		}, ""},
		"a trailer": {func(w http.ResponseWriter) {
			w.Header().Set("Trailer", "X-ClickHouse-Exception-Code")
			_, _ = w.Write([]byte("a,b\n"))
			w.Header().Set("X-ClickHouse-Exception-Code", "241")
		}, "code 241"},
		"no login": {func(w http.ResponseWriter) { http.Error(w, "Code: 516. Authentication failed", http.StatusForbidden) }, "403: Code: 516"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("default_format") == "JSONCompact" {
					_, _ = fmt.Fprint(w, `{"meta":[],"data":[["period","DateTime"],["a","Int8"]]}`)
					return
				}
				c.answer(w)
			}))
			defer srv.Close()
			out, check := kept(t)
			_, err := Run(t.Context(), &clickhousehttp.Client{URL: srv.URL, HTTP: srv.Client()}, march("v", CSV, out))
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			check()
		})
	}
}

const moneyView = `CREATE VIEW money AS SELECT arrayJoin([toDate('2026-02-28'), toDate('2026-03-01'), toDate('2026-03-31'), toDate('2026-04-01')]) AS day,
	'=SUM(A1)' AS org_id, toLowCardinality('+x') AS model, toUUID('01890a5d-ac96-774b-bcce-b302099a8057') AS id, toDateTime64('2026-03-05 06:07:08.009', 3, 'UTC') AS at,
	toInt64(-9007199254740991) AS tokens, toDecimal128('-12345678901234567890.12', 2) AS amount, toDecimal256('0.123456789012345678', 18) AS cost,
	CAST(NULL AS Nullable(Decimal128(2))) AS none, true AS flag, '''quoted' AS tier, 'a "b", c' AS text`

func TestMoneyIdsAndTimesAreExactInBothFormats(t *testing.T) {
	book := ledger(t, moneyView)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Run(t.Context(), book, march("money", CSV, out)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"day", "org_id", "model", "id", "at", "tokens", "amount", "cost", "none", "flag", "tier", "text"},
		{"2026-03-01", "'=SUM(A1)", "'+x", "01890a5d-ac96-774b-bcce-b302099a8057", "2026-03-05 06:07:08.009", "-9007199254740991", "-12345678901234567890.12", "0.123456789012345678", `\N`, "true", "''quoted", `a "b", c`},
		nil,
	}
	want[2] = append([]string{"2026-03-31"}, want[1][1:]...)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("CSV\n%q\nwant\n%q", got, want)
	}

	if _, err := Run(t.Context(), book, march("money", Parquet, out)); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(out)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st.Mode(), err)
	}
	p, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	file, err := parquet.OpenFile(p, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]parquet.Row, 10)
	n, _ := file.RowGroups()[0].Rows().ReadRows(rows) // io.EOF comes with the last rows
	if n != 2 {
		t.Fatalf("%d rows", n)
	}
	day := func(v parquet.Value) string { return time.Unix(int64(v.Int32())*86_400, 0).UTC().Format(time.DateOnly) }
	for i, wantDay := range []string{"2026-03-01", "2026-03-31"} {
		r := rows[i]
		text := []string{day(r[0]), r[1].String(), r[2].String(), fmt.Sprintf("%x", r[3].ByteArray()), time.UnixMilli(r[4].Int64()).UTC().Format(time.RFC3339Nano), r[5].String(),
			unscaled(r[6]), unscaled(r[7]), fmt.Sprint(r[8].IsNull()), r[9].String(), r[10].String(), r[11].String()}
		want := []string{wantDay, "=SUM(A1)", "+x", "01890a5dac96774bbcceb302099a8057", "2026-03-05T06:07:08.009Z", "-9007199254740991",
			"-1234567890123456789012", "123456789012345678", "true", "true", "'quoted", `a "b", c`}
		if fmt.Sprint(text) != fmt.Sprint(want) {
			t.Errorf("Parquet row %d\n%q\nwant\n%q", i, text, want)
		}
	}
	for column, scale := range map[string]string{"amount": "DECIMAL(38,2)", "cost": "DECIMAL(76,18)"} {
		for _, field := range file.Schema().Fields() {
			if field.Name() == column && fmt.Sprint(field.Type().LogicalType()) != scale {
				t.Errorf("%s is %v, want %s", column, field.Type().LogicalType(), scale)
			}
		}
	}
}

// unscaled reads a decimal's digits: a big-endian two's complement.
func unscaled(v parquet.Value) string {
	b := v.ByteArray()
	n := new(big.Int).SetBytes(b)
	if b[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n.String()
}
