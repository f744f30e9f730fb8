package pgquota

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// QuotaResult is what a PutQuota led to. Fences are the changes of this subject that Redis may not know yet: this one and any before it
// that could not be published. Changed is false if the quota was already as stated.
type QuotaResult struct {
	Entry
	Changed bool
	Fences  []Fence
}

// TierResult is what a PutTier led to.
type TierResult struct {
	Tier    tier.Tier
	Changed bool
	Fences  []Fence
}

// PutQuota makes the subject's quota what c states, in one transaction: event, projection and outbox. Errors: *tier.FieldError (joined)
// for bad input, a tier that is not in the catalogue included; *VersionMismatch; else it failed, and nothing was changed unless the
// failure was that of the commit.
func (s *Store) PutQuota(ctx context.Context, c Change) (QuotaResult, error) {
	if err := c.Validate(); err != nil {
		return QuotaResult{}, err
	}
	var res QuotaResult
	name := c.Subject.String()
	err := s.change(ctx, name, func(tx pgx.Tx) error {
		cur, err := current(ctx, tx, c.Subject)
		if err != nil {
			return err
		}
		old := cur.entry(c.Subject)
		if err := c.If.check(name, old.Version); err != nil {
			return err
		}
		before, after := applyChange(c, cur)
		if before != nil && reflect.DeepEqual(*before, after) {
			res = QuotaResult{Entry: old}
			res.Fences, err = fencesOf(ctx, tx, name)
			return err
		}
		t := cur.tier()
		if after.Tier != t.Name {
			if t, err = selectTier(ctx, tx, after.Tier); errors.Is(err, ErrTierMissing) {
				return &tier.FieldError{Field: "tier", Err: fmt.Errorf("%q is not a known tier", after.Tier)}
			} else if err != nil {
				return err
			}
		}
		now, err := clock(ctx, tx, old.Version, old.UpdatedAt)
		if err != nil {
			return err
		}
		res = QuotaResult{Changed: true, Entry: Entry{Own: after.Overrides, CreatedAt: old.CreatedAt,
			Quota: tier.Effective(c.Subject, after.OrgID, t, after.Overrides, after.Suspended, old.Version+1, now)}}
		var was *Entry
		if before != nil {
			was = &old
		} else {
			res.CreatedAt = now
		}
		if err := writeQuota(ctx, tx, c, before, after, was, res.Entry); err != nil {
			return err
		}
		res.Fences, err = fencesOf(ctx, tx, name)
		return err
	})
	if err != nil {
		return QuotaResult{}, fmt.Errorf("put quota of %s: %w", c.Subject, err)
	}
	return res, nil
}

// applyChange gives what was stored (nil: nothing) and what is to be stored.
func applyChange(c Change, cur currentQuota) (before *State, after State) {
	after = State{Tier: DefaultTier(c.Subject.Kind)}
	if cur.version != nil {
		before = &State{OrgID: *cur.orgID, Tier: *cur.tierName, Suspended: *cur.suspended, Overrides: cur.own}
		after = *before
	}
	if c.OrgID != nil {
		after.OrgID = *c.OrgID
	}
	if c.Tier != nil {
		after.Tier = *c.Tier
	}
	if c.Suspended != nil {
		after.Suspended = *c.Suspended
	}
	after.Overrides = c.Own
	return before, after
}

func writeQuota(ctx context.Context, tx pgx.Tx, c Change, before *State, after State, was *Entry, now Entry) error {
	beforeJSON, err := before.asJSON()
	if err != nil {
		return err
	}
	afterJSON, err := after.asJSON()
	if err != nil {
		return err
	}
	id, payload, err := quotaPayload(c, was, now)
	if err != nil {
		return err
	}
	oldOrg := ""
	if before != nil {
		oldOrg = before.OrgID
	}
	shards := []int{subject.Shard(oldOrg, c.Subject), subject.Shard(after.OrgID, c.Subject)}
	slices.Sort(shards)
	shards = slices.Compact(shards)

	name, o := c.Subject.String(), after.Overrides
	b := &pgx.Batch{}
	b.Queue(sqlInsertQuotaEvent, name, now.Version, c.Actor, c.Reason, beforeJSON, afterJSON, now.UpdatedAt)
	b.Queue(sqlUpsertQuota, name, after.OrgID, after.Tier, o.RPMLimit, o.TPMLimit, o.TPDLimit, o.ConcurrentLimit, o.AllowedModels,
		o.MaxContext, after.Suspended, now.Version, now.UpdatedAt)
	b.Queue(sqlInsertOutbox, KindQuota, name, now.Version, shards, id, string(payload), now.UpdatedAt)
	return tx.SendBatch(ctx, b).Close()
}

// PutTier makes a tier what c states, for everyone on it, in one transaction. Errors as those of PutQuota.
func (s *Store) PutTier(ctx context.Context, c TierChange) (TierResult, error) {
	if c.Tier.AllowedModels == nil {
		c.Tier.AllowedModels = []string{}
	}
	if err := c.Validate(); err != nil {
		return TierResult{}, err
	}
	var res TierResult
	name := TierName(c.Tier.Name)
	err := s.change(ctx, name, func(tx pgx.Tx) error {
		old, err := selectTier(ctx, tx, c.Tier.Name)
		if err != nil && !errors.Is(err, ErrTierMissing) {
			return err
		}
		if err := c.If.check(name, old.Version); err != nil {
			return err
		}
		next := c.Tier
		next.Version, next.UpdatedAt = old.Version, old.UpdatedAt
		res = TierResult{Tier: old}
		if old.Version == 0 || !reflect.DeepEqual(old, next) {
			next.Version = old.Version + 1
			if next.UpdatedAt, err = clock(ctx, tx, old.Version, old.UpdatedAt); err != nil {
				return err
			}
			if err := writeTier(ctx, tx, c, old, next); err != nil {
				return err
			}
			res = TierResult{Tier: next, Changed: true}
		}
		res.Fences, err = fencesOf(ctx, tx, name)
		return err
	})
	if err != nil {
		return TierResult{}, fmt.Errorf("put tier %s: %w", c.Tier.Name, err)
	}
	return res, nil
}

func writeTier(ctx context.Context, tx pgx.Tx, c TierChange, old, next tier.Tier) error {
	var was *tier.Tier
	if old.Version > 0 {
		was = &old
	}
	beforeJSON, err := tierJSON(was)
	if err != nil {
		return err
	}
	afterJSON, err := tierJSON(&next)
	if err != nil {
		return err
	}
	id, payload, err := tierPayload(c, was, next)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(sqlInsertTierEvent, next.Name, next.Version, c.Actor, c.Reason, beforeJSON, afterJSON, next.UpdatedAt)
	b.Queue(sqlUpsertTier, next.Name, next.RPMLimit, next.TPMLimit, next.TPDLimit, next.ConcurrentLimit, next.Priority,
		next.AllowedModels, next.MaxContext, string(next.RedisAway), next.Version, next.UpdatedAt)
	b.Queue(sqlInsertOutbox, KindTier, TierName(next.Name), next.Version, []int{}, id, string(payload), next.UpdatedAt)
	return tx.SendBatch(ctx, b).Close()
}

// change runs f in a transaction that holds the name's lock.
func (s *Store) change(ctx context.Context, name string, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlBeginChange, name); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		return f(tx)
	})
}

// clock gives the moment of a change by the database's clock. One subject's moments never run backwards, even if that clock does.
func clock(ctx context.Context, tx pgx.Tx, version int64, last time.Time) (time.Time, error) {
	var now time.Time
	if err := tx.QueryRow(ctx, sqlNow).Scan(&now); err != nil {
		return time.Time{}, err
	}
	if version > 0 && now.Before(last) {
		now = last
	}
	return now.UTC(), nil
}
