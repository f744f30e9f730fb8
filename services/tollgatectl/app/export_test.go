package app

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// exported runs an export and gives the file; nothing else may be beside it.
func exported(t *testing.T, b *book, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	code, stdout, stderr := b.run(t, append([]string{"export", "--out", out}, args...)...)
	if code != 0 || stdout != "" || !strings.Contains(stderr, "bytes in") {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	if files, err := os.ReadDir(filepath.Dir(out)); err != nil || len(files) != 1 {
		t.Fatalf("beside the file: %v, %v", files, err)
	}
	return out
}

func csvRows(t *testing.T, path string) (rows []map[string]string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		row := map[string]string{}
		for i, name := range all[0] {
			row[name] = r[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// want is what a file should say of an event, by column, as text.
func want(r usage.Record, offset int, escape bool) map[string]string {
	text := func(s string) string {
		if escape && s != "" && strings.ContainsRune("=+-@'\t\r", rune(s[0])) {
			return "'" + s
		}
		return s
	}
	n := func(v any) string { return fmt.Sprint(v) }
	return map[string]string{
		"event_id": r.EventID.String(), "schema_version": "1", "user_id": text(r.UserID), "api_key_id": text(r.APIKeyID), "org_id": text(r.OrgID), "tier": text(r.Tier),
		"request_id": r.RequestID.String(), "requested_model": text(r.RequestedModel), "model": text(r.Model), "input_tokens": n(r.InputTokens), "output_tokens": n(r.OutputTokens),
		"cached_input_tokens": n(r.CachedInputTokens), "reserved_tokens": n(r.ReservedTokens), "latency_ms": n(r.LatencyMS), "timestamp": time.Time(r.Timestamp).Format("2006-01-02 15:04:05.000"),
		"was_rate_limited": n(r.WasRateLimited), "reason": r.Reason, "scope": r.Scope, "outcome": string(r.Outcome), "reservation": string(r.Reservation), "estimated": n(r.Estimated),
		"region": text(r.Region), "instance": text(r.Instance), "kafka_topic": usage.Topic, "kafka_partition": "0", "kafka_offset": n(offset),
	}
}

func sameRows(t *testing.T, got []map[string]string, escape bool) {
	t.Helper()
	byID := map[string]map[string]string{}
	for _, row := range got {
		byID[row["event_id"]] = row
	}
	events := sampleEvents()
	march := 0
	for i, r := range events {
		if time.Time(r.Timestamp).Month() != time.March {
			continue
		}
		march++
		row := byID[r.EventID.String()]
		for column, v := range want(r, i, escape) {
			if row[column] != v {
				t.Errorf("event %d: %s is %q, want %q", i, column, row[column], v)
			}
		}
	}
	if len(got) != march || len(byID) != march {
		t.Errorf("%d rows of %d events, want %d", len(got), len(byID), march)
	}
}

func TestExportToCSVHoldsEveryValue(t *testing.T) {
	b := ledgerBook(t)
	march := []string{"--view", "usage_events", "--from", "2026-03", "--to", "2026-03"}
	sameRows(t, csvRows(t, exported(t, b, march...)), true)
	sameRows(t, csvRows(t, exported(t, b, append(march, "--formulas", "keep")...)), false)

	rows := csvRows(t, exported(t, b, "--view", "usage_daily", "--from", "2026-03-02", "--to", "2026-03-02", "--org", "acme"))
	if len(rows) != 1 || rows[0]["period"] != "2026-03-02 00:00:00" || rows[0]["requests"] != "2" || rows[0]["total_tokens"] != "121" {
		t.Errorf("a day of an org: %v", rows)
	}
	if rows := csvRows(t, exported(t, b, "--view", "usage_daily", "--from", "2026-03", "--to", "2026-03", "--org", "")); len(rows) != 2 {
		t.Errorf("usage without an org: %v", rows)
	}
	rows = csvRows(t, exported(t, b, "--view", "cost_daily", "--from", "2026-03-30", "--to", "2026-03-30", "--org", "zoned"))
	if len(rows) != 1 || rows[0]["day"] != "2026-03-30" || rows[0]["input_tokens"] != "32" || rows[0]["cost"] != "1.28" { // 32 * 40,000 / 10^6
		t.Errorf("a day of an org's own zone: %v", rows)
	}
	rows = csvRows(t, exported(t, b, "--view", "invoice_lines", "--from", "2026-03", "--to", "2026-03", "--org", "globex"))
	if len(rows) != 1 || rows[0]["amount"] != "0.88" || rows[0]["month"] != "2026-03-01" {
		t.Errorf("an invoice: %v", rows)
	}
	if rows := csvRows(t, exported(t, b, "--view", "rejections_hourly", "--from", "2026-03", "--to", "2026-03")); len(rows) != 3 {
		t.Errorf("refusals: %v", rows)
	}
}

// The Parquet file is read by another implementation.
func TestExportToParquetHoldsEveryValue(t *testing.T) {
	b := ledgerBook(t)
	path := exported(t, b, "--view", "usage_events", "--from", "2026-03", "--to", "2026-03", "--format", "parquet")
	sameRows(t, parquetRows(t, path), false)
	got := parquetRows(t, exported(t, b, "--view", "usage_hourly", "--from", "2026-03-29", "--to", "2026-03-29", "--org", "zoned", "--format", "parquet"))
	slices.SortFunc(got, func(a, b map[string]string) int { return strings.Compare(a["period"], b["period"]) })
	if len(got) != 4 || got[0]["period"] != "2026-03-29 00:00:00.000" || got[0]["input_tokens"] != "4" || got[3]["total_tokens"] != "32" {
		t.Errorf("hours: %v", got)
	}
}

func parquetRows(t *testing.T, path string) (rows []map[string]string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parquet.OpenFile(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	fields := file.Schema().Fields()
	for _, group := range file.RowGroups() {
		r := group.Rows()
		buf := make([]parquet.Row, 64)
		for {
			n, err := r.ReadRows(buf)
			for _, raw := range buf[:n] {
				row := map[string]string{}
				for i, v := range raw {
					row[fields[i].Name()] = parquetText(fields[i], v)
				}
				rows = append(rows, row)
			}
			if err != nil || n == 0 {
				break
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func parquetText(f parquet.Field, v parquet.Value) string {
	logical := f.Type().LogicalType()
	switch {
	case v.IsNull():
		return "null"
	case f.Type().Kind() == parquet.FixedLenByteArray && f.Type().Length() == 16:
		return uuid.UUID(v.ByteArray()).String()
	case logical != nil && strings.HasPrefix(fmt.Sprint(logical), "TIMESTAMP"):
		at := time.UnixMilli(v.Int64())
		if strings.Contains(fmt.Sprint(logical), "MICROS") {
			at = time.UnixMicro(v.Int64())
		}
		return at.UTC().Format("2006-01-02 15:04:05.000")
	}
	return v.String()
}

func TestExportsFlagsAreCheckedByName(t *testing.T) {
	b := ledgerBook(t)
	out := filepath.Join(t.TempDir(), "out")
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"no view":      {2, []string{"--out", out}, "--view must be one of"},
		"a table":      {2, []string{"--out", out, "--view", "usage_ledger"}, "--view must be one of"},
		"no file":      {2, []string{"--view", "usage_daily"}, "--out is required"},
		"bad format":   {2, []string{"--view", "usage_daily", "--out", out, "--format", "xls"}, "--format must be one of csv, parquet"},
		"bad formulas": {2, []string{"--view", "usage_daily", "--out", out, "--formulas", "run"}, "--formulas must be one of"},
		"bad day":      {2, []string{"--view", "usage_daily", "--out", out, "--from", "1.3.2026"}, "--from: "},
		"backwards":    {2, []string{"--view", "usage_daily", "--out", out, "--from", "2026-03-02", "--to", "2026-03-01"}, "--to: 2026-03-01 is before"},
		"no orgs":      {2, []string{"--view", "rejections_hourly", "--out", out, "--org", "acme"}, "--org: the view has no column org_id"},
		"no directory": {1, []string{"--view", "usage_daily", "--out", filepath.Join(out, "x", "y")}, "make the file"},
	} {
		code, _, stderr := b.run(t, append([]string{"export"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, want %d; %q should hold %q", name, code, c.code, stderr, c.want)
		}
	}
	if files, err := os.ReadDir(filepath.Dir(out)); err != nil || len(files) != 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}
