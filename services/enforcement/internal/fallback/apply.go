package fallback

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

const (
	atOnce      = 8               // calls to the store at a time
	again       = time.Second     // after a failure
	cancelAfter = time.Second     // what is on its way to the store has arrived, most likely
	cancelOnce  = 5 * time.Second // and then once more, in case that it had not
	lastPass    = 2 * time.Second // at the stop
	patience    = time.Minute     // for a payer that is moving in the store
	forgetAfter = limit.DefaultTombstone
)

// Run counts the instances, finds out when a store that was away is back, and then tells it what it has missed, until ctx ends. At the end
// it tells it what it still can.
func (l *Limiter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { l.beats(ctx) })
	tick := time.NewTicker(l.o.Probe)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-l.kick:
		case <-tick.C:
		}
		l.apply(ctx)
	}
	wg.Wait()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPass)
	defer cancel()
	l.apply(stop)
	if !l.away() {
		_ = l.instances.Leave(stop) // it is forgotten soon anyway
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.book.entries); n > 0 {
		l.o.Log.WarnContext(ctx, "stopped before the limiter's store knew of all requests", "in_flight", l.book.held, "pending", l.book.pending())
	}
	return nil
}

// beats counts the instances while the store is there and probes it while it is away.
func (l *Limiter) beats(ctx context.Context) {
	var most int64 // the largest count of late, for instances come back one by one
	var until time.Time
	for ctx.Err() == nil {
		wait := l.o.Beat
		n, err := l.beat(ctx)
		switch {
		case err == nil:
			now := l.o.Now()
			if int64(n.Count) >= most || now.After(until) {
				most, until = int64(n.Count), now.Add(sweepAfter)
			}
			l.peers.note(n.Others, now)
			l.live.Store(max(most, 1))
			l.forget(now)
		case l.away():
			wait, until = l.o.Probe, l.o.Now().Add(sweepAfter)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// beat asks the store as a caller would. While it is away, a probe connects first and is timed then.
func (l *Limiter) beat(ctx context.Context) (Live, error) {
	if !l.away() {
		return ask(ctx, l, l.o.Share, l.instances.Beat)
	}
	var n Live
	_, err := l.breaker.Execute(func() (struct{}, error) {
		connect, cancel := context.WithTimeout(ctx, warm)
		defer cancel()
		if _, err := l.instances.Beat(connect); err != nil {
			return struct{}{}, err
		}
		timed, cancel := context.WithTimeout(ctx, l.o.Share)
		defer cancel()
		var err error
		n, err = l.instances.Beat(timed)
		return struct{}{}, err
	})
	return n, err
}

// forget empties the memory once it says nothing that the store doesn't.
func (l *Limiter) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.book.entries) == 0 && !l.used.IsZero() && now.Sub(l.used) > forgetAfter {
		l.memory, l.used = limit.NewMemory(limit.MemoryOptions{Now: l.o.Now}), time.Time{}
		l.book = newBook(l.book.most)
	}
}

// apply tells the store, once, of everything that it can be told of now.
func (l *Limiter) apply(ctx context.Context) {
	if l.away() {
		return
	}
	l.mu.Lock()
	queue := l.book.queue
	l.book.queue = nil
	l.mu.Unlock()
	if len(queue) == 0 {
		return
	}
	work := make(chan key)
	failed := make([]error, min(atOnce, len(queue))) // the last failure of each worker
	var wg sync.WaitGroup
	for i := range failed {
		wg.Go(func() {
			for k := range work {
				if err := l.tell(ctx, k); err != nil {
					failed[i] = err
				}
			}
		})
	}
	for _, k := range queue {
		work <- k
	}
	close(work)
	wg.Wait()
	if err := errors.Join(failed...); err != nil && ctx.Err() == nil {
		l.o.Log.WarnContext(ctx, "the limiter's store could not be told of all that it has missed; trying again", "err", err)
	}
}

// tell tells the store of one request and keeps what it could not.
func (l *Limiter) tell(ctx context.Context, k key) error {
	l.mu.Lock()
	e := l.book.entries[k]
	if e == nil {
		l.mu.Unlock()
		return nil
	}
	e.queued = false
	if !e.tellable() || ctx.Err() != nil || l.away() || l.o.Now().Before(e.next) {
		l.book.enqueue(k, e)
		l.mu.Unlock()
		return nil
	}
	e.busy = true
	at := *e // what to tell: the entry may change meanwhile
	l.mu.Unlock()

	done, err := l.told(ctx, k, &at)

	l.mu.Lock()
	defer l.mu.Unlock()
	e.busy = false
	if l.book.entries[k] != e {
		return nil // another call has answered for it
	}
	if at.stage == settled && (err == nil || done) {
		e.applied, e.shard = true, at.shard
	}
	switch {
	case err != nil:
		e.next = l.o.Now().Add(again)
	case e.stage != at.stage || e.tokens != at.tokens:
		e.tokens -= at.tokens // it has drawn more, or ended
	case (at.stage == cancelled || at.stage == held) && !done && e.tries == 0:
		e.tries, e.next = 1, l.o.Now().Add(cancelOnce)
	case at.stage == held:
		e.doubtful = false
	case at.stage != settled || at.emitted:
		l.book.drop(k)
	}
	l.book.enqueue(k, e)
	return err
}

// told makes the calls. done says that a reservation was cancelled or, along with an error, that the first of two calls was made.
func (l *Limiter) told(ctx context.Context, k key, e *entry) (done bool, err error) {
	switch e.stage {
	case drawn:
		_, err = ask(ctx, l, l.endTime(), func(ctx context.Context) (limit.Consumption, error) {
			return l.store.Consume(ctx, limit.ConsumeRequest{Shard: k.shard, Earlier: e.earlier, Subject: k.subject, RequestID: k.id, Spread: e.spread, Scopes: e.scopes,
				Tokens: e.tokens, Lease: e.lease})
		})
	case cancelled, held:
		return ask(ctx, l, l.endTime(), func(ctx context.Context) (bool, error) {
			return l.store.Cancel(ctx, limit.CancelRequest{Shard: k.shard, Earlier: e.earlier, Subject: k.subject, RequestID: k.id, Spread: e.spread, Scopes: e.scopes, Meta: e.meta})
		})
	case settled, noted:
		if e.stage == noted {
			e.shard = k.shard
		} else if !e.applied {
			r := e.settle
			r.Age = max(0, l.o.Now().Sub(e.ended))
			r.Anyway = r.Age > patience
			s, err := l.settleInStore(ctx, r)
			if err != nil {
				return false, err
			}
			e.shard = s.Shard
		}
		if e.stage == noted || e.emitted {
			_, err = ask(ctx, l, l.endTime(), func(ctx context.Context) (struct{}, error) {
				return struct{}{}, l.store.MarkEmitted(ctx, e.shard, k.subject, k.id)
			})
		}
		return true, err
	}
	return err == nil, err
}
