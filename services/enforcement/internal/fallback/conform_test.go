package fallback

import (
	"context"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
)

// As long as its store answers, the limiter is that store.
func TestFallbackConformsWhileItsStoreAnswers(t *testing.T) {
	limittest.Run(t, func(_ testing.TB, clock *limittest.Clock) limittest.Subject {
		s := &store{Memory: limit.NewMemory(limit.MemoryOptions{Now: clock.Now})}
		l := New(s, &instances{s: s, n: 1}, Options{Now: clock.Now})
		return limittest.Subject{Limiter: l, Publish: func(_ context.Context, _ int, name string, version int64) error {
			s.Publish(name, version)
			return nil
		}}
	})
}
