// Package export writes a view of the LEDGER to a file, as CSV or Parquet.
//
// Rows are streamed from ClickHouse to the disk: memory does not grow with them. The file appears under its name only when it is whole and on
// the disk; an export that fails, at whatever row, or that is killed leaves the name as it was (killed by force: and a hidden file ending
// in .part). The rows' order is ClickHouse's.
//
// CSV and spreadsheets. Ids may begin with + - @, and a spreadsheet takes a cell that begins so, or with =, for a formula. So a text that begins
// with one of = + - @ ' tab return gets a ' in front (which spreadsheets don't show), unless FormulasKeep asks for the bare text. It can be undone:
// a text that begins with ' loses its first character. Numbers, times and UUIDs are never changed, nor is anything in Parquet.
package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

// Formats of a file.
const (
	CSV     = "csv"
	Parquet = "parquet"
)

// Formulas says what becomes of texts in CSV that a spreadsheet would run.
const (
	FormulasEscape = "escape"
	FormulasKeep   = "keep"
)

// Views that can be exported.
var Views = []string{"usage_events", "usage_minutely", "usage_quarterly", "usage_hourly", "usage_daily", "rejections_hourly", "cost_daily", "invoice_lines"}

// Config says what to export.
type Config struct {
	View     string
	From, To time.Time // days; To is the last one
	Org      string    // with HasOrg: only of this org
	HasOrg   bool
	Format   string
	Formulas string // of CSV
	Out      string // path
}

// ErrNoOrg tells that a view has no orgs.
var ErrNoOrg = errors.New("the view has no column org_id")

// timeColumns are what a view's rows are dated by: a moment, or a day.
var timeColumns = []string{"timestamp", "period", "day", "month"}

// Run exports, and gives the size in bytes.
func Run(ctx context.Context, book *clickhousehttp.Client, cfg Config) (size int64, err error) {
	columns, err := describe(ctx, book, cfg.View)
	if err != nil {
		return 0, err
	}
	query, err := build(cfg, columns)
	if err != nil {
		return 0, err
	}
	f, err := os.CreateTemp(filepath.Dir(cfg.Out), "."+filepath.Base(cfg.Out)+".*.part")
	if err != nil {
		return 0, fmt.Errorf("make the file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if size, err = book.Stream(ctx, query, f); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, fmt.Errorf("write the file: %w", err)
	}
	if err := os.Rename(f.Name(), cfg.Out); err != nil {
		return 0, fmt.Errorf("name the file: %w", err)
	}
	return size, errors.Join(f.Close(), syncDir(filepath.Dir(cfg.Out)))
}

// syncDir makes the new name durable.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the user's own directory
	if err != nil {
		return fmt.Errorf("make the file's name durable: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

func describe(ctx context.Context, book *clickhousehttp.Client, view string) (columns []clickhousehttp.Column, err error) {
	t, err := book.Table(ctx, clickhousehttp.Query{SQL: "DESCRIBE TABLE " + quoteName(view)})
	if err != nil {
		return nil, fmt.Errorf("ask for the columns of %s: %w", view, err)
	}
	for _, row := range t.Rows {
		var c clickhousehttp.Column
		if err := errors.Join(json.Unmarshal(row[0], &c.Name), json.Unmarshal(row[1], &c.Type)); err != nil {
			return nil, fmt.Errorf("ask for the columns of %s: %w", view, err)
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// build makes the query: every column by name, texts escaped for CSV, rows by time and org.
func build(cfg Config, columns []clickhousehttp.Column) (clickhousehttp.Query, error) {
	has := func(name string) bool {
		return slices.ContainsFunc(columns, func(c clickhousehttp.Column) bool { return c.Name == name })
	}
	q := clickhousehttp.Query{Format: "Parquet", Params: map[string]string{"from": cfg.From.Format(time.DateOnly), "to": cfg.To.Format(time.DateOnly), "org": cfg.Org},
		Settings: map[string]string{"output_format_parquet_compression_method": "zstd"}}
	if cfg.Format == CSV {
		q.Format, q.Settings = "CSVWithNames", nil
	}
	var outer, inner []string
	for _, c := range columns {
		name := quoteName(c.Name)
		inner = append(inner, name)
		kind := strings.TrimSuffix(strings.TrimPrefix(c.Type, "LowCardinality("), ")")
		if cfg.Format == CSV && cfg.Formulas == FormulasEscape && kind == "String" {
			outer = append(outer, fmt.Sprintf(`if(t.%[1]s != '' AND position('=+-@\'\t\r', substring(t.%[1]s, 1, 1)) > 0, concat('\'', t.%[1]s), t.%[1]s) AS %[1]s`, name))
			continue
		}
		outer = append(outer, "t."+name+" AS "+name)
	}
	var where []string
	for _, at := range timeColumns {
		if has(at) {
			where = append(where, fmt.Sprintf("%[1]s >= {from:Date} AND %[1]s < {to:Date} + 1", at))
			break
		}
	}
	if cfg.HasOrg {
		if !has("org_id") {
			return q, ErrNoOrg
		}
		where = append(where, "org_id = {org:String}")
	}
	q.SQL = fmt.Sprintf("SELECT %s\nFROM (SELECT %s FROM %s WHERE %s) AS t", strings.Join(outer, ", "), strings.Join(inner, ", "), quoteName(cfg.View), strings.Join(where, " AND "))
	return q, nil
}

func quoteName(s string) string {
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(s) + "`"
}
