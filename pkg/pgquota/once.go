package pgquota

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// KeepAnswers is how long a call with an Idempotency-Key is remembered.
const KeepAnswers = 24 * time.Hour

// ErrOnceOtherRequest says that another request came with that Idempotency-Key before.
var ErrOnceOtherRequest = errors.New("another request came with that idempotency key")

// Replay is the error of a call that was made before: nothing was changed. Sealed is what Seal gave then.
type Replay struct{ Sealed []byte }

func (*Replay) Error() string { return "the call was made before" }

// Once has a change made once for each Key, whoever calls at the same time: the answer is kept in the transaction of the change. Key is the hash
// of who calls what with which Idempotency-Key, Request that of what is asked. Seal gives the answer to keep; it must not be readable by who
// reads the table. A nil *Once asks for nothing.
type Once[T any] struct {
	Key, Request [sha256.Size]byte
	Seal         func(T) ([]byte, error)
}

// begin comes first in the transaction. A *Replay or ErrOnceOtherRequest ends it.
func (o *Once[T]) begin(ctx context.Context, tx pgx.Tx) error {
	if o == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, sqlOnceLock, hex.EncodeToString(o.Key[:])); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	var request, sealed []byte
	err := tx.QueryRow(ctx, sqlOnceSelect, o.Key[:], KeepAnswers).Scan(&request, &sealed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	case string(request) != string(o.Request[:]):
		return ErrOnceOtherRequest
	}
	return &Replay{sealed}
}

// end comes last in the transaction.
func (o *Once[T]) end(ctx context.Context, tx pgx.Tx, result T) error {
	if o == nil {
		return nil
	}
	sealed, err := o.Seal(result)
	if err != nil {
		return fmt.Errorf("seal the answer: %w", err)
	}
	_, err = tx.Exec(ctx, sqlOnceInsert, o.Key[:], o.Request[:], sealed)
	return err
}

// PruneAnswers forgets answers that are kept no longer.
func (s *Store) PruneAnswers(ctx context.Context) (int64, error) {
	tag, err := s.pool.Exec(ctx, sqlOncePrune, KeepAnswers)
	if err != nil {
		return 0, fmt.Errorf("prune answers: %w", err)
	}
	return tag.RowsAffected(), nil
}
