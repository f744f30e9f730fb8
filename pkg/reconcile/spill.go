package reconcile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/google/uuid"
)

const (
	recordLen    = 16 + 2 + 8 + 8 + 3*8 + 8 + 1
	perBucket    = 500_000 // messages that a bucket should hold
	maxBuckets   = 256     // open files
	splitInto    = 16
	bucketBuffer = 64 << 10
)

// Flags of a record.
const (
	flagRejected = 1 << iota
	flagAdjustment
	flagExpired
	flagDead // the message was put aside: its event is not expected in the ledger, unless another message bears it
)

// entry is an event of the log as it is spilled.
type entry struct {
	Event
	dead bool
}

// spill is the log's events on disk, in buckets by the second half of the event id, which ClickHouse compares first.
type spill struct {
	dir     string
	width   uint64 // of a bucket
	buckets []*bucket
	files   int // made so far, for their names
}

// bucket holds the messages whose id's second half lies from lo to hi, both in it.
type bucket struct {
	lo, hi uint64
	mu     sync.Mutex
	file   *os.File
	w      *bufio.Writer
	n      int
}

// newSpill makes a directory below dir, or below the system's for temporary files.
func newSpill(dir string, messages int64) (*spill, error) {
	n := uint64(1)
	for int64(n)*perBucket < messages && n < maxBuckets { //nolint:gosec // at most maxBuckets
		n *= 2
	}
	own, err := os.MkdirTemp(dir, "tollgate-reconcile-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the log's events: %w", err)
	}
	s := &spill{dir: own}
	if s.buckets, s.width, err = s.ranges(0, math.MaxUint64, n); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// ranges makes buckets of equal width from lo to hi, at most n.
func (s *spill) ranges(lo, hi, n uint64) (out []*bucket, width uint64, err error) {
	width = (hi - lo) / n // one less than it is, so that 1<<64 fits
	for from := lo; ; from += width + 1 {
		b := &bucket{lo: from, hi: from + min(width, hi-from)}
		if b.file, err = os.OpenFile(filepath.Join(s.dir, strconv.Itoa(s.files)), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
			return out, width, fmt.Errorf("make a file for the log's events: %w", err)
		}
		s.files++
		b.w = bufio.NewWriterSize(b.file, bucketBuffer)
		if out = append(out, b); b.hi == hi {
			return out, width, nil
		}
	}
}

// close removes everything.
func (s *spill) close() error {
	var errs []error
	for _, b := range s.buckets {
		errs = append(errs, b.file.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// next takes the first bucket out. One that holds far too many is split instead, and split again: ids need not be spread evenly, and those of
// requests of one time are not. It gives nil after the last one; done must be called before the next call.
func (s *spill) next() (*bucket, error) {
	for len(s.buckets) > 0 {
		b := s.buckets[0]
		if b.n <= 2*perBucket || b.lo == b.hi {
			return b, nil
		}
		parts, width, err := s.ranges(b.lo, b.hi, splitInto)
		s.buckets = append(parts, s.buckets...) // b is closed below its parts
		if err != nil {
			return nil, err
		}
		if err := s.read(b, func(raw []byte) error { return parts[(half(raw)-b.lo)/(width+1)].write(raw) }); err != nil {
			return nil, err
		}
		s.buckets = append(parts, s.buckets[len(parts)+1:]...)
		if err := b.remove(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// done removes the first bucket.
func (s *spill) done() error {
	b := s.buckets[0]
	s.buckets = s.buckets[1:]
	return b.remove()
}

func (b *bucket) remove() error {
	if err := errors.Join(b.file.Close(), os.Remove(b.file.Name())); err != nil {
		return fmt.Errorf("remove a temporary file: %w", err)
	}
	return nil
}

func half(id []byte) uint64 { return binary.BigEndian.Uint64(id[8:16]) }

// bounds gives the ids of a bucket: from, and up to to, which is nil for the last one.
func (b *bucket) bounds() (from, to uuid.UUID) {
	binary.BigEndian.PutUint64(from[8:], b.lo)
	if b.hi != math.MaxUint64 {
		binary.BigEndian.PutUint64(to[8:], b.hi+1)
	}
	return from, to
}

func (b *bucket) write(raw []byte) error {
	b.n++
	if _, err := b.w.Write(raw); err != nil {
		return fmt.Errorf("keep the log's events: %w", err)
	}
	return nil
}

// add may be called by several goroutines at once.
func (s *spill) add(e *entry) error {
	var raw [recordLen]byte
	le := binary.LittleEndian
	b := append(raw[:0], e.ID[:]...)
	b = le.AppendUint16(b, uint16(e.Place.Partition)) //nolint:gosec // the ledger's column is 16 bits wide
	for _, n := range [...]int64{e.Place.Offset, e.AtMillis, e.Input, e.Output, e.Cached} {
		b = le.AppendUint64(b, uint64(n)) //nolint:gosec // read back as it is
	}
	b = le.AppendUint64(b, e.Rest)
	var flags byte
	for _, f := range [...]struct {
		on   bool
		flag byte
	}{{e.Rejected, flagRejected}, {e.Adjustment, flagAdjustment}, {e.Expired, flagExpired}, {e.dead, flagDead}} {
		if f.on {
			flags |= f.flag
		}
	}
	b = append(b, flags)
	k := s.buckets[0]
	if len(s.buckets) > 1 {
		k = s.buckets[half(b)/(s.width+1)]
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.write(b)
}

// read gives a bucket's records.
func (s *spill) read(b *bucket, add func(raw []byte) error) error {
	if err := b.w.Flush(); err != nil {
		return fmt.Errorf("keep the log's events in %s: %w", s.dir, err)
	}
	if _, err := b.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the log's events in %s: %w", s.dir, err)
	}
	r := bufio.NewReaderSize(b.file, bucketBuffer)
	var raw [recordLen]byte
	for range b.n {
		if _, err := io.ReadFull(r, raw[:]); err != nil {
			return fmt.Errorf("read the log's events in %s: %w", s.dir, err)
		}
		if err := add(raw[:]); err != nil {
			return err
		}
	}
	return nil
}

// load gives a bucket's messages by event id; of one event first those that are not put aside, what is no guess before what is, then by place.
func (s *spill) load(b *bucket) ([]entry, error) {
	all := make([]entry, 0, b.n)
	err := s.read(b, func(raw []byte) error {
		all = append(all, decode(raw))
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b entry) int {
		if c := bytes.Compare(a.ID[:], b.ID[:]); c != 0 {
			return c
		}
		switch {
		case a.dead != b.dead:
			return sign(b.dead)
		case a.Place == b.Place:
			return 0
		}
		return sign(a.stands(&b.Event))
	})
	return all, nil
}

// sign orders: what comes first is less.
func sign(first bool) int {
	if first {
		return -1
	}
	return 1
}

func decode(b []byte) (e entry) {
	le := binary.LittleEndian
	copy(e.ID[:], b)
	e.Place.Partition = int(le.Uint16(b[16:]))
	for i, p := range [...]*int64{&e.Place.Offset, &e.AtMillis, &e.Input, &e.Output, &e.Cached} {
		*p = int64(le.Uint64(b[18+8*i:])) //nolint:gosec // written from an int64
	}
	e.Rest = le.Uint64(b[58:])
	flags := b[66]
	e.Rejected, e.Adjustment, e.Expired, e.dead = flags&flagRejected != 0, flags&flagAdjustment != 0, flags&flagExpired != 0, flags&flagDead != 0
	return e
}
