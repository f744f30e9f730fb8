package limit

import (
	"context"
	"maps"
	"slices"
	"strings"
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
	left         map[place]int64 // versions published where a payer has moved away
	moved        map[place]*Move // where a scope's state lies instead
	parted       map[place]parting
	arrived      map[arrival]bool
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

type scopeID struct {
	kind ScopeKind
	name string
}

type limitID struct {
	counted Counted
	window  int64
}

// arrival is a move that has brought a scope to a place.
type arrival struct {
	place
	by Fence
}

type scopeState struct {
	at      int64 // ms of the last operation that was kept
	buckets map[limitID]bucket
	leases  map[int64]int64 // how many end at each instant, ms
}

func newScopeState(at int64) *scopeState {
	return &scopeState{at: at, buckets: map[limitID]bucket{}, leases: map[int64]int64{}}
}

// open counts the leases that have not ended.
func (st *scopeState) open(now int64) int64 {
	var n int64
	for until, count := range st.leases {
		if until > now {
			n += count
		}
	}
	return n
}

// release takes off one lease. One that has ended is not there any more, or is gone with the next operation that is kept.
func (st *scopeState) release(until, now int64) {
	if until <= now || st.leases[until] == 0 {
		return
	}
	if st.leases[until]--; st.leases[until] == 0 {
		delete(st.leases, until)
	}
}

type reservation struct {
	settled, emitted bool
	checkedAt        int64
	leaseUntil       int64
	until            int64 // when it is forgotten, ms
	reserved         Amounts
	due              int64 // when Due offers it, ms; 0: never
	drawn            Amounts
	scopes           []scopeID
	lent             map[scopeID]int // whose slot another shard holds, and which
	loans            []loan
	checkMeta, meta  string
}

// loan is what a shard has lent to a limit of a scope.
type loan struct {
	scope  scopeID
	limit  limitID
	shard  int
	amount int64
}

// borrow notes what others have lent to a scope.
func (res *reservation) borrow(s Scope) {
	for _, l := range s.loans {
		for j, n := range l.Amounts {
			if n > 0 {
				res.loans = append(res.loans, loan{scopeID{s.Kind, s.Name}, idOf(s.Limits[j]), l.Shard, n})
			}
		}
	}
}

// NewMemory makes an empty limiter.
func NewMemory(o MemoryOptions) *Memory {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Tombstone == 0 {
		o.Tombstone = DefaultTombstone
	}
	return &Memory{now: o.Now, tombstone: o.Tombstone.Milliseconds(), scopes: map[place]*scopeState{},
		reservations: map[reservationKey]*reservation{}, fences: map[string]int64{}, left: map[place]int64{}, moved: map[place]*Move{}, parted: map[place]parting{}, arrived: map[arrival]bool{}}
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
	if err := m.stale(r.Shard, r.Fences); err != nil {
		return Decision{}, err
	}
	now := m.now().UnixMilli()
	m.forget(now)
	at, key := time.UnixMilli(now).UTC(), reservationKey{r.Shard, r.Subject, r.RequestID}
	work, found, fits := m.observe(r, now)
	if old := m.reservations[key]; old != nil && old.until > now && !r.DryRun {
		d := Conclude(r, true, at, found)
		d.Repeated, d.Reserved = true, old.reserved
		if !old.settled { // from now on it is this check's: what takes back an earlier one leaves it alone
			d.LeaseUntil, old.checkMeta = time.UnixMilli(old.leaseUntil).UTC(), r.Meta
		}
		return d, nil
	}
	if r.Known {
		return Decision{At: at}, nil
	}
	if fits && !r.DryRun {
		until := leaseEnd(now, r.Lease)
		for i, s := range r.Scopes {
			for j, l := range s.Limits {
				b := work[i].buckets[idOf(l)]
				b.add(s.charge(j, r.Cost))
				work[i].buckets[idOf(l)] = b
				found[i].Buckets[j] = Bucket{b.consumed, b.credit, b.fast}
			}
			if !s.slotLent {
				work[i].leases[until]++
				found[i].InUse++
			}
			m.keep(place{r.Shard, s.Name}, work[i], now)
		}
		res := &reservation{checkedAt: now, leaseUntil: until, until: until + Retention.Milliseconds(), due: until, reserved: r.Cost, drawn: r.Drawn,
			checkMeta: r.Meta}
		for _, s := range r.Scopes {
			res.scopes = append(res.scopes, scopeID{s.Kind, s.Name})
			res.borrow(s)
			if s.slotLent {
				if res.lent == nil {
					res.lent = map[scopeID]int{}
				}
				res.lent[scopeID{s.Kind, s.Name}] = s.slotAt
			}
		}
		m.reservations[key] = res
	} else if fits {
		for i, s := range r.Scopes { // a dry run shows what would be left
			for j, l := range s.Limits {
				b := work[i].buckets[idOf(l)]
				b.add(s.charge(j, r.Cost))
				found[i].Buckets[j] = Bucket{b.consumed, b.credit, b.fast}
			}
			found[i].InUse++
		}
	}
	d := Conclude(r, fits, at, found)
	if fits && !r.DryRun {
		d.Reserved, d.LeaseUntil = r.Cost, time.UnixMilli(m.reservations[key].leaseUntil).UTC()
	}
	return d, nil
}

func (m *Memory) stale(shard int, fences []Fence) error {
	for _, f := range fences {
		if v := max(m.fences[f.Name], m.left[place{shard, f.Name}]); v > f.Version {
			return &StaleError{Name: f.Name, Published: v}
		}
	}
	return nil
}

// observe looks at every scope at the given time and tells whether the request fits all of them. What it returns are copies; only a
// changed capacity is kept, so that the wait it leads to stays true.
func (m *Memory) observe(r CheckRequest, now int64) (work []*scopeState, found []Observed, fits bool) {
	fits = true
	for _, s := range r.Scopes {
		st, lag, changed := m.at(place{r.Shard, s.Name}, s.Limits, now, true)
		o := Observed{LagMillis: lag, InUse: st.open(now)}
		if s.Slots > 0 && o.InUse >= s.Slots && !s.slotLent {
			fits = false
		}
		for j, l := range s.Limits {
			b := st.buckets[idOf(l)]
			if s.charge(j, r.Cost) > l.Capacity-b.consumed {
				fits = false
			}
			o.Buckets = append(o.Buckets, Bucket{b.consumed, b.credit, b.fast})
		}
		if changed {
			m.keep(place{r.Shard, s.Name}, st.clone(), now)
		}
		work, found = append(work, st), append(found, o)
	}
	return work, found, fits
}

func idOf(l Limit) limitID { return limitID{l.Counted, l.Window.Milliseconds()} }

func (st *scopeState) clone() *scopeState {
	return &scopeState{at: st.at, buckets: maps.Clone(st.buckets), leases: maps.Clone(st.leases)}
}

// at gives a copy of a scope's state, drained to now, its limits with their present capacities if restamp, else with those they had; how
// far the state lies ahead of now; and whether a capacity has changed. Time that runs backwards drains nothing.
func (m *Memory) at(p place, limits []Limit, now int64, restamp bool) (st *scopeState, lag int64, changed bool) {
	if old := m.scopes[p]; old != nil {
		st = old.clone()
	} else {
		st = newScopeState(now)
	}
	if len(limits) == 0 {
		return st, 0, false
	}
	if len(st.buckets) == 0 {
		st.at = now // an empty state says nothing, not even when
	}
	ms := max(0, now-st.at)
	lag = max(0, st.at-now)
	st.at += ms
	current := make(map[limitID]bool, len(limits))
	for _, l := range limits {
		id := idOf(l)
		current[id] = true
		b, known := st.buckets[id]
		if !known {
			b = bucket{capacity: l.Capacity}
		} else {
			b.drain(id.window, ms)
			if restamp || b.consumed == 0 { // an empty bucket says nothing, not even of its capacity
				changed = b.advance(l.Capacity, id.window, 0) || changed
			}
		}
		st.buckets[id] = b
	}
	for id, b := range st.buckets { // a limit that is lifted for a while keeps its consumption
		if !current[id] {
			b.drain(id.window, ms)
			st.buckets[id] = b
		}
	}
	return st, lag, changed
}

// keep stores a scope's state. An empty bucket says nothing, nor does a lease that has ended.
func (m *Memory) keep(p place, st *scopeState, now int64) {
	maps.DeleteFunc(st.buckets, func(_ limitID, b bucket) bool { return b.consumed == 0 })
	maps.DeleteFunc(st.leases, func(until, _ int64) bool { return until <= now })
	m.scopes[p] = st
	delete(m.moved, p)
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
	out := Settlement{Status: Settled, At: time.UnixMilli(now).UTC(), Meta: r.Meta, Shard: r.Shard}
	switch {
	case res == nil && r.Known:
		return Settlement{Status: Unknown, At: out.At, Shard: r.Shard}, nil
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
		out.LeaseWas = time.UnixMilli(res.leaseUntil).UTC()
	}
	out.Charged = m.end(r, res, now)
	res.settled, res.meta, res.until, res.due = true, r.Meta, now+Retention.Milliseconds(), now+EmitGrace.Milliseconds()
	return out, nil
}

// end puts what was used in the place of what a reservation holds in each scope, and its slots are free. It tells which of the given scopes were
// charged in the shard itself. A reservation without a check (checkedAt is 0) holds nothing.
func (m *Memory) end(r SettleRequest, res *reservation, now int64) []bool {
	charged, named := make([]bool, len(r.Scopes)), map[scopeID]bool{}
	for i, s := range r.Scopes {
		id := scopeID{s.Kind, s.Name}
		named[id] = true
		c := correction{scope: s, amounts: r.Actual, age: r.Age.Milliseconds(), keep: true}
		if slices.Contains(res.scopes, id) {
			c = m.ending(res, s, r.Actual)
		} else if res.checkedAt != 0 && s.Kind != ScopeModel {
			continue
		}
		charged[i] = m.correctFor(res, r.Shard, r.Spread, c, now)
	}
	for _, id := range res.scopes {
		if !named[id] {
			m.correctFor(res, r.Shard, r.Spread, m.ending(res, OwnScope(Scope{Kind: id.kind, Name: id.name}), r.Actual), now)
		}
	}
	return charged
}

// ending is the correction of a scope that a reservation holds.
func (m *Memory) ending(res *reservation, s Scope, actual Amounts) correction {
	return correction{scope: s, amounts: actual.Minus(res.reserved), drop: res.leaseUntil, keep: true}
}

// Cancel implements Limiter.
func (m *Memory) Cancel(_ context.Context, r CancelRequest) (bool, error) {
	if err := validateScopes(r.Scopes); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, key := m.now().UnixMilli(), reservationKey{r.Shard, r.Subject, r.RequestID}
	res := m.reservations[key]
	if res == nil || res.until <= now || res.settled || !strings.HasSuffix(res.checkMeta, r.Meta) {
		return false, nil
	}
	held := slices.DeleteFunc(slices.Clone(r.Scopes), func(s Scope) bool { return !slices.Contains(res.scopes, scopeID{s.Kind, s.Name}) })
	m.end(SettleRequest{Shard: r.Shard, Spread: r.Spread, Scopes: held}, res, now)
	delete(m.reservations, key)
	return true, nil
}

// Find implements Lender.
func (m *Memory) Find(_ context.Context, s subject.Subject, requestID uuid.UUID, shards []int) (int, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	for _, shard := range shards {
		if res := m.reservations[reservationKey{shard, s, requestID}]; res != nil && res.until > now {
			return shard, true, nil
		}
	}
	return 0, false, nil
}

// MarkEmitted implements Limiter.
func (m *Memory) MarkEmitted(_ context.Context, shard int, s subject.Subject, requestID uuid.UUID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if res := m.reservations[reservationKey{shard, s, requestID}]; res != nil && res.settled {
		if !res.emitted {
			res.until = m.now().UnixMilli() + m.tombstone
		}
		res.emitted, res.meta, res.checkMeta, res.due = true, "", "", 0
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
	if err := m.stale(r.Shard, r.Fences); err != nil {
		return Status{}, err
	}
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
	// Not before a clock that ran backwards could ask again; of reservations there may be many.
	soon := now - time.Minute.Milliseconds()
	now -= time.Hour.Milliseconds()
	for k, res := range m.reservations {
		if res.until <= soon {
			delete(m.reservations, k)
		}
	}
	for p := range m.scopes {
		st := m.scopes[p]
		maps.DeleteFunc(st.buckets, func(id limitID, b bucket) bool {
			b.drain(id.window, max(0, now-st.at))
			return b.consumed == 0
		})
		maps.DeleteFunc(st.leases, func(until, _ int64) bool { return until <= now })
		if len(st.buckets) == 0 && len(st.leases) == 0 {
			delete(m.scopes, p)
		}
	}
}
