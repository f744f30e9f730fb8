package limit_test

import (
	"context"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
)

func memory(_ testing.TB, clock *limittest.Clock) limittest.Subject {
	m := limit.NewMemory(limit.MemoryOptions{Now: clock.Now})
	return limittest.Subject{Limiter: m, Publish: func(_ context.Context, _ int, name string, version int64) error {
		m.Publish(name, version)
		return nil
	}}
}

func TestMemoryConforms(t *testing.T) { limittest.Run(t, memory) }

func TestMemoryRestores(t *testing.T) { limittest.RunRestorer(t, memory) }

func TestMemoryFollowsWhoeverMoves(t *testing.T) { limittest.RunMover(t, memory) }
