package fallback

import (
	"context"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// CancelRequest takes back an open reservation as if it had never been granted.
type CancelRequest struct {
	Shard     int
	Subject   subject.Subject
	RequestID uuid.UUID
	Scopes    []limit.Scope
}

type canceller interface {
	Cancel(ctx context.Context, r CancelRequest) (bool, error)
}

// undo takes a reservation back that the store may have made.
func (l *Limiter) undo(ctx context.Context, k key, scopes []limit.Scope) (bool, error) {
	c, ok := l.store.(canceller)
	if !ok {
		return false, nil
	}
	return ask(ctx, l, l.endTime(), func(ctx context.Context) (bool, error) {
		return c.Cancel(ctx, CancelRequest{Shard: k.shard, Subject: k.subject, RequestID: k.id, Scopes: scopes})
	})
}
