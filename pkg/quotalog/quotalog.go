// Package quotalog is the history of what was sold, as pure functions: CONTROL. Events are the truth; what they add up to (Fold, FoldTier) is what
// the tables hold, and a prefix of them (At) is what held at a moment. It knows no SQL, Kafka or HTTP.
package quotalog

import (
	"fmt"
	"reflect"
	"sort"
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
			if e.At.Before(p.UpdatedAt) {
				return nil, fmt.Errorf("%s: version %d is older than the one before", e.Subject, e.Version)
			}
			created = p.CreatedAt
		}
		p = &Projection{Deleted: e.After == nil, Version: e.Version, CreatedAt: created, UpdatedAt: e.At}
		if e.After != nil {
			p.State = *e.After
		}
	}
	return p, nil
}

// At gives the events, oldest first, that had happened at an instant. Of several of one millisecond all have.
func At(events []Event, at time.Time) []Event {
	return events[:sort.Search(len(events), func(i int) bool { return events[i].At.After(at) })]
}

// TierEvent is one row of tier_events. The tiers' own Version and UpdatedAt are zero. Before is nil for a tier's first event.
type TierEvent struct {
	Tier    string
	Version int64
	Actor   string
	Reason  string
	Before  *tier.Tier
	After   tier.Tier
	At      time.Time
}

// FoldTier derives a tier of the catalogue from its events, oldest first, and when it was made; a zero tier if there is none. It refuses what
// Fold refuses.
func FoldTier(events []TierEvent) (t tier.Tier, createdAt time.Time, err error) {
	for i, e := range events {
		bare := t
		bare.Version, bare.UpdatedAt = 0, time.Time{}
		switch {
		case e.Tier != events[0].Tier || e.After.Name != e.Tier:
			return tier.Tier{}, time.Time{}, fmt.Errorf("event %d is of tier %s, not of %s", i, e.Tier, events[0].Tier)
		case e.Version != int64(i)+1:
			return tier.Tier{}, time.Time{}, fmt.Errorf("tier:%s: event %d has version %d", e.Tier, i+1, e.Version)
		case (i == 0) != (e.Before == nil), e.Before != nil && !reflect.DeepEqual(*e.Before, bare):
			return tier.Tier{}, time.Time{}, fmt.Errorf("tier:%s: version %d does not follow from the one before", e.Tier, e.Version)
		case i > 0 && e.At.Before(t.UpdatedAt):
			return tier.Tier{}, time.Time{}, fmt.Errorf("tier:%s: version %d is older than the one before", e.Tier, e.Version)
		}
		if i == 0 {
			createdAt = e.At
		}
		t = e.After
		t.Version, t.UpdatedAt = e.Version, e.At
	}
	return t, createdAt, nil
}

// KeyTimes tells when a key got its present secret, if not at its creation, and when it was revoked, by its events, oldest first.
func KeyTimes(events []Event) (rotated, revoked *time.Time) {
	for _, e := range events {
		if e.Before == nil || e.After == nil {
			continue
		}
		at := e.At
		if e.After.Rotations != e.Before.Rotations {
			rotated = &at
		}
		if e.After.Revoked && !e.Before.Revoked {
			revoked = &at
		}
	}
	return rotated, revoked
}
