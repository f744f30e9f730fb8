package lifecycle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepLastsUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, c := range []struct {
			ask, want time.Duration
			goesOn    bool
		}{{time.Second, time.Second, true}, {0, 0, true}, {-time.Second, 0, true}, {time.Hour, 59 * time.Second, false}, {time.Hour, 0, false}, {0, 0, false}} {
			began := time.Now()
			if goesOn := Sleep(ctx, c.ask); goesOn != c.goesOn || time.Since(began) != c.want {
				t.Errorf("Sleep(%s) gave %v after %s, want %v after %s", c.ask, goesOn, time.Since(began), c.goesOn, c.want)
			}
		}
	})
}
