package decide

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Used is what a caller says a request used, already validated. Short: only Input is known, and it counts input and output together.
type Used struct {
	Subject       subject.Subject
	RequestID     uuid.UUID
	Model         string // served; "" if Short
	Input, Output int64
	Cached        int64
	LatencyMillis int64
	Outcome       usage.Outcome
	Short         bool
	Estimated     bool // counted by the caller: the upstream gave no figure
}

// Recorded answers a record.
type Recorded struct {
	EventID uuid.UUID
	Status  limit.SettleStatus
}

// AlreadyRecorded says that this call changed nothing.
func (r Recorded) AlreadyRecorded() bool { return r.Status == limit.AlreadySettled }

// markTimeout bounds the note that an event is durable. Without the note a repeat sends the event again, which costs little.
const markTimeout = time.Second

// Record settles a request, once, and returns when its usage event is durable. The caller hanging up stops nothing.
func (e *Engine) Record(ctx context.Context, u Used) (Recorded, error) {
	ctx = context.WithoutCancel(ctx)
	out := Recorded{EventID: usage.EventID(u.Subject, u.RequestID, usage.KindUsage)}
	s, err := e.settle(ctx, u)
	if err != nil {
		return out, fmt.Errorf("record %s of %s: %w", u.RequestID, u.Subject, err)
	}
	out.Status = s.Status
	if s.Emitted {
		return out, nil
	}
	rec, err := buildRecord(u.Subject, u.RequestID, s)
	if err != nil {
		return out, fmt.Errorf("record %s of %s: %w", u.RequestID, u.Subject, err)
	}
	aside := e.events.Usage(ctx, rec)
	if aside != nil && !errors.Is(aside, ErrUnsendable) {
		return out, fmt.Errorf("record %s of %s: %w: events: %w", u.RequestID, u.Subject, ErrUnavailable, aside)
	}
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if err := e.limiter.MarkEmitted(ctx, s.Shard, u.Subject, u.RequestID); err != nil {
		e.o.Log.WarnContext(ctx, "a durable event could not be noted; a repeated record will send it again", "event_id", out.EventID.String(), "err", err)
	}
	if aside != nil {
		return out, fmt.Errorf("record %s of %s: %w", u.RequestID, u.Subject, aside)
	}
	return out, nil
}

// settle ends the reservation, wherever its payer is by now. What is on its way there is waited for by reading the plan anew; after maxStale times what
// was held is left to drain, for usage is recorded all the same.
func (e *Engine) settle(ctx context.Context, u Used) (limit.Settlement, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Settle)
	defer cancel()
	var s limit.Settlement
	tries := 0
	_, err := e.fresh(ctx, u.Subject, func(p tier.Plan) error {
		meta, err := json.Marshal(e.settleMetaOf(u, p))
		if err != nil {
			return err
		}
		tries++
		home, sp := spreadOf(p, u.RequestID)
		s, err = e.limiter.Settle(ctx, limit.SettleRequest{Shard: home, Earlier: earlier(p, u.RequestID), Spread: sp, Subject: u.Subject, RequestID: u.RequestID,
			Scopes: Scopes(p, u.Model), Actual: limit.Usage(u.Input, u.Output), Meta: string(meta), Anyway: tries == maxStale})
		return err
	})
	return s, err
}

// settleMeta is kept with the settlement until its event is durable: all that the event says and the check did not know, so that a
// repeat, on whichever instance, emits the very same event.
type settleMeta struct {
	AtMillis  int64         `json:"a"` // when it was settled: the event's time if no check is known
	Model     string        `json:"m,omitempty"`
	Input     int64         `json:"i,omitempty"`
	Output    int64         `json:"o,omitempty"`
	Cached    int64         `json:"c,omitempty"`
	LatencyMS int64         `json:"l,omitempty"`
	Outcome   usage.Outcome `json:"x"`
	Short     bool          `json:"s,omitempty"`
	Estimated bool          `json:"e,omitempty"`
	Tier      string        `json:"t"` // of the quota at the settlement, for an event without a check
	OrgID     string        `json:"g,omitempty"`
	Owner     string        `json:"u,omitempty"`
	Region    string        `json:"r,omitempty"`
	Instance  string        `json:"n,omitempty"`
}

func (e *Engine) settleMetaOf(u Used, p tier.Plan) settleMeta {
	return settleMeta{AtMillis: e.o.Now().UnixMilli(), Model: u.Model, Input: u.Input, Output: u.Output, Cached: u.Cached, LatencyMS: u.LatencyMillis,
		Outcome: u.Outcome, Short: u.Short, Estimated: u.Estimated, Tier: p.Base().Tier, OrgID: p.OrgID, Owner: ownerOf(p), Region: e.o.Region, Instance: e.o.Instance}
}

var errNoMeta = errors.New("the settlement has lost what its event says")

// buildRecord makes the event from the settlement that counted, and from nothing else: every repeat makes the same one.
func buildRecord(sub subject.Subject, requestID uuid.UUID, s limit.Settlement) (usage.Record, error) {
	var m settleMeta
	if s.Meta == "" {
		return usage.Record{}, errNoMeta
	}
	if err := json.Unmarshal([]byte(s.Meta), &m); err != nil {
		return usage.Record{}, fmt.Errorf("%w: %w", errNoMeta, err)
	}
	c, held := checkMeta{Tier: m.Tier, OrgID: m.OrgID, Owner: m.Owner, RequestedModel: m.Model}, !s.CheckedAt.IsZero()
	if held && s.CheckMeta != "" {
		c = checkMeta{}
		if err := json.Unmarshal([]byte(s.CheckMeta), &c); err != nil {
			return usage.Record{}, fmt.Errorf("what the check kept: %w", err)
		}
	}
	rec := usage.Record{EventID: usage.EventID(sub, requestID, usage.KindUsage), SchemaVersion: usage.SchemaVersion, OrgID: c.OrgID, Tier: c.Tier,
		RequestID: requestID, RequestedModel: c.RequestedModel, Model: m.Model, InputTokens: m.Input, OutputTokens: m.Output, CachedInputTokens: m.Cached,
		ReservedTokens: s.Reserved[limit.Tokens], LatencyMS: m.LatencyMS, Outcome: m.Outcome, Estimated: m.Estimated, Region: m.Region, Instance: m.Instance}
	setSubject(&rec, sub, c.Owner)
	rec.Timestamp, rec.Reservation = usage.At(s.CheckedAt), usage.Held
	if !held {
		rec.Timestamp, rec.Reservation = usage.At(time.UnixMilli(m.AtMillis)), usage.Missing
	}
	if s.Degraded {
		rec.Reservation = usage.Degraded
	}
	if m.Outcome == usage.Expired { // nobody told what was used: what was held stays consumed, and is what is billed
		rec.Estimated, rec.Model = true, c.model()
		rec.InputTokens, rec.OutputTokens = s.Reserved[limit.InputTokens], s.Reserved[limit.OutputTokens]
	}
	if m.Short {
		rec.Estimated, rec.Model = true, c.model()
		if c.Input != nil { // the input was counted before; what goes beyond it is output
			rec.InputTokens = min(*c.Input, m.Input)
			rec.OutputTokens = m.Input - rec.InputTokens
		}
	}
	return rec, nil
}
