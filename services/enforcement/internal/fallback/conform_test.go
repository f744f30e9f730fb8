package fallback

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// lender is a Limiter whose store lends.
type lender struct {
	*Limiter
	store *store
}

func (l lender) Transfer(ctx context.Context, r limit.TransferRequest) (limit.Transferred, error) {
	return l.store.Transfer(ctx, r)
}

func (l lender) Find(ctx context.Context, s subject.Subject, id uuid.UUID, shards []int) (int, bool, error) {
	return l.store.Find(ctx, s, id, shards)
}

// As long as its store answers, the limiter is that store.
func TestFallbackConformsWhileItsStoreAnswers(t *testing.T) {
	limittest.Run(t, func(_ testing.TB, clock *limittest.Clock) limittest.Subject {
		s := &store{Memory: limit.NewMemory(limit.MemoryOptions{Now: clock.Now}), plain: true}
		l := New(s, &instances{s: s, n: 1}, Options{Now: clock.Now})
		return limittest.Subject{Limiter: lender{l, s}, Publish: func(_ context.Context, _ int, name string, version int64) error {
			s.Publish(name, version)
			return nil
		}}
	})
}
