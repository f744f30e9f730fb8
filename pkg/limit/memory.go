package limit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// MemoryOptions are Memory's settings. Zero values take the defaults.
type MemoryOptions struct {
	Now       func() time.Time // time.Now if nil
	Tombstone time.Duration    // DefaultTombstone if 0
}

// Memory decides in this process. It is safe for concurrent use. It is the model of the Redis script, and keeps what the script keeps.
type Memory struct {
	now       func() time.Time
	tombstone int64

	mu           sync.Mutex
	scopes       map[place]*scopeState
	reservations map[reservationKey]*reservation
	fences       map[string]int64
	ops          int
}

var _ Limiter = (*Memory)(nil)

type place struct {
	shard int
	name  string
}

type reservationKey struct {
	shard   int
	subject subject.Subject
	id      uuid.UUID
}

type limitID struct {
	counted Counted
	window  int64
}

type scopeState struct {
	at      int64 // ms of the last operation
	buckets map[limitID]*bucket
	leases  map[reservationKey]int64 // until when, ms
}

type reservation struct {
	settled, emitted bool
	checkedAt        int64
	leaseUntil       int64
	until            int64 // when it is forgotten, ms
	reserved         Amounts
	scopes           []ScopeKind
	checkMeta, meta  string
}

// Retention is how long an open reservation is remembered after its lease has ended, so that whoever settles late still finds it.
const Retention = time.Hour

// NewMemory makes an empty limiter.
func NewMemory(o MemoryOptions) *Memory {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Tombstone == 0 {
		o.Tombstone = DefaultTombstone
	}
	return &Memory{now: o.Now, tombstone: o.Tombstone.Milliseconds(), scopes: map[place]*scopeState{},
		reservations: map[reservationKey]*reservation{}, fences: map[string]int64{}}
}

// Publish makes checks with an older version of name stale. Versions never go back.
func (m *Memory) Publish(name string, version int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fences[name] = max(m.fences[name], version)
}

// Check implements Limiter.
func (m *Memory) Check(_ context.Context, r CheckRequest) (Decision, error) {
	if err := r.Validate(); err != nil {
		return Decision{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range r.Fences {
		if v := m.fences[f.Name]; v > f.Version {
			return Decision{}, &StaleError{Name: f.Name, Published: v}
		}
	}
	now := m.now().UnixMilli()
	m.forget(now)
	at, key := time.UnixMilli(now).UTC(), reservationKey{r.Shard, r.Subject, r.RequestID}
	work, found, fits := m.observe(r, now)
	if old := m.reservations[key]; old != nil && old.until > now && !r.DryRun {
		d := Conclude(r, true, at, found)
		d.Repeated, d.LeaseUntil = true, time.UnixMilli(old.leaseUntil).UTC()
		return d, nil
	}
	if fits && !r.DryRun {
		lease := r.Lease.Milliseconds()
		if lease == 0 {
			lease = DefaultLease.Milliseconds()
		}
		for i, s := range r.Scopes {
			for j, l := range s.Limits {
				b := work[i].buckets[limitID{l.Counted, l.Window.Milliseconds()}]
				b.add(r.Cost[l.Counted])
				found[i].Buckets[j] = Bucket{b.consumed, b.credit, b.fast}
			}
			work[i].leases[key] = now + lease
			found[i].InUse++
		}
		res := &reservation{checkedAt: now, leaseUntil: now + lease, until: now + lease + Retention.Milliseconds(), reserved: r.Cost, checkMeta: r.Meta}
		for _, s := range r.Scopes {
			res.scopes = append(res.scopes, s.Kind)
		}
		m.reservations[key] = res
	} else if fits {
		for i, s := range r.Scopes { // a dry run shows what would be left
			for j, l := range s.Limits {
				found[i].Buckets[j].Consumed += r.Cost[l.Counted]
			}
			found[i].InUse++
		}
	}
	d := Conclude(r, fits, at, found)
	if fits && !r.DryRun {
		d.LeaseUntil = time.UnixMilli(m.reservations[key].leaseUntil).UTC()
	}
	return d, nil
}

// observe brings every scope to now and tells whether the request fits all of them. It changes nothing but the passing of time.
func (m *Memory) observe(r CheckRequest, now int64) (work []*scopeState, found []Observed, fits bool) {
	fits = true
	for _, s := range r.Scopes {
		st := m.scope(place{r.Shard, s.Name}, now)
		o := Observed{LagMillis: max(0, st.at-now)}
		for id, until := range st.leases {
			if until <= now {
				delete(st.leases, id)
			}
		}
		o.InUse = int64(len(st.leases))
		if s.Slots > 0 && o.InUse >= s.Slots {
			fits = false
		}
		st.advance(s.Limits, now)
		for _, l := range s.Limits {
			b := st.buckets[limitID{l.Counted, l.Window.Milliseconds()}]
			if r.Cost[l.Counted] > l.Capacity-b.consumed {
				fits = false
			}
			o.Buckets = append(o.Buckets, Bucket{b.consumed, b.credit, b.fast})
		}
		work, found = append(work, st), append(found, o)
	}
	return work, found, fits
}

func (m *Memory) scope(p place, now int64) *scopeState {
	st := m.scopes[p]
	if st == nil {
		st = &scopeState{at: now, buckets: map[limitID]*bucket{}, leases: map[reservationKey]int64{}}
		m.scopes[p] = st
	}
	return st
}

// advance drains all buckets to now; those of limits take on the limit's capacity. Time that runs backwards drains nothing.
func (st *scopeState) advance(limits []Limit, now int64) {
	ms := max(0, now-st.at)
	st.at += ms
	current := make(map[limitID]bool, len(limits))
	for _, l := range limits {
		id := limitID{l.Counted, l.Window.Milliseconds()}
		current[id] = true
		if b := st.buckets[id]; b != nil {
			b.advance(l.Capacity, id.window, ms)
		} else {
			st.buckets[id] = &bucket{capacity: l.Capacity}
		}
	}
	for id, b := range st.buckets { // a limit that is lifted for a while keeps its consumption
		if !current[id] {
			if b.drain(id.window, ms); b.consumed == 0 {
				delete(st.buckets, id)
			}
		}
	}
}

// Settle implements Limiter.
func (m *Memory) Settle(_ context.Context, r SettleRequest) (Settlement, error) {
	if err := r.Validate(); err != nil {
		return Settlement{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	m.forget(now)
	key := reservationKey{r.Shard, r.Subject, r.RequestID}
	res := m.reservations[key]
	if res != nil && res.until <= now {
		res = nil
	}
	out := Settlement{Status: Settled, At: time.UnixMilli(now).UTC(), Meta: r.Meta}
	switch {
	case res == nil:
		out.Status = Unknown
		res = &reservation{}
		m.reservations[key] = res
	case res.settled:
		out.Status, out.Meta, out.Emitted, out.Reserved = AlreadySettled, res.meta, res.emitted, res.reserved
		out.CheckMeta = res.checkMeta
		if res.checkedAt != 0 {
			out.CheckedAt = time.UnixMilli(res.checkedAt).UTC()
		}
		return out, nil
	default:
		out.CheckedAt, out.Reserved, out.CheckMeta = time.UnixMilli(res.checkedAt).UTC(), res.reserved, res.checkMeta
	}
	for _, s := range r.Scopes {
		st := m.scope(place{r.Shard, s.Name}, now)
		st.advance(s.Limits, now)
		for _, l := range s.Limits {
			delta := r.Actual[l.Counted]
			if slices.Contains(res.scopes, s.Kind) {
				delta -= res.reserved[l.Counted]
			}
			st.buckets[limitID{l.Counted, l.Window.Milliseconds()}].add(delta)
		}
		delete(st.leases, key)
	}
	res.settled, res.meta, res.until = true, r.Meta, now+m.tombstone
	return out, nil
}

// MarkEmitted implements Limiter.
func (m *Memory) MarkEmitted(_ context.Context, shard int, s subject.Subject, requestID uuid.UUID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if res := m.reservations[reservationKey{shard, s, requestID}]; res != nil && res.settled {
		res.emitted, res.meta, res.checkMeta = true, "", ""
	}
	return nil
}

// Status implements Limiter.
func (m *Memory) Status(_ context.Context, r StatusRequest) (Status, error) {
	if err := validateScopes(r.Scopes); err != nil {
		return Status{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	at, ask := time.UnixMilli(now).UTC(), CheckRequest{Shard: r.Shard, Scopes: r.Scopes}
	_, found, _ := m.observe(ask, now)
	return Status{At: at, Scopes: Conclude(ask, true, at, found).Scopes}, nil
}

// forget drops, every 10,000 operations, what says nothing any more.
func (m *Memory) forget(now int64) {
	if m.ops++; m.ops%10_000 != 0 {
		return
	}
	for k, res := range m.reservations {
		if res.until <= now {
			delete(m.reservations, k)
		}
	}
	for p, st := range m.scopes {
		st.advance(nil, now)
		for id, until := range st.leases {
			if until <= now {
				delete(st.leases, id)
			}
		}
		if len(st.buckets) == 0 && len(st.leases) == 0 {
			delete(m.scopes, p)
		}
	}
}
