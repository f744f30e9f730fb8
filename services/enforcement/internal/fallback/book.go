package fallback

import (
	"container/heap"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

type key struct {
	shard   int
	subject subject.Subject
	id      uuid.UUID
}

// stage is what the store has still to be told of a request.
type stage int

const (
	held      stage = iota // granted here and open: at most that it is no longer the store's
	drawn                  // open in the store, drawn from here: tokens and a new lease
	settled                // ended here: what it used and, once that is so, that its event is durable
	cancelled              // refused here, or given an error, after the store may have granted it: take that back
	noted                  // settled in the store: that its event is durable
)

// entry is one request that the store has still to be told of.
type entry struct {
	stage    stage
	local    bool // granted here
	open     bool // by limit.AwayOpen: counted nowhere until the store is back
	doubtful bool // the store may have granted it, too: it is to give that up
	spread   limit.Spread
	scopes   []limit.Scope
	earlier  []int  // where else the store may know it
	meta     string // of the check that the store may have granted

	at              time.Time     // when it was granted here
	reserved, drawn limit.Amounts // of a request granted here
	tokens          int64         // drawn since the store was away
	lease           time.Duration

	settle     limit.SettleRequest
	settlement limit.Settlement // what the event is made from, again and again the same
	ended      time.Time        // when that was made, by this instance's clock
	applied    bool             // the store knows the settlement,
	shard      int              // and has it there
	emitted    bool             // the event is durable

	due    time.Time // when Due offers it; zero: never
	next   time.Time // when the store is told, at the earliest
	tries  int
	queued bool
	busy   bool // the store is being told
}

// tellable says whether there is something to tell the store now. What was granted here is unknown to it, so that its event, whose
// beginning only this instance knows, comes first: else the store would have another one made without it.
func (e *entry) tellable() bool {
	switch e.stage {
	case held:
		return e.doubtful
	case settled:
		return e.emitted || (!e.local && !e.applied)
	}
	return true
}

// book keeps the entries. It has no lock of its own.
type book struct {
	most    int
	entries map[key]*entry
	held    int   // entries that are held
	queue   []key // to be told, oldest first
	dues    dues
	ready   map[int][]key // due, by shard
}

func newBook(most int) book {
	return book{most: most, entries: map[key]*entry{}, ready: map[int][]key{}}
}

// put adds an entry, or gives one another stage; false if there is no room. Whoever has an entry keeps it.
func (b *book) put(k key, e *entry, to stage) bool {
	old := b.entries[k]
	if old == nil && len(b.entries) >= b.most {
		return false
	}
	if old != nil && old.stage == held {
		b.held--
	}
	if to == held {
		b.held++
	}
	e.stage = to
	b.entries[k] = e
	b.enqueue(k, e)
	return true
}

func (b *book) full() bool { return len(b.entries) >= b.most }

// enqueue notes that the store is to be told, if there is something to tell.
func (b *book) enqueue(k key, e *entry) {
	if e.tellable() && !e.queued && !e.busy {
		e.queued = true
		b.queue = append(b.queue, k)
	}
}

func (b *book) drop(k key) {
	if e := b.entries[k]; e != nil {
		if e.stage == held {
			b.held--
		}
		delete(b.entries, k)
	}
}

// pending is how many entries wait for the store.
func (b *book) pending() int { return len(b.entries) - b.held }

// dueAt has Due offer an entry from a time on.
func (b *book) dueAt(k key, e *entry, at time.Time) {
	e.due = at
	heap.Push(&b.dues, dueKey{at, k})
}

// sortDue moves what is due by now to the lists by shard.
func (b *book) sortDue(now time.Time) {
	for len(b.dues) > 0 && !b.dues[0].at.After(now) {
		d, _ := heap.Pop(&b.dues).(dueKey)
		if e := b.entries[d.key]; e != nil && e.due.Equal(d.at) {
			b.ready[d.key.shard] = append(b.ready[d.key.shard], d.key)
		}
	}
}

type dueKey struct {
	at  time.Time
	key key
}

// dues is a heap, the earliest first. An entry whose time has changed has an outdated place in it, too.
type dues []dueKey

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d dues) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dues) Push(x any)        { *d = append(*d, x.(dueKey)) } //nolint:errcheck // heap gives back what dueAt pushed
func (d *dues) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
