// Package console is what standalone shows to the person who started it: steps with how long they took, and a table that is redrawn in
// place on a terminal. Elsewhere (a pipe, CI) everything is plain lines.
package console

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// MaxWidth is the widest line, in columns.
const MaxWidth = 100

// Console writes to one stream. Its methods may be called from any goroutine.
type Console struct {
	mu    sync.Mutex
	w     io.Writer
	fd    int // of the terminal; -1: there is none
	open  bool
	drawn int // lines of the table that stand above the cursor
}

// New makes a console on w.
func New(w io.Writer) *Console {
	c := &Console{w: w, fd: -1}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) { //nolint:gosec // a file descriptor fits an int
		c.fd = int(f.Fd()) //nolint:gosec // as above
	}
	return c
}

// Terminal reports whether a table can be redrawn.
func (c *Console) Terminal() bool { return c.fd >= 0 }

// Say writes a line.
func (c *Console) Say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLine()
	c.put(fmt.Sprintf(format, args...) + "\n")
}

// Write lets other parts report progress (of a download, say) in lines of their own.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLine()
	c.put(string(p))
	return len(p), nil
}

// Step begins a line with a name; the returned func ends it with what came of it and the time it took.
func (c *Console) Step(name string) func(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLine()
	begin := time.Now()
	label := fmt.Sprintf("  %-12s ", name)
	c.put(label)
	c.open = true
	return func(what string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.open { // something was written in between
			c.put(label)
		}
		c.open = false
		c.put(fmt.Sprintf("%-55s %8s\n", what, Took(time.Since(begin))))
	}
}

// endLine ends a step's line that is still open.
func (c *Console) endLine() {
	if c.open {
		c.open = false
		c.put("…\n")
	}
	c.drawn = 0
}

// Draw shows a table, on a terminal over the one before.
func (c *Console) Draw(lines []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	if c.fd >= 0 && c.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", c.drawn)
	}
	width := c.width()
	for _, l := range lines {
		b.WriteString(cut(l, width))
		if c.fd >= 0 {
			b.WriteString("\x1b[K")
		}
		b.WriteString("\n")
	}
	c.drawn = len(lines)
	c.put(b.String()) // one write: no flicker
}

// EndTable leaves the table where it stands.
func (c *Console) EndTable() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drawn = 0
}

func (c *Console) width() int {
	if c.fd >= 0 {
		if w, _, err := term.GetSize(c.fd); err == nil && w > 0 {
			return min(w, MaxWidth)
		}
	}
	return MaxWidth
}

func (c *Console) put(s string) { _, _ = io.WriteString(c.w, s) } // a console that is gone must not stop the services

// cut shortens a line to so many columns: a longer one would wrap, and be redrawn in the wrong place.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(width-1, 0)]) + "…"
}

// Took shows a duration to three figures or so.
func Took(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
