package refusallog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
)

type memory struct {
	rows []pgquota.Refusal
	err  error
}

func (m *memory) AppendRefusals(_ context.Context, rs []pgquota.Refusal) error {
	if m.err == nil {
		m.rows = append(m.rows, rs...)
	}
	return m.err
}

func (m *memory) attempts() (n int64) {
	for _, r := range m.rows {
		n += r.Attempts
	}
	return n
}

func attempt(i int) Attempt {
	return Attempt{Reason: "unauthorized", Address: fmt.Sprintf("192.0.2.%d", i), Method: "GET", Route: "/r", Path: "/r/" + fmt.Sprint(i), RequestID: fmt.Sprint(i), At: time.Unix(int64(i), 0)}
}

func TestFloodBecomesFewRowsAndEveryAttemptIsCounted(t *testing.T) {
	m := &memory{}
	l := New(m, "quota-0", slog.New(slog.DiscardHandler))
	for i := range 100_000 {
		l.Add(attempt(i % 1000))
	}
	if err := l.Flush(t.Context()); err != nil || len(m.rows) != Kinds || m.attempts() != 100_000 {
		t.Errorf("%d rows of %d attempts, %v", len(m.rows), m.attempts(), err)
	}
	if r := m.rows[0]; r.Attempts != 100 || r.Path != "/r/0" || r.Instance != "quota-0" || r.Reason != "unauthorized" {
		t.Errorf("%+v", r)
	}
	if r := m.rows[Kinds-1]; r.Reason != several || r.Address != "" || r.LastAt.Before(r.FirstAt) {
		t.Errorf("%+v", r)
	}
	if err := l.Flush(t.Context()); err != nil || len(m.rows) != Kinds {
		t.Errorf("written twice: %d rows, %v", len(m.rows), err)
	}
}

func TestAttemptsWaitBoundedWhilePostgresIsAway(t *testing.T) {
	m := &memory{err: errors.New("away")}
	l := New(m, "quota-0", slog.New(slog.DiscardHandler))
	for round := range 5 {
		for i := range 100 {
			l.Add(attempt(100*(round%2) + i))
		}
		if err := l.Flush(t.Context()); err == nil {
			t.Fatal("no error")
		}
	}
	m.err = nil
	if err := l.Flush(t.Context()); err != nil || len(m.rows) > Kinds || m.attempts() != 500 {
		t.Errorf("%d rows of %d attempts, %v", len(m.rows), m.attempts(), err)
	}
}

func TestRunWritesWhatWaitsWhenItEnds(t *testing.T) {
	m := &memory{}
	l := New(m, "quota-0", slog.New(slog.DiscardHandler))
	l.Add(attempt(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil || len(m.rows) != 1 {
		t.Error(m.rows, err)
	}
}
