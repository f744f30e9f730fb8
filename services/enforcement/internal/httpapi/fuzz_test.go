package httpapi

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

func FuzzCheckBody(f *testing.F) {
	f.Add([]byte(`{"user_id":"u1","model":"grok-2","estimated_tokens":150,"request_id":"01890a5d-ac96-774b-bcce-b302099a8057","reserve":"input","dry_run":true}`))
	f.Add([]byte(`{"api_key_id":"k","model":"m","input_tokens":9007199254740991,"max_output_tokens":0}`))
	f.Add([]byte(`{"user_id":"u1","user_id":"u2","estimated_tokens":-0}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var b checkBody
		err := strictjson.Decode(body, &b)
		var r decide.Request
		if err == nil {
			r, err = b.request()
		}
		if err != nil {
			if p := problem.From(err); p.Status != 400 {
				t.Fatalf("%d: %v", p.Status, err)
			}
			return
		}
		if subject.ValidateID(r.Subject.ID) != nil || subject.ValidateID(r.Model) != nil || r.RequestID == uuid.Nil || r.InputTokens < 0 || r.MaxOutput < 0 || r.InputTokens+r.MaxOutput > limit.MaxAmount || r.InputTokens+r.MaxOutput < 0 {
			t.Fatalf("accepted %+v", r)
		}
	})
}

func FuzzRecordBody(f *testing.F) {
	f.Add([]byte(`{"user_id":"u1","request_id":"01890a5d-ac96-774b-bcce-b302099a8057","actual_tokens":5}`))
	f.Add([]byte(`{"user_id":"u1","request_id":"01890a5d-ac96-774b-bcce-b302099a8057","model":"m","input_tokens":10,"output_tokens":5,"cached_input_tokens":3,"latency_ms":1,"outcome":"completed"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var b recordBody
		err := strictjson.Decode(body, &b)
		var u decide.Used
		if err == nil {
			u, err = b.used()
		}
		if err != nil {
			if p := problem.From(err); p.Status != 400 {
				t.Fatalf("%d: %v", p.Status, err)
			}
			return
		}
		if subject.ValidateID(u.Subject.ID) != nil || u.RequestID == uuid.Nil || u.Input < 0 || u.Output < 0 || u.Input+u.Output > limit.MaxAmount || u.Cached > u.Input || u.LatencyMillis < 0 || (!u.Short && subject.ValidateID(u.Model) != nil) {
			t.Fatalf("accepted %+v", u)
		}
	})
}
