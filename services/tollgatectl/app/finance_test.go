package app

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

// The account that finance's commands use reads every view, and can do nothing else.
func TestFinanceReadsEveryViewAndNothingElse(t *testing.T) {
	b := ledgerBook(t)
	s := &session{IO: IO{Environ: b.env, Dir: t.TempDir()}}
	book, err := s.finance()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(sql string) error {
		var out bytes.Buffer
		_, err := book.Stream(t.Context(), clickhousehttp.Query{SQL: sql, Format: "TSV"}, &out)
		return err
	}
	rows, err := b.db.QueryContext(t.Context(), "SELECT name, engine FROM system.tables WHERE database = currentDatabase()")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	views, tables := 0, 0
	for rows.Next() {
		var name, engine string
		if err := rows.Scan(&name, &engine); err != nil {
			t.Fatal(err)
		}
		err := ask("SELECT * FROM " + name)
		if engine == "View" {
			views++
			if err != nil {
				t.Errorf("view %s can't be read: %v", name, err)
			}
			continue
		}
		tables++
		if err == nil || !strings.Contains(err.Error(), "ACCESS_DENIED") {
			t.Errorf("table %s: %v", name, err)
		}
	}
	if err := rows.Err(); err != nil || views < 5 || tables < 2 {
		t.Errorf("%d views, %d tables: %v", views, tables, err)
	}
	var merged bytes.Buffer // merge() passes over what its reader may not read
	if _, err := book.Stream(t.Context(), clickhousehttp.Query{SQL: "SELECT DISTINCT _table FROM merge('tollgate', '.*')", Format: "TSV"}, &merged); err != nil ||
		strings.Count(merged.String(), "\n") != views || strings.Contains(merged.String(), "rows") {
		t.Errorf("all tables at once: %v, %s", err, merged.String())
	}
	for _, sql := range []string{
		"INSERT INTO usage_ledger (event_id) VALUES (generateUUIDv4())", "DROP VIEW usage_daily", "TRUNCATE TABLE usage_ledger", "CREATE TABLE x (a Int8) ENGINE = Memory",
		"CREATE TEMPORARY TABLE x (a Int8)", "ALTER TABLE usage_ledger DELETE WHERE 1", "ALTER TABLE usage_daily MODIFY SQL SECURITY INVOKER", "SET readonly = 0", "SELECT 1 SETTINGS readonly = 0",
		"SELECT 1 SETTINGS max_execution_time = 1000", "SELECT * FROM file('/etc/passwd', LineAsString)", "SELECT * FROM url('http://127.0.0.1:1/', CSV, 'a String')",
		"GRANT SELECT ON *.* TO finance", "KILL QUERY WHERE 1", "SYSTEM FLUSH LOGS",
	} {
		if err := ask(sql); err == nil || !strings.Contains(err.Error(), "ClickHouse answers") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
