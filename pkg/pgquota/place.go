package pgquota

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// A change must reach every shard in which a decision that depends on it can be made. Where that is depends on other rows: a key's place on
// its user's org, a user's on its org's shards. So a change shares the lock of each name that its place depends on, and whoever changes that
// name waits until the change is committed: a plan that is read after the place has changed is then read after the change, too.
//
// That is half of it. A move that is committed may not be published yet; until it is, an older plan still decides in the old place, which a
// change made since doesn't reach. So before a change counts as published, so must be what has moved its place: placed.names.

// placed is where a subject is decided.
type placed struct {
	shards []int
	names  []string // whose changes have brought it there: the user, the orgs
}

// shareLock keeps name as it is until the end of the transaction.
func shareLock(ctx context.Context, tx pgx.Tx, name string) error {
	if _, err := tx.Exec(ctx, sqlShareLock, name); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// orgShards keeps the orgs as they are until the end of the transaction, and tells over how many shards each is spread.
func orgShards(ctx context.Context, tx pgx.Tx, orgs ...string) (map[string]int64, error) {
	orgs = slices.DeleteFunc(slices.Clone(orgs), func(id string) bool { return id == "" })
	slices.Sort(orgs) // two who lock several orgs do so in the same order
	orgs = slices.Compact(orgs)
	shards := map[string]int64{}
	if len(orgs) == 0 {
		return shards, nil
	}
	for _, id := range orgs {
		if err := shareLock(ctx, tx, tier.OrgName(id)); err != nil {
			return nil, err
		}
	}
	rows, err := tx.Query(ctx, sqlOrgShards, orgs)
	if err != nil {
		return nil, err
	}
	var id string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { shards[id] = n; return nil })
	return shards, err
}

// place is where the payer s, in an org or alone, is decided.
func place(s subject.Subject, orgID string, own *int64, orgs map[string]int64) []int {
	n := int64(1)
	switch {
	case orgID != "":
		n = orgs[orgID]
	case own != nil:
		n = *own
	}
	return subject.Spread(subject.Shard(orgID, s), int(n))
}

// placesOf are where a user, or a key without an owner, is decided by what was stored and by what is to be stored.
func placesOf(ctx context.Context, tx pgx.Tx, s subject.Subject, before *State, after State) (placed, error) {
	if before == nil {
		before = &State{}
	}
	orgs, err := orgShards(ctx, tx, before.OrgID, after.OrgID)
	if err != nil {
		return placed{}, err
	}
	return placed{union(place(s, before.OrgID, before.Shards, orgs), place(s, after.OrgID, after.Shards, orgs)), orgNames(before.OrgID, after.OrgID)}, nil
}

func orgNames(orgs ...string) []string {
	var names []string
	for _, id := range orgs {
		if id != "" {
			names = append(names, tier.OrgName(id))
		}
	}
	return names
}

func union(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// changeKey runs f in a transaction that holds the locks of a key and of what its place depends on: user, org, key, in this order. f gets
// where the key is decided. The key, or its user, must be in the org that within names.
func (s *Store) changeKey(ctx context.Context, k *Key, within Within, once *Once[QuotaResult], f func(tx pgx.Tx, at placed) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := once.begin(ctx, tx); err != nil {
			return err
		}
		payer, org := k.Subject(), k.OrgID
		var own *int64
		var names []string
		if k.UserID != "" {
			payer = subject.Subject{Kind: subject.User, ID: k.UserID}
			names = append(names, payer.String())
			if err := shareLock(ctx, tx, payer.String()); err != nil {
				return err
			}
			user, err := current(ctx, tx, payer)
			if err != nil {
				return err
			}
			if user.orgID != nil {
				org, own = *user.orgID, user.own.Shards
			}
		}
		if err := within.Holds(org); err != nil {
			return err
		}
		orgs, err := orgShards(ctx, tx, org)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlBeginChange, k.Subject().String()); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		return f(tx, placed{place(payer, org, own, orgs), append(names, orgNames(org)...)})
	})
}
