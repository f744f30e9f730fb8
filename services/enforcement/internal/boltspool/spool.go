package boltspool

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// File is the spool's name in its directory.
const File = "events.bolt"

// ErrFull says that the spool takes no event now. ErrClosed says that it is stopping. ErrLocked says that another process has it.
// ErrDamaged says that the file is not what was written.
var (
	ErrFull    = errors.New("the spool is full")
	ErrClosed  = errors.New("the spool is closed")
	ErrLocked  = errors.New("another process uses it")
	ErrDamaged = errors.New("the file is damaged. Keep a copy (its events are in it, see bbolt surgery), move it away and start anew")
)

var (
	queueName = []byte("queue")      // sequence number, big-endian: when it came (unix ms, 8 bytes), event
	asideName = []byte("quarantine") // sequence number, big-endian: JSON of aside
)

// aside is an event in quarantine.
type aside struct {
	Reason   string `json:"reason"`
	AtMillis int64  `json:"at_ms"` // when it was set aside
	Event    string `json:"event"`
}

const (
	overhead  = 64              // bytes that an event is charged beyond its own
	together  = 1024            // operations in one commit at most
	lockWait  = time.Second     // for a process that is just ending
	restAfter = 1 * time.Second // after a failed write
)

// Options are a Spool's settings. Zero values take the defaults.
type Options struct {
	MaxBytes int64 // of events: 1 GiB
	Registry prometheus.Registerer
	Now      func() time.Time // time.Now
}

// Spool is an open spool. It is safe for concurrent use.
type Spool struct {
	o  Options
	m  metrics
	db *bbolt.DB

	gate   sync.RWMutex // held for reading while an operation is handed over, for writing by Close
	closed bool
	ops    chan *op
	writer sync.WaitGroup

	mu        sync.Mutex
	queued    int64 // events in the queue, and those that are on their way into it
	bytes     int64 // of these and of the quarantine
	aside     int64
	restUntil time.Time
}

// op is what one caller wants written.
type op struct {
	add     []byte            // an event, if not nil
	refusal string            // for the quarantine if not empty
	sent    []uint64          // to be taken out
	refused map[uint64]string // to be set aside

	freed, gone, moved int64 // what taking out did to bytes and counts
	result             chan error
}

// Open opens the spool in dir, which it makes if need be. Events in quarantine go back to the end of the queue, to be tried once more:
// whoever starts a service anew may have removed what they were refused for.
func Open(dir string, o Options) (*Spool, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the spool's directory: %w", err)
	}
	path := filepath.Join(dir, File)
	var db *bbolt.DB
	err := guarded(func() (err error) {
		if err := walk(path); err != nil {
			return err
		}
		// The list of free pages is not written but found at the start, as etcd does: after a long outage it would be larger than most commits.
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", path, err)
	}
	s := &Spool{o: o, db: db, ops: make(chan *op, together)}
	if err := errors.Join(syncDir(dir), guarded(func() error { return db.Update(s.load) })); err != nil {
		return nil, errors.Join(fmt.Errorf("read the spool %s: %w", path, err), db.Close())
	}
	s.m = newMetrics(o.Registry, s)
	s.writer.Go(s.write)
	return s, nil
}

// walk reads all that a spool holds. Opening it to write does so too, but in a goroutine of bbolt's own, whose panic would end the process.
func walk(path string) error {
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || (err == nil && info.Size() == 0) {
		return nil // made by the opening
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true})
	if err != nil {
		return err
	}
	return errors.Join(guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
				var last []byte
				return b.ForEach(func(k, v []byte) error {
					if len(k) != 8 || len(v) < 8 || bytes.Compare(k, last) <= 0 || b.Get(k) == nil {
						return fmt.Errorf("%w: event %x of %d bytes behind %x", ErrDamaged, k, len(v), last)
					}
					last = append(last[:0], k...)
					return nil
				})
			})
		})
	}), db.Close())
}

// guarded turns the panics of bbolt that meets a page that it has not written into ErrDamaged, and so a read behind the end of a file that was
// cut.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return f()
}

// syncDir has the file survive a loss of power under its name.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load makes the buckets, puts the quarantine back into the queue and counts.
func (s *Spool) load(tx *bbolt.Tx) error {
	queue, err := tx.CreateBucketIfNotExists(queueName)
	if err != nil {
		return err
	}
	quarantine, err := tx.CreateBucketIfNotExists(asideName)
	if err != nil {
		return err
	}
	var again []aside
	var keys [][]byte
	if err := quarantine.ForEach(func(k, v []byte) error {
		var a aside
		if err := json.Unmarshal(v, &a); err != nil {
			return fmt.Errorf("quarantine %x: %w", k, err)
		}
		again, keys = append(again, a), append(keys, append([]byte(nil), k...))
		return nil
	}); err != nil {
		return err
	}
	for i, a := range again {
		if err := errors.Join(s.put(queue, []byte(a.Event)), quarantine.Delete(keys[i])); err != nil {
			return err
		}
	}
	return queue.ForEach(func(_, v []byte) error {
		s.queued++
		s.bytes += charge(len(v) - 8)
		return nil
	})
}

func charge(n int) int64 { return int64(n) + overhead }

// Append keeps an event and returns when it is durable: at the end of the queue, or in quarantine if there is a refusal. After an error it
// may or may not have been kept.
func (s *Spool) Append(ctx context.Context, event []byte, refusal string) error {
	size, queued := charge(len(event)), int64(1)
	if refusal != "" {
		queued = 0
	}
	if err := s.take(size, queued); err != nil {
		s.m.refused.WithLabelValues(refusedFull).Inc()
		return err
	}
	err := s.do(ctx, &op{add: event, refusal: refusal})
	switch {
	case err == nil && refusal == "":
		s.m.spooled.Inc()
	case err == nil:
		s.m.quarantined.Inc()
	case errors.Is(err, ErrFull):
		s.m.refused.WithLabelValues(refusedWrite).Inc()
	}
	return err
}

// take reserves room for an event.
func (s *Spool) take(size, queued int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+size > s.o.MaxBytes {
		return fmt.Errorf("%w: %d bytes of %d", ErrFull, s.bytes, s.o.MaxBytes)
	}
	s.bytes += size
	s.queued += queued
	return nil
}

// Oldest gives events from the head of the queue by their sequence numbers: at least one if there is one, then up to most events and limit bytes.
func (s *Spool) Oldest(most, limit int) (seqs []uint64, events [][]byte, err error) {
	read := func(tx *bbolt.Tx) {
		c, size := tx.Bucket(queueName).Cursor(), 0
		for k, v := c.First(); k != nil && len(seqs) < most; k, v = c.Next() {
			if size += len(v) - 8; size > limit && len(seqs) > 0 {
				break
			}
			seqs, events = append(seqs, binary.BigEndian.Uint64(k)), append(events, append([]byte(nil), v[8:]...))
		}
	}
	err = guarded(func() error { return s.db.View(func(tx *bbolt.Tx) error { read(tx); return nil }) })
	if err != nil {
		return nil, nil, fmt.Errorf("read the spool: %w", err)
	}
	return seqs, events, nil
}

// Settle takes out what was sent, and sets aside what was refused, with its reason. It returns when that is durable.
func (s *Spool) Settle(ctx context.Context, sent []uint64, refused map[uint64]string) error {
	return s.do(ctx, &op{sent: sent, refused: refused})
}

// Len is how many events are in the queue, those included that are just being written.
func (s *Spool) Len() int { s.mu.Lock(); defer s.mu.Unlock(); return int(s.queued) }

// do hands an operation to the writer and waits until it is durable.
func (s *Spool) do(ctx context.Context, p *op) error {
	p.result = make(chan error, 1)
	if err := s.hand(ctx, p); err != nil {
		s.finish(p, err)
		return err
	}
	select {
	case err := <-p.result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("write the spool: %w", ctx.Err()) // it goes on
	}
}

func (s *Spool) hand(ctx context.Context, p *op) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return ErrClosed
	}
	select {
	case s.ops <- p:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write the spool: %w", ctx.Err())
	}
}

// write commits what callers want, all that is waiting at once.
func (s *Spool) write() {
	for first := range s.ops {
		batch := []*op{first}
	gather:
		for len(batch) < together {
			select {
			case p, open := <-s.ops:
				if !open {
					break gather
				}
				batch = append(batch, p)
			default:
				break gather
			}
		}
		s.writeBatch(batch)
	}
}

// writeBatch commits a batch. What adds nothing is tried even when the disk is full, and without what adds.
func (s *Spool) writeBatch(batch []*op) {
	var adds, rest []*op
	for _, p := range batch {
		if p.add != nil {
			adds = append(adds, p)
		} else {
			rest = append(rest, p)
		}
	}
	all := batch
	if resting := s.resting(); resting != nil && len(adds) > 0 {
		s.finishAll(adds, resting)
		all, adds = rest, nil
	}
	if len(all) == 0 {
		return
	}
	err := s.commit(all)
	if err == nil || len(adds) == 0 {
		s.finishAll(all, err)
		return
	}
	s.mu.Lock()
	s.restUntil = s.o.Now().Add(restAfter)
	s.mu.Unlock()
	s.finishAll(adds, fmt.Errorf("%w: %w", ErrFull, err))
	if len(rest) > 0 {
		s.finishAll(rest, s.commit(rest))
	}
}

func (s *Spool) resting() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.Now().Before(s.restUntil) {
		return fmt.Errorf("%w: a write has just failed", ErrFull)
	}
	return nil
}

func (s *Spool) commit(batch []*op) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		queue, quarantine := tx.Bucket(queueName), tx.Bucket(asideName)
		queue.FillPercent = 1 // keys only grow
		for _, p := range batch {
			p.freed, p.gone, p.moved = 0, 0, 0
			if err := s.apply(queue, quarantine, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the spool: %w", err)
	}
	s.m.commits.Inc()
	return nil
}

func (s *Spool) apply(queue, quarantine *bbolt.Bucket, p *op) error {
	switch {
	case p.add != nil && p.refusal == "":
		return s.put(queue, p.add)
	case p.add != nil:
		return s.putAside(queue, quarantine, p.add, p.refusal)
	}
	for _, seq := range p.sent {
		event, err := takeOut(queue, seq)
		if err != nil {
			return err
		}
		if event != nil {
			p.gone, p.freed = p.gone+1, p.freed+charge(len(event))
		}
	}
	for seq, reason := range p.refused {
		event, err := takeOut(queue, seq)
		if err != nil {
			return err
		}
		if event != nil {
			p.gone, p.moved = p.gone+1, p.moved+1
			if err := s.putAside(queue, quarantine, event, reason); err != nil {
				return err
			}
		}
	}
	return nil
}

func key(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func (s *Spool) put(queue *bbolt.Bucket, event []byte) error {
	seq, err := queue.NextSequence()
	if err != nil {
		return err
	}
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(event)), uint64(s.o.Now().UnixMilli()))
	return queue.Put(key(seq), append(v, event...))
}

func (s *Spool) putAside(queue, quarantine *bbolt.Bucket, event []byte, reason string) error {
	seq, err := queue.NextSequence()
	if err != nil {
		return err
	}
	v, err := json.Marshal(aside{Reason: reason, AtMillis: s.o.Now().UnixMilli(), Event: string(event)})
	if err != nil {
		return err
	}
	return quarantine.Put(key(seq), v)
}

// takeOut gives the event, or nil if it isn't there (any more).
func takeOut(queue *bbolt.Bucket, seq uint64) ([]byte, error) {
	k := key(seq)
	v := queue.Get(k)
	if v == nil {
		return nil, nil
	}
	event := append([]byte(nil), v[8:]...)
	return event, queue.Delete(k)
}

func (s *Spool) finishAll(batch []*op, err error) {
	for _, p := range batch {
		s.finish(p, err)
		p.result <- err
	}
}

// finish counts what an operation has done.
func (s *Spool) finish(p *op, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p.add != nil && err != nil:
		s.bytes -= charge(len(p.add))
		if p.refusal == "" {
			s.queued--
		}
	case p.add != nil && p.refusal != "":
		s.aside++
	case p.add == nil && err == nil:
		s.queued -= p.gone
		s.bytes -= p.freed
		s.aside += p.moved
		s.m.drained.Add(float64(p.gone - p.moved))
		s.m.quarantined.Add(float64(p.moved))
	}
}

// oldest is when the head of the queue came; zero if the queue is empty.
func (s *Spool) oldest() (at time.Time) {
	_ = s.db.View(func(tx *bbolt.Tx) error { // it fails only when the spool is closed
		if _, v := tx.Bucket(queueName).Cursor().First(); v != nil {
			at = time.UnixMilli(int64(binary.BigEndian.Uint64(v)))
		}
		return nil
	})
	return at
}

// Close waits for what is being written and closes the file. What is in the spool stays. A second call does nothing.
func (s *Spool) Close() error {
	s.gate.Lock()
	if s.closed {
		s.gate.Unlock()
		return nil
	}
	s.closed = true
	close(s.ops)
	s.gate.Unlock()
	s.writer.Wait()
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close the spool: %w", err)
	}
	return nil
}
