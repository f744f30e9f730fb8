package pgquota

import (
	"encoding/json"

	"github.com/tollgate-dev/tollgate/pkg/quotalog"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// The history's own types and rules live in quotalog, which knows no SQL.
type (
	// State is what is stored of one subject's quota.
	State = quotalog.State
	// Event is one row of quota_events.
	Event = quotalog.Event
	// Projection is one row of quotas or org_quotas.
	Projection = quotalog.Projection
)

// Fold derives the projection of one subject from its events.
func Fold(events []Event) (*Projection, error) { return quotalog.Fold(events) }

// stateJSON is the column value of a state; nil is SQL's null.
func stateJSON(s *State) (any, error) {
	if s == nil {
		return nil, nil
	}
	b, err := json.Marshal(s)
	return string(b), err
}

func stateFromJSON(b []byte) (*State, error) {
	if b == nil {
		return nil, nil
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// TierState is what a tier states: the before and after of tier_events.
type TierState struct {
	Tier            string             `json:"tier"`
	RPMLimit        int64              `json:"rpm_limit"`
	TPMLimit        int64              `json:"tpm_limit"`
	TPDLimit        int64              `json:"tpd_limit"`
	ConcurrentLimit int64              `json:"concurrent_limit"`
	Priority        int64              `json:"priority"`
	AllowedModels   []string           `json:"allowed_models"`
	MaxContext      int64              `json:"max_context"`
	RedisAway       tier.RedisAway     `json:"redis_away"`
	Limits          []tier.Limit       `json:"limits"`
	ModelLimits     []tier.ModelLimits `json:"model_limits"`
}

func tierJSON(t *tier.Tier) (any, error) {
	if t == nil {
		return nil, nil
	}
	b, err := json.Marshal(StateOfTier(*t))
	return string(b), err
}

// StateOfTier gives what a tier states.
func StateOfTier(t tier.Tier) TierState {
	return TierState{t.Name, t.RPMLimit, t.TPMLimit, t.TPDLimit, t.ConcurrentLimit, t.Priority, t.AllowedModels, t.MaxContext, t.RedisAway, t.Limits, t.ModelLimits}
}

// tierFromJSON reads a tier of tier_events. Events from before the lists existed have none of them.
func tierFromJSON(b []byte) (*tier.Tier, error) {
	if b == nil {
		return nil, nil
	}
	var s TierState
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	groups := append([]tier.ModelLimits{}, s.ModelLimits...)
	return &tier.Tier{Name: s.Tier, RPMLimit: s.RPMLimit, TPMLimit: s.TPMLimit, TPDLimit: s.TPDLimit, ConcurrentLimit: s.ConcurrentLimit, Priority: s.Priority,
		AllowedModels: append([]string{}, s.AllowedModels...), MaxContext: s.MaxContext, RedisAway: s.RedisAway, Limits: append([]tier.Limit{}, s.Limits...),
		ModelLimits: groups}, nil
}
