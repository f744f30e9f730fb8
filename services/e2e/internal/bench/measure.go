package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Result is one line of the table.
type Result struct {
	What      string
	PerSecond float64
	P50, P99  time.Duration
}

// measure calls do from so many callers at once for d, after a second of warming up, and times each call. do gets the caller's and the
// call's number. The first error ends it.
func measure(ctx context.Context, what string, callers int, d time.Duration, do func(ctx context.Context, caller, n int) error) (Result, error) {
	if _, _, err := drive(ctx, callers, time.Second, do); err != nil {
		return Result{}, fmt.Errorf("%s: %w", what, err)
	}
	times, elapsed, err := drive(ctx, callers, d, do)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", what, err)
	}
	if len(times) == 0 {
		return Result{}, fmt.Errorf("%s: no call was finished within %s", what, d)
	}
	slices.Sort(times)
	return Result{What: what, PerSecond: float64(len(times)) / elapsed.Seconds(), P50: times[(len(times)-1)*50/100], P99: times[(len(times)-1)*99/100]}, nil
}

// calls numbers all calls of this process, so that no two share a request.
var calls atomic.Int64

func drive(ctx context.Context, callers int, d time.Duration, do func(ctx context.Context, caller, n int) error) ([]time.Duration, time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	perCaller := make([][]time.Duration, callers)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				at := time.Now()
				if at.Sub(begin) >= d {
					return
				}
				if err := do(ctx, i, int(calls.Add(1))); err != nil {
					cancel(err)
					return
				}
				perCaller[i] = append(perCaller[i], time.Since(at))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	return slices.Concat(perCaller...), elapsed, context.Cause(ctx)
}
