package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
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

const (
	adjustments = "/internal/adjustments"
	corrected   = "31254130-6e38-5e93-9403-b22099e5c0b6"
	anID        = "019b7a3c-5e00-7a10-8a4e-3f1c2d5b6a01"
)

func adjusting(body string) call {
	return call{method: "POST", path: adjustments, body: body, token: "Bearer " + adminToken}
}

func TestAdjustmentIsAnEventThatNamesTheOneItCorrects(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", tier.Quota{Tier: "plus", OrgID: "o1", TPMLimit: 1000})
	body := fmt.Sprintf(`{"adjustment_id":%q,"corrects_event_id":%q,"user_id":"u1","model":"grok-2","input_tokens":-100,"cached_input_tokens":-7,"output_tokens":5,
		"timestamp":"2025-12-31T23:59:59.9999+01:00","reason":"counted twice"}`, anID, corrected)
	before := w.status(t, "user/u1")
	a := read[adjustAnswer](t, adjusting(body).do(t, w), 200)
	sub := subject.Subject{Kind: subject.User, ID: "u1"}
	want := usage.Record{EventID: usage.EventID(sub, uuid.MustParse(anID), usage.KindAdjustment), SchemaVersion: 1, UserID: "u1", OrgID: "o1", Tier: "plus",
		RequestID: uuid.MustParse(anID), RequestedModel: "grok-2", Model: "grok-2", InputTokens: -100, OutputTokens: 5, CachedInputTokens: -7,
		Timestamp: usage.At(time.Date(2025, 12, 31, 22, 59, 59, 999e6, time.UTC)), Outcome: usage.Adjustment, Reservation: usage.Missing, Region: "eu", Instance: "i1",
		CorrectsEventID: uuid.MustParse(corrected)}
	if !a.Success || a.AdjustmentID.String() != anID || a.EventID != want.EventID || len(w.usage) != 1 || w.usage[0] != want {
		t.Errorf("%+v\ngot  %+v\nwant %+v", a, w.usage, want)
	}
	if again := read[adjustAnswer](t, adjusting(body).do(t, w), 200); again != a || w.usage[1].EventID != want.EventID {
		t.Errorf("a repeat is another event: %+v, %+v", again, a)
	}
	if after := w.status(t, "user/u1"); fmt.Sprint(text(after.rooms)) != fmt.Sprint(text(before.rooms)) {
		t.Errorf("a bucket has changed: %v, was %v", text(after.rooms), text(before.rooms))
	}
}

func TestAdjustmentOfAKeyAndOfWhoeverPaidThen(t *testing.T) {
	w := newWorld(t)
	key, user := subject.Subject{Kind: subject.APIKey, ID: "k1"}, subject.Subject{Kind: subject.User, ID: "ann"}
	w.plan(tier.Plan{Subject: key, Quotas: []tier.Quota{{Subject: key}, {Subject: user, Tier: "plus", OrgID: "new"}}, OrgID: "new", Pool: tier.NoPool("new")})
	for _, c := range []struct{ more, org, tier string }{{``, "new", "plus"}, {`,"org_id":"old","tier":"free"`, "old", "free"}, {`,"org_id":""`, "", "plus"}} {
		a := read[adjustAnswer](t, adjusting(fmt.Sprintf(`{"corrects_event_id":%q,"api_key_id":"k1","model":"m","output_tokens":1,"reason":"r"%s}`, corrected, c.more)).do(t, w), 200)
		r := w.usage[len(w.usage)-1]
		if r.OrgID != c.org || r.Tier != c.tier || r.UserID != "ann" || r.APIKeyID != "k1" || r.Timestamp != usage.At(w.now) || r.RequestID != a.AdjustmentID || a.AdjustmentID.Version() != 7 {
			t.Errorf("%s: %+v", c.more, r)
		}
	}
}

func TestOnlyAdminsAdjust(t *testing.T) {
	w := newWorld(t)
	body := fmt.Sprintf(`{"corrects_event_id":%q,"user_id":"u1","model":"m","output_tokens":1,"reason":"r"}`, corrected)
	for tok, want := range map[string]int{"-": 401, "Bearer other": 401, "Bearer " + token: 403} {
		c := adjusting(body)
		c.token = tok
		if resp := c.do(t, w); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", tok, resp.StatusCode, want)
		}
	}
	if len(w.usage) != 0 {
		t.Errorf("%+v", w.usage)
	}
	c := call{method: "POST", path: "/internal/rate-limit/check", body: `{"user_id":"u1","model":"m","estimated_tokens":1}`, token: "Bearer " + adminToken}
	if resp := c.do(t, w); resp.StatusCode != http.StatusForbidden {
		t.Errorf("an admin's token checks: %d", resp.StatusCode)
	}
}

func TestImpossibleAdjustmentsNameTheirFields(t *testing.T) {
	w := newWorld(t)
	own := usage.EventID(subject.Subject{Kind: subject.User, ID: "u1"}, uuid.MustParse(anID), usage.KindAdjustment)
	good := fmt.Sprintf(`"corrects_event_id":%q,"user_id":"u1","model":"m","reason":"r"`, corrected)
	for body, want := range map[string][]string{
		`{}`: {"user_id", "model", "corrects_event_id", "input_tokens", "output_tokens", "cached_input_tokens", "reason"},
		`{` + good + `,"input_tokens":0,"output_tokens":0,"cached_input_tokens":0}`:                                                            {"input_tokens", "output_tokens", "cached_input_tokens"},
		`{` + good + `,"input_tokens":9007199254740992}`:                                                                                       {"input_tokens"},
		`{` + good + `,"output_tokens":-9007199254740992}`:                                                                                     {"output_tokens"},
		`{` + good + `,"output_tokens":1,"timestamp":"yesterday"}`:                                                                             {"timestamp"},
		`{` + good + `,"output_tokens":1,"timestamp":"1999-12-31T23:59:59Z"}`:                                                                  {"timestamp"},
		`{` + good + `,"output_tokens":1,"timestamp":"2026-01-01T12:01:01Z"}`:                                                                  {"timestamp"},
		`{` + good + `,"output_tokens":1,"adjustment_id":"x","org_id":"a b","tier":""}`:                                                        {"adjustment_id", "org_id", "tier"},
		`{` + good + `,"output_tokens":1.5,"colour":"red"}`:                                                                                    {"output_tokens", "colour"},
		`{` + good + `,"output_tokens":1,"api_key_id":"k1"}`:                                                                                   {"user_id", "api_key_id"},
		fmt.Sprintf(`{"adjustment_id":%q,"corrects_event_id":%q,"user_id":"u1","model":"m","reason":"r","output_tokens":1}`, anID, own):        {"corrects_event_id"},
		fmt.Sprintf(`{"corrects_event_id":%q,"user_id":"u1","model":"m","reason":"a\nb","output_tokens":1}`, corrected):                        {"reason"},
		fmt.Sprintf(`{"corrects_event_id":%q,"user_id":"u1","model":"m","reason":%q,"output_tokens":1}`, corrected, strings.Repeat("x", 1025)): {"reason"},
		`{"corrects_event_id":"00000000-0000-0000-0000-000000000000","user_id":"u1","model":"m","reason":"r","output_tokens":1}`:               {"corrects_event_id"},
	} {
		c := adjusting(body)
		c.beyond = true
		p := read[problem.Problem](t, c.do(t, w), 400)
		var got []string
		for _, f := range p.Errors {
			got = append(got, f.Field)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s names %q, want %q", body, got, want)
		}
	}
	if len(w.usage) != 0 {
		t.Errorf("%+v", w.usage)
	}
}

func TestAdjustmentThatIsNotDurableSaysSo(t *testing.T) {
	w := newWorld(t)
	body := fmt.Sprintf(`{"adjustment_id":%q,"corrects_event_id":%q,"user_id":"u1","model":"m","output_tokens":1,"reason":"r"}`, anID, corrected)
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{{errors.New("away"), 503, anID}, {decide.ErrSpool, 503, anID}, {decide.ErrUnsendable, 500, "do not repeat"}} {
		w.kafka(c.err)
		if p := read[problem.Problem](t, adjusting(body).do(t, w), c.status); !strings.Contains(p.Detail, c.says) {
			t.Errorf("%v: %+v", c.err, p)
		}
	}
	w.kafka(nil)
	w.quotaErr = errors.New("away")
	if resp := adjusting(body).do(t, w); resp.StatusCode != http.StatusServiceUnavailable {
		t.Error(resp.StatusCode)
	}
}
