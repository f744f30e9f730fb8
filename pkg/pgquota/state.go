package pgquota

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// State is what is stored of one subject's quota: its own limits, not the tier's. Its JSON is the before and after of quota_events; an
// absent limit is the tier's; in an org's pool, which has no tier, it is unlimited.
type State struct {
	OrgID     string `json:"org_id"` // of a user, or the owner of a key; an org's own name is that of its events
	Tier      string `json:"tier"`   // "" for a pool, and for a key that a user owns
	Suspended bool   `json:"suspended"`
	tier.Overrides
	Owner     string `json:"owner,omitempty"` // of a key: "user:u1" or "org:o1"; never changes
	Name      string `json:"name,omitempty"`  // of a key
	Rotations int64  `json:"rotations,omitempty"`
	Revoked   bool   `json:"revoked,omitempty"`
	TimeZone  string `json:"time_zone,omitempty"` // of an org
}

// Event is one row of quota_events. Before is nil for a subject's first event, After is nil once it was deleted.
type Event struct {
	Subject string
	Version int64
	Actor   string
	Reason  string
	Before  *State
	After   *State
	At      time.Time
}

// Projection is one row of quotas or org_quotas: what the events of one subject add up to.
type Projection struct {
	State                // zero once it was deleted
	Deleted              bool
	Version              int64
	CreatedAt, UpdatedAt time.Time
}

// Fold derives the projection of one subject from its events, oldest first; nil if there is none. It refuses a history with a gap, one
// that belongs to several subjects, and one whose events don't follow from one another.
func Fold(events []Event) (*Projection, error) {
	var p *Projection
	for i, e := range events {
		if e.Subject != events[0].Subject {
			return nil, fmt.Errorf("event %d is of %s, not of %s", i, e.Subject, events[0].Subject)
		}
		if e.Version != int64(i)+1 {
			return nil, fmt.Errorf("%s: event %d has version %d", e.Subject, i+1, e.Version)
		}
		var before *State
		if p != nil && !p.Deleted {
			before = &p.State
		}
		if !reflect.DeepEqual(before, e.Before) {
			return nil, fmt.Errorf("%s: version %d does not follow from the one before", e.Subject, e.Version)
		}
		created := e.At
		if p != nil {
			created = p.CreatedAt
		}
		p = &Projection{Deleted: e.After == nil, Version: e.Version, CreatedAt: created, UpdatedAt: e.At}
		if e.After != nil {
			p.State = *e.After
		}
	}
	return p, nil
}

// asJSON is the column value of a state; nil is SQL's null.
func (s *State) asJSON() (any, error) {
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

// tierState is the before and after of tier_events.
type tierState struct {
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
	b, err := json.Marshal(tierState{t.Name, t.RPMLimit, t.TPMLimit, t.TPDLimit, t.ConcurrentLimit, t.Priority, t.AllowedModels, t.MaxContext, t.RedisAway, t.Limits, t.ModelLimits})
	return string(b), err
}
