package fallback

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Question is what an instance asks the others about a request that it doesn't know: it has ended, or it goes on.
type Question struct {
	Shard     int
	Earlier   []int // where its payer was before
	Subject   subject.Subject
	RequestID uuid.UUID

	Ended  bool          // it has used Actual: whoever holds it gives it up to the one that asks
	Actual limit.Amounts // 0 in all: it is taken back, as if it had never been granted
	Tokens int64         // it goes on, and draws so much; whoever holds it keeps it
	Lease  time.Duration
}

// Answer is what an instance knows of a request. The zero value: nothing.
type Answer struct {
	Held        *limit.Settlement  // it was granted there, and is the asking one's from now on; or it has ended there (AlreadySettled)
	Granted     *Grant             // the store granted it to that instance
	Consumption *limit.Consumption // what it draws was drawn there; without Scopes
}

// Grant is what is known of a grant of the store.
type Grant struct {
	At, LeaseUntil time.Time
	Reserved       limit.Amounts
	Meta           string
}

// Peers asks another instance. It gives an error unless that one has answered.
type Peers interface {
	Ask(ctx context.Context, addr string, q Question) (Answer, error)
}

const (
	// askTime is how long the others have to answer about a request that has ended. Who records it waits for that, no client does.
	askTime = 100 * time.Millisecond
	// silence is how long an instance isn't asked after it has failed to answer, so that a dead one delays few records.
	silence = time.Second
	// peerFor is how long an instance is asked that has not been counted any more: it may be cut off from the store, and hold requests.
	peerFor = limit.DefaultLease
)

// peers are the other instances.
type peers struct {
	mu sync.Mutex
	at map[string]*peer // by address
}

type peer struct {
	seen    time.Time // counted by the store
	askable time.Time
}

// note takes in who was counted.
func (p *peers) note(addrs []string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if p.at[a] == nil {
			p.at[a] = &peer{}
		}
		p.at[a].seen = now
	}
	for a, o := range p.at {
		if now.Sub(o.seen) > peerFor {
			delete(p.at, a)
		}
	}
}

// askable gives the instances that may be asked now.
func (p *peers) askable(now time.Time) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for a, o := range p.at {
		if !now.Before(o.askable) {
			out = append(out, a)
		}
	}
	return out
}

func (p *peers) failed(addr string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.at[addr]; o != nil {
		o.askable = now.Add(silence)
	}
}

// alone says that nobody else can be asked.
func (l *Limiter) alone() bool { return l.o.Peers == nil || len(l.peers.askable(l.o.Now())) == 0 }

// others asks all other instances at once about a request, and gives the answer that says most. All are waited for: a request that was checked twice
// may be held by two, and both give it up.
func (l *Limiter) others(ctx context.Context, most time.Duration, q Question) Answer {
	if l.o.Peers == nil {
		return Answer{}
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	addrs := l.peers.askable(l.o.Now())
	answers := make([]Answer, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			a, err := l.o.Peers.Ask(ctx, addr, q)
			if err != nil {
				l.peers.failed(addr, l.o.Now())
				l.m.unanswered.Inc()
				l.o.Log.DebugContext(ctx, "another instance did not answer about a request", "addr", addr, "err", err)
				return
			}
			answers[i] = a
		})
	}
	wg.Wait()
	var best Answer
	for _, a := range answers {
		switch {
		case a.Held != nil && (best.Held == nil || a.Held.Status == limit.AlreadySettled):
			best.Held = a.Held // what has ended once has ended
		case a.Granted != nil:
			best.Granted = a.Granted
		case a.Consumption != nil && (best.Consumption == nil || a.Consumption.Status == limit.ReservationOpen):
			best.Consumption = a.Consumption
		}
	}
	return best
}

// Answer answers another instance.
func (l *Limiter) Answer(ctx context.Context, q Question) (Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.knownAs(key{q.Shard, q.Subject, q.RequestID}, q.Earlier)
	e := l.book.entries[k]
	switch {
	case e != nil && e.stage == held && q.Ended:
		return l.giveUp(ctx, k, e, q)
	case e != nil && e.stage == held:
		c, err := l.consumeHere(ctx, k, e, limit.ConsumeRequest{Subject: q.Subject, RequestID: q.RequestID, Scopes: e.scopes, Tokens: q.Tokens, Lease: q.Lease})
		c.Scopes = nil
		return Answer{Consumption: &c}, err
	case e != nil && (e.stage == settled || e.stage == noted) && q.Ended:
		s := l.endedHere(k, e)
		return Answer{Held: &s}, nil
	case e != nil && (e.stage == settled || e.stage == noted):
		return Answer{Consumption: &limit.Consumption{Status: limit.ReservationEnded, At: l.o.Now().UTC()}}, nil
	}
	if g, known := l.grants.Peek(k); known && q.Ended {
		return Answer{Granted: &Grant{g.at, g.leaseUntil, g.reserved, g.meta}}, nil
	}
	return Answer{}, nil
}

// giveUp ends a reservation that was made here for the instance that asks: slot and tokens are settled here, all else is that one's to do, and nothing
// of the request is remembered. If the answer is lost, or the other instance dies, whoever is told next of the request takes it for unknown: it is
// billed and debited once all the same. l.mu is held.
func (l *Limiter) giveUp(ctx context.Context, k key, e *entry, q Question) (Answer, error) {
	scopes := l.scopes(e.scopes, e.open)
	if _, err := l.asks().Cancel(ctx, limit.CancelRequest{Shard: together, Subject: k.subject, RequestID: k.id, Scopes: scopes}); err != nil {
		return Answer{}, err
	}
	used := limit.TransferRequest{Shard: together}
	for _, sc := range scopes {
		used.Add(sc, limit.Line{Amounts: sc.Counted(q.Actual), Debt: true})
	}
	if _, err := l.asks().Transfer(ctx, used); err != nil {
		return Answer{}, err
	}
	s := limit.Settlement{Status: limit.Settled, At: l.o.Now().UTC(), CheckedAt: e.at, Reserved: e.reserved, LeaseWas: e.due, CheckMeta: e.meta, Degraded: true}
	l.book.drop(k)
	if e.doubtful && q.Actual == (limit.Amounts{}) { // what the store may hold of it, the one that asks can't know
		l.book.put(k, &entry{spread: e.spread, scopes: e.scopes, meta: e.meta, next: l.o.Now().Add(cancelAfter)}, cancelled)
	}
	return Answer{Held: &s}, nil
}

// endedHere is the settlement of a request that has ended here before. l.mu is held.
func (l *Limiter) endedHere(k key, e *entry) limit.Settlement {
	if e.stage == noted {
		return limit.Settlement{Status: limit.AlreadySettled, At: l.o.Now().UTC(), Emitted: true, Degraded: true, Shard: k.shard}
	}
	s := e.settlement
	s.Status, s.At, s.Emitted, s.Shard = limit.AlreadySettled, l.o.Now().UTC(), e.emitted, k.shard
	return s
}

// adopt makes a request this instance's that another one has granted and given up.
func (l *Limiter) adopt(ctx context.Context, k key, r limit.SettleRequest, s limit.Settlement) (limit.Settlement, error) {
	s.Shard = k.shard
	if s.Status == limit.AlreadySettled {
		return s, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.book.entries[k]; e != nil && (e.stage == settled || e.stage == noted) {
		return l.endedHere(k, e), nil // by another record at the same time
	}
	r.Known = false
	s.Meta = r.Meta
	e := &entry{local: true, spread: r.Spread, scopes: r.Scopes, settle: r, settlement: s, ended: l.o.Now()}
	if !l.book.put(k, e, settled) {
		l.overflow(ctx, "record")
		return limit.Settlement{}, ErrFull
	}
	l.book.dueAt(k, e, l.o.Now().Add(limit.EmitGrace))
	return s, nil
}
