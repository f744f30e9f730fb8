package limittest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Differential makes the same random operations on two implementations and compares every answer: checks, dry runs, repeats, settles
// of held, settled and unknown requests, restores, payers that move, whatever is open meanwhile, changed and lifted limits, published versions, and time that
// stands, steps, leaps and now and then runs back. The same seed gives the same operations.
func Differential(t *testing.T, seed uint64, operations int, model, other Factory) {
	t.Helper()
	clock := NewClock()
	a, b := spreading(model(t, clock)), spreading(other(t, clock))
	r := rand.New(rand.NewPCG(seed, 0))
	g := &generator{r: r, capacities: map[string][]int64{}}
	ctx := context.Background()
	for i := range operations {
		clock.Add(g.step())
		g.now = clock.Now().UnixMilli()
		op := g.next()
		gotA, errA := op.do(ctx, a)
		gotB, errB := op.do(ctx, b)
		if !sameError(errA, errB) || !reflect.DeepEqual(gotA, gotB) {
			t.Fatalf("seed %d, operation %d at %s: %s\nmodel: %+v, %v\nother: %+v, %v", seed, i, clock.Now(), op.name, gotA, errA, gotB, errB)
		}
		if d, ok := gotA.(limit.Decision); ok && errA == nil {
			if err := plausible(d); err != nil {
				t.Fatalf("seed %d, operation %d: %s: %v\n%+v", seed, i, op.name, err, d)
			}
		}
	}
}

// spread is where some requests lie; the others lie in its first shard.
var spread = limit.Spread{First: shard, Shards: 3}

// spreading has a subject decide over several shards; without a Spread a request takes the same way as ever.
func spreading(s Subject) Subject {
	s.Limiter = spreader{limit.Spreader{Lender: s.Limiter}, s.Limiter}
	return s
}

// carrier is the limiter's own.
func (s Subject) carrier() limit.Carrier {
	l := s.Limiter
	if over, ok := l.(spreader); ok {
		l = over.lender
	}
	c, _ := l.(limit.Carrier)
	return c
}

// spreader is a Spreader of which the Lender can be called, too.
type spreader struct {
	limit.Limiter
	lender limit.Lender
}

func (s spreader) Transfer(ctx context.Context, r limit.TransferRequest) (limit.Transferred, error) {
	return s.lender.Transfer(ctx, r)
}

func (s spreader) Find(ctx context.Context, sub subject.Subject, id uuid.UUID, shards []int) (int, bool, error) {
	return s.lender.Find(ctx, sub, id, shards)
}

// plausible holds for every decision, whoever made it.
func plausible(d limit.Decision) error {
	for _, s := range d.Scopes {
		for _, l := range s.Limits {
			if l.Remaining < 0 || l.Remaining > l.Capacity {
				return fmt.Errorf("%s %s: %d remaining of %d", s.Name, l.Name(), l.Remaining, l.Capacity)
			}
			if l.ResetAt.Before(d.At) {
				return fmt.Errorf("%s %s: full again before now", s.Name, l.Name())
			}
		}
	}
	if d.Allowed != (d.Reason == "") || (d.Allowed && d.RetryAfter != 0) {
		return errors.New("a refusal has a reason, an allowance has none and no wait")
	}
	return nil
}

func sameError(a, b error) bool {
	var sa, sb *limit.StaleError
	if errors.As(a, &sa) && errors.As(b, &sb) {
		return *sa == *sb
	}
	return a == nil && b == nil
}

type operation struct {
	name string
	do   func(context.Context, Subject) (any, error)
}

type generator struct {
	r          *rand.Rand
	known      []uuid.UUID
	capacities map[string][]int64
	version    int64
	now        int64 // the clock's, in ms
	moves      []limit.CarryRequest
	cancelled  bool // the last operation was a cancel
}

const shard = 7

var kinds = []limit.ScopeKind{limit.ScopeKey, limit.ScopeUser, limit.ScopeModel, limit.ScopeOrg}

func (g *generator) step() time.Duration {
	if g.cancelled { // an id that is granted again in the very millisecond is not told from the grant before
		g.cancelled = false
		return time.Millisecond
	}
	switch g.r.IntN(80) {
	case 0:
		return time.Duration(g.r.Int64N(int64(26 * time.Hour)))
	case 1, 2, 3, 4:
		return time.Duration(g.r.Int64N(int64(time.Minute)))
	case 5, 6:
		return -time.Duration(g.r.Int64N(int64(10 * time.Second)))
	case 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20:
		return 0
	}
	return time.Duration(g.r.Int64N(int64(300 * time.Millisecond)))
}

// amount is small, round, or as large as it may be.
func (g *generator) amount(limitTo int64) int64 {
	switch g.r.IntN(50) {
	case 0, 1, 2:
		return 0
	case 3:
		return g.r.Int64N(limitTo)
	case 4:
		return g.r.Int64N(1_000_000_000)
	}
	return g.r.Int64N(400)
}

// capacity is mostly some times what most requests cost, so that many are granted and many are refused.
func (g *generator) capacity() int64 {
	switch g.r.IntN(60) {
	case 0:
		return 1 + g.amount(1_000_000_000_000)
	case 1:
		return 1 + g.r.Int64N(400)
	}
	return 600 + g.r.Int64N(6000)
}

// place puts a request into the first shard, or spreads it; then some of its scopes are split.
func (g *generator) place(id uuid.UUID, scopes []limit.Scope) (int, limit.Spread) {
	if id[0]%3 != 0 { // by its id, so that what belongs together meets
		return shard, limit.Spread{}
	}
	for i := range scopes {
		scopes[i].Split = g.r.IntN(4) > 0
	}
	return spread.Home(id.String()), spread
}

// lies is place for a payer that may have moved since: it is in other shards then, and where it was is among the earlier ones.
func (g *generator) lies(id uuid.UUID, scopes []limit.Scope) (int, []int, limit.Spread) {
	at, sp := g.place(id, scopes)
	switch g.r.IntN(6) {
	case 0:
		return spread.At(3 + g.r.IntN(2)), g.everywhere(), limit.Spread{}
	case 1:
		sp = limit.Spread{First: spread.At(2), Shards: 3}
		for i := range scopes {
			scopes[i].Split = g.r.IntN(4) > 0
		}
		return sp.Home(id.String()), g.everywhere(), sp
	case 2:
		return at, g.everywhere()[:g.r.IntN(5)], sp
	}
	return at, nil, sp
}

func (g *generator) everywhere() (shards []int) {
	for _, i := range g.r.Perm(5) {
		shards = append(shards, spread.At(i))
	}
	return shards
}

// move is a new chain of moves, or one that was made before, of some scopes.
func (g *generator) move() limit.CarryRequest {
	if len(g.moves) > 0 && g.r.IntN(4) == 0 {
		return g.moves[len(g.moves)-1-g.r.IntN(min(len(g.moves), 5))]
	}
	var r limit.CarryRequest
	for range 1 + g.r.IntN(2) {
		var m limit.Move
		for _, i := range g.r.Perm(5)[:1+g.r.IntN(3)] {
			m.From = append(m.From, spread.At(i))
		}
		for _, i := range g.r.Perm(5)[:1+g.r.IntN(3)] {
			m.To = append(m.To, spread.At(i))
		}
		m.Fence = limit.Fence{Name: fmt.Sprintf("user:%c", "xy"[g.r.IntN(2)]), Version: int64(len(g.moves)) + 1}
		r.Moves = append(r.Moves, m)
	}
	for _, i := range g.r.Perm(2 * len(kinds))[:1+g.r.IntN(2*len(kinds))] {
		r.Scopes = append(r.Scopes, fmt.Sprintf("%s:%d", kinds[i/2], i%2))
	}
	g.moves = append(g.moves, r)
	g.version = max(g.version, int64(len(g.moves)))
	return r
}

func (g *generator) usage() limit.Amounts {
	return limit.Usage(g.amount(limit.MaxAmount/2), g.amount(limit.MaxAmount/2))
}

// scopes are one to three of four kinds; each has its limits, changed now and then.
func (g *generator) scopes() []limit.Scope {
	all := []limit.Limit{{Counted: limit.Requests, Window: time.Minute}, {Counted: limit.Tokens, Window: time.Minute}, {Counted: limit.Tokens, Window: 24 * time.Hour},
		{Counted: limit.Requests, Window: 24 * time.Hour}, {Counted: limit.InputTokens, Window: 1500 * time.Millisecond}, {Counted: limit.OutputTokens, Window: time.Hour}}
	var out []limit.Scope
	for _, i := range g.r.Perm(len(kinds))[:1+g.r.IntN(3)] {
		s := limit.Scope{Kind: kinds[i], Name: fmt.Sprintf("%s:%d", kinds[i], g.r.IntN(2))}
		caps := g.capacities[s.Name]
		if caps == nil || g.r.IntN(30) == 0 {
			caps = make([]int64, len(all)+1)
			for j := range caps {
				if g.r.IntN(3) > 0 {
					caps[j] = g.capacity()
				}
			}
			caps[len(all)] = g.r.Int64N(9)
			g.capacities[s.Name] = caps
		}
		for j, l := range all {
			if l.Capacity = caps[j]; l.Capacity > 0 {
				s.Limits = append(s.Limits, l)
			}
		}
		s.Slots = caps[len(all)]
		out = append(out, s)
	}
	return out
}

// id is mostly one that a check has used of late.
func (g *generator) id() uuid.UUID {
	if len(g.known) > 0 && g.r.IntN(6) > 0 {
		return g.known[len(g.known)-1-g.r.IntN(min(len(g.known), 20))]
	}
	return g.newID()
}

func (g *generator) newID() uuid.UUID {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(g.r.Uint32())
	}
	return id
}

func (g *generator) next() operation {
	id := g.id()
	user := subject.Subject{Kind: subject.User, ID: fmt.Sprintf("u%d", id[1]%2)} // by the id, so that what belongs together meets
	if g.r.IntN(30) == 0 {
		user.ID = "u0"
	}
	meta := fmt.Sprintf(`{"n": %d} x`, g.r.IntN(100))
	switch g.r.IntN(24) {
	case 22:
		if g.r.IntN(3) > 0 {
			break
		}
		r := g.move()
		return operation{fmt.Sprintf("carry %+v", r), func(ctx context.Context, s Subject) (any, error) { return nil, s.carrier().Carry(ctx, r) }}
	case 23:
		if len(g.moves) == 0 || g.r.IntN(4) > 0 {
			break
		}
		rs := g.moves[len(g.moves)-min(len(g.moves), 5):]
		return operation{"carried", func(ctx context.Context, s Subject) (any, error) { return s.carrier().Carried(ctx, rs) }}
	case 21:
		r := g.restore()
		return operation{fmt.Sprintf("restore %+v", r), func(ctx context.Context, s Subject) (any, error) { return restoreOn(ctx, s, r) }}
	case 20:
		r := limit.CancelRequest{Subject: user, RequestID: id, Scopes: g.scopes()}
		r.Shard, r.Earlier, r.Spread = g.lies(r.RequestID, r.Scopes)
		g.cancelled = true
		return operation{fmt.Sprintf("cancel %+v", r), func(ctx context.Context, s Subject) (any, error) { return s.Limiter.Cancel(ctx, r) }}
	case 0:
		g.version += g.r.Int64N(3)
		v := g.version
		return operation{fmt.Sprintf("publish %d", v), func(ctx context.Context, s Subject) (any, error) {
			var err error
			for i := range 5 {
				err = errors.Join(err, s.Publish(ctx, spread.At(i), "user:x", v))
			}
			return nil, err
		}}
	case 1, 2:
		r := limit.StatusRequest{Shard: shard, Scopes: g.scopes()}
		if g.r.IntN(3) == 0 {
			_, r.Spread = g.place(uuid.UUID{}, r.Scopes)
		}
		return operation{fmt.Sprintf("status %+v", r), func(ctx context.Context, s Subject) (any, error) { return s.Limiter.Status(ctx, r) }}
	case 4:
		r := limit.DueRequest{Shard: spread.At(g.r.IntN(5)), Most: 1_000_000, Meta: meta} // which of many come first is nobody's promise
		return operation{fmt.Sprintf("due %+v", r), func(ctx context.Context, s Subject) (any, error) {
			due, err := s.Limiter.Due(ctx, r)
			slices.SortFunc(due, func(a, b limit.Due) int {
				return cmp.Compare(a.RequestID.String()+a.Subject.String(), b.RequestID.String()+b.Subject.String())
			})
			return due, err
		}}
	case 5, 6:
		r := limit.ConsumeRequest{Subject: user, RequestID: id, Scopes: g.scopes(), Tokens: g.amount(limit.MaxAmount), Lease: time.Duration(g.r.IntN(3)) * 20 * time.Second}
		r.Shard, r.Earlier, r.Spread = g.lies(r.RequestID, r.Scopes)
		if g.r.IntN(4) == 0 {
			r.Fences = []limit.Fence{{Name: "user:x", Version: max(0, g.version-g.r.Int64N(2))}}
		}
		return operation{fmt.Sprintf("consume %+v", r), func(ctx context.Context, s Subject) (any, error) { return s.Limiter.Consume(ctx, r) }}
	case 3:
		at, _ := g.place(id, nil)
		return operation{"emitted " + id.String(), func(ctx context.Context, s Subject) (any, error) {
			return nil, s.Limiter.MarkEmitted(ctx, at, user, id)
		}}
	case 7, 8, 9, 10:
		r := limit.SettleRequest{Subject: user, RequestID: id, Scopes: g.scopes(), Actual: g.usage(), Meta: meta, Known: g.r.IntN(4) == 0}
		if g.r.IntN(3) == 0 {
			r.Age = time.Duration(g.amount(200_000)) * time.Millisecond
		}
		r.Shard, r.Earlier, r.Spread = g.lies(r.RequestID, r.Scopes)
		return operation{fmt.Sprintf("settle %+v", r), func(ctx context.Context, s Subject) (any, error) { return s.Limiter.Settle(ctx, r) }}
	}
	if g.r.IntN(3) > 0 {
		id = g.newID()
		user.ID = fmt.Sprintf("u%d", id[1]%2)
	}
	g.known = append(g.known, id)
	r := limit.CheckRequest{Subject: user, RequestID: id, Scopes: g.scopes(), Cost: g.usage(), Meta: meta,
		DryRun: g.r.IntN(8) == 0, Lease: time.Duration(g.r.IntN(3)) * 20 * time.Second}
	if g.r.IntN(3) == 0 {
		r.RequestID, r.Fresh = g.newID(), true
		r.Subject.ID = fmt.Sprintf("u%d", r.RequestID[1]%2)
		g.known = append(g.known, r.RequestID)
	}
	r.Shard, r.Earlier, r.Spread = g.lies(r.RequestID, r.Scopes)
	if g.r.IntN(2) == 0 {
		r.Drawn = limit.Amounts{limit.Requests: r.Cost[limit.Requests], limit.Tokens: r.Cost[limit.InputTokens], limit.InputTokens: r.Cost[limit.InputTokens]}
	}
	if g.r.IntN(4) == 0 {
		r.Fences = []limit.Fence{{Name: "user:x", Version: max(0, g.version-g.r.Int64N(2))}}
	}
	return operation{fmt.Sprintf("check %+v", r), func(ctx context.Context, s Subject) (any, error) { return s.Limiter.Check(ctx, r) }}
}
