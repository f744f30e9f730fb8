package limit

import (
	"context"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

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

// shares gives the scopes as they are in one shard: what is Split has a share of its capacities and slots, which add up to the whole. Where a
// share is nothing the scope says so: its limit stands there with a capacity of 1, of which nothing may be sold or lent.
func (s Spread) shares(scopes []Scope, shard int) []Scope {
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
	if r.Spread.Shards < 2 {
		return s.Lender.Check(ctx, r)
	}
	home := r
	home.Scopes = r.Spread.shares(r.Scopes, r.Shard)
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
		home.Meta = l.note(r.Meta)
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

// Consume implements Limiter.
func (s Spreader) Consume(ctx context.Context, r ConsumeRequest) (Consumption, error) {
	if r.Spread.Shards < 2 {
		return s.Lender.Consume(ctx, r)
	}
	home := r
	home.Scopes = r.Spread.shares(r.Scopes, r.Shard)
	c, err := s.Lender.Consume(ctx, home)
	if err != nil {
		return c, err
	}
	if c.Status != ReservationOpen {
		c.Scopes = estimates(c.Scopes, r.Scopes, r.Spread)
		return c, nil
	}
	var holder string
	if holder, c.CheckMeta = cutNote(c.CheckMeta); holder != "" {
		s.moveLease(ctx, r.Spread, holder, r.Scopes, c.LeaseWas, c.LeaseUntil)
	}
	if c.Allowed {
		c.Scopes = estimates(c.Scopes, r.Scopes, r.Spread)
		return c, nil
	}
	l, extra := newLoans(s.Lender, r.Spread, r.Shard, r.Scopes), c.extra
	meta := c.CheckMeta
	for round := 0; round < borrowRounds && !c.Allowed && c.Status == ReservationOpen; round++ {
		if !l.gather(ctx, c.Scopes, extra, 0) {
			break
		}
		home.Scopes = l.apply(home.Scopes)
		if c, err = s.Lender.Consume(ctx, home); err != nil {
			return c, err
		}
	}
	c.CheckMeta = meta
	if !c.Allowed {
		l.giveBack(ctx)
		d := l.refusal(Decision{At: c.At, Scopes: c.Scopes}, extra)
		c.Reason, c.Scope, c.RetryAfter, c.Scopes = d.Reason, d.Scope, d.RetryAfter, d.Scopes
		return c, nil
	}
	c.Scopes = estimates(c.Scopes, r.Scopes, r.Spread)
	return c, nil
}

// Settle implements Limiter.
func (s Spreader) Settle(ctx context.Context, r SettleRequest) (Settlement, error) {
	if r.Spread.Shards < 2 {
		return s.Lender.Settle(ctx, r)
	}
	home := r
	home.Scopes = r.Spread.shares(r.Scopes, r.Shard)
	out, err := s.Lender.Settle(ctx, home)
	if err != nil {
		return out, err
	}
	var holder string
	if holder, out.CheckMeta = cutNote(out.CheckMeta); holder != "" && out.Status == Settled {
		s.moveLease(ctx, r.Spread, holder, r.Scopes, out.LeaseWas, time.Time{})
	}
	if out.Status == Settled || (out.Status == Unknown && !r.Known) {
		s.shareOveruse(ctx, r, out)
	}
	return out, nil
}

// shareOveruse has all shards bear what a request has used beyond what it held, where that is much: in its home alone it would be a debt that
// the other shards know nothing of. Should it fail, it stays the home's.
func (s Spreader) shareOveruse(ctx context.Context, r SettleRequest, ended Settlement) {
	home := r.Spread.shares(r.Scopes, r.Shard)
	over := make([][]int64, len(r.Scopes))
	much := false
	for i, sc := range home {
		over[i] = make([]int64, len(sc.Limits))
		for j, l := range sc.Limits {
			n := r.Actual[l.Counted] - ended.Reserved[l.Counted]
			if ended.Status == Unknown {
				var b bucket
				b.addLate(n, l.Window.Milliseconds(), r.Age.Milliseconds())
				n = b.consumed
			}
			if sc.Split && !sc.IfHeld && n > 0 {
				over[i][j] = n
				much = much || n > l.Capacity/16
			}
		}
	}
	if !much {
		return
	}
	move := func(shard, sign int, part func(int64) int64) error {
		t := TransferRequest{Shard: shard}
		for i, sc := range r.Spread.shares(r.Scopes, shard) {
			if !sc.Split || sc.IfHeld {
				continue
			}
			line := Line{Amounts: make([]int64, len(sc.Limits)), Debt: true}
			for j := range line.Amounts {
				line.Amounts[j] = int64(sign) * part(over[i][j])
			}
			t.Add(sc, line)
		}
		_, err := s.Transfer(ctx, t)
		return err
	}
	for i := range r.Spread.Shards {
		shard, part := r.Spread.At(i), func(n int64) int64 { return Part(n, i, r.Spread.Shards) }
		if shard != r.Shard && move(shard, 1, part) == nil {
			_ = move(r.Shard, -1, part) // if this fails it is borne twice, until it has drained
		}
	}
}

// Cancel implements Limiter.
func (s Spreader) Cancel(ctx context.Context, r CancelRequest) (bool, error) {
	if r.Spread.Shards > 1 {
		r.Scopes = r.Spread.shares(r.Scopes, r.Shard) // a slot of another shard returns when its lease ends
	}
	return s.Lender.Cancel(ctx, r)
}

// Due implements Limiter.
func (s Spreader) Due(ctx context.Context, r DueRequest) ([]Due, error) {
	due, err := s.Lender.Due(ctx, r)
	for i := range due {
		_, due[i].CheckMeta = cutNote(due[i].CheckMeta)
	}
	return due, err
}

// Status implements Limiter: the sum over all shards of what is Split. What isn't lies in r.Shard.
func (s Spreader) Status(ctx context.Context, r StatusRequest) (Status, error) {
	if r.Spread.Shards < 2 {
		return s.Lender.Status(ctx, r)
	}
	home := r
	home.Scopes = r.Spread.shares(r.Scopes, r.Shard)
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
		shares := r.Spread.shares(r.Scopes, shard)
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

// A check whose slot another shard holds keeps that shard with what it keeps for its end: "@<shard>;" before the meta.
func cutNote(meta string) (holder, rest string) {
	if strings.HasPrefix(meta, "@") {
		if holder, rest, ok := strings.Cut(meta[1:], ";"); ok {
			return holder, rest
		}
	}
	return "", meta
}

// moveLease has the shard that holds a slot renew or drop its lease. If it can't be told, the slot returns when the old lease ends.
func (s Spreader) moveLease(ctx context.Context, sp Spread, holder string, scopes []Scope, drop, take time.Time) {
	shard, err := strconv.Atoi(holder)
	if err != nil {
		return
	}
	r := TransferRequest{Shard: shard}
	for _, sc := range sp.shares(scopes, shard) {
		if sc.Split && sc.Slots > 0 {
			r.Add(sc, Line{Drop: drop, Take: take, Debt: true})
		}
	}
	_, _ = s.Transfer(ctx, r)
}
