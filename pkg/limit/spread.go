package limit

import (
	"context"
	"hash/fnv"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Spread is how a payer whose requests are too many for one shard lies over several: First and those after it. The zero value is one shard.
type Spread struct{ First, Shards int }

// At is the shard with number i of the spread.
func (s Spread) At(i int) int { return (s.First + i) % subject.Shards }

// index is the number of a shard in the spread.
func (s Spread) index(shard int) int { return (shard - s.First + subject.Shards) % subject.Shards }

// Home is the shard in which the requests with a key lie: the request id where the subject itself is split, the subject's name where only
// its org is.
func (s Spread) Home(key string) int {
	if s.Shards < 2 {
		return s.First
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return s.At(int(h.Sum32() % uint32(s.Shards))) //nolint:gosec // from 2 to 64
}

// holds tells whether a shard is one of the spread's.
func (s Spread) holds(shard int) bool { return s.Shards > 1 && s.index(shard) < s.Shards }

// Shares gives the scopes as they are in one shard: what is Split has a share of its capacities and slots, which add up to the whole. Where a
// share is nothing the scope says so: its limit stands there with a capacity of 1, of which nothing may be sold or lent. In a shard that is none of the
// spread's, what is Split has the limits of its state (Own).
func (s Spread) Shares(scopes []Scope, shard int) []Scope {
	if s.Shards < 2 {
		return scopes
	}
	if !s.holds(shard) {
		out := slices.Clone(scopes)
		for k := range out {
			if out[k].Split {
				out[k].Limits, out[k].Slots, out[k].lent, out[k].own = nil, 0, nil, true
			}
		}
		return out
	}
	share := func(whole int64) int64 { return Part(whole, s.index(shard), s.Shards) }
	out := make([]Scope, len(scopes))
	for k, sc := range scopes {
		if sc.Split {
			limits := make([]Limit, len(sc.Limits))
			sc.bare = make([]bool, len(sc.Limits))
			for j, l := range sc.Limits {
				l.Capacity = share(l.Capacity)
				if l.Capacity == 0 {
					l.Capacity, sc.bare[j] = 1, true
				}
				limits[j] = l
			}
			sc.Limits = limits
			if sc.Slots > 0 {
				if sc.Slots = share(sc.Slots); sc.Slots == 0 {
					sc.Slots, sc.slotless = 1, true
				}
			}
		}
		out[k] = sc
	}
	return out
}

// isBare tells that a request of this cost can't be decided by the shares of its home alone.
func isBare(home []Scope, cost Amounts) bool {
	for _, sc := range home {
		if sc.slotless {
			return true
		}
		for j, bare := range sc.bare {
			if bare && cost[sc.Limits[j].Counted] > 0 {
				return true
			}
		}
	}
	return false
}

// Spreader is a Limiter for requests with a Spread; it passes on those without. A request is decided in its home, by the shares of the
// capacities there. Where they don't suffice, the other shards lend: they take the room from themselves, and the home charges so much less.
// So at every moment all shares together have admitted at most what the whole allows, whatever fails in between: a loan that is not
// returned is room lost until it has drained, a slot until its lease ends.
//
// What a decision tells of a Split scope is exact after a refusal, for then all shards were asked; after a grant Remaining is an estimate
// by the home's share.
type Spreader struct{ Lender }

var _ Limiter = Spreader{}

// loanLease is how long a slot is lent before the check that borrows it has been granted; then it is held as long as that.
const loanLease = 15 * time.Second

// borrowRounds is how often room is gathered for one request while others take it away.
const borrowRounds = 3

// Check implements Limiter.
func (s Spreader) Check(ctx context.Context, r CheckRequest) (Decision, error) {
	if !r.Fresh && !r.DryRun {
		if d, err := s.grantedEarlier(ctx, r); err != nil || d.Repeated {
			return d, err
		}
	}
	if r.Spread.Shards < 2 {
		return s.Lender.Check(ctx, r)
	}
	home := r
	home.Scopes = r.Spread.Shares(r.Scopes, r.Shard)
	first, bare := home, isBare(home.Scopes, r.Cost)
	first.DryRun = r.DryRun || bare // by its share alone it would be granted what nobody has
	d, err := s.Lender.Check(ctx, first)
	if err != nil {
		return d, err
	}
	if d.Repeated || (d.Allowed && !bare) {
		return estimated(d, r.Scopes, r.Spread), nil
	}
	l := newLoans(s.Lender, r.Spread, r.Shard, r.Scopes)
	if d.Allowed { // but for what it must borrow: as it was before the dry run charged it
		d = uncharged(d, r.Cost)
	}
	if (r.DryRun || l.large(home.Scopes, r.Cost)) && !l.look(ctx, d.Scopes, r.Cost) {
		return l.refusal(d, r.Cost), nil
	}
	if r.DryRun {
		d.Allowed, d.Reason, d.Scope, d.RetryAfter = true, "", "", 0
		return estimated(d, r.Scopes, r.Spread), nil
	}
	for round := 0; round < borrowRounds && !d.Allowed; round++ {
		if !l.gather(ctx, d.Scopes, r.Cost, leaseEnd(d.At.UnixMilli(), loanLease)) {
			break
		}
		home.Scopes = l.apply(home.Scopes)
		if d, err = s.Lender.Check(ctx, home); err != nil {
			return d, err // perhaps it was granted: the loans stay
		}
	}
	if d.Allowed && !d.Repeated {
		l.hold(ctx, d.LeaseUntil)
		return estimated(d, r.Scopes, r.Spread), nil
	}
	l.giveBack(ctx)
	if d.Allowed {
		return estimated(d, r.Scopes, r.Spread), nil
	}
	return l.refusal(d, r.Cost), nil
}

// lies gives the shard in which a request is known: the one where its payer is now, or one that its payer has left; the first if in none.
func (s Spreader) lies(ctx context.Context, shard int, earlier []int, of subject.Subject, id uuid.UUID) (int, error) {
	if len(earlier) == 0 {
		return shard, nil
	}
	at, known, err := s.Find(ctx, of, id, append([]int{shard}, earlier...))
	if err != nil || !known {
		return shard, err
	}
	return at, nil
}

// grantedEarlier repeats the answer to a check that was granted before its payer moved; Repeated is false if none was.
func (s Spreader) grantedEarlier(ctx context.Context, r CheckRequest) (Decision, error) {
	at, err := s.lies(ctx, r.Shard, r.Earlier, r.Subject, r.RequestID)
	if err != nil || at == r.Shard {
		return Decision{}, err
	}
	d, err := s.Lender.Check(ctx, CheckRequest{Shard: at, Subject: r.Subject, RequestID: r.RequestID, Cost: r.Cost, Drawn: r.Drawn, Lease: r.Lease,
		Fences: r.Fences, Meta: r.Meta, Known: true})
	if err != nil || !d.Repeated {
		return Decision{}, err
	}
	now, err := s.Status(ctx, StatusRequest{Shard: r.Shard, Spread: r.Spread, Scopes: r.Scopes, Fences: r.Fences})
	d.Scopes = now.Scopes
	return d, err
}

// Consume implements Limiter. What is told of the scopes is what is left where the payer is now.
func (s Spreader) Consume(ctx context.Context, r ConsumeRequest) (Consumption, error) {
	at, err := s.lies(ctx, r.Shard, r.Earlier, r.Subject, r.RequestID)
	if err != nil {
		return Consumption{}, err
	}
	home := r
	home.Shard = at
	c, err := s.Lender.Consume(ctx, home)
	if err == nil && r.Spread.holds(at) && c.Status == ReservationOpen && !c.Allowed {
		c, err = s.borrow(ctx, home, c, at == r.Shard)
	}
	switch {
	case err != nil:
	case at != r.Shard:
		var now Status
		now, err = s.Status(ctx, StatusRequest{Shard: r.Shard, Spread: r.Spread, Scopes: r.Scopes, Fences: r.Fences})
		c.Scopes = now.Scopes
	case r.Spread.Shards > 1 && (c.Allowed || c.Status != ReservationOpen):
		c.Scopes = estimates(c.Scopes, r.Scopes, r.Spread)
	}
	return c, err
}

// borrow tries a consume again that its home has refused, with what other shards lend. A refusal tells of all shards, unless its payer has moved on.
func (s Spreader) borrow(ctx context.Context, r ConsumeRequest, c Consumption, home bool) (Consumption, error) {
	l, extra, err := newLoans(s.Lender, r.Spread, r.Shard, r.Scopes), c.extra, error(nil)
	for round := 0; round < borrowRounds && !c.Allowed && c.Status == ReservationOpen; round++ {
		if !l.gather(ctx, c.Scopes, extra, 0) {
			break
		}
		r.Scopes = l.apply(l.scopes)
		if c, err = s.Lender.Consume(ctx, r); err != nil {
			return c, err
		}
	}
	if c.Allowed {
		return c, nil
	}
	l.giveBack(ctx)
	if home {
		d := l.refusal(Decision{At: c.At, Scopes: c.Scopes}, extra)
		c.Reason, c.Scope, c.RetryAfter, c.Scopes = d.Reason, d.Scope, d.RetryAfter, d.Scopes
	}
	return c, nil
}

// Settle implements Limiter.
func (s Spreader) Settle(ctx context.Context, r SettleRequest) (Settlement, error) {
	at, err := s.lies(ctx, r.Shard, r.Earlier, r.Subject, r.RequestID)
	if err != nil {
		return Settlement{}, err
	}
	r.Shard = at
	out, err := s.Lender.Settle(ctx, r)
	if err == nil && out.Charged != nil && r.Spread.holds(at) {
		s.shareOveruse(ctx, r, out)
	}
	return out, err
}

// shareOveruse has all shards bear what a request has used beyond what it held, where that is much: in its home alone it would be a debt that
// the other shards know nothing of. Should it fail, it stays the home's.
func (s Spreader) shareOveruse(ctx context.Context, r SettleRequest, settled Settlement) {
	over := make([][]int64, len(r.Scopes))
	much := false
	for i, sc := range r.Spread.Shares(r.Scopes, r.Shard) {
		over[i] = make([]int64, len(sc.Limits))
		for j, l := range sc.Limits {
			n := r.Actual[l.Counted] - settled.Reserved[l.Counted]
			if settled.Status == Unknown {
				var b bucket
				b.addLate(n, l.Window.Milliseconds(), r.Age.Milliseconds())
				n = b.consumed
			}
			if sc.Split && settled.Charged[i] && n > 0 {
				over[i][j] = n
				much = much || n > l.Capacity/16
			}
		}
	}
	if !much {
		return
	}
	move := func(shard int, amounts [][]int64) ([][]int64, error) {
		t := TransferRequest{Shard: shard}
		for i, sc := range r.Spread.Shares(r.Scopes, shard) {
			if sc.Split {
				t.Add(sc, Line{Amounts: amounts[i], Debt: true})
			}
		}
		moved, err := s.Transfer(ctx, t)
		out := make([][]int64, len(r.Scopes))
		for i, sc := range r.Scopes {
			if sc.Split && err == nil {
				out[i], moved.Amounts = moved.Amounts[0], moved.Amounts[1:]
			}
		}
		return out, err
	}
	each := func(of [][]int64, f func(int64) int64) [][]int64 {
		out := make([][]int64, len(of))
		for i := range of {
			for _, n := range of[i] {
				out[i] = append(out[i], f(n))
			}
		}
		return out
	}
	for i := range r.Spread.Shards {
		shard := r.Spread.At(i)
		if shard == r.Shard {
			continue
		}
		if borne, err := move(shard, each(over, func(n int64) int64 { return Part(n, i, r.Spread.Shards) })); err == nil {
			_, _ = move(r.Shard, each(borne, func(n int64) int64 { return -n })) // if this fails it is borne twice, until it has drained
		}
	}
}

// Cancel implements Limiter.
func (s Spreader) Cancel(ctx context.Context, r CancelRequest) (bool, error) {
	at, err := s.lies(ctx, r.Shard, r.Earlier, r.Subject, r.RequestID)
	if err != nil {
		return false, err
	}
	r.Shard = at
	return s.Lender.Cancel(ctx, r)
}

// Status implements Limiter: the sum over all shards of what is Split. What isn't lies in r.Shard.
func (s Spreader) Status(ctx context.Context, r StatusRequest) (Status, error) {
	if r.Spread.Shards < 2 {
		return s.Lender.Status(ctx, r)
	}
	home := r
	home.Scopes = r.Spread.Shares(r.Scopes, r.Shard)
	sum, err := s.Lender.Status(ctx, home)
	for k := range sum.Scopes {
		sum.Scopes[k].strip(home.Scopes[k])
	}
	for i := 0; i < r.Spread.Shards && err == nil; i++ {
		shard := r.Spread.At(i)
		if shard == r.Shard {
			continue
		}
		var part Status
		shares := r.Spread.Shares(r.Scopes, shard)
		part, err = s.Lender.Status(ctx, StatusRequest{Shard: shard, Scopes: shares, Fences: r.Fences})
		for k, sc := range part.Scopes {
			if r.Scopes[k].Split {
				sc.strip(shares[k])
				sum.Scopes[k].add(sc)
			}
		}
	}
	if err != nil {
		return Status{}, err
	}
	for k, sc := range r.Scopes {
		sum.Scopes[k].whole(sc)
	}
	return sum, nil
}

// strip takes off what only stands for a share of nothing.
func (s *ScopeState) strip(share Scope) {
	for j, bare := range share.bare {
		if bare {
			s.Limits[j].Remaining = 0
		}
	}
}

// add takes in the state of the same scope in another shard.
func (s *ScopeState) add(other ScopeState) {
	s.InUse += other.InUse
	for j := range s.Limits {
		l, o := &s.Limits[j], other.Limits[j]
		l.Remaining += o.Remaining
		if o.ResetAt.After(l.ResetAt) {
			l.ResetAt = o.ResetAt
		}
	}
}

// whole shows a scope by its own capacities, not by those of a share.
func (s *ScopeState) whole(sc Scope) {
	s.Slots = sc.Slots
	for j := range s.Limits {
		s.Limits[j].Capacity = sc.Limits[j].Capacity
		s.Limits[j].Remaining = min(s.Limits[j].Remaining, sc.Limits[j].Capacity)
	}
}

// uncharged gives a dry run's decision with the states that it found, as one that still wants room.
func uncharged(d Decision, cost Amounts) Decision {
	d.Allowed = false
	for i := range d.Scopes {
		d.Scopes[i].InUse--
		for j := range d.Scopes[i].Limits {
			l := &d.Scopes[i].Limits[j]
			l.bucket.consumed -= min(l.bucket.consumed, cost[l.Counted])
			l.Remaining = max(0, l.Capacity-l.bucket.consumed)
		}
	}
	return d
}

func estimated(d Decision, scopes []Scope, sp Spread) Decision {
	d.Scopes = estimates(d.Scopes, scopes, sp)
	return d
}

// estimates takes the other shards to be as full as the home.
func estimates(states []ScopeState, scopes []Scope, sp Spread) []ScopeState {
	for i, sc := range scopes {
		if !sc.Split {
			continue
		}
		states[i].InUse *= int64(sp.Shards)
		for j := range states[i].Limits {
			states[i].Limits[j].Remaining = satMul(states[i].Limits[j].Remaining, int64(sp.Shards))
		}
		states[i].whole(sc)
		if sc.Slots > 0 {
			states[i].InUse = min(states[i].InUse, sc.Slots)
		}
	}
	return states
}
