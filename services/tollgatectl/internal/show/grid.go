package show

import (
	"io"
	"os"
	"strings"

	"github.com/rivo/uniseg"
	"golang.org/x/term"
)

// Terminal is a writer that shows so many columns. A table that is wider is made to fit, rather than broken wherever the line ends.
type Terminal struct {
	io.Writer
	Columns int
}

// OnTerminal gives w as a Terminal if it is one.
func OnTerminal(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	columns, _, err := term.GetSize(int(f.Fd())) //nolint:gosec // a file descriptor fits an int
	if err != nil || columns <= 0 {
		return w
	}
	return Terminal{w, columns}
}

// gap stands between two columns.
const gap = "  "

// minText is how narrow a last column of text may become, in terminal columns, before rows are written as blocks.
const minText = 20

// table is what Grid lays out: cells fit for a terminal, of one line each.
type table struct {
	header  []string // a newline within one stacks it
	numeric []bool
	rows    [][]string
}

// Grid writes rows below a header, each cell as Text. Columns that are numeric are aligned to the right; cells are as wide as a terminal shows them. On a
// Terminal that is too narrow, long headers are stacked; then a last column of text is folded; and where that is not enough, each row is a block of lines.
func Grid(w io.Writer, header []string, numeric []bool, rows [][]string) error {
	t := table{header: seen(header), numeric: numeric}
	for _, r := range rows {
		t.rows = append(t.rows, seen(r))
	}
	if to, ok := w.(Terminal); ok {
		last := len(header) - 1
		if t.wide() > to.Columns {
			for i, h := range t.header {
				t.header[i] = strings.NewReplacer("_", "\n", " ", "\n").Replace(h)
			}
		}
		if over := t.wide() - to.Columns; over > 0 {
			room := t.widths()[last] - over
			if numeric[last] || room < minText {
				return blocks(w, seen(header), t.rows)
			}
			t.fold(last, room)
		}
	}
	_, err := io.WriteString(w, t.text())
	return err
}

func seen(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = Text(c)
	}
	return out
}

func (t *table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, cell := range row {
			for line := range strings.SplitSeq(cell, "\n") {
				widths[i] = max(widths[i], uniseg.StringWidth(line))
			}
		}
	}
	return widths
}

// wide is the whole table's width.
func (t *table) wide() int {
	all := len(gap) * (len(t.header) - 1)
	for _, w := range t.widths() {
		all += w
	}
	return all
}

// fold breaks the cells of a column where they are wider than room: at a blank, if there is one.
func (t *table) fold(column, room int) {
	for _, row := range t.rows {
		if column >= len(row) {
			continue
		}
		var lines []string
		var line strings.Builder
		for word := range strings.SplitAfterSeq(row[column], " ") {
			if line.Len() > 0 && uniseg.StringWidth(line.String()+strings.TrimRight(word, " ")) > room {
				lines = append(lines, strings.TrimRight(line.String(), " "))
				line.Reset()
			}
			for g := uniseg.NewGraphemes(word); g.Next(); {
				if uniseg.StringWidth(line.String()+g.Str()) > room && g.Str() != " " {
					lines = append(lines, line.String())
					line.Reset()
				}
				line.WriteString(g.Str())
			}
		}
		row[column] = strings.Join(append(lines, strings.TrimRight(line.String(), " ")), "\n")
	}
}

func (t *table) text() string {
	widths := t.widths()
	var b strings.Builder
	for n, row := range append([][]string{t.header}, t.rows...) {
		cells := make([][]string, len(row))
		height := 1
		for i, cell := range row {
			cells[i] = strings.Split(cell, "\n")
			height = max(height, len(cells[i]))
		}
		for y := range height {
			var line strings.Builder
			for i := range row {
				part := y
				if n == 0 { // headers stand on their columns
					part -= height - len(cells[i])
				}
				cell := ""
				if part >= 0 && part < len(cells[i]) {
					cell = cells[i][part]
				}
				pad := strings.Repeat(" ", widths[i]-uniseg.StringWidth(cell))
				if t.numeric[i] {
					line.WriteString(pad + cell + gap)
				} else {
					line.WriteString(cell + pad + gap)
				}
			}
			b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		}
	}
	return b.String()
}

// blocks writes each row as names and values, an empty line between two rows.
func blocks(w io.Writer, header []string, rows [][]string) error {
	for n, row := range rows {
		if n > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		var pairs [][2]string
		for i, cell := range row {
			pairs = append(pairs, [2]string{header[i], cell})
		}
		if err := Pairs(w, pairs); err != nil {
			return err
		}
	}
	return nil
}
