package pgquota

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// tierColumns are the tier columns of every query, in their order. All null: no such tier.
type tierColumns struct {
	name, redisAway                            *string
	rpm, tpm, tpd, slots, priority, maxContext *int64
	models                                     []string
	version                                    *int64
	updatedAt                                  *time.Time
}

func (c *tierColumns) targets() []any {
	return []any{&c.name, &c.rpm, &c.tpm, &c.tpd, &c.slots, &c.priority, &c.models, &c.maxContext, &c.redisAway, &c.version, &c.updatedAt}
}

func (c *tierColumns) tier() tier.Tier {
	if c.name == nil {
		return tier.Tier{}
	}
	return tier.Tier{Name: *c.name, RPMLimit: *c.rpm, TPMLimit: *c.tpm, TPDLimit: *c.tpd, ConcurrentLimit: *c.slots, Priority: *c.priority,
		AllowedModels: append([]string{}, c.models...), MaxContext: *c.maxContext, RedisAway: tier.RedisAway(*c.redisAway),
		Version: *c.version, UpdatedAt: c.updatedAt.UTC()}
}

// currentQuota is one row of select_quota.sql: the quota columns (all null: none of its own) and its tier's.
type currentQuota struct {
	orgID, tierName      *string
	own                  tier.Overrides
	suspended            *bool
	version              *int64
	createdAt, updatedAt *time.Time
	tierColumns
}

func (c *currentQuota) targets() []any {
	return append([]any{&c.orgID, &c.tierName, &c.own.RPMLimit, &c.own.TPMLimit, &c.own.TPDLimit, &c.own.ConcurrentLimit, &c.own.AllowedModels,
		&c.own.MaxContext, &c.suspended, &c.version, &c.createdAt, &c.updatedAt}, c.tierColumns.targets()...)
}

// entry gives the effective quota. Without one of its own everything is the tier's, the moment of its last change included.
func (c *currentQuota) entry(s subject.Subject) Entry {
	t := c.tier()
	if c.version == nil {
		return Entry{Quota: tier.Effective(s, "", t, tier.Overrides{}, false, 0, t.UpdatedAt)}
	}
	return Entry{Quota: tier.Effective(s, *c.orgID, t, c.own, *c.suspended, *c.version, c.updatedAt.UTC()), Own: c.own, CreatedAt: c.createdAt.UTC()}
}

func current(ctx context.Context, q querier, s subject.Subject) (currentQuota, error) {
	var c currentQuota
	if err := q.QueryRow(ctx, sqlSelectQuota, s.String(), DefaultTier(s.Kind)).Scan(c.targets()...); err != nil {
		return currentQuota{}, err
	}
	if c.name == nil {
		return currentQuota{}, ErrTierMissing
	}
	return c, nil
}

func selectTier(ctx context.Context, q querier, name string) (tier.Tier, error) {
	var c tierColumns
	err := q.QueryRow(ctx, sqlSelectTier, name).Scan(c.targets()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return tier.Tier{}, ErrTierMissing
	}
	return c.tier(), err
}
