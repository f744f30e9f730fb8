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
