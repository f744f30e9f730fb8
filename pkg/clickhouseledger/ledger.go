package clickhouseledger

import (
	"context"
	_ "embed" // the statements
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
)

//go:embed sql/look.sql
var lookSQL string

//go:embed sql/find.sql
var findSQL string

//go:embed sql/guesses.sql
var guessesSQL string

//go:embed sql/insert.sql
var insertSQL string

const (
	// MaxBatch is the most events of one block. A bigger batch is stored in several: each of them whole or not at all.
	MaxBatch = 100_000

	table    = "usage_ledger"
	lookAge  = 5 * time.Second // how long what was read about the last fold is used; far below the table's constraint `fresh`
	retained = 1000            // folds whose rows are kept; an older one is taken back, so that their number does not grow for ever
	maxPause = 50 * time.Millisecond

	codeViolatedConstraint = 469
)

// ErrRefused is what Store's error wraps if at least one of the events can never be stored, however often it is tried.
var ErrRefused = errors.New("an event is refused by the ledger")

// errMoved tells that the table is another one by now, or that too much time has passed since the look.
var errMoved = errors.New("the ledger has moved on since it was looked at")

// Stored tells what became of a batch's events. Repeats inside the batch are known ones.
type Stored struct {
	Added    int
	Replaced int // real outcomes that took the place of a stored guess
	Known    int // stored before: nothing was written
	Folds    int // blocks written
	Lost     int // blocks that another writer's made void; the events are counted above all the same
}

// Ledger writes to one database. Its methods may be called from several goroutines; Store works for one at a time.
type Ledger struct {
	options []ch.Options // one for each address
	table   string

	mu    sync.Mutex
	conn  *ch.Client // nil if there is none
	state *look      // nil if it must be read
	block *block
	sums  sums

	fault func(step string) error // for tests: called before and after each step
}

// look is what a writer has seen of the ledger.
type look struct {
	fold       uint64           // the last one
	generation uint64           // of the table
	at         proto.DateTime64 // by the server's clock, not after the look
	since      time.Time        // by this process's
}

// Open makes a ledger. Nothing is dialled yet.
func Open(dsn string) (*Ledger, error) {
	o, err := Options(dsn)
	if err != nil {
		return nil, err
	}
	return open(o, table), nil
}

func open(o *clickhouse.Options, table string) *Ledger {
	l := &Ledger{table: table, block: newBlock()}
	for _, addr := range o.Addr {
		l.options = append(l.options, columnar(o, addr))
	}
	return l
}

// Ping asks whether ClickHouse answers, on a connection of its own.
func (l *Ledger) Ping(ctx context.Context) error {
	c, err := l.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.Ping(ctx), c.Close())
}

// Close closes the connection.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drop()
}

// Store stores events, each event_id once. On success all of them count, now or since before; after an error some may, and the call may be
// repeated, with the same or with other batches.
func (l *Ledger) Store(ctx context.Context, events []Event) (Stored, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var total Stored
	for len(events) > 0 {
		n := min(len(events), MaxBatch)
		s, err := l.store(ctx, events[:n])
		total.Added, total.Replaced, total.Known = total.Added+s.Added, total.Replaced+s.Replaced, total.Known+s.Known
		total.Folds, total.Lost = total.Folds+s.Folds, total.Lost+s.Lost
		if err != nil {
			return total, fmt.Errorf("store %d events: %w", n, err)
		}
		events = events[n:]
	}
	return total, nil
}

// store stores one batch as one fold.
func (l *Ledger) store(ctx context.Context, events []Event) (Stored, error) {
	picked := standing(events)
	ids := make(proto.ColUUID, len(picked))
	for i, at := range picked {
		ids[i] = events[at].EventID
	}
	mark := uuid.New()
	var lost int
	for {
		state, err := l.look(ctx)
		if err != nil {
			return Stored{Lost: lost}, err
		}
		s, err := l.prepare(ctx, events, picked, ids, mark, *state)
		if err != nil || s.Added+s.Replaced == 0 {
			s.Lost = lost
			return s, err
		}
		s.Lost = lost
		err = l.insert(ctx, *state)
		switch {
		case errors.Is(err, errMoved):
			l.state = nil
		case err != nil:
			return Stored{Lost: lost}, err
		default:
			won, err := l.readBack(ctx, *state, mark)
			if err != nil {
				return Stored{Lost: lost}, err
			}
			if won {
				s.Folds = 1
				return s, nil
			}
		}
		lost++
		if err := pause(ctx, min(maxPause, time.Duration(lost)*5*time.Millisecond)); err != nil {
			return Stored{Lost: lost}, err
		}
	}
}

// look reads the last fold, unless what is known of it is young. An old one does no harm but a lost race: the token tells.
func (l *Ledger) look(ctx context.Context) (*look, error) {
	if l.state != nil && time.Since(l.state.since) < lookAge {
		return l.state, nil
	}
	_, err := l.folds(ctx)
	if err == nil && l.state == nil {
		err = fmt.Errorf("%s has no fold yet: its migration has not ended", l.table)
	}
	return l.state, err
}

// folds reads the marks of the last folds by number, and notes the last.
func (l *Ledger) folds(ctx context.Context) (map[uint64]uuid.UUID, error) {
	var ids, marks proto.ColUUID
	var generation proto.ColUInt64
	var at proto.ColDateTime64
	since := time.Now()
	l.state = nil
	err := l.do(ctx, "look", ch.Query{Body: l.sql(lookSQL), Result: proto.Results{{Name: "fold", Data: &ids}, {Name: "mark", Data: &marks},
		{Name: "generation", Data: &generation}, {Name: "at", Data: &at}}})
	if err != nil {
		return nil, err
	}
	byNumber := map[uint64]uuid.UUID{}
	for i, id := range ids {
		byNumber[foldNumber(id)] = marks[i]
	}
	if len(ids) > 0 {
		l.state = &look{foldNumber(ids[0]), generation[0], at.Data[0], since}
	}
	return byNumber, nil
}

// prepare fills the block with what is to be stored of a batch, going by the state of the ledger at the look or later. It supposes that
// nothing of the batch is stored, as is so of nearly every batch, while ClickHouse looks whether that is so.
func (l *Ledger) prepare(ctx context.Context, events []Event, picked []int, ids proto.ColUUID, mark uuid.UUID, state look) (s Stored, err error) {
	var stored map[uuid.UUID]bool
	found := make(chan error, 1)
	go func() {
		var err error
		stored, err = l.find(ctx, ids)
		found <- err
	}()
	l.fill(events, picked, nil, state)
	if err := <-found; err != nil {
		return s, err
	}
	var replaced map[uuid.UUID]int
	s.Added = len(picked)
	if len(stored) > 0 {
		s.Added, replaced = l.fill(events, picked, stored, state)
	}
	if len(replaced) > 0 {
		if err := l.replace(ctx, events, replaced, state); err != nil {
			return s, err
		}
	}
	s.Replaced = len(replaced)
	s.Known = len(events) - s.Added - s.Replaced
	if s.Added+s.Replaced > 0 {
		l.block.addSums(&l.sums, state)
		l.block.addFold(state.fold+1, mark, 1, state)
		if old := state.fold + 1; old > retained {
			l.block.addFold(old-retained, uuid.Nil, -1, state)
		}
	}
	return s, nil
}

// fill begins the block with the events that are not stored. It tells how many they are, and the places in the batch of the real outcomes of
// stored guesses.
func (l *Ledger) fill(events []Event, picked []int, stored map[uuid.UUID]bool, state look) (added int, replaced map[uuid.UUID]int) {
	l.block.reset()
	l.sums.reset()
	replaced = map[uuid.UUID]int{}
	for _, at := range picked {
		e := &events[at]
		guess, known := stored[e.EventID]
		switch {
		case !known:
			added++
			l.block.addEvent(e, 1, state)
			l.sums.add(e, 1)
		case guess && !e.guess():
			replaced[e.EventID] = at
		}
	}
	return added, replaced
}

// replace adds what takes back stored guesses and puts real outcomes in their place. A guess that is gone by now has been replaced by
// another writer; then the fold is taken, too, and the block will be void.
func (l *Ledger) replace(ctx context.Context, events []Event, replaced map[uuid.UUID]int, state look) error {
	ids := make(proto.ColUUID, 0, len(replaced))
	for id := range replaced {
		ids = append(ids, id)
	}
	old, err := l.guesses(ctx, ids)
	if err != nil {
		return err
	}
	for i := range old {
		e := &events[replaced[old[i].EventID]]
		l.block.addEvent(&old[i], -1, state)
		l.sums.add(&old[i], -1)
		l.block.addEvent(e, 1, state)
		l.sums.add(e, 1)
	}
	return nil
}

// find tells which events are stored, and whether as a guess.
func (l *Ledger) find(ctx context.Context, ids proto.ColUUID) (map[uuid.UUID]bool, error) {
	var found proto.ColUUID
	var guess proto.ColBool
	stored := map[uuid.UUID]bool{}
	err := l.do(ctx, "find", ch.Query{Body: l.sql(findSQL), ExternalTable: "ids", ExternalData: []proto.InputColumn{{Name: "id", Data: &ids}},
		Result: proto.Results{{Name: "event_id", Data: &found}, {Name: "guess", Data: &guess}},
		OnResult: func(context.Context, proto.Block) error {
			for i, id := range found {
				stored[id] = guess[i]
			}
			return nil
		}})
	return stored, err
}

// guesses reads stored guesses in full.
func (l *Ledger) guesses(ctx context.Context, ids proto.ColUUID) ([]Event, error) {
	b := newBlock()
	var results proto.Results
	for _, c := range b.columns() {
		results = append(results, proto.ResultColumn{Name: c.name, Data: c.data})
	}
	var out []Event
	err := l.do(ctx, "guesses", ch.Query{Body: l.sql(guessesSQL), ExternalTable: "ids", ExternalData: []proto.InputColumn{{Name: "id", Data: &ids}},
		Result: results, OnResult: func(context.Context, proto.Block) error {
			for i := range b.eventID.Rows() {
				out = append(out, b.event(i))
			}
			return nil
		}})
	return out, err
}

// insert sends the block as the fold after the one that was looked at. No two of its rows have one key, so that ClickHouse need not add up
// before it stores (optimize_on_insert).
func (l *Ledger) insert(ctx context.Context, state look) error {
	err := l.do(ctx, "insert", ch.Query{Body: l.sql(insertSQL), Input: l.block.rows(), Settings: []ch.Setting{
		{Key: "insert_deduplicate", Value: "1", Important: true}, {Key: "async_insert", Value: "0", Important: true},
		{Key: "optimize_on_insert", Value: "0", Important: true},
		{Key: "insert_deduplication_token", Value: token(state.generation, state.fold+1), Important: true},
	}})
	ex, ok := ch.AsException(err)
	switch {
	case !ok || ex.Code != codeViolatedConstraint:
		return err
	case violates(ex, "generation"), violates(ex, "fresh"):
		return fmt.Errorf("%w: %w", errMoved, err)
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// violates goes by the beginning of ClickHouse's message, in which nothing stands that an event says.
func violates(ex *ch.Exception, constraint string) bool {
	message := strings.TrimPrefix(ex.Message, ex.Name+": ")
	return strings.HasPrefix(message, "Constraint `"+constraint+"` ")
}

func token(generation, fold uint64) string {
	return strconv.FormatUint(generation, 10) + "/" + strconv.FormatUint(fold, 10)
}

// readBack tells whether the fold after state is the one with our mark. If nobody has it, although ClickHouse has answered, its number is
// used up: the server was killed between noting the token and having the part.
func (l *Ledger) readBack(ctx context.Context, state look, mark uuid.UUID) (won bool, err error) {
	marks, err := l.folds(ctx)
	if err != nil || l.state == nil || l.state.generation != state.generation {
		return false, err
	}
	if marks[state.fold+1] == mark {
		return true, nil
	}
	if l.state.fold < state.fold+1 {
		l.state.fold = state.fold + 1
	}
	return false, nil
}

// do runs one statement. A connection whose state is not known is given up.
func (l *Ledger) do(ctx context.Context, step string, q ch.Query) error {
	if err := l.inject("before " + step); err != nil {
		return err
	}
	if l.conn == nil || l.conn.IsClosed() {
		c, err := l.dial(ctx)
		if err != nil {
			l.state = nil
			return err
		}
		l.conn = c
	}
	err := l.conn.Do(ctx, q)
	if err == nil {
		err = l.inject("after " + step)
	}
	if err != nil {
		l.state = nil
		if !ch.IsException(err) || q.Input != nil || q.ExternalData != nil { // unread or unsent blocks may be left
			_ = l.drop() // the error is told
		}
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

func (l *Ledger) inject(step string) error {
	if l.fault == nil {
		return nil
	}
	return l.fault(step)
}

// dial connects to the first address that answers.
func (l *Ledger) dial(ctx context.Context) (*ch.Client, error) {
	var errs []error
	for _, o := range l.options {
		c, err := ch.Dial(ctx, o)
		if err == nil {
			return c, nil
		}
		errs = append(errs, fmt.Errorf("connect to ClickHouse at %s: %w", o.Address, err))
	}
	return nil, errors.Join(errs...)
}

func (l *Ledger) drop() error {
	c := l.conn
	l.conn = nil
	if c == nil || c.IsClosed() {
		return nil
	}
	return c.Close()
}

// sql puts in the table, which a rebuild names differently, and the columns.
func (l *Ledger) sql(statement string) string {
	var names []string
	for _, c := range l.block.columns() {
		names = append(names, c.name)
	}
	return strings.NewReplacer("usage_ledger", l.table, "@columns", strings.Join(names, ", ")).Replace(statement)
}

// pause waits for up to d, at random, so that writers who lost to each other part.
func pause(ctx context.Context, d time.Duration) error {
	lifecycle.Sleep(ctx, rand.N(d))
	return ctx.Err()
}
