package reconcile

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
)

// many is a log and a ledger that agree on n events, made up as they are asked for.
type many struct {
	n    int64
	peak uint64 // bytes of the heap in use
}

// mix spreads i over 64 bits (the finalizer of splitmix64).
func mix(i uint64) uint64 {
	i = (i ^ i>>30) * 0xbf58476d1ce4e5b9
	i = (i ^ i>>27) * 0x94d049bb133111eb
	return i ^ i>>31
}

func (m *many) event(i int64) Event {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], mix(uint64(i)))
	binary.BigEndian.PutUint64(id[8:], mix(uint64(i)+1<<40))
	id[6], id[8] = id[6]&0x0f|0x50, id[8]&0x3f|0x80
	return Event{ID: id, Place: Place{0, i}, AtMillis: 1_800_000_000_000 + i, Input: 100, Output: 20, Rest: uint64(i)}
}

func (m *many) look() {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.peak = max(m.peak, s.HeapInuse)
}

func (m *many) Partitions(context.Context, time.Time) ([]Partition, error) {
	return []Partition{{Latest: m.n}}, nil
}
func (m *many) Committed(context.Context) (map[int]int64, bool, error) { return nil, false, nil }
func (m *many) DeadLetters(context.Context, func(Place, string)) error { return nil }
func (m *many) StoredRows(context.Context) (int64, error)              { return m.n, nil }
func (m *many) Sums(context.Context, time.Time) ([]Sum, error)         { return nil, nil }
func (m *many) Groups(context.Context, string, time.Time, int) ([]Group, error) {
	return nil, nil
}

func (m *many) Read(_ context.Context, spans []Span, add func(Message) error) error {
	for i := spans[0].Start; i < spans[0].End; i++ {
		if err := add(Message{Event: m.event(i)}); err != nil {
			return err
		}
		if i%1_000_000 == 0 {
			m.look()
		}
	}
	return nil
}

func (m *many) Events(_ context.Context, which Rows, add func(Event) error) error {
	m.look()
	from, to := binary.BigEndian.Uint64(which.From[8:]), binary.BigEndian.Uint64(which.To[8:])
	for i := range m.n {
		e := m.event(i)
		if h := binary.BigEndian.Uint64(e.ID[8:]); h < from || (which.To != uuid.Nil && h >= to) {
			continue
		}
		if err := add(e); err != nil {
			return err
		}
	}
	m.look()
	return nil
}

// What a comparison holds in memory does not follow the number of events. The time is that of the comparison alone: neither Kafka nor
// ClickHouse is asked, but each event is made up once a bucket.
func BenchmarkMemoryOfAComparison(b *testing.B) {
	for _, n := range []int64{500_000, 2_000_000, 8_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				m := &many{n: n}
				runtime.GC()
				r, err := LogAndLedger(b.Context(), m, m)
				if err != nil || !r.Agree() || r.Log.Events != n {
					b.Fatal(err, r)
				}
				b.ReportMetric(float64(m.peak)/1e6, "peak-heap-MB")
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
