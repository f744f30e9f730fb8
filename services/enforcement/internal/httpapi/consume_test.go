package httpapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

func (w *world) consume(t *testing.T, id uuid.UUID, tokens int) consumeAnswer {
	t.Helper()
	body := fmt.Sprintf(`{"user_id":"u1","request_id":%q,"tokens":%d}`, id, tokens)
	return read[consumeAnswer](t, call{method: "POST", path: "/internal/rate-limit/consume", body: body}.do(t, w), 200)
}

func TestStreamPaysAsItGoesAndStopsWhenNothingIsLeft(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", TPMLimit: 1000, ConcurrentLimit: 1})
	a := w.check(t, `{"user_id":"u1","model":"m","input_tokens":800,"max_output_tokens":1000,"reserve":"input"}`)
	if !a.Allowed || a.ReservedTokens != 800 {
		t.Fatalf("%+v", a)
	}
	for i := range 2 {
		if c := w.consume(t, a.RequestID, 90); !c.Allowed || n(c.Remaining["tokens_1m"]) != int64(110-90*i) || c.LeaseExpiresAt == nil || c.LeaseMS != 600_000 {
			t.Fatalf("draw %d: %+v", i, c)
		}
	}
	if c := w.consume(t, a.RequestID, 90); c.Allowed || c.Reason != "tpm" || c.RetryAfterMS != 70*60 || n(c.Remaining["tokens_1m"]) != 20 || c.LeaseExpiresAt == nil || c.LeaseMS != 600_000 {
		t.Fatalf("%+v", c)
	}
	w.record(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"m","input_tokens":800,"output_tokens":185,"latency_ms":9,"outcome":"completed"}`, a.RequestID))
	if st := w.status(t, "user/u1"); n(st.Remaining["tokens_1m"]) != 15 || st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
	if c := w.consume(t, a.RequestID, 1); c.Allowed || c.Reason != decide.ReasonReservationEnded || c.LeaseExpiresAt != nil || c.LeaseMS != 0 {
		t.Errorf("%+v", c)
	}
	if c := w.consume(t, uuid.New(), 1); c.Allowed || c.Reason != decide.ReasonReservationUnknown || c.LeaseExpiresAt != nil {
		t.Errorf("%+v", c)
	}
}

// Case B23: the probes are refused for as long as the stream consumes, whatever its lease.
func TestStreamKeepsItsSlotAsLongAsItConsumes(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", ConcurrentLimit: 1})
	a := w.check(t, `{"user_id":"u1","model":"m","input_tokens":1,"max_output_tokens":1}`)
	for range 10 {
		w.wait(limit.DefaultLease - time.Second)
		w.consume(t, a.RequestID, 0)
		if p := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":1}`); p.Reason != "concurrent" {
			t.Fatalf("%+v", p)
		}
	}
}

func TestSuspensionStopsAStream(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", TPMLimit: 1000})
	a := w.check(t, `{"user_id":"u1","model":"m","input_tokens":10,"max_output_tokens":0}`)
	w.sell("user:u1", tier.Quota{Tier: "plus", TPMLimit: 1000, Suspended: true, Version: 1})
	if c := w.consume(t, a.RequestID, 100); c.Allowed || c.Reason != decide.ReasonSuspended || n(c.Remaining["tokens_1m"]) != 990 {
		t.Errorf("%+v", c)
	}
}

// ends offers what the one shard of u1 holds.
type ends struct{ *limit.Memory }

func (ends) DueShards(context.Context) ([]int, error) {
	return []int{subject.Shard("", subject.Subject{Kind: subject.User, ID: "u1"})}, nil
}

func TestEventsOfTheDeadAndOfTheUnsentAreEmittedOnce(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", TPMLimit: 10_000})
	engine := decide.New(w, w.limiter, w, decide.Options{Region: "eu", Instance: "i2", Now: w.clock})
	dead := w.check(t, `{"user_id":"u1","model":"grok-2","input_tokens":100,"max_output_tokens":50}`)
	checked := w.now
	w.wait(limit.DefaultLease)
	unsent := w.check(t, `{"user_id":"u1","model":"grok-2","estimated_tokens":9}`)
	away := errors.New("kafka is away")
	w.kafka(away)
	body := fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"grok-2","input_tokens":7,"output_tokens":1,"latency_ms":9,"outcome":"failed"}`, unsent.RequestID)
	call{method: "POST", path: "/internal/rate-limit/record", body: body}.do(t, w)
	w.wait(limit.EmitGrace)
	if n, err := engine.EmitEnds(t.Context(), ends{w.limiter}); n != 0 || !errors.Is(err, away) {
		t.Fatalf("%d, %v", n, err)
	}
	w.kafka(nil)
	for _, want := range []int{0, 2, 0} { // within the grace of the first try; after it; when all is durable
		if n, err := engine.EmitEnds(t.Context(), ends{w.limiter}); n != want || err != nil {
			t.Errorf("emitted %d, %v; want %d", n, err, want)
		}
		w.wait(limit.EmitGrace)
	}
	got := map[uuid.UUID]usage.Record{}
	for _, r := range w.usage {
		got[r.RequestID] = r
	}
	if r := got[dead.RequestID]; r.Outcome != usage.Expired || r.InputTokens != 100 || r.OutputTokens != 50 || !r.Estimated || r.Timestamp != usage.At(checked) || r.Model != "grok-2" || r.Instance != "i2" {
		t.Errorf("expired: %+v", r)
	}
	if r := got[unsent.RequestID]; r.Outcome != usage.Failed || r.InputTokens != 7 || r.OutputTokens != 1 || r.Instance != "i1" {
		t.Errorf("unsent: %+v", r)
	}
	if len(w.usage) != 2 {
		t.Errorf("%d events", len(w.usage))
	}
	if out := w.record(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,"actual_tokens":3}`, dead.RequestID)); !out.AlreadyRecorded {
		t.Errorf("%+v", out)
	}
}

func TestUnsendableEventOfTheDeadIsTriedOnce(t *testing.T) {
	w := newWorld(t)
	engine := decide.New(w, w.limiter, w, decide.Options{Region: "eu", Instance: "i2", Now: w.clock})
	w.check(t, `{"user_id":"u1","model":"grok-2","estimated_tokens":9}`)
	w.wait(limit.DefaultLease)
	w.kafka(fmt.Errorf("%w: too large", decide.ErrUnsendable))
	for _, want := range []int{1, 0} {
		if n, err := engine.EmitEnds(t.Context(), ends{w.limiter}); n != want || err != nil {
			t.Errorf("%d, %v; want %d", n, err, want)
		}
		w.wait(2 * limit.EmitGrace)
	}
}
