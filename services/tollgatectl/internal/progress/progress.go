// Package progress shows how far a long command is: a bar on a terminal, a line every few seconds elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
)

// lineEvery is how often a line is written where there is no terminal.
const lineEvery = 2 * time.Second

// Progress counts up to a total. Its methods may be called from any goroutine.
type Progress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil: no terminal
	w     io.Writer
	what  string
	done  int64
	total int64
	next  time.Time
}

// Start begins to show progress of what ("checks") on w.
func Start(w io.Writer, what string, total int64) *Progress {
	p := &Progress{w: w, what: what, total: total, next: time.Now().Add(lineEvery)}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) { //nolint:gosec // a file descriptor fits an int
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
			progressbar.OptionShowIts(), progressbar.OptionSetItsString(what), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(65*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionUseANSICodes(true))
	}
	return p
}

// Add counts n more.
func (p *Progress) Add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(p.done + int64(n))
}

// Set counts up to done.
func (p *Progress) Set(done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(min(done, p.total))
}

func (p *Progress) show(done int64) {
	p.done = done
	if p.bar != nil {
		_ = p.bar.Set64(done) // only shows
		return
	}
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(lineEvery)
		_, _ = fmt.Fprintf(p.w, "%s: %s of %s\n", p.what, replay.Commas(done), replay.Commas(p.total))
	}
}

// Finish removes the bar.
func (p *Progress) Finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear() // only shows
	}
}
