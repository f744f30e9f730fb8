package pgquota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/quotalog"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// ErrUnknownThen says that the history does not reach back to that instant: the tier that held is not in it, or the key did not exist.
var ErrUnknownThen = errors.New("nothing is known of that instant")

// EntryAt is what a subject could use at an instant: its own limits of then, applied to its tier as it was then. Of several changes in one
// millisecond all count. Errors: ErrUnknownThen, or Postgres could not be asked.
func (s *Store) EntryAt(ctx context.Context, sub subject.Subject, at time.Time) (Entry, error) {
	var e Entry
	err := s.read(ctx, func() error {
		m, err := s.momentOf(ctx, sub.String(), DefaultTier(sub.Kind), at)
		if err != nil {
			return err
		}
		e, err = m.entry(sub)
		return err
	})
	if err != nil {
		return Entry{}, fmt.Errorf("read quota of %s at %s: %w", sub, at.UTC().Format(time.RFC3339Nano), err)
	}
	return e, nil
}

// OrgAt is what an org's pool was at an instant.
func (s *Store) OrgAt(ctx context.Context, orgID string, at time.Time) (tier.Pool, error) {
	p := tier.NoPool(orgID)
	err := s.read(ctx, func() error {
		m, err := s.momentOf(ctx, tier.OrgName(orgID), "", at)
		if err != nil || m.version == nil {
			return err
		}
		if m.state != nil {
			p = statedPool(orgID, *m.state)
		}
		p.Version, p.UpdatedAt = *m.version, m.changedAt.UTC()
		return nil
	})
	if err != nil {
		return tier.Pool{}, fmt.Errorf("read quota of org %s at %s: %w", orgID, at.UTC().Format(time.RFC3339Nano), err)
	}
	return p, nil
}

// statedPool is the pool that poolState has told.
func statedPool(orgID string, st State) tier.Pool {
	p := tier.NoPool(orgID)
	for to, from := range map[*int64]*int64{&p.RPMLimit: st.RPMLimit, &p.TPMLimit: st.TPMLimit, &p.TPDLimit: st.TPDLimit,
		&p.ConcurrentLimit: st.ConcurrentLimit, &p.Shards: st.Shards} {
		if from != nil {
			*to = *from
		}
	}
	if st.Limits != nil {
		p.Limits = append(p.Limits, *st.Limits...)
	}
	if st.TimeZone != "" {
		p.TimeZone = st.TimeZone
	}
	return p
}

// moment is one row of select_at.sql.
type moment struct {
	version              *int64
	state                *State
	changedAt, createdAt *time.Time
	tierVersion          *int64
	tier                 *tier.Tier
	tierAt               *time.Time
}

func (s *Store) momentOf(ctx context.Context, name, defaultTier string, at time.Time) (moment, error) {
	var m moment
	var state, tierState []byte
	err := s.pool.QueryRow(ctx, sqlSelectAt, name, defaultTier, at).Scan(&m.version, &state, &m.changedAt, &m.createdAt, &m.tierVersion, &tierState, &m.tierAt)
	if err != nil {
		return moment{}, err
	}
	if m.state, err = stateFromJSON(state); err != nil {
		return moment{}, err
	}
	m.tier, err = tierFromJSON(tierState)
	return m, err
}

func (m moment) entry(sub subject.Subject) (Entry, error) {
	var own State
	if m.state != nil {
		own = *m.state
	}
	ofUser := own.Owner != "" && own.Tier == ""
	if (m.tier == nil && !ofUser) || (sub.Kind == subject.APIKey && own.Owner == "") {
		return Entry{}, ErrUnknownThen
	}
	var t tier.Tier
	if !ofUser {
		t = *m.tier
		t.Version, t.UpdatedAt = *m.tierVersion, m.tierAt.UTC()
	}
	if m.version == nil {
		return Entry{Quota: tier.Effective(sub, "", t, tier.Overrides{}, false, 0, t.UpdatedAt)}, nil
	}
	e := Entry{Own: own.Overrides, CreatedAt: m.createdAt.UTC(),
		Quota: tier.Effective(sub, own.OrgID, t, own.Overrides, own.Suspended || own.Revoked, *m.version, m.changedAt.UTC())}
	if own.Owner != "" {
		owner, id, _ := strings.Cut(own.Owner, ":")
		e.Key = &Key{ID: sub.ID, Name: own.Name, Rotations: own.Rotations, CreatedAt: e.CreatedAt}
		if owner == string(subject.User) {
			e.Key.UserID = id
		} else {
			e.Key.OrgID = id
		}
		if own.Revoked {
			e.Key.RevokedAt = &e.UpdatedAt
		}
	}
	return e, nil
}

// TierEvent is one row of tier_events.
type TierEvent = quotalog.TierEvent

// TierEvents reads a tier's history, oldest first, from the version after the given one.
func (s *Store) TierEvents(ctx context.Context, name string, after int64, limit int) ([]TierEvent, error) {
	var es []TierEvent
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListTierEvents, name, after, limit)
		if err != nil {
			return err
		}
		es, err = pgx.CollectRows(rows, scanTierEvent)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read events of tier %s: %w", name, err)
	}
	return es, nil
}

func scanTierEvent(r pgx.CollectableRow) (TierEvent, error) {
	var e TierEvent
	var before, after []byte
	if err := r.Scan(&e.Tier, &e.Version, &e.Actor, &e.Reason, &before, &after, &e.At); err != nil {
		return TierEvent{}, err
	}
	e.At = e.At.UTC()
	var err error
	if e.Before, err = tierFromJSON(before); err != nil {
		return TierEvent{}, fmt.Errorf("tier %s version %d: before: %w", e.Tier, e.Version, err)
	}
	now, err := tierFromJSON(after)
	if err != nil || now == nil {
		return TierEvent{}, fmt.Errorf("tier %s version %d: after: %w", e.Tier, e.Version, err)
	}
	e.After = *now
	return e, nil
}

// OrgPools lists orgs in the order of their ids, those after the given one: all that have or had a pool, a user or a key. one: only this org.
func (s *Store) OrgPools(ctx context.Context, one, after string, limit int) ([]tier.Pool, error) {
	var ps []tier.Pool
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListOrgs, one, after, limit)
		if err != nil {
			return err
		}
		ps, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (tier.Pool, error) {
			var id string
			var c orgColumns
			err := r.Scan(append([]any{&id}, c.targets()...)...)
			return c.pool(id), err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list orgs: %w", err)
	}
	return ps, nil
}
