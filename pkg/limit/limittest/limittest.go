// Package limittest is the conformance suite of limit.Limiter: every implementation passes the same tests, and random sequences of
// operations must give the same answers on two of them. A clock is passed in; no test sleeps.
package limittest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Clock is a clock that moves when told to. The zero value stands at 1970; NewClock begins at a day of 2026.
type Clock struct{ ms atomic.Int64 }

// NewClock makes a clock that stands at 2026-01-01T12:00:00Z.
func NewClock() *Clock {
	c := &Clock{}
	c.ms.Store(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	return c
}

// Now is the clock's time.
func (c *Clock) Now() time.Time { return time.UnixMilli(c.ms.Load()).UTC() }

// Add moves the clock, backwards too.
func (c *Clock) Add(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// Subject is one implementation under test.
type Subject struct {
	Limiter limit.Lender
	Publish func(ctx context.Context, shard int, name string, version int64) error
}

// Factory makes an empty limiter that takes its time from clock and remembers settled reservations for limit.DefaultTombstone.
type Factory func(t testing.TB, clock *Clock) Subject

// world is a limiter with one user, and short ways to say what tests say often.
type world struct {
	t     testing.TB
	clock *Clock
	Subject
	user  subject.Subject
	shard int
}

func newWorld(t testing.TB, f Factory) *world {
	c := NewClock()
	u := subject.Subject{Kind: subject.User, ID: "u1"}
	return &world{t: t, clock: c, Subject: f(t, c), user: u, shard: subject.Shard("", u)}
}

const (
	rpm = "rpm"
	tpm = "tpm"
	tpd = "tpd"
)

// scope is the user's scope with the given capacities; 0 leaves a limit out.
func scope(rpm, tpm, tpd, slots int64) limit.Scope {
	s := limit.Scope{Kind: limit.ScopeUser, Name: "user:u1", Slots: slots}
	for _, l := range []limit.Limit{{Counted: limit.Requests, Capacity: rpm, Window: time.Minute}, {Counted: limit.Tokens, Capacity: tpm, Window: time.Minute}, {Counted: limit.Tokens, Capacity: tpd, Window: 24 * time.Hour}} {
		if l.Capacity > 0 {
			s.Limits = append(s.Limits, l)
		}
	}
	return s
}

func (w *world) check(tokens int64, scopes ...limit.Scope) (limit.Decision, uuid.UUID) {
	w.t.Helper()
	id := uuid.New()
	return w.checkID(id, tokens, scopes...), id
}

func (w *world) checkID(id uuid.UUID, tokens int64, scopes ...limit.Scope) limit.Decision {
	w.t.Helper()
	d, err := w.Limiter.Check(context.Background(), w.request(id, tokens, scopes))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) request(id uuid.UUID, tokens int64, scopes []limit.Scope) limit.CheckRequest {
	return limit.CheckRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: scopes, Cost: limit.Usage(tokens, 0), Meta: "check meta"}
}

func (w *world) settle(id uuid.UUID, tokens int64, scopes ...limit.Scope) limit.Settlement {
	w.t.Helper()
	s, err := w.Limiter.Settle(context.Background(), limit.SettleRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: scopes, Actual: limit.Usage(tokens, 0), Meta: "settle meta"})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// left gives the remaining amounts by limit name, and the open reservations as "open".
func (w *world) left(s limit.Scope) map[string]int64 {
	w.t.Helper()
	st, err := w.Limiter.Status(context.Background(), limit.StatusRequest{Shard: w.shard, Scopes: []limit.Scope{s}})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]int64{"open": st.Scopes[0].InUse}
	for _, l := range st.Scopes[0].Limits {
		out[l.Name()] = l.Remaining
	}
	return out
}

func (w *world) wantAllowed(d limit.Decision) {
	w.t.Helper()
	if !d.Allowed || d.Reason != "" || d.RetryAfter != 0 {
		w.t.Fatalf("want it allowed, got %+v", d)
	}
}

func (w *world) wantRefused(d limit.Decision, reason string) {
	w.t.Helper()
	if d.Allowed || d.Reason != reason {
		w.t.Fatalf("want it refused by %s, got %+v", reason, d)
	}
}
