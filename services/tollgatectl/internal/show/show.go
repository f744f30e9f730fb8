// Package show writes answers for people, as tables, and for programs, as JSON.
package show

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
)

// JSON writes v, indented.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Grid writes rows below a header. Columns that are numeric are aligned to the right.
func Grid(w io.Writer, header []string, numeric []bool, rows [][]string) error {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{header}, rows...) {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if numeric[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
			line.WriteString("  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Table writes an answer of ClickHouse: whole numbers with commas, control characters of texts escaped.
func Table(w io.Writer, t *clickhousehttp.Table) error {
	header, numeric := make([]string, len(t.Columns)), make([]bool, len(t.Columns))
	whole := make([]bool, len(t.Columns))
	for i, c := range t.Columns {
		kind := strings.TrimPrefix(c.Type, "Nullable(")
		header[i] = c.Name
		whole[i] = strings.HasPrefix(kind, "Int") || strings.HasPrefix(kind, "UInt")
		numeric[i] = whole[i] || strings.HasPrefix(kind, "Float") || strings.HasPrefix(kind, "Decimal")
	}
	var rows [][]string
	for _, r := range t.Rows {
		row := make([]string, len(r))
		for i, v := range r {
			row[i] = cell(v, whole[i])
		}
		rows = append(rows, row)
	}
	if err := Grid(w, header, numeric, rows); err != nil {
		return err
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "(no rows)")
		return err
	}
	return nil
}

func cell(v json.RawMessage, whole bool) string {
	var s string
	switch {
	case string(v) == "null":
		return "-"
	case json.Unmarshal(v, &s) == nil:
		return printable(s)
	case whole:
		var n int64
		if json.Unmarshal(v, &n) == nil {
			return replay.Commas(n)
		}
	}
	return string(v)
}

// printable keeps a text from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '�'
		}
		return r
	}, s)
}

// Objects gives an answer's rows as objects whose members are in the columns' order.
func Objects(t *clickhousehttp.Table) []json.RawMessage {
	out := make([]json.RawMessage, len(t.Rows))
	for i, row := range t.Rows {
		var b strings.Builder
		for j, v := range row {
			name, _ := json.Marshal(t.Columns[j].Name) // a string always has a JSON form
			b.WriteString(map[bool]string{true: "{", false: ","}[j == 0])
			b.Write(name)
			b.WriteByte(':')
			b.Write(v)
		}
		b.WriteByte('}')
		out[i] = json.RawMessage(b.String())
	}
	return out
}
