package reconcile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// spill is the log's events on disk, in buckets by event id.
type spill struct {
	dir     string
	shift   uint // a bucket is the 14 bits behind the variant of a UUID, shifted
	buckets []*bucket
}

type bucket struct {
	mu   sync.Mutex
	file *os.File
	w    *bufio.Writer
	n    int
}

// newSpill makes a directory below dir, or below the system's for temporary files.
func newSpill(dir string, messages int64) (*spill, error) {
	n, shift := 1, uint(14)
	for int64(n)*perBucket < messages && n < maxBuckets {
		n, shift = 2*n, shift-1
	}
	own, err := os.MkdirTemp(dir, "tollgate-reconcile-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the log's events: %w", err)
	}
	s := &spill{dir: own, shift: shift}
	for i := range n {
		f, err := os.OpenFile(filepath.Join(own, strconv.Itoa(i)), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make a file for the log's events: %w", err), s.close())
		}
		s.buckets = append(s.buckets, &bucket{file: f, w: bufio.NewWriterSize(f, bucketBuffer)})
	}
	return s, nil
}

// close removes everything.
func (s *spill) close() error {
	var errs []error
	for _, b := range s.buckets {
		errs = append(errs, b.file.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// variantStart is where ids made by RFC 9562 begin in bytes 8 and 9; they end before variantStart + 1<<14. Event ids are such (version 5), and
// their bits are spread evenly. Others go to the first or the last bucket.
const variantStart = 0x8000

func (s *spill) bucketOf(id uuid.UUID) int {
	v := int(binary.BigEndian.Uint16(id[8:10])) - variantStart
	return min(max(v, 0)>>s.shift, len(s.buckets)-1)
}

// bounds gives the ids of a bucket: from, and up to to, which is nil for the last one.
func (s *spill) bounds(k int) (from, to uuid.UUID) {
	at := func(k int) (id uuid.UUID) {
		binary.BigEndian.PutUint16(id[8:10], uint16(variantStart+k<<s.shift)) //nolint:gosec // k<<shift is at most 1<<14
		return id
	}
	if k > 0 {
		from = at(k)
	}
	if k < len(s.buckets)-1 {
		to = at(k + 1)
	}
	return from, to
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
	b = le.AppendUint64(b, e.Texts)
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
	k := s.buckets[s.bucketOf(e.ID)]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.n++
	if _, err := k.w.Write(b); err != nil {
		return fmt.Errorf("keep the log's events in %s: %w", s.dir, err)
	}
	return nil
}

// load gives a bucket's messages by event id; of one event first those that are not put aside, what is no guess before what is, then by place.
func (s *spill) load(k int) ([]entry, error) {
	b := s.buckets[k]
	if err := b.w.Flush(); err != nil {
		return nil, fmt.Errorf("keep the log's events in %s: %w", s.dir, err)
	}
	if _, err := b.file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the log's events in %s: %w", s.dir, err)
	}
	all := make([]entry, b.n)
	r := bufio.NewReaderSize(b.file, bucketBuffer)
	var raw [recordLen]byte
	for i := range all {
		if _, err := io.ReadFull(r, raw[:]); err != nil {
			return nil, fmt.Errorf("read the log's events in %s: %w", s.dir, err)
		}
		all[i] = decode(raw[:])
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
	e.Texts = le.Uint64(b[58:])
	flags := b[66]
	e.Rejected, e.Adjustment, e.Expired, e.dead = flags&flagRejected != 0, flags&flagAdjustment != 0, flags&flagExpired != 0, flags&flagDead != 0
	return e
}
