package quotacache

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Size is how many plans an instance holds (DESIGN §3).
const Size = 100_000

// Loader reads a plan from where it was sold.
type Loader interface {
	Plan(ctx context.Context, s subject.Subject) (tier.Plan, error)
}

// Options are a Cache's settings. Zero values take the defaults.
type Options struct {
	Size        int              // Size
	TTL         time.Duration    // redisfence.CacheTTL
	LoadTimeout time.Duration    // 2 s
	Now         func() time.Time // time.Now
	Registry    prometheus.Registerer
}

// Cache is safe for concurrent use.
type Cache struct {
	loader Loader
	o      Options
	m      metrics

	running sync.WaitGroup // loads

	mu      sync.Mutex
	entries *simplelru.LRU[subject.Subject, entry] // the expirable variant has a goroutine that nothing ends, and its own clock
	loads   map[subject.Subject]*load
	seq     uint64 // counts loads and drops: which came first
	allAt   uint64 // seq of the last DropAll
	changes changes
}

type entry struct {
	plan  tier.Plan
	seq   uint64 // of its load
	until time.Time
}

// load is one read under way, shared by all who want its subject. singleflight would share it as well, but a read under way must also
// learn that it is outdated.
type load struct {
	seq      uint64
	forced   bool // begun by Reload
	closed   bool // what its plan depends on may have been dropped since: nobody else joins it
	outdated bool // its subject was dropped since: it is not kept
	done     chan struct{}
	plan     tier.Plan
	err      error
}

// New makes an empty Cache.
func New(l Loader, o Options) *Cache {
	if o.Size == 0 {
		o.Size = Size
	}
	if o.TTL == 0 {
		o.TTL = redisfence.CacheTTL
	}
	if o.LoadTimeout == 0 {
		o.LoadTimeout = 2 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Cache{loader: l, o: o, loads: map[subject.Subject]*load{}, changes: newChanges(o.TTL)}
	c.entries, _ = simplelru.NewLRU[subject.Subject, entry](max(1, o.Size), nil) // its only error is a size below 1
	c.m = newMetrics(o.Registry, c.Len)
	return c
}

// Close waits for the loads under way, for LoadTimeout at most. Nobody may ask any more.
func (c *Cache) Close() { c.running.Wait() }

// Len is how many plans are held, expired ones included.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.Len()
}

// Get gives a subject's plan, from the cache or by a load that all who ask at the same time share. ctx bounds the wait, not the load:
// a load that comes too late for this caller is there for the next.
func (c *Cache) Get(ctx context.Context, s subject.Subject) (tier.Plan, error) {
	c.mu.Lock()
	if e, ok := c.valid(s); ok {
		c.mu.Unlock()
		c.m.hits.Inc()
		return e.plan, nil
	}
	l := c.loads[s]
	if l == nil || l.closed {
		l = c.begin(s, false)
	}
	c.mu.Unlock()
	c.m.misses.Inc()
	return l.wait(ctx)
}

// Reload gives a plan read after refuted was: by the cache if it has learned of another version meanwhile, else from the loader.
func (c *Cache) Reload(ctx context.Context, s subject.Subject, refuted tier.Plan) (tier.Plan, error) {
	c.mu.Lock()
	if e, ok := c.valid(s); ok && e.plan.NewerThan(refuted) {
		c.mu.Unlock()
		return e.plan, nil
	}
	c.entries.Remove(s)
	l := c.loads[s]
	// A forced load under way may have begun before the change, too; then the caller is refuted once more, and the next Reload finds it done.
	if l == nil || !l.forced || l.closed {
		l = c.begin(s, true)
	}
	c.mu.Unlock()
	c.m.reloads.Inc()
	return l.wait(ctx)
}

// valid gives a subject's entry if it may be used. c.mu is held.
func (c *Cache) valid(s subject.Subject) (entry, bool) {
	e, ok := c.entries.Get(s)
	if !ok {
		return entry{}, false
	}
	if !c.o.Now().Before(e.until) || c.droppedSince(e.seq, e.plan) {
		c.entries.Remove(s)
		return entry{}, false
	}
	return e, true
}

// droppedSince tells whether anything that a plan depends on was announced as changed after seq.
func (c *Cache) droppedSince(seq uint64, p tier.Plan) bool {
	if c.allAt > seq {
		return true
	}
	if c.changes.newest <= seq {
		return false
	}
	for _, v := range p.Versions() {
		if c.changes.at[v.Name] > seq {
			return true
		}
	}
	return false
}

// begin starts a load in place of the one under way, which is outdated by it. c.mu is held.
func (c *Cache) begin(s subject.Subject, forced bool) *load {
	if old := c.loads[s]; old != nil {
		old.outdated = true
	}
	c.seq++
	l := &load{seq: c.seq, forced: forced, done: make(chan struct{})}
	c.loads[s] = l
	until := c.o.Now().Add(c.o.TTL)
	c.running.Go(func() { // it belongs to no caller, so no caller's context ends it
		ctx, cancel := context.WithTimeout(context.Background(), c.o.LoadTimeout)
		defer cancel()
		l.plan, l.err = c.loader.Plan(ctx, s)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.loads[s] == l {
			delete(c.loads, s)
		}
		if l.err == nil && !l.outdated && !c.droppedSince(l.seq, l.plan) {
			c.entries.Add(s, entry{l.plan, l.seq, until})
		}
		close(l.done)
	})
	return l
}

func (l *load) wait(ctx context.Context) (tier.Plan, error) {
	select {
	case <-l.done:
		return l.plan, l.err
	case <-ctx.Done():
		return tier.Plan{}, ctx.Err()
	}
}

// Drop forgets what an announced change names: every plan that depends on it. That are a user's own plan and those of its keys, a key's,
// those of all members of an org, of everyone on a tier.
func (c *Cache) Drop(ch redisfence.Change) {
	if !nameable(ch.Name) {
		return
	}
	c.m.dropped.Inc()
	c.mu.Lock()
	c.seq++
	kept := c.changes.note(ch.Name, c.seq, c.o.Now())
	s, err := subject.Parse(ch.Name)
	if err == nil {
		c.entries.Remove(s)
		if l := c.loads[s]; l != nil {
			l.outdated = true
			delete(c.loads, s) // whoever asks from now on gets a new load
		}
	}
	if err != nil || s.Kind == subject.User { // whose loads under way these are, nobody knows yet
		for of, l := range c.loads {
			l.closed = l.closed || err != nil || of.Kind == subject.APIKey
		}
	}
	c.mu.Unlock()
	if !kept {
		c.DropAll()
	}
}

// DropAll forgets everything: announcements may have been missed.
func (c *Cache) DropAll() {
	c.m.dropped.Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	c.allAt = c.seq
	c.entries.Purge()
	c.changes = newChanges(c.o.TTL)
	for _, l := range c.loads {
		l.outdated = true
	}
	clear(c.loads)
}

type metrics struct{ hits, misses, reloads, dropped prometheus.Counter }

func newMetrics(reg prometheus.Registerer, size func() int) metrics {
	looks := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_quota_cache_total",
		Help: "Looks into the cache of plans: hit, miss (loaded), reload (an old version was refused)."}, []string{"result"})
	m := metrics{looks.WithLabelValues("hit"), looks.WithLabelValues("miss"), looks.WithLabelValues("reload"),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_quota_cache_drops_total", Help: "Announced changes and lost subscriptions that dropped plans."})}
	if reg != nil {
		reg.MustRegister(looks, m.dropped, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tollgate_quota_cache_entries", Help: "Plans held."},
			func() float64 { return float64(size()) }))
	}
	return m
}
