package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// world is a log, a ledger and a dead letters' topic in memory, and what happened to them in order.
type world struct {
	mu       sync.Mutex
	journal  []string
	messages chan Message
	rows     []Row
	tries    [][]Row // of storing
	dead     []DeadLetter
	commits  map[int]int64
	insert   func(ctx context.Context, rows []Row) error // nil: succeeds
	write    func(ctx context.Context) error
	commit   func(ctx context.Context) error
}

func newWorld() *world {
	return &world{messages: make(chan Message, 100), commits: map[int]int64{}}
}

func (w *world) note(format string, args ...any) {
	w.journal = append(w.journal, fmt.Sprintf(format, args...))
}

func (w *world) Fetch(ctx context.Context) (Message, error) {
	select {
	case m := <-w.messages:
		return m, nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		w.note("fetching stopped")
		return Message{}, ctx.Err()
	}
}

func (w *world) Store(ctx context.Context, rows []Row) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tries = append(w.tries, slices.Clone(rows))
	if w.insert != nil {
		if err := w.insert(ctx, rows); err != nil {
			return err
		}
	}
	w.note("insert %d", len(rows))
	w.rows = append(w.rows, rows...)
	return nil
}

func (w *world) Write(ctx context.Context, letters []DeadLetter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.write != nil {
		if err := w.write(ctx); err != nil {
			return err
		}
	}
	w.note("dead %d", len(letters))
	w.dead = append(w.dead, letters...)
	return nil
}

func (w *world) Commit(ctx context.Context, at []Position) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commit != nil {
		if err := w.commit(ctx); err != nil {
			return err
		}
	}
	for _, p := range at {
		w.note("commit %d/%d", p.Partition, p.Offset)
		w.commits[p.Partition] = p.Offset
	}
	return nil
}

func (w *world) loop() *Loop {
	return &Loop{Source: w, Ledger: w, DeadLetters: w, Limits: Limits{Count: 3, Bytes: 1 << 20, Wait: time.Second}, Metrics: NewMetrics(prometheus.NewRegistry(), time.Now),
		Log: slog.New(slog.DiscardHandler), Now: time.Now}
}

// start runs the loop inside a synctest bubble; the returned function stops it and gives its error.
func (w *world) start(l *Loop) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func message(partition int, offset int64, value []byte) Message {
	return Message{Position{usage.Topic, partition, offset}, usage.Message{Key: []byte("k"), Value: value}}
}

func good(partition int, offset int64) Message {
	id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%d/%d", partition, offset))
	m, err := usage.Encode(usage.Record{EventID: id, SchemaVersion: 1, UserID: "u", OrgID: "o", RequestID: id, Model: "m", InputTokens: 10,
		Timestamp: usage.At(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), Outcome: usage.Completed, Reservation: usage.Held}, "/test")
	if err != nil {
		panic(err)
	}
	return message(partition, offset, m.Value)
}

func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.journal, want) {
		t.Errorf("happened:\n%s\nwant:\n%s", strings.Join(w.journal, "\n"), strings.Join(want, "\n"))
	}
}

func TestABatchIsStoredThenPutAsideThenCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.start(w.loop())
		w.messages <- good(1, 5)
		w.messages <- message(0, 9, []byte("hello"))
		w.messages <- good(0, 10)
		synctest.Wait() // full by count: no time passes
		w.expect(t, "insert 2", "dead 1", "commit 0/10", "commit 1/5")
		if w.dead[0].Reason != usage.ReasonNotJSON || w.dead[0].Offset != 9 {
			t.Errorf("dead letter %+v", w.dead[0])
		}
		w.messages <- good(0, 11)
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		w.expect(t, "insert 2", "dead 1", "commit 0/10", "commit 1/5") // not before its time
		time.Sleep(time.Millisecond)
		synctest.Wait()
		w.expect(t, "insert 2", "dead 1", "commit 0/10", "commit 1/5", "insert 1", "commit 0/11")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestStopFlushesThenCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.start(w.loop())
		w.messages <- good(0, 0)
		w.messages <- good(0, 1)
		synctest.Wait()
		w.expect(t)
		if err := stop(); err != nil {
			t.Error(err)
		}
		w.expect(t, "fetching stopped", "insert 2", "commit 0/1")
	})
}

func TestLedgerAwayHoldsOneBatchAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		away := true
		w.insert = func(context.Context, []Row) error {
			if away {
				return errors.New("connection refused")
			}
			return nil
		}
		stop := w.start(w.loop())
		for i := range 100 {
			w.messages <- good(0, int64(i))
		}
		time.Sleep(time.Hour)
		w.mu.Lock()
		if got := len(w.messages); got < 100-3-1 {
			t.Errorf("fetched %d messages while the ledger was away", 100-got)
		}
		if len(w.commits) > 0 {
			t.Error("committed what was not stored")
		}
		for _, rows := range w.tries {
			if len(rows) != len(w.tries[0]) || rows[0].Record != w.tries[0][0].Record {
				t.Error("another batch was tried")
			}
		}
		if n := len(w.tries); n < 100 || n > 2000 {
			t.Errorf("%d tries in an hour", n)
		}
		away = false
		w.mu.Unlock()
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(w.rows) != 100 || w.commits[0] != 99 {
			t.Errorf("%d rows, committed to %d", len(w.rows), w.commits[0])
		}
	})
}

func TestStopWhileLedgerIsAwayLeavesTheBatchUncommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.insert = func(context.Context, []Row) error { return errors.New("connection refused") }
		stop := w.start(w.loop())
		w.messages <- good(0, 0)
		time.Sleep(10 * time.Second)
		start := time.Now()
		if err := stop(); err == nil {
			t.Error("a batch that was not stored must be told")
		}
		if took := time.Since(start); took > DefaultTiming.Drain {
			t.Errorf("the stop took %s", took)
		}
		if len(w.commits) > 0 {
			t.Error("committed what was not stored")
		}
	})
}

func TestDeadLettersAwayHoldsTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		away := true
		w.write = func(context.Context) error {
			if away {
				return errors.New("no leader")
			}
			return nil
		}
		stop := w.start(w.loop())
		w.messages <- message(0, 0, nil)
		time.Sleep(time.Minute)
		w.expect(t)
		w.mu.Lock()
		away = false
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		w.expect(t, "dead 1", "commit 0/0")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestOneRefusedRowIsFoundAndTheOthersAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.insert = func(_ context.Context, rows []Row) error {
			for _, r := range rows {
				if r.Message.Offset == 7 {
					return fmt.Errorf("constraint: %w", ErrRefused)
				}
			}
			return nil
		}
		l := w.loop()
		l.Limits.Count = 20
		stop := w.start(l)
		for i := range 20 {
			w.messages <- good(0, int64(i))
		}
		synctest.Wait()
		if len(w.rows) != 19 || len(w.dead) != 1 || w.commits[0] != 19 {
			t.Errorf("%d rows, %d dead letters, committed to %d", len(w.rows), len(w.dead), w.commits[0])
		}
		if d := w.dead[0]; d.Reason != ReasonRefused || d.Offset != 7 || len(d.Value) == 0 || string(d.Key) != "k" {
			t.Errorf("dead letter %+v", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAFailedCommitIsCoveredByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		fail := errors.New("rebalance in progress")
		w.commit = func(context.Context) error { err := fail; fail = nil; return err }
		stop := w.start(w.loop())
		w.messages <- good(0, 0)
		time.Sleep(2 * time.Second)
		w.messages <- good(0, 1)
		time.Sleep(2 * time.Second)
		w.expect(t, "insert 1", "insert 1", "commit 0/1")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAStopDuringTheInsertStillCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.insert = func(ctx context.Context, _ []Row) error {
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		stop := w.start(w.loop())
		w.messages <- good(0, 0)
		time.Sleep(2 * time.Second) // in the middle of the insert
		if err := stop(); err != nil {
			t.Error(err)
		}
		w.expect(t, "fetching stopped", "insert 1", "commit 0/0")
		if len(w.tries) != 2 || w.tries[0][0].Record != w.tries[1][0].Record {
			t.Errorf("tried %v: the interrupted batch must be tried again", w.tries)
		}
	})
}

func TestABatchIsBoundedInBytes(t *testing.T) {
	b := newBatch()
	l := Limits{Count: 1000, Bytes: 1 << 20}
	for i := range 1000 {
		b.add(message(0, int64(i), make([]byte, 1<<18)))
		if b.full(l) {
			if i != 3 {
				t.Errorf("full after %d messages of 256 KiB, want 4", i+1)
			}
			return
		}
	}
	t.Error("never full")
}
