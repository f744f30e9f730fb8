package show

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rivo/uniseg"
)

// hostile are texts that would break a table, or steer a terminal.
var hostile = []string{"a\nb", "a\tb", "\x1b[2Jx", "\u009b31mx", "x\r", "\u202egnp", "日本語", "e\u0301", "👩‍👩‍👧", "\x00", "\xff", "\u2028", "plain"}

func TestEveryRowOfATableIsOneLineWithItsColumnsInPlace(t *testing.T) {
	var rows [][]string
	for _, h := range hostile {
		rows = append(rows, []string{h, "1,234", h + "|"})
	}
	var b bytes.Buffer
	if err := Grid(&b, []string{"name", "amount", "end"}, []bool{false, true, false}, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != len(hostile)+1 {
		t.Fatalf("%d lines for %d rows:\n%s", len(lines), len(hostile), b.String())
	}
	before, _, _ := strings.Cut(lines[0], "end")
	column := uniseg.StringWidth(before)
	for i, l := range lines[1:] {
		at := strings.Index(l, "1,234")
		if at < 0 || uniseg.StringWidth(l[:at+5])+2 != column {
			t.Errorf("row %d, %q: the amount ends at column %d, the last column begins at %d", i, hostile[i], uniseg.StringWidth(l[:at+5]), column)
		}
		if strings.ContainsAny(l, "\x1b\u009b\r\t\x00\u202e\u2028") {
			t.Errorf("row %d reaches the terminal as a command: %q", i, l)
		}
	}
}

func TestNamesAndValuesAreOneLineEach(t *testing.T) {
	var b bytes.Buffer
	if err := Pairs(&b, [][2]string{{"user", "日本\x1b[2J"}, {"propagation", "done\nroot"}, {"名", "x"}, {"none", ""}}); err != nil {
		t.Fatal(err)
	}
	if want := "user         日本\uFFFD[2J\npropagation  done\uFFFDroot\n名           x\nnone\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestJSONMeansTheSameAndSteersNoTerminal(t *testing.T) {
	for _, h := range hostile {
		in, err := json.Marshal(map[string]any{"name": h, "n": json.RawMessage("1.50"), "<&>": "<&>"})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := RawJSON(&b, in); err != nil {
			t.Fatal(err)
		}
		var got, want map[string]any
		if json.Unmarshal(b.Bytes(), &got) != nil || json.Unmarshal(in, &want) != nil || got["name"] != want["name"] || !strings.Contains(b.String(), "1.50") {
			t.Errorf("%q became %s", h, b.String())
		}
		if strings.ContainsAny(b.String(), "\x1b\u009b\r\x00\u202e\u2028") {
			t.Errorf("%q reaches the terminal: %q", h, b.String())
		}
	}
}

func TestATableFitsItsTerminal(t *testing.T) {
	header := []string{"day", "rejected_requests", "cached input", "note"}
	numeric := []bool{false, true, true, false}
	rows := [][]string{{"2026-12-03", "1,234", "5", "a long note of 日本語日本語 and more"}, {"2026-12-04", "1", "12,345", "x"}}
	for columns, want := range map[int]string{
		83: "day         rejected_requests  cached input  note\n2026-12-03              1,234             5  a long note of 日本語日本語 and more\n" +
			"2026-12-04                  1        12,345  x\n",
		70: "            rejected  cached\nday         requests   input  note\n2026-12-03     1,234       5  a long note of 日本語日本語 and more\n2026-12-04         1  12,345  x\n",
		52: "            rejected  cached\nday         requests   input  note\n2026-12-03     1,234       5  a long note of\n                              日本語日本語 and more\n" +
			"2026-12-04         1  12,345  x\n",
		30: "day                2026-12-03\nrejected_requests  1,234\ncached input       5\nnote               a long note of 日本語日本語 and more\n\n" +
			"day                2026-12-04\nrejected_requests  1\ncached input       12,345\nnote               x\n",
	} {
		var b bytes.Buffer
		if err := Grid(Terminal{&b, columns}, header, numeric, rows); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", columns, b.String(), want)
		}
		for l := range strings.Lines(b.String()) {
			if columns > 30 && uniseg.StringWidth(strings.TrimSuffix(l, "\n")) > columns {
				t.Errorf("%d columns: %q is wider", columns, l)
			}
		}
	}
	var b bytes.Buffer
	if err := Grid(Terminal{&b, 40}, []string{"field", "change"}, []bool{false, false}, [][]string{{"limits", strings.Repeat("x", 70)}}); err != nil {
		t.Fatal(err)
	}
	if want := "field   change\nlimits  " + strings.Repeat("x", 32) + "\n        " + strings.Repeat("x", 32) + "\n        xxxxxx\n"; b.String() != want {
		t.Errorf("a word that is wider than its column:\n%s", b.String())
	}
}
