package lifecycle

import (
	"context"
	"time"
)

// Sleep waits for d. It tells whether ctx goes on: false at once when ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
