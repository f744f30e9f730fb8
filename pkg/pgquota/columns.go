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
	limits                                     []tier.Limit
	groups                                     []tier.ModelLimits
	version                                    *int64
	updatedAt                                  *time.Time
}

func (c *tierColumns) targets() []any {
	return []any{&c.name, &c.rpm, &c.tpm, &c.tpd, &c.slots, &c.priority, &c.models, &c.maxContext, &c.redisAway, &c.limits, &c.groups, &c.version,
		&c.updatedAt}
}

func (c *tierColumns) tier() tier.Tier {
	if c.name == nil {
		return tier.Tier{}
	}
	return tier.Tier{Name: *c.name, RPMLimit: *c.rpm, TPMLimit: *c.tpm, TPDLimit: *c.tpd, ConcurrentLimit: *c.slots, Priority: *c.priority,
		AllowedModels: append([]string{}, c.models...), MaxContext: *c.maxContext, RedisAway: tier.RedisAway(*c.redisAway),
		Limits: append([]tier.Limit{}, c.limits...), ModelLimits: append([]tier.ModelLimits{}, c.groups...), Version: *c.version,
		UpdatedAt: c.updatedAt.UTC()}
}

// ownColumns are the columns of quotas. All null: no quota of its own.
type ownColumns struct {
	orgID, tierName      *string
	own                  tier.Overrides
	suspended            *bool
	version              *int64
	createdAt, updatedAt *time.Time
}

func (c *ownColumns) targets() []any {
	return []any{&c.orgID, &c.tierName, &c.own.RPMLimit, &c.own.TPMLimit, &c.own.TPDLimit, &c.own.ConcurrentLimit, &c.own.AllowedModels,
		&c.own.MaxContext, &c.own.Limits, &c.own.ModelLimits, &c.own.Shards, &c.suspended, &c.version, &c.createdAt, &c.updatedAt}
}

// effective applies the columns to a tier. Without a quota of its own everything is the tier's, the moment of its last change included.
func (c *ownColumns) effective(s subject.Subject, t tier.Tier) tier.Quota {
	if c.version == nil {
		return tier.Effective(s, "", t, tier.Overrides{}, false, 0, t.UpdatedAt)
	}
	return tier.Effective(s, *c.orgID, t, c.own, *c.suspended, *c.version, c.updatedAt.UTC())
}

// keyColumns are the columns of api_keys but the secret's hash. All null: no such key.
type keyColumns struct {
	id, userID, orgID, name, prefix *string
	rotations                       *int64
	createdAt, rotatedAt, revokedAt *time.Time
}

func (c *keyColumns) targets() []any {
	return []any{&c.id, &c.userID, &c.orgID, &c.name, &c.prefix, &c.rotations, &c.createdAt, &c.rotatedAt, &c.revokedAt}
}

func (c *keyColumns) key() *Key {
	if c.id == nil {
		return nil
	}
	return &Key{ID: *c.id, UserID: *c.userID, OrgID: *c.orgID, Name: *c.name, Prefix: *c.prefix, Rotations: *c.rotations, CreatedAt: c.createdAt.UTC(),
		RotatedAt: utc(c.rotatedAt), RevokedAt: utc(c.revokedAt)}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// currentQuota is one row of select_quota.sql.
type currentQuota struct {
	ownColumns
	key keyColumns
	tierColumns
}

func (c *currentQuota) targets() []any {
	return append(append(c.ownColumns.targets(), c.key.targets()...), c.tierColumns.targets()...)
}

// ofUser reports whether it is of a key that a user owns, whose tier is its user's.
func (c *currentQuota) ofUser() bool { return c.key.userID != nil && *c.key.userID != "" }

// missesTier reports that the catalogue lacks the tier that holds.
func (c *currentQuota) missesTier() bool { return c.name == nil && !c.ofUser() }

func (c *currentQuota) entry(s subject.Subject) Entry {
	e := Entry{Quota: c.effective(s, c.tier()), Key: c.key.key()}
	if c.ownColumns.version != nil {
		e.Own, e.CreatedAt = c.own, c.ownColumns.createdAt.UTC()
	}
	if e.Key != nil && e.Key.RevokedAt != nil {
		e.Suspended = true
	}
	return e
}

// state gives what is stored of the subject; nil: nothing.
func (c *currentQuota) state() *State {
	if c.ownColumns.version == nil {
		return nil
	}
	st := &State{OrgID: *c.orgID, Suspended: *c.suspended, Overrides: c.own}
	if c.tierName != nil {
		st.Tier = *c.tierName
	}
	if k := c.key.key(); k != nil {
		st.Owner, st.Name, st.Rotations, st.Revoked = k.Owner(), k.Name, k.Rotations, k.RevokedAt != nil
	}
	return st
}

func keyID(s subject.Subject) string {
	if s.Kind == subject.APIKey {
		return s.ID
	}
	return ""
}

func current(ctx context.Context, q querier, s subject.Subject) (currentQuota, error) {
	var c currentQuota
	if err := q.QueryRow(ctx, sqlSelectQuota, s.String(), keyID(s), DefaultTier(s.Kind)).Scan(c.targets()...); err != nil {
		return currentQuota{}, err
	}
	if c.missesTier() {
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

// orgColumns are the columns of org_quotas. All null: nobody has ever set the org's pool.
type orgColumns struct {
	rpm, tpm, tpd, slots *int64
	limits               []tier.Limit
	shards               *int64
	zone                 *string
	deleted              *bool
	version              *int64
	createdAt, updatedAt *time.Time
}

func (c *orgColumns) targets() []any {
	return []any{&c.rpm, &c.tpm, &c.tpd, &c.slots, &c.limits, &c.shards, &c.zone, &c.deleted, &c.version, &c.createdAt, &c.updatedAt}
}

func (c *orgColumns) pool(orgID string) tier.Pool {
	if c.version == nil {
		return tier.NoPool(orgID)
	}
	return tier.Pool{OrgID: orgID, RPMLimit: *c.rpm, TPMLimit: *c.tpm, TPDLimit: *c.tpd, ConcurrentLimit: *c.slots, Limits: append([]tier.Limit{}, c.limits...),
		Shards: *c.shards, TimeZone: *c.zone, Version: *c.version, UpdatedAt: c.updatedAt.UTC()}
}

func currentOrg(ctx context.Context, q querier, orgID string) (orgColumns, error) {
	var c orgColumns
	err := q.QueryRow(ctx, sqlSelectOrg, orgID).Scan(c.targets()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return orgColumns{}, nil
	}
	return c, err
}
