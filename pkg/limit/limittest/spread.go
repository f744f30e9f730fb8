package limittest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// hot is a world whose user lies over eight shards.
type hot struct {
	*world
	spread limit.Spread
}

func hotWorld(w *world) hot {
	w.Limiter = spreading(w.Subject).Limiter
	return hot{w, limit.Spread{First: w.shard, Shards: 8}}
}

func (h hot) request(tokens int64, s limit.Scope) limit.CheckRequest {
	s.Split = true
	id := uuid.New()
	r := h.world.request(id, tokens, []limit.Scope{s})
	r.Shard, r.Spread = h.spread.Home(id.String()), h.spread
	return r
}

func (h hot) ask(r limit.CheckRequest) limit.Decision {
	h.t.Helper()
	d, err := h.Limiter.Check(context.Background(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

func (h hot) end(r limit.CheckRequest, tokens int64) limit.Settlement {
	h.t.Helper()
	s, err := h.Limiter.Settle(context.Background(), limit.SettleRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes,
		Actual: limit.Usage(tokens, 0), Meta: "settle meta"})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h hot) whole(s limit.Scope) limit.ScopeState {
	h.t.Helper()
	s.Split = true
	st, err := h.Limiter.Status(context.Background(), limit.StatusRequest{Shard: h.shard, Spread: h.spread, Scopes: []limit.Scope{s}})
	if err != nil {
		h.t.Fatal(err)
	}
	return st.Scopes[0]
}

// Capacities that no number of shards divides: every token of them is sold, and not one more.
func spreadSellsAll(w *world) {
	h, s := hotWorld(w), scope(101, 1009, 0, 0)
	granted := 0
	for range 150 {
		d := h.ask(h.request(7, s))
		if d.Allowed {
			granted++
			continue
		}
		if d.Reason != rpm || d.Scopes[0].Limits[0].Remaining != 0 || d.Scopes[0].Limits[0].Capacity != 101 {
			w.t.Fatalf("%+v", d)
		}
	}
	if got := h.whole(s); granted != 101 || got.Limits[0].Remaining != 0 || got.Limits[1].Remaining != 1009-707 {
		w.t.Errorf("%d of 101 granted, left %+v", granted, got)
	}
}

// A request larger than any share is granted while all shares together have room, and waits for exactly as long as they haven't.
func spreadLendsForLarge(w *world) {
	h, s := hotWorld(w), scope(0, 8000, 0, 0)
	first := h.ask(h.request(5000, s))
	w.wantAllowed(first)
	d := h.ask(h.request(5000, s))
	w.wantRefused(d, tpm)
	if d.Scopes[0].Limits[0].Remaining != 3000 {
		w.t.Errorf("left %+v", d.Scopes[0])
	}
	for range 5 {
		w.clock.Add(d.RetryAfter - time.Millisecond)
		w.wantRefused(h.ask(h.request(5000, s)), tpm)
		w.clock.Add(time.Millisecond)
		w.wantAllowed(h.ask(h.request(5000, s)))
		d = h.ask(h.request(5000, s))
		w.wantRefused(d, tpm)
	}
	if d := h.ask(h.request(8001, s)); d.Allowed || d.Reason != limit.ReasonRequestTooLarge || d.RetryAfter != 0 {
		w.t.Errorf("larger than the whole: %+v", d)
	}
}

// A refused request leaves nothing lent.
func spreadRefusalChangesNothing(w *world) {
	h, s := hotWorld(w), scope(50, 8000, 0, 9)
	w.wantAllowed(h.ask(h.request(7000, s)))
	before := h.whole(s)
	for range 20 {
		w.wantRefused(h.ask(h.request(1001, s)), tpm)
	}
	dry := h.request(900, s)
	dry.DryRun = true
	w.wantAllowed(h.ask(dry))
	if after := h.whole(s); after.Limits[0].Remaining != before.Limits[0].Remaining || after.Limits[1].Remaining != before.Limits[1].Remaining || after.InUse != before.InUse {
		w.t.Errorf("%+v, before %+v", after, before)
	}
}

// Slots are lent, too, are renewed where they are held, and return there.
func spreadSlots(w *world) {
	h, s := hotWorld(w), scope(0, 1_000_000, 0, 10)
	var open []limit.CheckRequest
	fill := func() {
		for len(open) < 10 {
			r := h.request(10, s)
			w.wantAllowed(h.ask(r))
			open = append(open, r)
		}
		d := h.ask(h.request(10, s))
		w.wantRefused(d, limit.ReasonConcurrent)
		if got := h.whole(s); got.InUse != 10 || got.Slots != 10 {
			w.t.Fatalf("%+v", got)
		}
	}
	for range 4 {
		fill()
		for range 14 { // longer than the lease
			w.clock.Add(60 * time.Second)
			for _, r := range open {
				c, err := h.Limiter.Consume(context.Background(), limit.ConsumeRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes, Tokens: 1})
				if err != nil || !c.Allowed || c.CheckMeta != "check meta" {
					w.t.Fatal(c, err)
				}
			}
		}
		fill()
		for _, r := range open[:5] {
			if st := h.end(r, 30); st.Status != limit.Settled || st.CheckMeta != "check meta" {
				w.t.Fatalf("%+v", st)
			}
			if st := h.end(r, 30); st.Status != limit.AlreadySettled || st.CheckMeta != "check meta" {
				w.t.Fatalf("%+v", st)
			}
		}
		if got := h.whole(s).InUse; got != 5 {
			w.t.Fatalf("%d in use after 5 of 10 were settled", got)
		}
		open = open[5:]
	}
	w.clock.Add(limit.DefaultLease + time.Second)
	if got := h.whole(s).InUse; got != 0 {
		w.t.Errorf("%d in use after every lease has ended", got)
	}
}

// A stream draws from all shards once its reservation and its home are used up, and stops when nothing is left.
func spreadConsumes(w *world) {
	h, s := hotWorld(w), scope(0, 8000, 0, 0)
	r := h.request(100, s)
	r.Drawn = r.Cost
	w.wantAllowed(h.ask(r))
	consume := func(tokens int64) limit.Consumption {
		c, err := h.Limiter.Consume(context.Background(), limit.ConsumeRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes, Tokens: tokens})
		if err != nil {
			w.t.Fatal(err)
		}
		return c
	}
	for range 3 {
		if c := consume(2500); !c.Allowed {
			w.t.Fatalf("%+v", c)
		}
	}
	c := consume(500)
	if c.Allowed || c.Reason != tpm || c.RetryAfter == 0 || c.Scopes[0].Limits[0].Remaining != 400 {
		w.t.Fatalf("with 400 left: %+v", c)
	}
	w.clock.Add(c.RetryAfter)
	if c := consume(500); !c.Allowed {
		w.t.Errorf("after the advised wait: %+v", c)
	}
}

// More shards than there is to share out: some have nothing, and sell nothing.
func spreadFewerThanShards(w *world) {
	h := hotWorld(w)
	for i, s := range []limit.Scope{scope(3, 0, 0, 0), scope(0, 0, 0, 2), scope(5, 1_000_000, 0, 3)} {
		s.Name += string(rune('a' + i))
		granted := 0
		for range 40 {
			if d := h.ask(h.request(10, s)); d.Allowed {
				granted++
			}
		}
		want := int(s.Slots)
		if want == 0 {
			want = int(s.Limits[0].Capacity)
		}
		if got := h.whole(s); granted != want || got.InUse != int64(want) {
			w.t.Errorf("%d of %d granted, %+v", granted, want, got)
		}
	}
}

// While many borrow at once a loan counts once, in whichever round it was gathered.
func spreadContended(w *world) {
	h, s := hotWorld(w), scope(0, 4_000, 0, 0)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 15 {
				if d, err := h.Limiter.Check(context.Background(), h.request(70, s)); err == nil && d.Allowed {
					granted.Add(70)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() > 4_000 || granted.Load() < 3_900 {
		w.t.Errorf("%d of 4000 granted", granted.Load())
	}
}

// What one request has used far beyond its reservation is a debt of all shards, not only of its home.
func spreadDebt(w *world) {
	h, s := hotWorld(w), scope(0, 8_000, 0, 0)
	r := h.request(100, s)
	w.wantAllowed(h.ask(r))
	h.end(r, 80_000)
	for range 20 {
		w.wantRefused(h.ask(h.request(10, s)), tpm)
	}
	w.clock.Add(9*time.Minute + time.Second) // 72,000 and more have drained
	w.wantAllowed(h.ask(h.request(10, s)))
}

// A key's slots and its user's are each taken where there is one: all of both are given, whichever shards have them.
func spreadTwoSlots(w *world) {
	h := hotWorld(w)
	for _, slots := range []int64{16, 11, 5} {
		u := limit.Scope{Kind: limit.ScopeUser, Name: fmt.Sprintf("user:of%d", slots), Slots: 16, Split: true}
		k := limit.Scope{Kind: limit.ScopeKey, Name: fmt.Sprintf("api_key:of%d", slots), Slots: slots, Split: true}
		both := func() limit.CheckRequest {
			r := h.request(10, u)
			r.Scopes = []limit.Scope{k, u}
			return r
		}
		var open []limit.CheckRequest
		for round := range 6 {
			for int64(len(open)) < slots {
				r := both()
				w.wantAllowed(h.ask(r))
				open = append(open, r)
			}
			w.wantRefused(h.ask(both()), limit.ReasonConcurrent)
			if a, b := h.whole(k).InUse, h.whole(u).InUse; a != slots || b != slots {
				w.t.Fatalf("%d and %d in use of %d", a, b, slots)
			}
			for i := range open[:round] {
				r := open[i]
				if i%2 == 0 {
					h.end(r, 3)
				} else if done, err := h.Limiter.Cancel(context.Background(), limit.CancelRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes}); err != nil || !done {
					w.t.Fatal(done, err)
				}
			}
			open = open[min(round, len(open)):]
			if got := h.whole(u).InUse; got != int64(len(open)) {
				w.t.Fatalf("%d in use after %d have ended", got, round)
			}
		}
	}
}

// What a request has borrowed of other shards and not used is theirs again as soon as it ends, however it does.
func spreadUnusedGoesBack(w *world) {
	h, s := hotWorld(w), scope(80, 8_000, 80_000, 8)
	cancel := func(r limit.CheckRequest) {
		if done, err := h.Limiter.Cancel(context.Background(), limit.CancelRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes}); err != nil || !done {
			w.t.Fatal(done, err)
		}
	}
	want := func(requests, minute int64) {
		w.t.Helper()
		if got := h.whole(s); got.Limits[0].Remaining != requests || got.Limits[1].Remaining != minute || got.Limits[2].Remaining != minute+72_000 || got.InUse != 0 {
			w.t.Fatalf("left %+v, want %d requests and %d tokens", got, requests, minute)
		}
	}
	grant := func(tokens int64) limit.CheckRequest {
		r := h.request(tokens, s)
		r.Drawn = r.Cost
		w.wantAllowed(h.ask(r))
		return r
	}
	for range 8 {
		cancel(grant(7_900))
		want(80, 8_000)
	}
	used, left := int64(0), int64(8_000)
	for _, n := range []int64{100, 0, 999, 1_001} {
		h.end(grant(left), n)
		used, left = used+1, left-n
		want(80-used, left)
	}
	r := grant(1_000) // and a stream that borrows while it goes on
	c, err := h.Limiter.Consume(context.Background(), limit.ConsumeRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes, Tokens: 4_000})
	if err != nil || !c.Allowed {
		w.t.Fatal(c, err)
	}
	h.end(r, 1_500)
	want(75, left-1_500)
	h.end(grant(left-1_500), left-1_500) // all of it can be sold
	want(74, 0)
}
