package httpapi

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// Case B03.
func TestSettlingBelowTheReservationFreesTheDifferenceAtOnce(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", TPMLimit: 1000})
	a := w.check(t, `{"user_id":"u1","model":"m","input_tokens":200,"max_output_tokens":800}`)
	if !a.Allowed || n(a.Remaining["tokens_1m"]) != 0 || a.ReservedTokens != 1000 {
		t.Fatalf("%+v", a)
	}
	w.record(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"m","input_tokens":150,"output_tokens":50,"latency_ms":9,"outcome":"completed"}`, a.RequestID))
	if st := w.status(t, "user/u1"); n(st.Remaining["tokens_1m"]) != 800 {
		t.Errorf("%d left, want 800", n(st.Remaining["tokens_1m"]))
	}
	if a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":700}`); !a.Allowed {
		t.Errorf("%+v", a)
	}
}

func TestRecordSaysWhatTheCheckKnew(t *testing.T) {
	w := newWorld(t)
	w.sell("api_key:k1", tier.Quota{Tier: "api", OrgID: "o1", TPMLimit: 100_000, ConcurrentLimit: 1, Version: 3})
	a := w.check(t, `{"api_key_id":"k1","model":"grok-4","input_tokens":100,"max_output_tokens":50}`)
	checked := w.now
	w.wait(2 * time.Second)
	w.sell("api_key:k1", tier.Quota{Tier: "enterprise", OrgID: "o1", TPMLimit: 100_000, Version: 4}) // the event tells the tier of the check
	out := w.record(t, fmt.Sprintf(`{"api_key_id":"k1","request_id":%q,"model":"grok-2","input_tokens":100,"output_tokens":7,"cached_input_tokens":64,"latency_ms":1999,"outcome":"cancelled"}`, a.RequestID))
	sub := subject.Subject{Kind: subject.APIKey, ID: "k1"}
	want := usage.Record{EventID: usage.EventID(sub, a.RequestID, usage.KindUsage), SchemaVersion: 1, APIKeyID: "k1", OrgID: "o1", Tier: "api", RequestID: a.RequestID,
		RequestedModel: "grok-4", Model: "grok-2", InputTokens: 100, OutputTokens: 7, CachedInputTokens: 64, ReservedTokens: 150, LatencyMS: 1999,
		Timestamp: usage.At(checked), Outcome: usage.Cancelled, Reservation: usage.Held, Region: "eu", Instance: "i1"}
	if len(w.usage) != 1 || w.usage[0] != want || out.EventID != want.EventID || out.AlreadyRecorded {
		t.Errorf("%+v\ngot  %+v\nwant %+v", out, w.usage, want)
	}
	if st := w.status(t, "api_key/k1"); st.InFlight != 0 || st.APIKeyID != "k1" || st.UserID != "" {
		t.Errorf("%+v", st)
	}
}

func TestARecordThatWasCountedIsMarkedEstimated(t *testing.T) {
	w := newWorld(t)
	for _, estimated := range []bool{true, false} {
		a := w.check(t, `{"user_id":"u1","model":"m","input_tokens":10,"max_output_tokens":10}`)
		w.record(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"m","input_tokens":9,"output_tokens":8,"latency_ms":7,"outcome":"cancelled","estimated":%t}`, a.RequestID, estimated))
		if r := w.usage[len(w.usage)-1]; r.Estimated != estimated || r.InputTokens != 9 || r.OutputTokens != 8 {
			t.Errorf("%+v", r)
		}
	}
}

func TestShortRecordSplitsByWhatTheCheckCounted(t *testing.T) {
	for name, c := range map[string]struct {
		check         string
		actual        int64
		input, output int64
	}{
		"estimated":         {`"estimated_tokens":100`, 80, 80, 0},
		"counted":           {`"input_tokens":60,"max_output_tokens":50`, 80, 60, 20},
		"counted, less":     {`"input_tokens":60,"max_output_tokens":50`, 30, 30, 0},
		"counted as none":   {`"input_tokens":0,"max_output_tokens":50`, 30, 0, 30},
		"used nothing":      {`"input_tokens":60,"max_output_tokens":50`, 0, 0, 0},
		"used much more":    {`"estimated_tokens":1`, 90_000, 90_000, 0},
		"no check is known": {"", 80, 80, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, id, model := newWorld(t), uuid.New(), ""
			if c.check != "" {
				model = "grok-2"
				w.check(t, fmt.Sprintf(`{"user_id":"u1","model":"grok-2","request_id":%q,%s}`, id, c.check))
			}
			w.record(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,"actual_tokens":%d}`, id, c.actual))
			r := w.usage[0]
			if r.InputTokens != c.input || r.OutputTokens != c.output || !r.Estimated || r.LatencyMS != 0 || r.Outcome != usage.Completed || r.Model != model || (r.Reservation == usage.Held) != (model != "") {
				t.Errorf("%+v", r)
			}
			if st := w.status(t, "user/u1"); n(st.Remaining["tokens_1d"]) != 500_000-c.actual || n(st.Remaining["tokens_1m"]) != max(0, 40_000-c.actual) {
				t.Errorf("%v", text(st.rooms))
			}
		})
	}
}

func TestSettlingTwiceChargesOnce(t *testing.T) {
	w := newWorld(t)
	a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":100}`)
	body := `{"user_id":"u1","request_id":%q,"model":"m","input_tokens":%d,"output_tokens":0,"latency_ms":1,"outcome":"completed"}`
	one := w.record(t, fmt.Sprintf(body, a.RequestID, 70))
	two := w.record(t, fmt.Sprintf(body, a.RequestID, 9000))
	if one.AlreadyRecorded || !two.AlreadyRecorded || one.EventID != two.EventID || len(w.usage) != 1 {
		t.Errorf("%+v %+v %d events", one, two, len(w.usage))
	}
	if st := w.status(t, "user/u1"); n(st.Remaining["tokens_1d"]) != 500_000-70 {
		t.Errorf("%d left", n(st.Remaining["tokens_1d"]))
	}
}

func TestUnknownRequestIsUsageAndBilledOnce(t *testing.T) {
	w := newWorld(t)
	body := `{"user_id":"u1","request_id":"01890a5d-ac96-774b-bcce-b302099a8057","model":"m","input_tokens":70,"output_tokens":0,"latency_ms":1,"outcome":"failed"}`
	first := w.now
	w.kafka(errors.New("away"))
	resp := call{method: "POST", path: "/internal/rate-limit/record", body: body}.do(t, w)
	read[problem.Problem](t, resp, 503)
	w.kafka(nil)
	w.wait(time.Minute)
	w.record(t, body)
	w.record(t, body)
	if len(w.usage) != 1 || w.usage[0].Reservation != usage.Missing || w.usage[0].ReservedTokens != 0 || time.Time(w.usage[0].Timestamp) != first || w.usage[0].Tier != "plus" {
		t.Errorf("%+v", w.usage)
	}
}

// The first call's figures count, whatever the repeat says and wherever it arrives.
func TestRecordThatKafkaDidNotTakeIsSentByTheRepeatAsItWas(t *testing.T) {
	w := newWorld(t)
	a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":100}`)
	body := `{"user_id":"u1","request_id":%q,"model":"m","input_tokens":%d,"output_tokens":%d,"latency_ms":%d,"outcome":"%s"}`
	w.kafka(errors.New("away"))
	for range 3 {
		p := read[problem.Problem](t, call{method: "POST", path: "/internal/rate-limit/record", body: fmt.Sprintf(body, a.RequestID, 60, 10, 5, "completed")}.do(t, w), 503)
		if p.Code != problem.CodeUnavailable || strings.Contains(p.Detail, "away") {
			t.Errorf("%+v", p)
		}
	}
	w.kafka(nil)
	w.wait(time.Second)
	out := w.record(t, fmt.Sprintf(body, a.RequestID, 1, 1, 1, "failed"))
	if !out.AlreadyRecorded || len(w.usage) != 1 {
		t.Fatalf("%+v %+v", out, w.usage)
	}
	if r := w.usage[0]; r.InputTokens != 60 || r.OutputTokens != 10 || r.LatencyMS != 5 || r.Outcome != usage.Completed || r.Reservation != usage.Held || r.ReservedTokens != 100 {
		t.Errorf("%+v", r)
	}
	w.record(t, fmt.Sprintf(body, a.RequestID, 1, 1, 1, "failed"))
	if len(w.usage) != 1 {
		t.Error("a durable event was sent again")
	}
	if st := w.status(t, "user/u1"); n(st.Remaining["tokens_1d"]) != 500_000-70+5 { // 5 have drained in a second
		t.Errorf("%d left", n(st.Remaining["tokens_1d"]))
	}
}

func TestFullSpoolAndUnsendableEventAreToldApart(t *testing.T) {
	w := newWorld(t)
	a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":100}`)
	body := fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"m","input_tokens":60,"output_tokens":10,"latency_ms":5,"outcome":"completed"}`, a.RequestID)
	record := call{method: "POST", path: "/internal/rate-limit/record", body: body}
	w.kafka(fmt.Errorf("away: %w", decide.ErrSpool))
	if p := read[problem.Problem](t, record.do(t, w), 503); p.Code != problem.CodeUnavailable || !strings.Contains(p.Detail, "spool") || strings.Contains(p.Detail, "away:") {
		t.Errorf("%+v", p)
	}
	w.kafka(fmt.Errorf("%w: too large", decide.ErrUnsendable))
	if p := read[problem.Problem](t, record.do(t, w), 500); p.Code != problem.CodeInternal || !strings.Contains(p.Detail, "kept aside") || strings.Contains(p.Detail, "too large") {
		t.Errorf("%+v", p)
	}
	w.kafka(errors.New("asked again")) // it is noted: nobody asks Kafka again
	if out := w.record(t, body); !out.AlreadyRecorded {
		t.Errorf("%+v", out)
	}
}
