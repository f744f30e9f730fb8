// Package lifecycle starts a service's parts in order and stops them in the reverse order, joining every goroutine. The order in
// which app.Run calls Defer and Go is the order of the start; there is no other list of it. CollectLessOften is for services that answer within
// milliseconds; Sleep is for any that must stop at once.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Grace is how long a stop may take in all (DESIGN §9).
const Grace = 30 * time.Second

// Stack holds what was started. Use it from one goroutine.
type Stack struct {
	log   *slog.Logger
	parts []part
	fail  chan error
}

type part struct {
	name string
	stop func(context.Context) error
}

// New makes an empty stack. Each stop is logged at debug level by its part's name.
func New(log *slog.Logger) *Stack { return &Stack{log: log, fail: make(chan error, 1)} }

// Defer registers how to stop a part that has just been started.
func (s *Stack) Defer(name string, stop func(context.Context) error) {
	s.parts = append(s.parts, part{name, stop})
}

// Go starts a part that runs until its context ends. Its stop cancels that context and waits for run to return. A run that returns
// while nobody asked it to stops the whole service.
func (s *Stack) Go(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		err = run(ctx)
		if ctx.Err() == nil {
			e := fmt.Errorf("%s: stopped by itself", name)
			if err != nil {
				e = fmt.Errorf("%s: %w", name, err)
			}
			select {
			case s.fail <- e:
			default: // the first failure is the cause; later ones follow from it
			}
		}
	})
	s.Defer(name, func(stopCtx context.Context) error {
		cancel()
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		case <-stopCtx.Done():
			return fmt.Errorf("did not stop in time: %w", stopCtx.Err())
		}
	})
}

// Wait blocks until ctx ends or a part fails, then stops everything. It returns the failure, joined with those of the stop.
func (s *Stack) Wait(ctx context.Context) error {
	var cause error
	select {
	case <-ctx.Done():
	case cause = <-s.fail:
		s.log.Error("a part failed; stopping", "err", cause)
	}
	return errors.Join(cause, s.Stop())
}

// Stop stops all parts in reverse order of their start, within Grace in all. A part that fails to stop does not keep the others from
// stopping. A second call does nothing.
func (s *Stack) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), Grace)
	defer cancel()
	var errs []error
	for i := len(s.parts) - 1; i >= 0; i-- {
		p := s.parts[i]
		start := time.Now()
		if err := p.stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
		s.log.Debug("stopped", "part", p.name, "ms", time.Since(start).Milliseconds())
	}
	s.parts = nil
	return errors.Join(errs...)
}

// Abort stops what was started so far because the start failed with err, and returns err.
func (s *Stack) Abort(err error) error { return errors.Join(err, s.Stop()) }
