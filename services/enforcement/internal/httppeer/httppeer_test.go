package httppeer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/fallback"
)

// knower answers with what it was given, and keeps what it was asked.
type knower struct {
	answer fallback.Answer
	err    error
	asked  []fallback.Question
}

func (k *knower) Answer(_ context.Context, q fallback.Question) (fallback.Answer, error) {
	k.asked = append(k.asked, q)
	return k.answer, k.err
}

// instance serves a knower, and gives its address. What Handle returned lies in the last error.
func instance(t *testing.T, k *knower) (addr string, last *error) {
	t.Helper()
	last = new(error)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != Path || r.Header.Get("Authorization") != "Bearer "+Token("the-token") {
			t.Errorf("asked %s with %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		if *last = Handle(k, w, r); *last != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), last
}

func TestQuestionsAndAnswersArriveAsTheyWere(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	var reserved limit.Amounts
	reserved[limit.Tokens] = limit.MaxAmount
	questions := []fallback.Question{
		{Shard: 3, Subject: subject.Subject{Kind: subject.APIKey, ID: "k1"}, RequestID: uuid.New(), Ended: true, Actual: reserved},
		{Earlier: []int{0, 255}, Subject: subject.Subject{Kind: subject.User, ID: "u1"}, RequestID: uuid.New(), Tokens: 7, Lease: 90 * time.Second},
	}
	for name, want := range map[string]fallback.Answer{
		"nothing": {},
		"held": {Held: &limit.Settlement{Status: limit.Settled, At: at, CheckedAt: at.Add(-time.Second), Reserved: reserved, LeaseWas: at.Add(time.Minute), CheckMeta: "{}",
			Meta: "m", Emitted: true, Degraded: true}},
		"granted": {Granted: &fallback.Grant{At: at, LeaseUntil: at.Add(time.Minute), Reserved: reserved, Meta: "m"}},
		"drawn": {Consumption: &limit.Consumption{Status: limit.ReservationOpen, Allowed: true, Reason: "tpm", Scope: "user", RetryAfter: 1200 * time.Millisecond, At: at,
			LeaseUntil: at.Add(time.Minute), Degraded: true}},
	} {
		for _, q := range questions {
			k := &knower{answer: want}
			addr, _ := instance(t, k)
			c := New("the-token")
			t.Cleanup(c.Close)
			got, err := c.Ask(t.Context(), addr, q)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, %v", name, got, err)
			}
			if len(k.asked) != 1 || !reflect.DeepEqual(k.asked[0], q) {
				t.Errorf("%s: asked %+v, want %+v", name, k.asked, q)
			}
		}
	}
}

func TestAFaultyQuestionIsRefusedByItsField(t *testing.T) {
	k := &knower{}
	addr, last := instance(t, k)
	ask := func(body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+Path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+Token("the-token"))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	const id = `"request_id":"6f1d2f0e-7a5c-4a64-9a3e-0d8d6f1b2c3d"`
	for body, field := range map[string]string{
		`{"subject":"nobody",` + id + `}`:                                     "subject",
		`{"subject":"user:u1","shard":-1,` + id + `}`:                         "shard",
		`{"subject":"user:u1","shard":99999,` + id + `}`:                      "shard",
		`{"subject":"user:u1","earlier":[256],` + id + `}`:                    "earlier",
		`{"subject":"user:u1","actual":[-1],` + id + `}`:                      "actual",
		`{"subject":"user:u1","tokens":9007199254740992,` + id + `}`:          "actual",
		`{"subject":"user:u1","lease_ms":-5,` + id + `}`:                      "lease_ms",
		`{"subject":"user:u1","actual":[0,0,0,0,0,0,0,0,0,0,0,0],` + id + `}`: "actual",
	} {
		ask(body)
		var p *problem.Problem
		if !errors.As(*last, &p) || p.Status != http.StatusBadRequest || len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: %v", body, *last)
		}
	}
	ask(`not json`)
	if *last == nil {
		t.Error("no JSON was taken")
	}
	if len(k.asked) != 0 {
		t.Errorf("it was asked %+v", k.asked)
	}
}

// An address that instances ask comes from Redis: whoever writes one there is shown the token.
func TestTheServiceTokenIsNotShown(t *testing.T) {
	if got := Token("the-token"); strings.Contains(got, "the-token") || got == Token("another") || len(got) != 64 {
		t.Errorf("instances show each other %q", got)
	}
}

func TestNoAnswerIsAnError(t *testing.T) {
	addr, _ := instance(t, &knower{err: errors.New("full")})
	c := New("the-token")
	defer c.Close()
	q := fallback.Question{Subject: subject.Subject{Kind: subject.User, ID: "u1"}, RequestID: uuid.New()}
	if _, err := c.Ask(t.Context(), addr, q); err == nil {
		t.Error("an instance that failed has answered")
	}
	if _, err := c.Ask(t.Context(), "127.0.0.1:1", q); err == nil {
		t.Error("an instance that is gone has answered")
	}
	over := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer silent.Close()
	defer close(over)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Ask(ctx, strings.TrimPrefix(silent.URL, "http://"), q); err == nil {
		t.Error("a silent instance has answered")
	}
}
