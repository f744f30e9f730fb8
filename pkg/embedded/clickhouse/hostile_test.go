package clickhouse

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
)

// code is the error code of ClickHouse, by either protocol; 0 if there is none.
func code(err error) int32 {
	var ex *clickhousego.Exception
	if errors.As(err, &ex) {
		return ex.Code
	}
	return 0
}

// httpQuery runs a query over HTTP and returns the status and the body.
func httpQuery(t *testing.T, s *Server, user, password, query string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.HTTPURL()+"/?"+url.Values{"database": {Database}}.Encode(), strings.NewReader(query))
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body) // an error in the middle of the answer breaks it off
	return resp.StatusCode, string(b)
}

// TestServerSurvivesHostileClients is about what ended the server when it ran without a terminal.
func TestServerSurvivesHostileClients(t *testing.T) {
	s := start(t, testOptions(t.TempDir()))
	garbage := func(addr, what string) {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, what); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, c) // whatever it answers
	}
	for round := range 3 {
		for _, bad := range [][2]string{{AppUser, "wrong"}, {"nobody", ""}, {FinanceUser, ""}, {"default", ""}, {"default", "x"}} {
			if err := connect(t, s.dsn("default", bad[0], bad[1])).Ping(t.Context()); err == nil {
				t.Fatalf("user %s let in with password %q", bad[0], bad[1])
			}
			if status, body := httpQuery(t, s, bad[0], bad[1], "SELECT 1"); status == http.StatusOK {
				t.Fatalf("user %s let in with password %q: %s", bad[0], bad[1], body)
			}
		}
		if status, body := httpQuery(t, s, "", "", "SELECT 1"); status == http.StatusOK {
			t.Fatalf("anonymous let in: %s", body)
		}
		for _, addr := range []string{s.TCPAddr, s.HTTPAddr} {
			garbage(addr, "GET / HTTP/1.0\r\n\r\n")
			garbage(addr, "\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f"+strings.Repeat("x", 5000))
			garbage(addr, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") // the start of TLS
			garbage(addr, "")
		}
		_, body := httpQuery(t, s, AppUser, s.AppPassword, "SELECT throwIf(number = 5000000) FROM numbers(10000000)")
		if !strings.Contains(body, "Code: 395") {
			t.Fatalf("no error in the stream: %.200q", body[max(0, len(body)-200):])
		}
		c := connect(t, s.DSN(Database))
		rows, err := c.Query(t.Context(), "SELECT throwIf(number = 5000000), number FROM numbers(10000000)")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
		}
		if code(rows.Err()) != 395 {
			t.Fatalf("got %v", rows.Err())
		}
		rows.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := c.Exec(ctx, "SELECT sum(cityHash64(number)) FROM numbers(100000000000)"); err == nil {
			t.Fatal("the endless query ended")
		}
		cancel()
		if err := c.Exec(t.Context(), "SELEC 1"); code(err) != 62 {
			t.Fatalf("syntax error: %v", err)
		}
		if v := value[uint8](t, connect(t, s.DSN(Database)), "SELECT 1"); v != 1 {
			t.Fatalf("round %d: %d", round, v)
		}
		c.Close()
	}
}

func TestManyQueriesAtOnce(t *testing.T) {
	s := start(t, testOptions(t.TempDir()))
	o, err := clickhousego.ParseDSN(s.DSN(Database))
	if err != nil {
		t.Fatal(err)
	}
	const clients, each = 16, 10
	o.MaxOpenConns, o.MaxIdleConns = clients, clients
	c, err := clickhousego.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mustExec(t, c, "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
	var wg sync.WaitGroup
	for g := range clients {
		wg.Go(func() {
			for i := range each {
				b, err := c.PrepareBatch(t.Context(), "INSERT INTO t (a)")
				if err == nil {
					err = errors.Join(b.Append(uint64(g*each+i)), b.Send())
				}
				var n uint64
				if err == nil {
					err = c.QueryRow(t.Context(), "SELECT count() FROM t, numbers(1000) AS n").Scan(&n)
				}
				if err != nil {
					t.Errorf("client %d: %v", g, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := value[uint64](t, c, "SELECT uniqExact(a) FROM t"); n != clients*each {
		t.Fatalf("%d rows", n)
	}
}

// TestFinanceReadsTheLedgerOnly: what the user of people's tools may and may not do, by both protocols.
func TestFinanceReadsTheLedgerOnly(t *testing.T) {
	s := start(t, testOptions(t.TempDir()))
	app := connect(t, s.DSN(Database))
	mustExec(t, app, "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a", "INSERT INTO t (a) VALUES (1), (2)",
		"CREATE VIEW usage_daily DEFINER = CURRENT_USER SQL SECURITY DEFINER AS SELECT sum(a) AS total FROM t", "CREATE DATABASE other",
		"CREATE VIEW usage_hourly AS SELECT sum(a) AS total FROM t", "CREATE TABLE other.secret (a UInt64) ENGINE = MergeTree ORDER BY a")
	c := connect(t, s.FinanceDSN(Database))
	for _, q := range []string{"SELECT total FROM usage_daily", "SHOW TABLES", "DESCRIBE TABLE usage_daily",
		"SELECT name FROM system.tables WHERE database = 'tollgate'", "SELECT total FROM usage_daily SETTINGS max_threads = 2, max_execution_time = 10",
		"SELECT throwIf(getSetting('max_execution_time') != 300 OR getSetting('max_memory_usage') != 2000000000)"} {
		if err := c.Exec(t.Context(), q); err != nil {
			t.Errorf("refused: %s: %v", q, err)
		}
		if status, body := httpQuery(t, s, FinanceUser, s.FinancePassword, q); status != http.StatusOK {
			t.Errorf("refused over HTTP: %s: %s", q, body)
		}
	}
	for _, q := range []string{
		"SELECT a FROM t", "SELECT total FROM usage_hourly", "DESCRIBE TABLE t", "SELECT * FROM merge('tollgate', '.*')", "INSERT INTO t (a) VALUES (3)", "ALTER TABLE t DELETE WHERE 1", "DROP TABLE t", "TRUNCATE TABLE t", "CREATE TABLE x (a UInt8) ENGINE = Memory",
		"CREATE TEMPORARY TABLE x (a UInt8)", "RENAME TABLE t TO u", "OPTIMIZE TABLE t", "SYSTEM SHUTDOWN", "KILL QUERY WHERE 1",
		"SELECT a FROM other.secret", "SELECT * FROM file('/etc/passwd', 'LineAsString')", "SELECT * FROM url('http://127.0.0.1:1/', CSV, 'a String')",
		"INSERT INTO FUNCTION file('x.csv', CSV, 'a UInt8') SELECT 1", "SET readonly = 0", "SELECT 1 SETTINGS readonly = 0",
		"SELECT 1 SETTINGS max_execution_time = 1000", "SELECT 1 SETTINGS max_execution_time = 0", "SELECT 1 SETTINGS max_execution_time = -1", "SET max_execution_time = 0",
		"SELECT 1 SETTINGS max_memory_usage = 0", "SELECT 1 SETTINGS max_memory_usage = 3000000000", "SELECT 1 SETTINGS max_memory_usage_for_user = 0", "SELECT 1 SETTINGS max_threads = 1000", "SELECT 1 SETTINGS max_concurrent_queries_for_user = 0", "SELECT 1 SETTINGS profile = 'default', max_execution_time = 0", "SELECT 1 SETTINGS profile = 'default', readonly = 0",
		"SELECT groupArray(number) FROM numbers(400000000) FORMAT Null", "GRANT ALL ON *.* TO finance",
	} {
		if err := c.Exec(t.Context(), q); code(err) == 0 {
			t.Errorf("allowed: %s: %v", q, err)
		}
		if status, body := httpQuery(t, s, FinanceUser, s.FinancePassword, q); status == http.StatusOK {
			t.Errorf("allowed over HTTP: %s: %s", q, body)
		}
	}
	if n := value[uint64](t, app, "SELECT total FROM usage_daily"); n != 3 {
		t.Fatalf("the ledger changed: %d", n)
	}
}
