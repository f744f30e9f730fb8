package pgquota

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Refusal is one row of the audit log of who tried what without the right. Attempts of one kind within a few seconds are one row; Method, Path
// and RequestID are the first one's.
type Refusal struct {
	ID        int64
	Instance  string
	Reason    string // unauthorized, forbidden, outside_org, too_many_requests; several: more kinds than are kept apart
	Actor     string // "": nobody knows
	Address   string
	Method    string
	Path      string
	RequestID string
	Attempts  int64
	FirstAt   time.Time
	LastAt    time.Time
}

// AppendRefusals adds to the log; all or none.
func (s *Store) AppendRefusals(ctx context.Context, rs []Refusal) error {
	b := &pgx.Batch{}
	for _, r := range rs {
		b.Queue(sqlInsertRefusal, r.Instance, r.Reason, r.Actor, r.Address, r.Method, r.Path, r.RequestID, r.Attempts, r.FirstAt, r.LastAt)
	}
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("append refusals: %w", err)
	}
	return nil
}

// Refusals lists the log, newest first, from before the given id; 0 is the newest page.
func (s *Store) Refusals(ctx context.Context, before int64, limit int) ([]Refusal, error) {
	var rs []Refusal
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListRefusals, before, limit)
		if err != nil {
			return err
		}
		rs, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (Refusal, error) {
			var f Refusal
			err := r.Scan(&f.ID, &f.Instance, &f.Reason, &f.Actor, &f.Address, &f.Method, &f.Path, &f.RequestID, &f.Attempts, &f.FirstAt, &f.LastAt)
			f.FirstAt, f.LastAt = f.FirstAt.UTC(), f.LastAt.UTC()
			return f, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list refusals: %w", err)
	}
	return rs, nil
}
