package console

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestStepsStayReadableWhenProgressComesInBetween(t *testing.T) {
	var b bytes.Buffer
	c := New(&b)
	c.Step("Redis")("embedded")
	done := c.Step("ClickHouse")
	fmt.Fprintln(c, "ClickHouse 26.7: downloading")
	done("127.0.0.1:9000")
	c.Say("Ready")
	got := regexp.MustCompile(` +`).ReplaceAllString(b.String(), " ")
	want := " Redis embedded 0 ms\n ClickHouse …\nClickHouse 26.7: downloading\n ClickHouse 127.0.0.1:9000 0 ms\nReady\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTableWithoutATerminalHasNoControlCharactersAndFits(t *testing.T) {
	var b bytes.Buffer
	c := New(&b)
	c.Draw([]string{strings.Repeat("ä", 120), "short"})
	c.Draw([]string{"again"})
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 3 || lines[0] != strings.Repeat("ä", 99)+"…" || lines[2] != "again" || strings.Contains(b.String(), "\x1b") {
		t.Errorf("got %q", lines)
	}
}

func TestTableOnATerminalIsRedrawnInPlaceByOneWrite(t *testing.T) {
	var w writes
	c := &Console{w: &w, fd: 1 << 20} // no such terminal: its width is unknown
	c.Draw([]string{"a", "b"})
	c.Draw([]string{"c", "d"})
	c.Say("done")
	want := []string{"a\x1b[K\nb\x1b[K\n", "\x1b[2Ac\x1b[K\nd\x1b[K\n", "done\n"}
	if fmt.Sprint(w) != fmt.Sprint(want) {
		t.Errorf("wrote %q, want %q", w, want)
	}
}

type writes []string

func (w *writes) Write(p []byte) (int, error) { *w = append(*w, string(p)); return len(p), nil }

func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{3 * time.Millisecond: "3 ms", 1240 * time.Millisecond: "1.2 s", 95 * time.Second: "1m35s"} {
		if got := Took(d); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
