package pgquota

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// SchemaVersion of the events that this code writes to quota.changes.v1.
const SchemaVersion = 1

// CloudEvents types of the outbox's kinds.
const (
	QuotaEventType = usage.QuotaEventType
	TierEventType  = "dev.tollgate.tier.changed.v1"
	PriceEventType = price.EventType
	EventSource    = "/quota"
)

// Kinds of outbox rows.
const (
	KindQuota = "quota"
	KindTier  = "tier"
	KindPrice = "price"
)

// TierName is a tier's name in the outbox, in Kafka keys and in Redis ("tier:plus"), as user:<id> is a user's. A test keeps it equal to
// redisfence.TierName: adapters don't import one another.
func TierName(tier string) string { return "tier:" + tier }

// eventNamespace makes event ids; another one would make every event a new one.
var eventNamespace = uuid.MustParse("5b6d3a52-7c1b-5c3e-9d0a-3f0a6f2f7d11")

// EventID is derived from what changed and to which version, so that a repeat is recognised everywhere.
func EventID(name string, version int64) uuid.UUID {
	return uuid.NewSHA1(eventNamespace, []byte(name+"\x00"+strconv.FormatInt(version, 10)))
}

// QuotaChanged is the value of a dev.tollgate.quota.changed.v1 event (schemas/events/quota-changed.v1.schema.json). Key: Subject.
type QuotaChanged struct {
	EventID       uuid.UUID  `json:"event_id"`
	SchemaVersion int        `json:"schema_version"`
	Subject       string     `json:"subject"`
	Version       int64      `json:"version"`
	ChangedAt     usage.Time `json:"changed_at"`
	Actor         string     `json:"actor"`
	Reason        string     `json:"reason,omitempty"`
	Before        *View      `json:"before"` // null: none of its own, the tier's defaults held
	After         *View      `json:"after"`
}

// View is a quota as the API and the events show it: the limits in force, and in Overrides which of them are the subject's own. UserID is
// the user, or the owner of a key that a user owns; OrgID the user's org, the owner of a key that an org owns, or the org itself.
type View struct {
	UserID          string             `json:"user_id"`
	OrgID           string             `json:"org_id"`
	Tier            string             `json:"tier"`
	RPMLimit        int64              `json:"rpm_limit"`
	TPMLimit        int64              `json:"tpm_limit"`
	TPDLimit        int64              `json:"tpd_limit"`
	ConcurrentLimit int64              `json:"concurrent_limit"`
	AllowedModels   []string           `json:"allowed_models"`
	MaxContext      int64              `json:"max_context"`
	Limits          []tier.Limit       `json:"limits"`
	ModelLimits     []tier.ModelLimits `json:"model_limits"`
	Shards          int64              `json:"shards"`
	Suspended       bool               `json:"suspended"`
	Overrides       tier.Overrides     `json:"overrides"`
	APIKey          *KeyView           `json:"api_key,omitempty"`   // only of a key
	TimeZone        string             `json:"time_zone,omitempty"` // only of an org
	Version         int64              `json:"version"`
	UpdatedAt       usage.Time         `json:"updated_at"`
}

// KeyView is what events say of a key beside its quota.
type KeyView struct {
	Name      string `json:"name"`
	Rotations int64  `json:"rotations"`
	Revoked   bool   `json:"revoked"`
}

// View gives the entry's JSON shape.
func (e Entry) View() View {
	v := View{OrgID: e.OrgID, Tier: e.Tier, RPMLimit: e.RPMLimit, TPMLimit: e.TPMLimit, TPDLimit: e.TPDLimit,
		ConcurrentLimit: e.ConcurrentLimit, AllowedModels: e.AllowedModels, MaxContext: e.MaxContext, Limits: e.Limits, ModelLimits: e.ModelLimits,
		Shards: e.Shards, Suspended: e.Suspended, Overrides: e.Own, Version: e.Version, UpdatedAt: usage.At(e.UpdatedAt)}
	if e.Subject.Kind == subject.User {
		v.UserID = e.Subject.ID
	}
	if e.Key != nil {
		v.UserID, v.APIKey = e.Key.UserID, &KeyView{Name: e.Key.Name, Rotations: e.Key.Rotations, Revoked: e.Key.RevokedAt != nil}
	}
	return v
}

// TierChanged is the value of a dev.tollgate.tier.changed.v1 event. Key: "tier:" and the tier's name.
type TierChanged struct {
	EventID       uuid.UUID  `json:"event_id"`
	SchemaVersion int        `json:"schema_version"`
	Tier          string     `json:"tier"`
	Version       int64      `json:"version"`
	ChangedAt     usage.Time `json:"changed_at"`
	Actor         string     `json:"actor"`
	Reason        string     `json:"reason,omitempty"`
	Before        *TierView  `json:"before"` // null: it is new
	After         *TierView  `json:"after"`
}

// TierView is a tier as the API and the events show it.
type TierView struct {
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
	Version         int64              `json:"version"`
	UpdatedAt       usage.Time         `json:"updated_at"`
}

// ViewTier gives a tier's JSON shape.
func ViewTier(t tier.Tier) TierView {
	return TierView{Tier: t.Name, RPMLimit: t.RPMLimit, TPMLimit: t.TPMLimit, TPDLimit: t.TPDLimit, ConcurrentLimit: t.ConcurrentLimit,
		Priority: t.Priority, AllowedModels: t.AllowedModels, MaxContext: t.MaxContext, RedisAway: t.RedisAway, Limits: t.Limits,
		ModelLimits: t.ModelLimits, Version: t.Version,
		UpdatedAt: usage.At(t.UpdatedAt)}
}

// payload is the event that Kafka gets.
func (e eventWrite) payload() (uuid.UUID, []byte, error) {
	ev := QuotaChanged{EventID: EventID(e.name, e.version), SchemaVersion: SchemaVersion, Subject: e.name, Version: e.version,
		ChangedAt: usage.At(e.at), Actor: e.actor, Reason: e.reason, Before: e.was, After: e.is}
	return marshal(ev.EventID, ev)
}

func tierPayload(c TierChange, before *tier.Tier, after tier.Tier) (uuid.UUID, []byte, error) {
	ev := TierChanged{EventID: EventID(TierName(after.Name), after.Version), SchemaVersion: SchemaVersion, Tier: after.Name,
		Version: after.Version, ChangedAt: usage.At(after.UpdatedAt), Actor: c.Actor, Reason: c.Reason}
	if before != nil {
		v := ViewTier(*before)
		ev.Before = &v
	}
	v := ViewTier(after)
	ev.After = &v
	return marshal(ev.EventID, ev)
}

func marshal(id uuid.UUID, ev any) (uuid.UUID, []byte, error) {
	b, err := json.Marshal(ev)
	if err != nil {
		return uuid.Nil, nil, fmt.Errorf("event %s: %w", id, err)
	}
	return id, b, nil
}
