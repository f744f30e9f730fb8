package limittest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// RunMover is the suite of limit.Carrier, for limiters that are one: what becomes of requests whose payer moves while they are open. Each test is made on
// several ways to move.
func RunMover(t *testing.T, f Factory) {
	at := func(first, shards int) limit.Spread { return limit.Spread{First: first, Shards: shards} }
	ways := map[string][]limit.Spread{
		"to another shard":          {at(3, 1), at(200, 1)},
		"there and back":            {at(3, 1), at(200, 1), at(3, 1)},
		"twice":                     {at(3, 1), at(200, 1), at(90, 1)},
		"to more shards":            {at(3, 1), at(3, 8)},
		"to fewer shards":           {at(3, 8), at(3, 3)},
		"to more, then all to one":  {at(3, 1), at(3, 4), at(60, 1)},
		"from some to some others":  {at(3, 4), at(60, 3)},
		"over the end of the range": {at(250, 1), at(250, 8), at(1, 2)},
	}
	for _, c := range []struct {
		name string
		test func(*payer)
	}{
		{"WhatWasHeldAndNotUsedIsFreeAtOnce", movedSettles},
		{"WhoeverHasNotHeardOfTheMoveEndsARequestAllTheSame", movedUnawares},
		{"OveruseIsDebitedWhereThePayerIs", movedDebt},
		{"CancelledCheckLeavesNothingWhereThePayerIs", movedCancel},
		{"GrantedIDAskedAgainIsTheSame", movedRepeat},
		{"StreamGoesOnAndPaysWhereThePayerIs", movedStream},
		{"PoolIsFollowedByThoseWhoStayAndThoseWhoHaveLeft", movedPool},
		{"UnknownRequestIsDebitedWhereThePayerIs", movedUnknown},
		{"OldVersionDecidesNothingAnyMore", movedFence},
		{"GroupThatIsGoneAndComesBackHasItsSlots", movedGroup},
		{"GroupThatCameAlongAndWasTakenOffHasItsSlots", movedGroupAlong},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(ways)) {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t, f)
					carrier := w.carrier()
					w.Limiter = spreading(w.Subject).Limiter
					c.test(&payer{world: w, carrier: carrier, way: ways[name], at: ways[name][0], version: 1})
				})
			}
		})
	}
}

// payer is a world whose user goes a way, and says where its requests lie as package decide does.
type payer struct {
	*world
	carrier limit.Carrier
	way     []limit.Spread
	at      limit.Spread
	moves   []limit.Move
	version int64
}

const group = "user:u1/model:big"

func shardsOf(s limit.Spread) (out []int) {
	for i := range s.Shards {
		out = append(out, s.At(i))
	}
	return out
}

// moveOn goes the rest of the way, all of what is named in one step a move.
func (p *payer) moveOn(names ...string) {
	p.t.Helper()
	p.clock.Add(time.Millisecond) // what was granted in the very millisecond of a move is not told from what is granted after it
	for _, to := range p.way[1:] {
		p.version++
		p.moves = append(p.moves, limit.Move{From: shardsOf(p.at), To: shardsOf(to), Fence: limit.Fence{Name: "user:u1", Version: p.version}})
		p.at = to
		p.carry(names...)
	}
	p.way = p.way[:1]
}

func (p *payer) carry(names ...string) {
	p.t.Helper()
	if len(p.moves) == 0 {
		return
	}
	r := limit.CarryRequest{Moves: p.moves, Scopes: append([]string{"user:u1"}, names...), Fences: p.fences()}
	for range 2 { // the second time finds it made
		if err := p.carrier.Carry(context.Background(), r); err != nil {
			p.t.Fatal(err)
		}
	}
	if made, err := p.carrier.Carried(context.Background(), []limit.CarryRequest{r}); err != nil || !made[0] {
		p.t.Fatal(made, err)
	}
}

func (p *payer) fences() []limit.Fence { return []limit.Fence{{Name: "user:u1", Version: p.version}} }

func (p *payer) home(id uuid.UUID, at limit.Spread) int { return at.Home(id.String()) }

func (p *payer) lies(id uuid.UUID) (shard int, earlier []int, sp limit.Spread) {
	for _, m := range slices.Backward(p.moves) {
		earlier = append(earlier, p.home(id, limit.Spread{First: m.From[0], Shards: len(m.From)}))
	}
	if p.at.Shards > 1 {
		sp = p.at
	}
	return p.home(id, p.at), earlier, sp
}

func split(scopes []limit.Scope) []limit.Scope {
	out := slices.Clone(scopes)
	for i := range out {
		out[i].Split = true
	}
	return out
}

func (p *payer) ask(id uuid.UUID, tokens int64, scopes ...limit.Scope) limit.Decision {
	p.t.Helper()
	r := limit.CheckRequest{Subject: p.user, RequestID: id, Scopes: split(scopes), Cost: limit.Usage(tokens, 0), Drawn: limit.Usage(tokens, 0), Meta: "check meta", Fences: p.fences()}
	r.Shard, r.Earlier, r.Spread = p.lies(id)
	d, err := p.Limiter.Check(context.Background(), r)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *payer) grant(tokens int64, scopes ...limit.Scope) uuid.UUID {
	p.t.Helper()
	id := uuid.New()
	p.wantAllowed(p.ask(id, tokens, scopes...))
	return id
}

func (p *payer) end(id uuid.UUID, tokens int64, scopes ...limit.Scope) limit.Settlement {
	p.t.Helper()
	r := limit.SettleRequest{Subject: p.user, RequestID: id, Scopes: split(scopes), Actual: limit.Usage(tokens, 0), Meta: "settle meta"}
	r.Shard, r.Earlier, r.Spread = p.lies(id)
	s, err := p.Limiter.Settle(context.Background(), r)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *payer) draw(id uuid.UUID, tokens int64, scopes ...limit.Scope) limit.Consumption {
	p.t.Helper()
	r := limit.ConsumeRequest{Subject: p.user, RequestID: id, Scopes: split(scopes), Tokens: tokens, Fences: p.fences()}
	r.Shard, r.Earlier, r.Spread = p.lies(id)
	c, err := p.Limiter.Consume(context.Background(), r)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// wantLeft compares what is left of a scope in all shards of a spread.
func (p *payer) wantLeft(at limit.Spread, s limit.Scope, open int64, left ...int64) {
	p.t.Helper()
	r := limit.StatusRequest{Shard: at.First, Scopes: split([]limit.Scope{s})}
	if at.Shards > 1 {
		r.Spread = at
	}
	st, err := p.Limiter.Status(context.Background(), r)
	if err != nil {
		p.t.Fatal(err)
	}
	var got []int64
	for _, l := range st.Scopes[0].Limits {
		got = append(got, l.Remaining)
	}
	if !slices.Equal(got, left) || st.Scopes[0].InUse != open {
		p.t.Errorf("%s: left %v with %d open, want %v with %d", s.Name, got, st.Scopes[0].InUse, left, open)
	}
}

func movedSettles(p *payer) {
	s := scope(100, 0, 80_000, 16)
	first, second, kept := p.grant(400, s), p.grant(8_000, s), p.grant(1_600, s)
	p.moveOn()
	p.wantLeft(p.at, s, 3, 97, 70_000)
	got := p.end(first, 80, s)
	if got.Status != limit.Settled || got.Reserved != limit.Usage(400, 0) || got.CheckMeta != "check meta" || got.LeaseWas.IsZero() {
		p.t.Errorf("%+v", got)
	}
	p.wantLeft(p.at, s, 2, 97, 70_320)
	if got := p.end(second, 0, s); got.Status != limit.Settled {
		p.t.Errorf("%+v", got)
	}
	p.wantLeft(p.at, s, 1, 97, 78_320)
	for range 2 {
		if got := p.end(first, 300, s); got.Status != limit.AlreadySettled || got.Meta != "settle meta" {
			p.t.Errorf("settled again: %+v", got)
		}
	}
	if err := p.Limiter.MarkEmitted(context.Background(), p.end(second, 0, s).Shard, p.user, second); err != nil {
		p.t.Error(err)
	}
	if got := p.end(second, 0, s); !got.Emitted {
		p.t.Errorf("the event was noted as durable where the request lies: %+v", got)
	}
	p.wantLeft(p.at, s, 1, 97, 78_320)
	p.end(kept, 1_600, s)
	p.wantLeft(p.at, s, 0, 97, 78_320)
}

// An instance whose copy of the quota is from before the move ends the request where it was made.
func movedUnawares(p *payer) {
	s := scope(100, 0, 80_000, 16)
	used, dropped, drawn := p.grant(8_000, s), p.grant(800, s), p.grant(80, s)
	before := *p
	p.moveOn()
	before.end(used, 2_000, s)
	p.wantLeft(p.at, s, 2, 97, 80_000-2_000-880)
	r := limit.CancelRequest{Subject: p.user, RequestID: dropped, Scopes: split([]limit.Scope{s})}
	r.Shard, r.Earlier, r.Spread = before.lies(dropped)
	if done, err := p.Limiter.Cancel(context.Background(), r); err != nil || !done {
		p.t.Error(done, err)
	}
	p.wantLeft(p.at, s, 1, 98, 80_000-2_000-80)
	var stale *limit.StaleError
	c := limit.ConsumeRequest{Subject: p.user, RequestID: drawn, Scopes: split([]limit.Scope{s}), Tokens: 20, Fences: before.fences()}
	c.Shard, c.Earlier, c.Spread = before.lies(drawn)
	if _, err := p.Limiter.Consume(context.Background(), c); !errors.As(err, &stale) {
		p.t.Errorf("a stream went on by an old quota: %v", err)
	}
	p.end(drawn, 80, s)
	p.wantLeft(p.at, s, 0, 98, 80_000-2_000-80)
}

func movedDebt(p *payer) {
	s := scope(100, 0, 8_000, 16)
	id := p.grant(800, s)
	p.moveOn()
	p.end(id, 4_000, s)
	p.wantLeft(p.at, s, 0, 99, 4_000)
}

func movedCancel(p *payer) {
	s := scope(100, 0, 80_000, 16)
	p.grant(16, s)
	id := p.grant(8_000, s)
	p.moveOn()
	r := limit.CancelRequest{Subject: p.user, RequestID: id, Scopes: split([]limit.Scope{s}), Meta: "check meta"}
	r.Shard, r.Earlier, r.Spread = p.lies(id)
	for _, want := range []bool{true, false} {
		if done, err := p.Limiter.Cancel(context.Background(), r); err != nil || done != want {
			p.t.Errorf("cancelled: %v, %v, want %v", done, err, want)
		}
		p.wantLeft(p.at, s, 1, 99, 80_000-16)
	}
	p.wantAllowed(p.ask(id, 32, s)) // the id is free again
	p.wantLeft(p.at, s, 2, 98, 80_000-48)
}

func movedRepeat(p *payer) {
	s := scope(100, 0, 80_000, 16)
	open, ended := p.grant(8_000, s), p.grant(1_600, s)
	p.end(ended, 1_600, s)
	p.moveOn()
	for id, reserved := range map[uuid.UUID]int64{open: 8_000, ended: 1_600} {
		d := p.ask(id, 5, s)
		if !d.Allowed || !d.Repeated || d.Reserved != limit.Usage(reserved, 0) || (id == open) != !d.LeaseUntil.IsZero() || len(d.Scopes) != 1 {
			p.t.Errorf("asked again: %+v", d)
		}
		p.wantLeft(p.at, s, 1, 98, 80_000-9_600)
	}
	p.end(open, 0, s)
	p.wantLeft(p.at, s, 0, 98, 80_000-1_600)
}

func movedStream(p *payer) {
	s := scope(100, 0, 8_000, 4)
	id := p.grant(800, s)
	p.moveOn()
	p.clock.Add(300 * time.Second)
	p.clock.Add(-299 * time.Second) // the lease is renewed from now on
	c := p.draw(id, 400, s)
	if !c.Allowed || c.Status != limit.ReservationOpen || !c.LeaseUntil.After(c.LeaseWas) || c.CheckMeta != "check meta" || len(c.Scopes) != 1 {
		p.t.Errorf("%+v", c)
	}
	left := func() int64 {
		r := limit.StatusRequest{Shard: p.at.First, Scopes: split([]limit.Scope{s})}
		if p.at.Shards > 1 {
			r.Spread = p.at
		}
		st, err := p.Limiter.Status(context.Background(), r)
		if err != nil || st.Scopes[0].InUse != 1 {
			p.t.Errorf("%+v, %v", st, err)
		}
		return st.Scopes[0].Limits[1].Remaining
	}
	near := func(got, want int64) bool { return got >= want && got < want+10 } // drained in a second
	if got := left(); !near(got, 8_000-1_200) {
		p.t.Errorf("the stream has drawn 400 beyond the 800 that it held: %d left", got)
	}
	if c := p.draw(id, 7_500, s); c.Allowed || c.Reason == "" || !c.LeaseUntil.After(c.At) {
		p.t.Errorf("more was drawn than there is: %+v", c)
	}
	if got := left(); !near(got, 8_000-1_200) {
		p.t.Errorf("a refused draw costs nothing: %d left", got)
	}
	p.end(id, 1_000, s)
	p.grant(6_900, s)
	if st := p.end(id, 1, s); st.Status != limit.AlreadySettled {
		p.t.Errorf("%+v", st)
	}
}

// The pool of an org has moved, by its own version: it is found by members who are still there, and by one that has left.
func movedPool(p *payer) {
	own, pool := scope(0, 0, 80_000, 4), limit.Scope{Kind: limit.ScopeOrg, Name: "org:o1", Slots: 16, Limits: []limit.Limit{{Counted: limit.Tokens, Capacity: 160_000, Window: 24 * time.Hour}}}
	stays, left := p.grant(8_000, own, pool), p.grant(800, own, pool)
	before := *p
	p.moveOn("org:o1")
	p.wantLeft(p.at, pool, 2, 160_000-8_800)
	p.end(stays, 2_000, own, pool)
	p.wantLeft(p.at, pool, 1, 160_000-2_800)
	p.end(left, 200, own) // its quota names no pool any more
	p.wantLeft(p.at, pool, 0, 160_000-2_200)
	p.wantLeft(p.at, own, 0, 80_000-2_200)
	if got := before.end(left, 7, own, pool); got.Status != limit.AlreadySettled {
		p.t.Errorf("%+v", got)
	}
}

func movedUnknown(p *payer) {
	s := scope(100, 0, 80_000, 4)
	p.grant(16, s)
	before := *p
	p.moveOn()
	for id, who := range map[uuid.UUID]*payer{uuid.New(): p, uuid.New(): &before} {
		if got := who.end(id, 4_000, s); got.Status != limit.Unknown {
			p.t.Errorf("%+v", got)
		}
		if got := p.end(id, 9_000, s); got.Status != limit.AlreadySettled {
			p.t.Errorf("a repeat: %+v", got)
		}
	}
	p.wantLeft(p.at, s, 1, 100-3, 80_000-16-8_000)
}

func movedFence(p *payer) {
	s := scope(100, 0, 80_000, 4)
	p.grant(16, s)
	before := *p
	p.moveOn()
	for _, shard := range shardsOf(before.at) {
		var stale *limit.StaleError
		_, err := p.Limiter.Check(context.Background(), limit.CheckRequest{Shard: shard, Subject: p.user, RequestID: uuid.New(), Scopes: []limit.Scope{s}, Cost: limit.Usage(1, 0), Fences: before.fences()})
		if !errors.As(err, &stale) || stale.Published != p.version {
			p.t.Errorf("shard %d decides by an old quota: %v", shard, err)
		}
	}
	// Who moves the payer by an old quota is told so, and changes nothing.
	old := limit.CarryRequest{Moves: []limit.Move{{From: shardsOf(p.at), To: []int{111}, Fence: limit.Fence{Name: "user:u1", Version: 1}}}, Scopes: []string{"user:u1"}, Fences: before.fences()}
	var stale *limit.StaleError
	if err := p.carrier.Carry(context.Background(), old); !errors.As(err, &stale) || *stale != (limit.StaleError{Name: "user:u1", Published: p.version}) {
		p.t.Errorf("carried by an old quota: %v", err)
	}
	p.wantLeft(p.at, s, 1, 99, 80_000-16)
}

// A model's group is taken off the quota while a request is open, and is put back: before the move, so that it stays behind until then, or after it.
func movedGroup(p *payer) { regained(p) }

func movedGroupAlong(p *payer) { regained(p, group) }

func regained(p *payer, names ...string) {
	own := scope(100, 0, 80_000, 4)
	big := limit.Scope{Kind: limit.ScopeModel, Name: group, Slots: 8, Limits: []limit.Limit{{Counted: limit.Tokens, Capacity: 40_000, Window: 24 * time.Hour}}}
	id := p.grant(4_000, own, big)
	p.moveOn(names...)
	p.end(id, 1_000, own) // it isn't on the quota now
	p.carry(group)
	p.wantLeft(p.at, big, 0, 39_000)
	p.wantLeft(p.at, own, 0, 99, 79_000)
	for range 8 { // all of its slots are free
		p.grant(0, big)
	}
}
