package clickhouseledger

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed" // the statements
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	//go:embed sql/rebuild_create.sql
	rebuildCreateSQL string
	//go:embed sql/rebuild_fence.sql
	rebuildFenceSQL string
	//go:embed sql/rebuild_seed.sql
	rebuildSeedSQL string
	//go:embed sql/rebuild_exchange.sql
	rebuildExchangeSQL string
	//go:embed sql/rebuild_keep.sql
	rebuildKeepSQL string
	//go:embed sql/rebuild_drop.sql
	rebuildDropSQL string
)

const (
	rebuildBatch  = 50_000
	undoTimeout   = 30 * time.Second
	maxCatchUps   = 10 // readings of what has come meanwhile, before the exchange
	closeToTheEnd = 10_000
)

// ErrIncomplete is what Rebuild's error wraps if the log does not hold all that the ledger does. Force overrides it.
var ErrIncomplete = errors.New("the log doesn't hold all that the ledger does")

// LogSpan is a part of one partition: offsets from Start up to, not including, End.
type LogSpan struct {
	Partition  int
	Start, End int64
}

// Log is the EVENT stage's log.
type Log interface {
	// Spans gives what each partition holds now, from its earliest offset to its end.
	Spans(ctx context.Context) ([]LogSpan, error)
	// Read gives each message of some spans, in order within a partition, from several goroutines at once: its event, or nil if it has none
	// that can be used.
	Read(ctx context.Context, spans []LogSpan, add func(*Event) error) error
}

// RebuildConfig says from what, and how, Rebuild works.
type RebuildConfig struct {
	DSN      string
	Log      Log
	Progress func(done, total int64) // messages; total grows with the log. May be nil
	Keep     bool                    // keep the replaced table, as usage_ledger_kept_<generation>
	Force    bool                    // rebuild even if the log has lost its beginning or lacks events that the ledger holds: they are lost

	fault func(step string) error // for tests: called after each step
	idle  time.Duration           // for tests: instead of leftoverAge
}

// RebuildReport is what a rebuild did.
type RebuildReport struct {
	Generation uint64   `json:"generation"`     // of the table that is live now
	Events     int      `json:"events"`         // stored
	Messages   int64    `json:"messages"`       // read
	Unusable   int64    `json:"unusable"`       // messages without an event that can be stored: the consumer's dead letters
	Lost       int64    `json:"lost,omitempty"` // events that the ledger held and the log does not: with Force
	Seconds    float64  `json:"seconds"`
	Kept       string   `json:"kept,omitempty"`       // the replaced table
	Dropped    []string `json:"dropped,omitempty"`    // leftovers of killed rebuilds
	Unfinished []string `json:"unfinished,omitempty"` // tables of other rebuilds, running or killed less than a day ago: left alone
}

// rebuild is one run.
type rebuild struct {
	RebuildConfig
	db         *sql.DB
	generation uint64
	report     RebuildReport

	mu    sync.Mutex
	batch []Event
	into  *Ledger
	total int64
	next  map[int]int64 // by partition: what is read so far
}

// Rebuild stores the whole log in a table of its own, puts that in the live one's place, and then stores what has come meanwhile in it. Consumers
// and other rebuilds may run at the same time.
//
// Why no event is lost: who stores an event has read it from the log. What was stored in the old table before the exchange is therefore below the
// ends that are asked for after it; who has looked at the old table and inserts later is refused by the new one's constraint; and
// whose block went to the old table while it was swapped finds another generation when reading back, and stores again.
//
// If it ends early: before the exchange, the live table is untouched. After it, until Rebuild returns, the live table may lack events that consumers
// stored in the old one since the last reading before the exchange (the views lack them, and a reconciliation names them) until Rebuild has run again.
func Rebuild(ctx context.Context, c RebuildConfig) (RebuildReport, error) {
	began := time.Now()
	db, err := OpenSQL(c.DSN)
	if err != nil {
		return RebuildReport{}, err
	}
	defer func() { _ = db.Close() }()
	r := &rebuild{RebuildConfig: c, db: db, generation: 2 + rand.Uint64N(math.MaxInt64-2), next: map[int]int64{}}
	r.report.Generation = r.generation
	err = r.run(ctx)
	r.report.Seconds = time.Since(began).Seconds()
	if err != nil {
		return r.report, fmt.Errorf("rebuild the ledger: %w", err)
	}
	return r.report, nil
}

func (r *rebuild) run(ctx context.Context) error {
	spans, err := r.Log.Spans(ctx)
	if err != nil {
		return err
	}
	for _, s := range spans {
		if s.Start > 0 && !r.Force {
			return fmt.Errorf("%w: partition %d begins at offset %d, what lay before is gone", ErrIncomplete, s.Partition, s.Start)
		}
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	if err := r.fill(ctx, spans); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return errors.Join(err, r.exec(undo, "drop", rebuildDropSQL))
	}
	// An error leaves it open which of the two tables is the live one, so that neither may be dropped from here on.
	if err := r.exec(ctx, "exchange", rebuildExchangeSQL); err != nil {
		return fmt.Errorf("run it again; usage_ledger_%d is the new table or the old one: %w", r.generation, err)
	}
	if r.Keep { // at once: nobody writes to it any more, so that it would soon look like a leftover
		r.report.Kept = "usage_ledger_kept_" + strconv.FormatUint(r.generation, 10)
		if err := r.exec(ctx, "keep", rebuildKeepSQL); err != nil {
			return fmt.Errorf("the new table is live, but lacks what came meanwhile; run it again: %w", err)
		}
	}
	if err := r.catchUp(ctx, table); err != nil {
		return fmt.Errorf("the new table is live, but lacks what came meanwhile; run it again: %w", err)
	}
	if r.Keep {
		return nil
	}
	return r.exec(ctx, "drop", rebuildDropSQL)
}

// clear drops what killed rebuilds have left.
func (r *rebuild) clear(ctx context.Context) (err error) {
	r.report.Dropped, r.report.Unfinished, err = clearLeftovers(ctx, r.db, cmp.Or(r.idle, leftoverAge))
	return err
}

// fill makes the new table and stores the log in it, until little is left that has come meanwhile, and all is there that the ledger held.
func (r *rebuild) fill(ctx context.Context, spans []LogSpan) error {
	began, err := r.clock(ctx)
	if err != nil {
		return err
	}
	for _, s := range []struct{ name, statement string }{{"create", rebuildCreateSQL}, {"fence", rebuildFenceSQL}, {"seed", rebuildSeedSQL}} {
		if err := r.exec(ctx, s.name, s.statement); err != nil {
			return err
		}
	}
	for _, s := range spans {
		r.next[s.Partition] = s.Start
	}
	own := ownTable(r.generation)
	for range maxCatchUps {
		before := r.report.Messages
		if err := r.catchUp(ctx, own); err != nil {
			return err
		}
		if r.report.Messages-before < closeToTheEnd {
			break
		}
	}
	if err := r.guard(ctx, own, began); err != nil {
		return err
	}
	return r.inject("fill")
}

// catchUp stores what lies between what is read and the ends as of now.
func (r *rebuild) catchUp(ctx context.Context, name string) error {
	spans, err := r.Log.Spans(ctx)
	if err != nil {
		return err
	}
	var left []LogSpan
	for _, s := range spans {
		s.Start = max(s.Start, r.next[s.Partition])
		if s.End > s.Start {
			left = append(left, s)
			r.total += s.End - s.Start
		}
	}
	o, err := Options(r.DSN)
	if err != nil {
		return err
	}
	r.into = open(o, name)
	defer func() { _ = r.into.Close() }()
	if err := r.Log.Read(ctx, left, func(e *Event) error { return r.add(ctx, e) }); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.flush(ctx); err != nil {
		return err
	}
	for _, s := range left {
		r.next[s.Partition] = s.End
	}
	return r.inject("read into " + strings.TrimRight(name, "0123456789"))
}

// add takes one message.
func (r *rebuild) add(ctx context.Context, e *Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Messages++
	if e == nil {
		r.report.Unusable++
		return nil
	}
	r.batch = append(r.batch, *e)
	if len(r.batch) < rebuildBatch {
		return nil
	}
	return r.flush(ctx)
}

func (r *rebuild) flush(ctx context.Context) error {
	if err := r.store(ctx, r.batch); err != nil {
		return err
	}
	clear(r.batch)
	r.batch = r.batch[:0]
	if r.Progress != nil {
		r.Progress(r.report.Messages, max(r.total, r.report.Messages))
	}
	return nil
}

// store stores a batch but for the events that the ledger refuses, which it looks for by halves.
func (r *rebuild) store(ctx context.Context, batch []Event) error {
	s, err := r.into.Store(ctx, batch)
	r.report.Events += s.Added
	switch {
	case !errors.Is(err, ErrRefused):
		return err
	case len(batch) == 1:
		r.report.Unusable++
		return nil
	}
	half := len(batch) / 2
	if err := r.store(ctx, batch[:half]); err != nil {
		return err
	}
	return r.store(ctx, batch[half:])
}

func (r *rebuild) exec(ctx context.Context, step, statement string) error {
	if _, err := r.db.ExecContext(ctx, of64(statement, r.generation)); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return r.inject(step)
}

func (r *rebuild) inject(step string) error {
	if r.fault == nil {
		return nil
	}
	return r.fault(step)
}

// of64 puts the generation in a statement.
func of64(statement string, generation uint64) string {
	return strings.ReplaceAll(statement, "@generation", strconv.FormatUint(generation, 10))
}
