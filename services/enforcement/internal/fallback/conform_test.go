package fallback

import (
	"context"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
)

// lending is a limiter whose shards lend each other room: in the store, as they do below it.
type lending struct {
	*Limiter
	s *store
}

func (l lending) Transfer(ctx context.Context, r limit.TransferRequest) (limit.Transferred, error) {
	return l.s.Transfer(ctx, r)
}

// As long as its store answers, the limiter is that store.
func TestFallbackConformsWhileItsStoreAnswers(t *testing.T) {
	limittest.Run(t, func(_ testing.TB, clock *limittest.Clock) limittest.Subject {
		s := &store{Memory: limit.NewMemory(limit.MemoryOptions{Now: clock.Now})}
		l := New(s, &instances{s, 1}, Options{Now: clock.Now})
		return limittest.Subject{Limiter: lending{l, s}, Publish: func(_ context.Context, _ int, name string, version int64) error {
			s.Publish(name, version)
			return nil
		}}
	})
}
