package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestPartsStopInReverseOrderOfTheirStart(t *testing.T) {
	var order []string
	s := New(quiet())
	for _, n := range []string{"store", "writer", "server"} {
		s.Defer(n, func(context.Context) error { order = append(order, n); return errors.New(n) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Wait(ctx)
	if want := []string{"server", "writer", "store"}; !slices.Equal(order, want) {
		t.Errorf("stopped in order %v, want %v", order, want)
	}
	if err == nil {
		t.Error("failures of the stop were lost")
	}
}

func TestAPartThatEndsByItselfStopsTheService(t *testing.T) {
	boom := errors.New("boom")
	s := New(quiet())
	stopped := false
	s.Defer("store", func(context.Context) error { stopped = true; return nil })
	s.Go("loop", func(context.Context) error { return boom })
	if err := s.Wait(t.Context()); !errors.Is(err, boom) || !stopped {
		t.Errorf("err %v, stopped %v", err, stopped)
	}
}

func TestStopJoinsEveryGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(quiet())
		ended := false
		s.Go("loop", func(ctx context.Context) error { <-ctx.Done(); ended = true; return ctx.Err() })
		if err := s.Stop(); err != nil || !ended {
			t.Errorf("err %v, ended %v", err, ended)
		}
	})
}

func TestAPartThatHangsIsReportedWithinTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(quiet())
		release := make(chan struct{})
		s.Go("stuck", func(context.Context) error { <-release; return nil })
		if err := s.Stop(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline error", err)
		}
		close(release)
	})
}
