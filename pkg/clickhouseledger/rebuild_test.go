package clickhouseledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// memoryLog is a log of some partitions. An event without an id stands for a message that can't be used.
type memoryLog struct {
	mu         sync.Mutex
	partitions [][]Event
	gone       int64 // offsets that retention has taken from partition 0
}

func newLog(partitions int) *memoryLog { return &memoryLog{partitions: make([][]Event, partitions)} }

func (l *memoryLog) write(events ...Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		p := int(e.EventID[15]) % len(l.partitions)
		e.Topic, e.Partition, e.Offset = usage.Topic, p, int64(len(l.partitions[p]))
		l.partitions[p] = append(l.partitions[p], e)
	}
}

// from gives up to n events of a partition.
func (l *memoryLog) from(p, offset, n int) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.partitions[p]
	return append([]Event{}, all[min(offset, len(all)):min(offset+n, len(all))]...)
}

func (l *memoryLog) Spans(context.Context) (out []LogSpan, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, all := range l.partitions {
		out = append(out, LogSpan{Partition: p, End: int64(len(all))})
	}
	out[0].Start = l.gone
	return out, nil
}

func (l *memoryLog) Read(ctx context.Context, spans []LogSpan, add func(*Event) error) error {
	for _, s := range spans {
		for _, e := range l.from(s.Partition, int(s.Start), int(s.End-s.Start)) {
			at := &e
			if e.Model == "unusable" {
				at = nil
			}
			if err := errors.Join(ctx.Err(), add(at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Two consumers store the same log, each committing only what it has stored, while two rebuilds run at once: nothing is lost, nothing counts twice.
func TestRebuildsWhileConsumersStoreLoseAndRepeatNothing(t *testing.T) {
	dsn, db := migrated(t)
	log, m := newLog(3), &model{map[string]Event{}}
	write := func(from, n int) {
		batch := events(from, n)
		log.write(batch...)
		m.store(batch)
	}
	write(0, 600)
	produced := make(chan struct{})
	var consumers, rebuilds sync.WaitGroup
	for c := range 2 {
		l, rng := writer(t, dsn), rand.New(rand.NewPCG(uint64(c), 5))
		consumers.Go(func() {
			committed := make([]int, len(log.partitions))
			for done := false; !done; {
				select {
				case <-produced:
					done = true // after one more round to the ends
				case <-time.After(time.Millisecond):
				}
				for p := range committed {
					for {
						batch := log.from(p, committed[p], 1+rng.IntN(80))
						if len(batch) == 0 {
							break
						}
						if _, err := l.Store(context.Background(), batch); err != nil {
							t.Errorf("consumer %d: %v", c, err)
							return
						}
						committed[p] += len(batch)
					}
				}
			}
		})
	}
	for i := range 2 {
		rebuilds.Go(func() {
			for n := range 2 {
				c := RebuildConfig{DSN: dsn, Log: log, fault: func(string) error { time.Sleep(20 * time.Millisecond); return nil }}
				if _, err := Rebuild(context.Background(), c); err != nil {
					t.Errorf("rebuild %d of %d: %v", n, i, err)
				}
			}
		})
	}
	stopped := make(chan struct{})
	go func() { rebuilds.Wait(); close(stopped) }()
	for from, running := 600, true; running; from += 40 {
		if from < 15_000 { // however slow the machine, the log stays small
			write(from, 40)
			write(from-300, 20) // repeats
		}
		select {
		case <-stopped:
			running = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	close(produced)
	consumers.Wait()
	m.check(t, db, "after all rebuilds")
	if n := number(t, db, "SELECT toInt64(count()) FROM system.tables WHERE database = currentDatabase() AND name LIKE 'usage_ledger_%'"); n != 0 {
		t.Errorf("%d tables are left", n)
	}
}

func TestARebuildThatEndsAfterAnyStepLosesNothingForGood(t *testing.T) {
	for _, step := range []string{"create", "fence", "seed", "read into usage_ledger_", "fill", "exchange", "keep", "read into usage_ledger"} {
		t.Run(step, func(t *testing.T) {
			dsn, db := migrated(t)
			log, m, l := newLog(2), &model{map[string]Event{}}, writer(t, dsn)
			consume := func(from, n int) {
				log.write(events(from, n)...)
				store(t, l, events(from, n))
				m.store(events(from, n))
			}
			consume(0, 100)
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			reached := false
			_, err := Rebuild(ctx, RebuildConfig{DSN: dsn, Log: log, Keep: true, fault: func(at string) error {
				if at == "fill" {
					consume(100, 10) // the old table has them, the new one can't
				}
				if at != step {
					return nil
				}
				reached = true
				kill()
				return ctx.Err()
			}})
			if !reached || !errors.Is(err, context.Canceled) {
				t.Fatalf("reached: %v, error: %v", reached, err)
			}
			if step != "exchange" && step != "keep" {
				m.check(t, db, "after the kill")
			}
			consume(110, 30)
			r, err := Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log})
			if err != nil {
				t.Fatal(err)
			}
			m.check(t, db, "after the second try")
			consume(140, 30)
			m.check(t, db, "after more")
			if want := map[string]int{"exchange": 1}[step]; len(r.Unfinished) != want || len(r.Dropped) != 0 {
				t.Errorf("left %v, dropped %v", r.Unfinished, r.Dropped)
			}
		})
	}
}

// A writer that looked before the exchange is refused by the new table, looks again, and stores there.
func TestAWriterThatLookedBeforeARebuildIsRefusedThenStores(t *testing.T) {
	dsn, db := migrated(t)
	l, log, m := writer(t, dsn), newLog(2), &model{map[string]Event{}}
	log.write(events(0, 50)...)
	m.store(events(0, 50))
	store(t, l, events(0, 40))
	var r RebuildReport
	l.fault = func(step string) (err error) {
		if step == "before insert" && r.Generation == 0 {
			r, err = Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log, Keep: true})
		}
		return err
	}
	log.write(events(50, 10)...)
	m.store(events(50, 10))
	if s := store(t, l, events(35, 25)); s.Lost != 1 || s.Added != 0 || s.Known != 25 { // the rebuild had them from the log
		t.Errorf("%+v", s)
	}
	if s := store(t, l, events(60, 5)); s.Added != 5 || s.Lost != 0 {
		t.Errorf("after it: %+v", s)
	}
	m.store(events(60, 5))
	m.check(t, db, "after the rebuild")
	if n := number(t, db, "SELECT toInt64(count()) FROM "+r.Kept+" WHERE grain = 'event'"); n != 40 {
		t.Errorf("the kept table holds %d events, want 40", n)
	}
	if n := number(t, db, fmt.Sprintf("SELECT toInt64(count()) FROM usage_ledger WHERE generation != %d", r.Generation)); n != 0 {
		t.Errorf("%d rows of another generation", n)
	}
}

func TestARebuildRefusesALogThatLacksSomethingUnlessForced(t *testing.T) {
	dsn, db := migrated(t)
	l, log, m := writer(t, dsn), newLog(2), &model{map[string]Event{}}
	store(t, l, events(0, 30))
	m.store(events(0, 30))
	log.write(events(1, 29)...)   // all but one
	log.write(events(200, 60)...) // and more than the ledger holds
	bad, unusable := event(100), event(101)
	bad.InputTokens, unusable.Model = -1, "unusable"
	log.write(bad, unusable)
	_, err := Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log})
	if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "it lacks 1 of the ledger's events, "+event(0).EventID.String()) {
		t.Errorf("a log that lacks an event: %v", err)
	}
	m.check(t, db, "after the refusal")
	log.gone = 3
	_, err = Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log})
	if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "partition 0 begins at offset 3") {
		t.Errorf("a log without its beginning: %v", err)
	}
	m.check(t, db, "after the refusal")
	exec(t, db, "CREATE TABLE usage_ledger_77 AS usage_ledger") // another rebuild's
	want := int64(len(log.partitions[0])-3) + int64(len(log.partitions[1]))
	r, err := Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log, Force: true})
	if err != nil || r.Messages != want || r.Unusable != 2 || int64(r.Events) != want-2 || r.Lost != 1+3 || len(r.Unfinished) != 1 || r.Unfinished[0] != "usage_ledger_77" {
		t.Errorf("%+v, %v; want %d messages", r, err, want)
	}
	if n := number(t, db, "SELECT toInt64(count()) FROM usage_events"); n != want-2 {
		t.Errorf("%d events, want %d", n, want-2)
	}
}

// A topic that was made anew holds as many events as the ledger, and more: other ones.
func TestARebuildFromAnotherLogIsRefusedHoweverMuchThatHolds(t *testing.T) {
	dsn, db := migrated(t)
	l, log, m := writer(t, dsn), newLog(3), &model{map[string]Event{}}
	store(t, l, events(0, 60))
	m.store(events(0, 60))
	log.write(events(1000, 61)...)
	if _, err := Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log}); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "it lacks 60 of the ledger's events") {
		t.Errorf("another log: %v", err)
	}
	m.check(t, db, "after the refusal")
}

// A consumer that looked before the rebuild marks what it reads up to 5 s later as of then. It is in the log, so it is not what the log lacks.
func TestWhatAConsumerStoresDuringARebuildIsNotTakenForLost(t *testing.T) {
	dsn, db := migrated(t)
	l, log, m := writer(t, dsn), newLog(2), &model{map[string]Event{}}
	consume := func(from, n int) {
		log.write(events(from, n)...)
		store(t, l, events(from, n))
		m.store(events(from, n))
	}
	consume(0, 50)
	late := false
	r, err := Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: log, fault: func(at string) error {
		if at == "read into usage_ledger_" && !late {
			late = true
			consume(50, 10)
		}
		return nil
	}})
	if err != nil || !late || r.Lost != 0 || r.Events != 60 {
		t.Errorf("%+v, %v", r, err)
	}
	m.check(t, db, "after the rebuild")
}

// Ranges that end in the middle of what is lacking are counted together.
func TestWhatTheLogLacksIsCountedOverAllRanges(t *testing.T) {
	dsn, db := migrated(t)
	store(t, writer(t, dsn), events(0, 1000))
	exec(t, db, "CREATE TABLE usage_ledger_5 AS usage_ledger")
	exec(t, db, "ALTER TABLE usage_ledger_5 DROP CONSTRAINT fresh")
	exec(t, db, "INSERT INTO usage_ledger_5 SELECT * FROM usage_ledger WHERE grain != 'event' OR kafka_partition % 4 != 0")
	exec(t, db, "INSERT INTO usage_ledger_5 (grain, event_id, events, generation, outcome) SELECT 'event', generateUUIDv4(number), 1, 1, 'completed' FROM numbers(5000)")
	r := &rebuild{db: db, generation: 5}
	now, err := r.clock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, most := range []int{300, 1000, guardRange} {
		got, example, err := r.lacking(t.Context(), now, most)
		if n := number(t, db, fmt.Sprintf("SELECT toInt64(count()) FROM usage_ledger WHERE event_id = '%s' AND kafka_partition %% 4 = 0", example)); err != nil || got != 250 || n != 1 {
			t.Errorf("ranges of %d: %d lacking, %s for one (%d), %v", most, got, example, n, err)
		}
	}
	if got, _, err := r.lacking(t.Context(), moment{serverMillis: now.serverMillis - 60_000}, guardRange); got != 0 || err != nil {
		t.Errorf("of what was ingested a minute before: %d, %v", got, err)
	}
}

// What a killed rebuild left goes once nobody can be filling it; what was kept on purpose stays.
func TestLeftoversOfKilledRebuildsAreDroppedOnceIdle(t *testing.T) {
	dsn, db := migrated(t)
	for _, name := range []string{"usage_ledger_5", "usage_ledger_kept_6", "usage_ledger_x7"} {
		exec(t, db, "CREATE TABLE "+name+" AS usage_ledger")
	}
	r, err := Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: newLog(1)})
	if err != nil || len(r.Unfinished) != 1 || r.Unfinished[0] != "usage_ledger_5" || len(r.Dropped) != 0 {
		t.Errorf("young: %+v, %v", r, err)
	}
	time.Sleep(2100 * time.Millisecond) // ClickHouse's clock for tables counts whole seconds
	r, err = Rebuild(t.Context(), RebuildConfig{DSN: dsn, Log: newLog(1), idle: time.Second})
	if err != nil || len(r.Dropped) != 1 || r.Dropped[0] != "usage_ledger_5" || len(r.Unfinished) != 0 {
		t.Errorf("idle: %+v, %v", r, err)
	}
	if n := number(t, db, "SELECT toInt64(count()) FROM system.tables WHERE database = currentDatabase() AND name LIKE 'usage_ledger_%'"); n != 2 {
		t.Errorf("%d tables, want the two that are no leftovers", n)
	}
}

// Leftovers are dropped on demand, but not the live table, nor kept ones, nor one that a running rebuild may write to: its metadata or its last part is young.
func TestLeftoversAreDroppedOnDemandUnlessARebuildMayWriteToThem(t *testing.T) {
	dsn, db := migrated(t)
	store(t, writer(t, dsn), events(0, 20))
	for _, name := range []string{"usage_ledger_5", "usage_ledger_6", "usage_ledger_kept_7", "usage_ledger_x8"} {
		exec(t, db, "CREATE TABLE "+name+" AS usage_ledger")
	}
	dropped, running, err := DropLeftovers(t.Context(), dsn)
	if err != nil || len(dropped) != 0 || !slices.Equal(running, []string{"usage_ledger_5", "usage_ledger_6"}) {
		t.Errorf("young: dropped %v, running %v, %v", dropped, running, err)
	}
	time.Sleep(5 * time.Second)
	exec(t, db, "INSERT INTO usage_ledger_6 (grain, events, request_id, ingested_at, generation) SELECT 'fold', 1, generateUUIDv4(), now64(3), 1")
	dropped, running, err = clearLeftovers(t.Context(), db, 4*time.Second) // as if that were ten minutes
	if err != nil || !slices.Equal(dropped, []string{"usage_ledger_5"}) || !slices.Equal(running, []string{"usage_ledger_6"}) {
		t.Errorf("one is written to: dropped %v, running %v, %v", dropped, running, err)
	}
	if n := number(t, db, "SELECT toInt64(count()) FROM system.tables WHERE database = currentDatabase() AND name IN ('usage_ledger', 'usage_ledger_6', 'usage_ledger_kept_7', 'usage_ledger_x8')"); n != 4 {
		t.Errorf("%d tables are left, want 4", n)
	}
	if n := number(t, db, "SELECT toInt64(count()) FROM usage_events"); n != 20 {
		t.Errorf("%d events, want 20", n)
	}
}
