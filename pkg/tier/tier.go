// Package tier holds what was sold: the tiers, and the quota of one subject that follows from its tier and its own overrides. It
// serves the CONTROL side of a DECISION, and is pure: no Redis, SQL or HTTP.
//
// Three rules hold everywhere: 0 means unlimited, an omitted limit is the tier's, and suspended blocks.
package tier

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// MaxLimit is the largest limit: 2^53-1, up to which Lua and JSON numbers are exact.
const MaxLimit int64 = 1<<53 - 1

// Names of the tiers that Tollgate ships. Any other may be added by an admin.
const (
	Free       = "free"
	Plus       = "plus"
	API        = "api"
	Enterprise = "enterprise"
)

// RedisAway says what a tier's requests meet while Redis can't be reached.
type RedisAway string

// The policies of DESIGN §3: decide in process memory, let all pass, or refuse all.
const (
	AwayLocal  RedisAway = "local"
	AwayOpen   RedisAway = "open"
	AwayClosed RedisAway = "closed"
)

// Tier is a row of the catalogue: the defaults of everyone who is on it.
type Tier struct {
	Name            string        `json:"tier"`
	RPMLimit        int64         `json:"rpm_limit"`
	TPMLimit        int64         `json:"tpm_limit"`
	TPDLimit        int64         `json:"tpd_limit"`
	ConcurrentLimit int64         `json:"concurrent_limit"`
	Priority        int64         `json:"priority"`       // 0 to 100; the higher, the later it is shed
	AllowedModels   []string      `json:"allowed_models"` // empty: all
	MaxContext      int64         `json:"max_context"`    // tokens of input and output together
	RedisAway       RedisAway     `json:"redis_away"`
	Limits          []Limit       `json:"limits"`       // beside the named ones
	ModelLimits     []ModelLimits `json:"model_limits"` // for groups of models
	Version         int64         `json:"version"`
	UpdatedAt       time.Time     `json:"updated_at"`
}

// Shipped are the tiers of a new installation. grok-2 and grok-2-mini are its small models.
func Shipped() []Tier {
	small := []string{"grok-2", "grok-2-mini"}
	return []Tier{
		{Name: Free, RPMLimit: 10, TPMLimit: 10_000, TPDLimit: 100_000, ConcurrentLimit: 1, Priority: 20, AllowedModels: small, MaxContext: 8_192, RedisAway: AwayLocal, Limits: []Limit{}, ModelLimits: []ModelLimits{}, Version: 1},
		{Name: Plus, RPMLimit: 40, TPMLimit: 40_000, TPDLimit: 500_000, ConcurrentLimit: 3, Priority: 60, AllowedModels: []string{}, MaxContext: 32_768, RedisAway: AwayLocal, Limits: []Limit{}, ModelLimits: []ModelLimits{}, Version: 1},
		{Name: API, RPMLimit: 600, TPMLimit: 300_000, TPDLimit: 20_000_000, ConcurrentLimit: 50, Priority: 80, AllowedModels: []string{}, MaxContext: 131_072, RedisAway: AwayLocal, Limits: []Limit{}, ModelLimits: []ModelLimits{}, Version: 1},
		{Name: Enterprise, RPMLimit: 10_000, TPMLimit: 5_000_000, TPDLimit: 0, ConcurrentLimit: 500, Priority: 100, AllowedModels: []string{}, MaxContext: 1_048_576, RedisAway: AwayLocal, Limits: []Limit{}, ModelLimits: []ModelLimits{}, Version: 1},
	}
}

// Overrides are a subject's own limits. nil: the tier's. Shards has no tier's: nil is 1.
type Overrides struct {
	RPMLimit        *int64         `json:"rpm_limit,omitempty"`
	TPMLimit        *int64         `json:"tpm_limit,omitempty"`
	TPDLimit        *int64         `json:"tpd_limit,omitempty"`
	ConcurrentLimit *int64         `json:"concurrent_limit,omitempty"`
	AllowedModels   *[]string      `json:"allowed_models,omitempty"`
	MaxContext      *int64         `json:"max_context,omitempty"`
	Limits          *[]Limit       `json:"limits,omitempty"`
	ModelLimits     *[]ModelLimits `json:"model_limits,omitempty"`
	Shards          *int64         `json:"shards,omitempty"` // how many Redis hash slots a payer is spread over
}

// Quota is what one subject may use now: its tier with its own overrides applied. Version counts the subject's own changes (0: never
// changed, everything is the tier's); TierVersion counts its tier's.
type Quota struct {
	Subject         subject.Subject `json:"-"`
	OrgID           string          `json:"org_id"`
	Tier            string          `json:"tier"`
	RPMLimit        int64           `json:"rpm_limit"`
	TPMLimit        int64           `json:"tpm_limit"`
	TPDLimit        int64           `json:"tpd_limit"`
	ConcurrentLimit int64           `json:"concurrent_limit"`
	AllowedModels   []string        `json:"allowed_models"`
	MaxContext      int64           `json:"max_context"`
	Limits          []Limit         `json:"limits"`
	ModelLimits     []ModelLimits   `json:"model_limits"`
	Shards          int64           `json:"shards"` // counts where the subject is the payer: without an org
	Suspended       bool            `json:"suspended"`
	Priority        int64           `json:"-"`
	RedisAway       RedisAway       `json:"-"`
	Version         int64           `json:"version"`
	TierVersion     int64           `json:"-"`
	UpdatedAt       time.Time       `json:"updated_at"`
}

// Effective applies overrides to a tier.
func Effective(s subject.Subject, orgID string, t Tier, o Overrides, suspended bool, version int64, updatedAt time.Time) Quota {
	pick := func(own *int64, def int64) int64 {
		if own != nil {
			return *own
		}
		return def
	}
	models := t.AllowedModels
	if o.AllowedModels != nil {
		models = *o.AllowedModels
	}
	limits, groups, shards := t.Limits, t.ModelLimits, int64(1)
	if o.Limits != nil {
		limits = *o.Limits
	}
	if o.ModelLimits != nil {
		groups = *o.ModelLimits
	}
	if o.Shards != nil {
		shards = *o.Shards
	}
	return Quota{
		Subject: s, OrgID: orgID, Tier: t.Name,
		RPMLimit: pick(o.RPMLimit, t.RPMLimit), TPMLimit: pick(o.TPMLimit, t.TPMLimit), TPDLimit: pick(o.TPDLimit, t.TPDLimit),
		ConcurrentLimit: pick(o.ConcurrentLimit, t.ConcurrentLimit), AllowedModels: append([]string{}, models...),
		MaxContext: pick(o.MaxContext, t.MaxContext), Limits: cloneLimits(limits), ModelLimits: cloneGroups(groups), Shards: shards, Suspended: suspended, Priority: t.Priority, RedisAway: t.RedisAway,
		Version: version, TierVersion: t.Version, UpdatedAt: updatedAt,
	}
}

// Allows reports whether the quota covers a model.
func (q Quota) Allows(model string) bool {
	return len(q.AllowedModels) == 0 || slices.Contains(q.AllowedModels, model)
}

// FieldError says what is wrong with one field of a tier or of overrides, by its JSON name.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// Validate returns one FieldError per invalid field, joined; nil if all are good.
func (o Overrides) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    *int64
	}{{"rpm_limit", o.RPMLimit}, {"tpm_limit", o.TPMLimit}, {"tpd_limit", o.TPDLimit}, {"concurrent_limit", o.ConcurrentLimit}, {"max_context", o.MaxContext}} {
		if f.v != nil {
			errs = append(errs, checkLimit(f.name, *f.v))
		}
	}
	if o.AllowedModels != nil {
		errs = append(errs, checkModels(*o.AllowedModels))
	}
	if o.Limits != nil {
		errs = append(errs, checkLimits("limits", *o.Limits)...)
	}
	if o.ModelLimits != nil {
		errs = append(errs, checkGroups(*o.ModelLimits)...)
	}
	if o.Shards != nil {
		errs = append(errs, checkShards(*o.Shards))
	}
	return errors.Join(errs...)
}

// Validate returns one FieldError per invalid field, joined; nil if all are good.
func (t Tier) Validate() error {
	var errs []error
	if err := subject.ValidateID(t.Name); err != nil {
		errs = append(errs, &FieldError{"tier", err})
	}
	for _, f := range []struct {
		name string
		v    int64
	}{{"rpm_limit", t.RPMLimit}, {"tpm_limit", t.TPMLimit}, {"tpd_limit", t.TPDLimit}, {"concurrent_limit", t.ConcurrentLimit}, {"max_context", t.MaxContext}} {
		errs = append(errs, checkLimit(f.name, f.v))
	}
	if t.Priority < 0 || t.Priority > 100 {
		errs = append(errs, &FieldError{"priority", fmt.Errorf("must be from 0 to 100, is %d", t.Priority)})
	}
	switch t.RedisAway {
	case AwayLocal, AwayOpen, AwayClosed:
	default:
		errs = append(errs, &FieldError{"redis_away", fmt.Errorf("must be local, open or closed, is %q", t.RedisAway)})
	}
	errs = append(errs, checkModels(t.AllowedModels))
	errs = append(errs, checkLimits("limits", t.Limits)...)
	return errors.Join(append(errs, checkGroups(t.ModelLimits)...)...)
}

func checkLimit(name string, v int64) error {
	if v < 0 || v > MaxLimit {
		return &FieldError{name, fmt.Errorf("must be from 0 (unlimited) to %d, is %d", MaxLimit, v)}
	}
	return nil
}

func checkModels(models []string) error {
	var errs []error
	if len(models) > MaxModels {
		errs = append(errs, &FieldError{"allowed_models", fmt.Errorf("must name at most %d models, names %d", MaxModels, len(models))})
		return errors.Join(errs...)
	}
	for i, m := range models {
		if err := subject.ValidateID(m); err != nil {
			errs = append(errs, &FieldError{fmt.Sprintf("allowed_models[%d]", i), err})
		}
	}
	return errors.Join(errs...)
}
