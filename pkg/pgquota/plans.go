package pgquota

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Plans is Plan for many subjects in one round trip. Each plan is of one moment, all of them together are not.
func (s *Store) Plans(ctx context.Context, subs []subject.Subject) ([]tier.Plan, error) {
	plans := make([]tier.Plan, len(subs))
	err := s.read(ctx, func() error {
		var batch pgx.Batch
		for _, sub := range subs {
			batch.Queue(sqlSelectPlan, sub.String(), keyID(sub), DefaultTier(sub.Kind), DefaultTier(subject.User), tier.MovesKept)
		}
		answers := s.pool.SendBatch(ctx, &batch)
		for i, sub := range subs {
			var r planRow
			err := answers.QueryRow().Scan(r.targets()...)
			if err == nil {
				plans[i], err = r.plan(sub)
			}
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", sub, err), answers.Close())
			}
		}
		return answers.Close()
	})
	if err != nil {
		return nil, fmt.Errorf("read plans: %w", err)
	}
	return plans, nil
}

// Orgs is Org for many orgs in one round trip.
func (s *Store) Orgs(ctx context.Context, orgIDs []string) ([]tier.Pool, error) {
	pools := make([]tier.Pool, len(orgIDs))
	err := s.read(ctx, func() error {
		var batch pgx.Batch
		for _, id := range orgIDs {
			batch.Queue(sqlSelectOrg, id)
		}
		answers := s.pool.SendBatch(ctx, &batch)
		for i, id := range orgIDs {
			var c orgColumns
			if err := answers.QueryRow().Scan(c.targets()...); err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return errors.Join(fmt.Errorf("org %s: %w", id, err), answers.Close())
			}
			pools[i] = c.pool(id)
		}
		return answers.Close()
	})
	if err != nil {
		return nil, fmt.Errorf("read quotas of orgs: %w", err)
	}
	return pools, nil
}
