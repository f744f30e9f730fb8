// Package show writes answers for people, as tables, and for programs, as JSON.
package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/rivo/uniseg"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
)

// JSON writes v, indented. What a terminal might take for a command is escaped, as \u009b is.
func JSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, Escape(b.String()))
	return err
}

// Escape writes what can't be seen in a JSON text as JSON escapes; the text means the same.
func Escape(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r) || r == '\n':
			out.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// NoRows is written below the header of a table without rows.
const NoRows = "(no rows)"

// Table writes an answer of ClickHouse: whole numbers with commas, amounts with their cents, "-" for none, control characters of texts escaped.
func Table(w io.Writer, t *clickhousehttp.Table) error {
	header, numeric := make([]string, len(t.Columns)), make([]bool, len(t.Columns))
	whole, amount := make([]bool, len(t.Columns)), make([]bool, len(t.Columns))
	for i, c := range t.Columns {
		kind := strings.TrimPrefix(c.Type, "Nullable(")
		header[i] = c.Name
		whole[i] = strings.HasPrefix(kind, "Int") || strings.HasPrefix(kind, "UInt")
		amount[i] = strings.HasPrefix(kind, "Decimal(") && strings.HasSuffix(strings.TrimRight(kind, ")"), ", 2")
		numeric[i] = whole[i] || strings.HasPrefix(kind, "Float") || strings.HasPrefix(kind, "Decimal")
	}
	var rows [][]string
	for _, r := range t.Rows {
		row := make([]string, len(r))
		for i, v := range r {
			row[i] = cell(v, whole[i])
			if amount[i] {
				row[i] = cents(row[i])
			}
		}
		rows = append(rows, row)
	}
	return List(w, header, numeric, rows)
}

// cents writes a decimal of at most two digits behind the point with both of them; what is none stays.
func cents(number string) string {
	if strings.Trim(number, "-0123456789.") != "" || number == "-" {
		return number
	}
	units, digits, _ := strings.Cut(number, ".")
	return units + "." + (digits + "00")[:max(2, len(digits))]
}

// List is Grid, and says so where there are no rows.
func List(w io.Writer, header []string, numeric []bool, rows [][]string) error {
	if err := Grid(w, header, numeric, rows); err != nil || len(rows) > 0 {
		return err
	}
	_, err := fmt.Fprintln(w, NoRows)
	return err
}

func cell(v json.RawMessage, whole bool) string {
	var s string
	switch {
	case string(v) == "null" || string(v) == `""`:
		return "-"
	case json.Unmarshal(v, &s) == nil:
		return s
	case whole:
		var n int64
		if json.Unmarshal(v, &n) == nil {
			return replay.Commas(n)
		}
	}
	return string(v)
}

// Text keeps a text from steering the terminal, or its reader: controls, marks of direction and other things that can't be seen become \uFFFD.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
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

// RawJSON writes a JSON text, indented, its members and numbers as they are.
func RawJSON(w io.Writer, text []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(text), "", "  "); err != nil {
		return err
	}
	_, err := io.WriteString(w, Escape(b.String())+"\n")
	return err
}

// Pairs writes names and what they stand for, one a line.
func Pairs(w io.Writer, pairs [][2]string) error {
	width := 0
	for _, p := range pairs {
		width = max(width, uniseg.StringWidth(Text(p[0])))
	}
	var b strings.Builder
	for _, p := range pairs {
		name := Text(p[0])
		b.WriteString(strings.TrimRight(name+strings.Repeat(" ", width-uniseg.StringWidth(name)+2)+Text(p[1]), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
