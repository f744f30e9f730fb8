package replay

import (
	"context"
	"fmt"
	"time"
)

// Ledger tells what was counted for all users whose id begins with prefix.
type Ledger interface {
	Totals(ctx context.Context, prefix string) (Totals, error)
}

const (
	pollEvery = 250 * time.Millisecond
	settle    = time.Second // how long a complete ledger is watched for what is too much
)

// Await reads the ledger until it has counted as many requests as want, or until it has not moved for patience. It gives the
// totals since before; whether they are equal is for the caller to see. A complete ledger is looked at once more after a second,
// for whatever it counts twice. progress is told how many requests have arrived.
func Await(ctx context.Context, l Ledger, prefix string, before, want Totals, patience time.Duration, progress func(Totals)) (Totals, error) {
	var last Totals
	moved := time.Now()
	for {
		now, err := l.Totals(ctx, prefix)
		if err != nil {
			return last, err
		}
		now = now.Minus(before)
		progress(now)
		complete := now.Requests+now.Rejected >= want.Requests+want.Rejected
		switch {
		case now != last:
			last, moved = now, time.Now()
		case complete && time.Since(moved) >= settle, time.Since(moved) >= patience:
			return last, nil
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return last, fmt.Errorf("wait for the ledger: %w", ctx.Err())
		}
	}
}
