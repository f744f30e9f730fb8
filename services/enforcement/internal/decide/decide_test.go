package decide

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/schemas"
)

var (
	user = subject.Subject{Kind: subject.User, ID: "u1"}
	key  = subject.Subject{Kind: subject.APIKey, ID: "k1"}
)

func planOf(s subject.Subject, q tier.Quota) tier.Plan {
	q.Subject = s
	return tier.PlanOf(q, tier.Pool{})
}

func TestUnlimitedDimensionHasNoLimit(t *testing.T) {
	p := planOf(user, tier.Quota{Tier: "plus", RPMLimit: 40, TPDLimit: 500_000, ConcurrentLimit: 3, Version: 7, TierVersion: 2})
	want := []limit.Limit{{Counted: limit.Requests, Capacity: 40, Window: time.Minute}, {Counted: limit.Tokens, Capacity: 500_000, Window: 24 * time.Hour}}
	got := Scopes(p, "m")
	if len(got) != 1 || got[0].Kind != limit.ScopeUser || got[0].Name != "user:u1" || got[0].Slots != 3 || !reflect.DeepEqual(got[0].Limits, want) {
		t.Errorf("%+v", got)
	}
	if got := Scopes(planOf(key, tier.Quota{}), "m"); got[0].Kind != limit.ScopeKey || got[0].Name != "api_key:k1" || len(got[0].Limits) != 0 || got[0].Slots != 0 {
		t.Errorf("%+v", got)
	}
	if got := fences(p); !reflect.DeepEqual(got, []limit.Fence{{Name: "user:u1", Version: 7}, {Name: redisfence.TierName("plus"), Version: 2}}) {
		t.Errorf("%+v", got)
	}
}

func TestRoomIsThatOfTheTightestScope(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	state := func(c limit.Counted, w time.Duration, capacity, left int64) limit.LimitState {
		return limit.LimitState{Limit: limit.Limit{Counted: c, Capacity: capacity, Window: w}, Remaining: left, ResetAt: at.Add(time.Duration(capacity))}
	}
	got := Rooms([]limit.ScopeState{
		{Kind: limit.ScopeUser, Slots: 3, InUse: 1, Limits: []limit.LimitState{state(limit.Requests, time.Minute, 40, 20), state(limit.Requests, 24*time.Hour, 1000, 900)}},
		{Kind: limit.ScopeModel, Slots: 0, InUse: 9, Limits: []limit.LimitState{state(limit.Requests, time.Minute, 30, 20)}},
		{Kind: limit.ScopeOrg, Slots: 10, InUse: 12, Limits: []limit.LimitState{state(limit.Requests, time.Minute, 9000, 5), state(limit.Tokens, time.Minute, 70, 70)}},
	})
	want := []Room{
		{Requests, 9000, 5, at.Add(9000)}, {TokensMin, 70, 70, at.Add(70)}, {Dimension: TokensDay}, {Dimension: Concurrent, Limit: 10, Remaining: 0},
		{"requests_1d", 1000, 900, at.Add(1000)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
}

// slow is a limiter and a quota store that answer after a while, or when the context ends.
type slow struct {
	limit.Limiter
	quota, limiter time.Duration
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slow) Get(ctx context.Context, u subject.Subject) (tier.Plan, error) {
	return planOf(u, tier.Quota{Tier: "plus"}), pause(ctx, s.quota)
}

func (s slow) Reload(ctx context.Context, u subject.Subject, _ tier.Plan) (tier.Plan, error) {
	return s.Get(ctx, u)
}

func (s slow) Check(ctx context.Context, r limit.CheckRequest) (limit.Decision, error) {
	return limit.Decision{Allowed: true}, pause(ctx, s.limiter)
}

type noEvents struct{ Events }

func TestCheckNeverTakesLongerThanItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []slow{{quota: time.Hour}, {limiter: time.Hour}, {quota: 49 * time.Millisecond, limiter: 2 * time.Millisecond}} {
			began := time.Now()
			_, err := New(s, s, noEvents{}, Options{}).Check(t.Context(), Request{Subject: user, RequestID: uuid.New(), Model: "m"})
			if d := time.Since(began); d != 50*time.Millisecond || !errors.Is(err, ErrUnavailable) {
				t.Errorf("%+v: %s, %v", s, d, err)
			}
		}
	})
}

func TestCallerThatHangsUpLeavesNoDoubtWhatWasReserved(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if a, err := New(slow{}, slow{}, noEvents{}, Options{}).Check(ctx, Request{Subject: user, RequestID: uuid.New(), Model: "m"}); err != nil || !a.Allowed {
		t.Errorf("%+v %v", a, err)
	}
}

func TestEventIsNeverInvented(t *testing.T) {
	for name, s := range map[string]limit.Settlement{
		"nothing kept":         {Status: limit.AlreadySettled},
		"kept rubbish":         {Status: limit.AlreadySettled, Meta: "{"},
		"rubbish of the check": {Status: limit.Settled, CheckedAt: time.Now(), CheckMeta: "[]", Meta: `{"x":"completed"}`},
	} {
		if rec, err := buildRecord(user, uuid.New(), s); err == nil {
			t.Errorf("%s: %+v", name, rec)
		}
	}
}

// Whoever ends a request of a key knows its user and org from the check, also if nobody settles it.
func TestExpiredRequestOfAKeyNamesItsUserAndOrg(t *testing.T) {
	meta, err := checkMetaOf(Request{Subject: key, Model: "m"}, keyPlan())
	if err != nil {
		t.Fatal(err)
	}
	rec, err := buildRecord(key, uuid.New(), limit.Settlement{Status: limit.Settled, CheckedAt: time.Now(), CheckMeta: meta, Meta: `{"a":1,"x":"expired","t":""}`})
	if err != nil || rec.APIKeyID != "k1" || rec.UserID != "u1" || rec.OrgID != "acme" || rec.Tier != "plus" || rec.Validate() != nil {
		t.Errorf("%+v, %v, %v", rec, err, rec.Validate())
	}
}

// What is kept in Redis is read by other releases while a fleet is being replaced: a name must keep its meaning.
func TestKeptNamesNeverChange(t *testing.T) {
	in := int64(5)
	for want, v := range map[string]any{
		`{"t":"plus","o":"o1","u":"u1","q":"m","i":5}`: checkMeta{Tier: "plus", OrgID: "o1", Owner: "u1", RequestedModel: "m", Input: &in},
		`{"a":1,"m":"m","i":2,"o":3,"c":4,"l":5,"x":"completed","s":true,"t":"plus","g":"o1","u":"u1","r":"eu","n":"i1"}`: settleMeta{AtMillis: 1, Model: "m", Input: 2, Output: 3,
			Cached: 4, LatencyMS: 5, Outcome: usage.Completed, Short: true, Tier: "plus", OrgID: "o1", Owner: "u1", Region: "eu", Instance: "i1"},
	} {
		if b, err := json.Marshal(v); err != nil || string(b) != want {
			t.Errorf("%s, want %s", b, want)
		}
	}
}

// Every reason that a decision can give is documented.
func TestEveryReasonStandsInTheContract(t *testing.T) {
	doc, err := fs.ReadFile(schemas.FS, "openapi/enforcement.yaml")
	if err != nil {
		t.Fatal(err)
	}
	reasons := []string{ReasonSuspended, ReasonModelNotAllowed, ReasonContextTooLong, limit.ReasonConcurrent, limit.ReasonRequestTooLarge}
	for _, l := range Scopes(planOf(user, tier.Quota{RPMLimit: 1, TPMLimit: 1, TPDLimit: 1}), "m")[0].Limits {
		reasons = append(reasons, l.Name())
	}
	for _, r := range reasons {
		if !strings.Contains(string(doc), r) {
			t.Errorf("%s is not documented", r)
		}
	}
}

func TestTiersPolicyGoesWithTheCheckAndDegradedComesBack(t *testing.T) {
	r := Request{Subject: user, RequestID: uuid.New(), Model: "grok-2", InputTokens: 5}
	for _, p := range []tier.RedisAway{tier.AwayLocal, tier.AwayOpen, tier.AwayClosed} {
		if c, err := ask(r, planOf(user, tier.Quota{RedisAway: p}), 0); err != nil || string(c.Away) != string(p) {
			t.Errorf("%s: %q, %v", p, c.Away, err)
		}
	}
	if !decided(r, planOf(user, tier.Quota{}), limit.Decision{Degraded: true}).Degraded || !refusedBy(ReasonSuspended, r, planOf(user, tier.Quota{}), limit.Status{Degraded: true}).Degraded {
		t.Error("an answer doesn't say that it is degraded")
	}
}

// While Redis is away what an event says of the check is known only where the check was made; the figures and the id are always the same.
func TestEventOfARequestSettledWithoutRedisSaysSo(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	meta := `{"a":1767268800000,"m":"grok-2","i":7,"o":3,"x":"completed","t":"free","n":"i1"}`
	id := uuid.New()
	known, err := buildRecord(user, id, limit.Settlement{CheckedAt: at.Add(-time.Second), CheckMeta: `{"t":"plus","q":"grok-4"}`, Meta: meta, Reserved: limit.Usage(50, 0), Degraded: true})
	if err != nil || known.Reservation != usage.Degraded || known.Tier != "plus" || known.RequestedModel != "grok-4" || known.Timestamp != usage.At(at.Add(-time.Second)) || known.ReservedTokens != 50 {
		t.Errorf("%+v, %v", known, err)
	}
	unknown, err := buildRecord(user, id, limit.Settlement{Meta: meta, Degraded: true})
	if err != nil || unknown.Reservation != usage.Degraded || unknown.Tier != "free" || unknown.Model != "grok-2" || unknown.Timestamp != usage.At(at) || unknown.EventID != known.EventID {
		t.Errorf("%+v, %v", unknown, err)
	}
	for _, r := range []usage.Record{known, unknown} {
		if err := r.Validate(); err != nil || r.InputTokens != 7 || r.OutputTokens != 3 {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// moving is a limiter in which a payer is on its way for ever.
type moving struct {
	slow
	asked  []limit.SettleRequest
	marked int // shard
}

func (m *moving) Settle(_ context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	m.asked = append(m.asked, r)
	if !r.Anyway {
		return limit.Settlement{}, &limit.StaleError{Name: "user:u1", Published: 2}
	}
	return limit.Settlement{Status: limit.Unknown, Meta: r.Meta, Shard: 9}, nil
}

func (m *moving) MarkEmitted(_ context.Context, shard int, _ subject.Subject, _ uuid.UUID) error {
	m.marked = shard
	return nil
}

type durable struct{ Events }

func (durable) Usage(context.Context, usage.Record) error { return nil }

// Usage is recorded even if its payer never arrives where it has moved to, and noted where the request was found.
func TestRecordWaitsForAPayerThatMovesButNotForEver(t *testing.T) {
	m := &moving{marked: -1}
	r, err := New(m, m, durable{}, Options{}).Record(t.Context(), Used{Subject: user, RequestID: uuid.New(), Input: 7, Outcome: usage.Completed, Short: true})
	if err != nil || r.Status != limit.Unknown || len(m.asked) != maxStale || m.asked[0].Anyway || m.marked != 9 {
		t.Errorf("%+v, %v, asked %d times, noted in shard %d", r, err, len(m.asked), m.marked)
	}
}

func TestRequestIsLookedForWhereItsPayerWas(t *testing.T) {
	id := uuid.New()
	p := planOf(user, tier.Quota{Tier: "plus"})
	home := p.Shard()
	split := []int{home, home + 1, home + 2}
	p.Moves = []tier.Move{{From: []int{5}, To: []int{77}}, {From: []int{77}, To: split}, {From: split, To: []int{8}}, {From: []int{8}, To: []int{5}}, {From: []int{5}, To: []int{home}}}
	want := []int{5, 8, limit.Spread{First: home, Shards: 3}.Home(id.String()), 77}
	want = slices.DeleteFunc(want, func(shard int) bool { return shard == home }) // it is looked for there anyway
	if got := earlier(p, id); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	c, err := ask(Request{Subject: user, RequestID: id, Model: "m"}, p, 0)
	if err != nil || !slices.Equal(c.Earlier, want) || c.Shard != home {
		t.Errorf("%+v, %v", c, err)
	}
}
