package fallback

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// ErrAway says that the store could not be asked, and that the request's tier wants no decision without it. ErrFull says that too much
// waits to be told to the store already.
var (
	ErrAway = errors.New("the store is away")
	ErrFull = errors.New("the store is away and too much waits for it")
)

// errNotAsked is why the store was not asked at all: so it holds nothing of this call either.
var errNotAsked = errors.New("the store was not asked")

// Store is the limiter that decides for all instances, as long as it answers.
type Store interface {
	limit.Limiter
	limit.Carrier
	// DueShards gives the shards in which Due may find something.
	DueShards(ctx context.Context) ([]int, error)
}

// Instances counts the live instances.
type Instances interface {
	// Beat notes that this one is alive and tells which are. It writes to the store, and so tells that the store takes decisions.
	Beat(ctx context.Context) (Live, error)
	Leave(ctx context.Context) error
}

// Live is how many instances are alive, this one included, and where the others can be asked (Peers).
type Live struct {
	Count  int
	Others []string
}

// Options are a Limiter's settings. Zero values take the defaults.
type Options struct {
	Share    time.Duration // longest a check or a consume waits for the store: 25 ms
	Most     int           // requests kept for the store, those in flight that were granted here included: 250,000
	Beat     time.Duration // how often the instances are counted: 1 s
	Probe    time.Duration // how often a store that is away is tried: 250 ms
	Peers    Peers         // how the others are asked; they are not if nil
	Now      func() time.Time
	Back     func() // called when the store is back, before it is asked again: what was read while it was away may be old
	Registry prometheus.Registerer
	Log      *slog.Logger
}

const (
	// trip is how many calls in a row must fail before the store is away. A key that can't be read fails for one subject only, among others
	// that succeed.
	trip = 5
	// remembered is how many of the store's latest grants are known here too, for the events of those that are recorded while it is away.
	remembered = 65_536
	// sweepAfter is how long after the store's return this instance leaves the ended reservations alone: until then another one may still
	// bring what a request used.
	sweepAfter = 10 * time.Second
	// warm is how long a probe may take to connect, before it is timed.
	warm = time.Second
)

// Limiter asks the store and, while that is away, decides here. It is safe for concurrent use.
type Limiter struct {
	store     Store
	instances Instances
	o         Options
	m         metrics
	breaker   *gobreaker.CircuitBreaker[struct{}]
	grants    *lru.Cache[key, grant] // by the store
	kick      chan struct{}          // wakes the application of what is kept
	live      atomic.Int64           // instances
	peers     peers
	degraded  atomic.Bool
	back      atomic.Int64 // when the store came back, Unix ms; 0: it never was away

	mu     sync.Mutex
	memory *limit.Memory
	used   time.Time // when memory was last asked
	book   book
}

var (
	_ limit.Limiter = (*Limiter)(nil)
	_ limit.Carrier = (*Limiter)(nil)
)

// New makes a Limiter. Run must run for it to come back from an outage.
func New(s Store, i Instances, o Options) *Limiter {
	if o.Share == 0 {
		o.Share = 25 * time.Millisecond
	}
	if o.Most == 0 {
		o.Most = 250_000
	}
	if o.Beat == 0 {
		o.Beat = time.Second
	}
	if o.Probe == 0 {
		o.Probe = 250 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Limiter{store: s, instances: i, o: o, kick: make(chan struct{}, 1), book: newBook(o.Most), peers: peers{at: map[string]*peer{}}}
	l.live.Store(1)
	l.memory = limit.NewMemory(limit.MemoryOptions{Now: o.Now})
	l.grants, _ = lru.New[key, grant](remembered) // its only error is a size below 1
	l.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       o.Probe * 4 / 5, // over when the next probe comes
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= trip },
		OnStateChange: l.changed,
		IsExcluded:    func(err error) bool { var u *uncounted; return errors.As(err, &u) },
	})
	l.m = newMetrics(o.Registry, l)
	return l
}

// changed is told of each change of the breaker. Probes that fail are no change.
func (l *Limiter) changed(_ string, from, to gobreaker.State) {
	switch {
	case from == gobreaker.StateClosed:
		l.degraded.Store(true)
		l.o.Log.Warn("the limiter's store is away; deciding here", "instances", l.live.Load())
	case to == gobreaker.StateClosed:
		if l.o.Back != nil {
			l.o.Back()
		}
		l.degraded.Store(false)
		l.back.Store(l.o.Now().UnixMilli())
		l.o.Log.Info("the limiter's store is back")
		l.wake()
	}
}

// wake has what is kept applied soon.
func (l *Limiter) wake() {
	select {
	case l.kick <- struct{}{}:
	default: // it is awake
	}
}

// away says whether calls bypass the store. Only probes enter a breaker that is not closed.
func (l *Limiter) away() bool { return l.breaker.State() != gobreaker.StateClosed }

// uncounted is an error that says nothing of the store: the caller left it too little time, or went away.
type uncounted struct{ error }

func (u *uncounted) Unwrap() error { return u.error }

// ask calls the store for at most a time, within the caller's. Its error is the store's answer (*limit.StaleError), a failure, or
// errNotAsked; after a failure the store may have done what it was asked for.
func ask[T any](ctx context.Context, l *Limiter, most time.Duration, call func(context.Context) (T, error)) (out T, err error) {
	if l.away() {
		return out, errNotAsked
	}
	given := most
	if deadline, ok := ctx.Deadline(); ok {
		given = min(given, time.Until(deadline)-l.o.Share/10) // the rest is for the decision here
	}
	if given <= 0 {
		return out, errNotAsked
	}
	ctx, cancel := context.WithTimeout(ctx, given)
	defer cancel()
	var stale *limit.StaleError
	called := false
	_, err = l.breaker.Execute(func() (struct{}, error) {
		called = true
		var failed error
		out, failed = call(ctx)
		switch {
		case errors.As(failed, &stale):
			return struct{}{}, nil
		case failed != nil && (given < most && ctx.Err() != nil || errors.Is(ctx.Err(), context.Canceled)):
			return struct{}{}, &uncounted{failed}
		}
		return struct{}{}, failed
	})
	switch {
	case stale != nil:
		return out, stale
	case !called:
		return out, errNotAsked
	case err != nil:
		l.m.failures.Inc()
		l.o.Log.DebugContext(ctx, "the limiter's store failed", "err", err)
	}
	return out, err
}

// endTime is how long the end of a request, which no client waits for, may wait for the store.
func (l *Limiter) endTime() time.Duration { return max(10*l.o.Share, 250*time.Millisecond) }

// doubtful tells of a call that failed whether the store may have done it all the same.
func doubtful(err error) bool { return err != nil && !errors.Is(err, errNotAsked) }

func isStale(err error) bool {
	var stale *limit.StaleError
	return errors.As(err, &stale)
}
