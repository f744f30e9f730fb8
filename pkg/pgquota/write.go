package pgquota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// QuotaResult is what a PutQuota led to. Fences are the changes that Redis must know before this one holds: it, any of this subject before it
// that could not be published, and those that have brought it where it is decided. Changed is false if the quota was already as stated.
type QuotaResult struct {
	Entry
	Changed bool
	Fences  []Fence
	Names   []string // whose changes Fences are of
}

// TierResult is what a PutTier led to.
type TierResult struct {
	Tier    tier.Tier
	Changed bool
	Fences  []Fence
}

// PutQuota makes the subject's quota what c states, in one transaction: event, projection and outbox. Errors: *tier.FieldError (joined)
// for bad input, a tier that is not in the catalogue included; *VersionMismatch; ErrKeyRevoked; else it failed, and nothing was changed
// unless the failure was that of the commit.
func (s *Store) PutQuota(ctx context.Context, c Change) (QuotaResult, error) {
	if err := c.Validate(); err != nil {
		return QuotaResult{}, err
	}
	var res QuotaResult
	key, err := s.Key(ctx, keyID(c.Subject))
	switch {
	case c.Subject.Kind == subject.APIKey && err == nil:
		if err = c.OfKey(key); err == nil {
			err = s.changeKey(ctx, &key, c.Within, nil, func(tx pgx.Tx, at placed) (err error) {
				res, err = putQuota(ctx, tx, c, &at)
				return err
			})
		}
	case c.Subject.Kind == subject.APIKey && !errors.Is(err, ErrKeyMissing):
	default:
		err = s.change(ctx, c.Subject.String(), func(tx pgx.Tx) (err error) {
			res, err = putQuota(ctx, tx, c, nil)
			return err
		})
	}
	if err != nil {
		return QuotaResult{}, fmt.Errorf("put quota of %s: %w", c.Subject, err)
	}
	return res, nil
}

// OfKey refuses, by one *tier.FieldError each, what follows from a key's owner.
func (c Change) OfKey(k Key) error {
	errs := []error{ownedKey(c.Own)}
	if k.UserID != "" {
		errs = append(errs, ownedByUser(c.Tier))
	}
	if c.OrgID != nil {
		errs = append(errs, &tier.FieldError{Field: "org_id", Err: errors.New("has no place here: a key's owner never changes")})
	}
	return errors.Join(errs...)
}

// putQuota runs under the locks. at is where a key with an owner is decided; nil for everybody else.
func putQuota(ctx context.Context, tx pgx.Tx, c Change, at *placed) (QuotaResult, error) {
	cur, err := current(ctx, tx, c.Subject)
	if err != nil {
		return QuotaResult{}, err
	}
	old, name := cur.entry(c.Subject), c.Subject.String()
	if at == nil { // a key's owner is looked at with its locks
		if err := c.Within.Holds(old.OrgID); err != nil {
			return QuotaResult{}, err
		}
	}
	if err := c.If.check(name, old.Version); err != nil {
		return QuotaResult{}, err
	}
	before, after := applyChange(c, cur)
	if after.Revoked {
		return QuotaResult{}, ErrKeyRevoked
	}
	if err := c.Within.allows(c, old, cur.tier(), !cur.ofUser()); err != nil {
		return QuotaResult{}, err
	}
	if at == nil {
		places, err := placesOf(ctx, tx, c.Subject, before, after)
		if err != nil {
			return QuotaResult{}, err
		}
		at = &places
	}
	if before != nil && reflect.DeepEqual(*before, after) {
		fences, err := fencesOf(ctx, tx, name, at.names...)
		return QuotaResult{Entry: old, Fences: fences, Names: append([]string{name}, at.names...)}, err
	}
	return writeQuota(ctx, tx, quotaWrite{change: c, before: before, after: after, old: old, key: old.Key, at: *at})
}

// applyChange gives what was stored (nil: nothing) and what is to be stored.
func applyChange(c Change, cur currentQuota) (before *State, after State) {
	after = State{Tier: DefaultTier(c.Subject.Kind)}
	if before = cur.state(); before != nil {
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
	after.Overrides = normal(c.Own)
	return before, after
}

// normal gives overrides as they read when they come back from the store.
func normal(o tier.Overrides) tier.Overrides {
	if o.ModelLimits != nil {
		groups := slices.Clone(*o.ModelLimits)
		for i := range groups {
			groups[i].Models, groups[i].Limits = append([]string{}, groups[i].Models...), append([]tier.Limit{}, groups[i].Limits...)
		}
		o.ModelLimits = &groups
	}
	return o
}

// quotaWrite is one change of a subject, decided under its locks.
type quotaWrite struct {
	change Change
	before *State
	after  State
	old    Entry                               // version 0 if there was none
	key    *Key                                // as it is from now on; nil if the subject is no key that anybody has made
	at     placed                              // where a decision that depends on it can be made, by the old or the new
	along  func(*State, time.Time, *pgx.Batch) // what else changes in the same transaction; may be nil
}

func writeQuota(ctx context.Context, tx pgx.Tx, w quotaWrite) (QuotaResult, error) {
	sub := w.change.Subject
	var t tier.Tier
	var err error
	if w.after.Tier != "" {
		if t, err = selectTier(ctx, tx, w.after.Tier); errors.Is(err, ErrTierMissing) {
			return QuotaResult{}, &tier.FieldError{Field: "tier", Err: fmt.Errorf("%q is not a known tier", w.after.Tier)}
		} else if err != nil {
			return QuotaResult{}, err
		}
	}
	now, err := clock(ctx, tx, w.old.Version, w.old.UpdatedAt)
	if err != nil {
		return QuotaResult{}, err
	}
	b := &pgx.Batch{}
	if w.along != nil {
		w.along(&w.after, now, b)
	}
	entry := Entry{Own: w.after.Overrides, CreatedAt: w.old.CreatedAt, Key: w.key,
		Quota: tier.Effective(sub, w.after.OrgID, t, w.after.Overrides, w.after.Suspended || w.after.Revoked, w.old.Version+1, now)}
	var was *View
	if w.before != nil {
		v := w.old.View()
		was = &v
	} else {
		entry.CreatedAt = now
	}
	view := entry.View()
	name, o := sub.String(), w.after.Overrides
	ev := eventWrite{name: name, version: entry.Version, actor: w.change.Actor, reason: w.change.Reason, at: now, before: w.before, after: &w.after,
		was: was, is: &view, shards: w.at.shards}
	if err := ev.queue(b); err != nil {
		return QuotaResult{}, err
	}
	limits, err := jsonColumn(o.Limits)
	if err != nil {
		return QuotaResult{}, err
	}
	groups, err := jsonColumn(o.ModelLimits)
	if err != nil {
		return QuotaResult{}, err
	}
	b.Queue(sqlUpsertQuota, name, w.after.OrgID, w.after.Tier, o.RPMLimit, o.TPMLimit, o.TPDLimit, o.ConcurrentLimit, o.AllowedModels, o.MaxContext,
		limits, groups, o.Shards, w.after.Suspended, entry.Version, now)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return QuotaResult{}, err
	}
	fences, err := fencesOf(ctx, tx, name, w.at.names...)
	return QuotaResult{Entry: entry, Changed: true, Fences: fences, Names: append([]string{name}, w.at.names...)}, err
}

// eventWrite is one event of quota_events with its row of the outbox.
type eventWrite struct {
	name          string
	version       int64
	actor, reason string
	at            time.Time
	before, after *State
	was, is       *View
	shards        []int
}

func (e eventWrite) queue(b *pgx.Batch) error {
	beforeJSON, err := stateJSON(e.before)
	if err != nil {
		return err
	}
	afterJSON, err := stateJSON(e.after)
	if err != nil {
		return err
	}
	id, payload, err := e.payload()
	if err != nil {
		return err
	}
	b.Queue(sqlInsertQuotaEvent, e.name, e.version, e.actor, e.reason, beforeJSON, afterJSON, e.at)
	b.Queue(sqlInsertOutbox, KindQuota, e.name, e.version, e.shards, id, string(payload), e.at)
	return nil
}

// jsonColumn is the value of a jsonb column; nil is SQL's null.
func jsonColumn[T any](v *T) (any, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// PutTier makes a tier what c states, for everyone on it, in one transaction. Errors as those of PutQuota.
func (s *Store) PutTier(ctx context.Context, c TierChange) (TierResult, error) {
	c.Tier.AllowedModels, c.Tier.Limits = append([]string{}, c.Tier.AllowedModels...), append([]tier.Limit{}, c.Tier.Limits...)
	if c.Tier.ModelLimits == nil {
		c.Tier.ModelLimits = []tier.ModelLimits{}
	}
	c.Tier.ModelLimits = *normal(tier.Overrides{ModelLimits: &c.Tier.ModelLimits}).ModelLimits
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
	limits, err := jsonColumn(&next.Limits)
	if err != nil {
		return err
	}
	groups, err := jsonColumn(&next.ModelLimits)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(sqlInsertTierEvent, next.Name, next.Version, c.Actor, c.Reason, beforeJSON, afterJSON, next.UpdatedAt)
	b.Queue(sqlUpsertTier, next.Name, next.RPMLimit, next.TPMLimit, next.TPDLimit, next.ConcurrentLimit, next.Priority,
		next.AllowedModels, next.MaxContext, string(next.RedisAway), limits, groups, next.Version, next.UpdatedAt)
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
