package pgquota

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// OrgChange states what an org's pool is to be, completely; Pool.Version and Pool.UpdatedAt are ignored.
type OrgChange struct {
	Pool   tier.Pool
	If     Precondition
	Actor  string
	Reason string
}

// OrgResult is what a PutOrg or a DeleteOrg led to.
type OrgResult struct {
	Pool    tier.Pool
	Changed bool
	Fences  []Fence
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (c OrgChange) Validate() error {
	errs := []error{c.Pool.Validate(), checkNote("reason", c.Reason, 0, MaxReason), checkNote("actor", c.Actor, 1, MaxActor)}
	if err := subject.ValidateID(c.Pool.OrgID); err != nil {
		errs = append(errs, &tier.FieldError{Field: "org_id", Err: err})
	}
	return errors.Join(errs...)
}

// Org reads an org's pool. Nobody is unknown: an org without one is unlimited, at version 0.
func (s *Store) Org(ctx context.Context, orgID string) (tier.Pool, error) {
	var p tier.Pool
	err := s.read(ctx, func() error {
		c, err := currentOrg(ctx, s.pool, orgID)
		p = c.pool(orgID)
		return err
	})
	if err != nil {
		return tier.Pool{}, fmt.Errorf("read quota of org %s: %w", orgID, err)
	}
	return p, nil
}

// PutOrg makes an org's pool what c states, in one transaction. Errors as those of PutQuota.
func (s *Store) PutOrg(ctx context.Context, c OrgChange) (OrgResult, error) {
	if err := c.Validate(); err != nil {
		return OrgResult{}, err
	}
	c.Pool.Limits = append([]tier.Limit{}, c.Pool.Limits...)
	return s.changeOrg(ctx, c, false)
}

// DeleteOrg lifts every limit of an org's pool. The version goes on growing. An org without a pool stays as it is. Of c the org, the
// precondition, the actor and the reason count.
func (s *Store) DeleteOrg(ctx context.Context, c OrgChange) (OrgResult, error) {
	c.Pool = tier.NoPool(c.Pool.OrgID)
	if err := c.Validate(); err != nil {
		return OrgResult{}, err
	}
	return s.changeOrg(ctx, c, true)
}

func (s *Store) changeOrg(ctx context.Context, c OrgChange, deleted bool) (OrgResult, error) {
	var res OrgResult
	name := tier.OrgName(c.Pool.OrgID)
	err := s.change(ctx, name, func(tx pgx.Tx) error {
		cur, err := currentOrg(ctx, tx, c.Pool.OrgID)
		if err != nil {
			return err
		}
		old := cur.pool(c.Pool.OrgID)
		if err := c.If.check(name, old.Version); err != nil {
			return err
		}
		gone := cur.version == nil || *cur.deleted
		next := c.Pool
		next.Version, next.UpdatedAt = old.Version, old.UpdatedAt
		res = OrgResult{Pool: old}
		if gone != deleted || !reflect.DeepEqual(old, next) {
			next.Version = old.Version + 1
			if next.UpdatedAt, err = clock(ctx, tx, old.Version, old.UpdatedAt); err != nil {
				return err
			}
			if err := writeOrg(ctx, tx, c, old, next, gone, deleted); err != nil {
				return err
			}
			res = OrgResult{Pool: next, Changed: true}
		}
		res.Fences, err = fencesOf(ctx, tx, name)
		return err
	})
	if err != nil {
		return OrgResult{}, fmt.Errorf("change quota of org %s: %w", c.Pool.OrgID, err)
	}
	return res, nil
}

func writeOrg(ctx context.Context, tx pgx.Tx, c OrgChange, old, next tier.Pool, gone, deleted bool) error {
	base := subject.Shard(next.OrgID, subject.Subject{})
	ev := eventWrite{name: tier.OrgName(next.OrgID), version: next.Version, actor: c.Actor, reason: c.Reason, at: next.UpdatedAt,
		shards: union(subject.Spread(base, int(old.Shards)), subject.Spread(base, int(next.Shards)))}
	if !gone {
		v := ViewOrg(old)
		ev.before, ev.was = poolState(old), &v
	}
	if !deleted {
		v := ViewOrg(next)
		ev.after, ev.is = poolState(next), &v
	}
	b := &pgx.Batch{}
	if err := ev.queue(b); err != nil {
		return err
	}
	limits, err := jsonColumn(&next.Limits)
	if err != nil {
		return err
	}
	b.Queue(sqlUpsertOrg, next.OrgID, next.RPMLimit, next.TPMLimit, next.TPDLimit, next.ConcurrentLimit, limits, next.Shards, next.TimeZone, deleted,
		next.Version, next.UpdatedAt)
	return tx.SendBatch(ctx, b).Close()
}

// poolState is what an org's events say.
func poolState(p tier.Pool) *State {
	return &State{TimeZone: p.TimeZone, Overrides: tier.Overrides{RPMLimit: &p.RPMLimit, TPMLimit: &p.TPMLimit, TPDLimit: &p.TPDLimit,
		ConcurrentLimit: &p.ConcurrentLimit, Limits: &p.Limits, Shards: &p.Shards}}
}

// ViewOrg gives the shape that a pool has in events, which is that of a quota.
func ViewOrg(p tier.Pool) View {
	at := p.UpdatedAt
	if p.Version == 0 {
		at = time.Time{}
	}
	return View{OrgID: p.OrgID, RPMLimit: p.RPMLimit, TPMLimit: p.TPMLimit, TPDLimit: p.TPDLimit, ConcurrentLimit: p.ConcurrentLimit,
		AllowedModels: []string{}, Limits: p.Limits, ModelLimits: []tier.ModelLimits{}, Shards: p.Shards, TimeZone: p.TimeZone, Version: p.Version,
		UpdatedAt: usage.At(at)}
}
