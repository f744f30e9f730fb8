package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"
)

// Config says what to compare.
type Config struct {
	Log     Log
	Ledger  Ledger
	Since   time.Time     // only events from this hour on; zero: all
	Wait    time.Duration // how long the group may stand still before it is no longer waited for; 0: not at all
	Dir     string        // for temporary files: 67 bytes a message; the system's if empty
	Samples int           // how many event ids to name of each kind; 10 if 0
	// Progress may be nil. stage is one of Stages; done and total are messages, or rows.
	Progress func(stage string, done, total int64)
}

// Stages of a comparison, in order.
const (
	StageWait   = "consumed" // messages that the group has committed
	StageRead   = "read"     // messages of the log
	StageLedger = "compared" // usable messages of the log
)

const (
	waitPoll      = 200 * time.Millisecond
	progressEvery = 500 // messages
)

// errTooMany: a report could only show wrong sums.
var errTooMany = errors.New("an hour or all of it has more tokens of a kind than fit in 64 bits")

// LogAndLedger compares the whole of both as they are, without waiting for anybody.
func LogAndLedger(ctx context.Context, log Log, ledger Ledger) (*Report, error) {
	return Run(ctx, Config{Log: log, Ledger: ledger})
}

// comparison is one Run.
type comparison struct {
	Config
	report    Report
	letters   map[Place]string
	spans     map[int]Span
	committed map[int]int64      // when waiting ended
	lost      map[int]Difference // by partition: what retention took before the group had committed it, as of the beginning
	last      map[int]int64      // the highest offset of a row that comes from beyond the part that was read
	hours     map[int64]*Hour
	spill     *spill
	wrapped   bool       // a sum of tokens did not fit
	mu        sync.Mutex // of report, while the log is read
}

// Run compares. An error is a failure to compare; differences are in the report. Interrupt it by ctx.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	if cfg.Samples == 0 {
		cfg.Samples = 10
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string, int64, int64) {}
	}
	cfg.Since = cfg.Since.Truncate(time.Hour)
	c := &comparison{Config: cfg, letters: map[Place]string{}, spans: map[int]Span{}, committed: map[int]int64{}, lost: map[int]Difference{}, last: map[int]int64{}, hours: map[int64]*Hour{}}
	c.report = Report{Began: time.Now().UTC(), Since: cfg.Since, DeadLetters: map[string]int64{}, Differences: []Difference{}, Hours: []Hour{},
		Counts: map[string]int64{Missing: 0, Extra: 0, Repeated: 0, Different: 0}}
	if c.report.Partitions, err = cfg.Log.Partitions(ctx, cfg.Since); err != nil {
		return nil, fmt.Errorf("ask for the log's offsets: %w", err)
	}
	if err := c.await(ctx); err != nil {
		return nil, fmt.Errorf("wait for the consumer: %w", err)
	}
	if err := c.readDeadLetters(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if c.spill != nil {
			err = errors.Join(err, c.spill.close())
		}
	}()
	if err := c.readLog(ctx); err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	if err := c.compareEvents(ctx); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	if c.report.StoredRows, err = cfg.Ledger.StoredRows(ctx); err != nil {
		return nil, fmt.Errorf("count the ledger's rows: %w", err)
	}
	c.sumUp()
	if c.wrapped {
		return nil, errTooMany
	}
	if err := c.beyond(ctx); err != nil {
		return nil, err
	}
	views, unsettled, err := settledViews(ctx, cfg.Ledger, cfg.Since)
	if err != nil {
		return nil, err
	}
	groups, err := nameGroups(ctx, cfg.Ledger, views, cfg.Samples)
	if err != nil {
		return nil, err
	}
	c.report.Differences = append(append(c.report.Differences, inOrder(views)...), groups...)
	c.report.Unsettled = unsettled
	return &c.report, nil
}

// await waits until the group has committed all that the log held at the start, or until it stands still for Wait.
func (c *comparison) await(ctx context.Context) error {
	var total, best int64 = 0, -1
	for _, p := range c.report.Partitions {
		total += p.Latest - p.Start
	}
	for moved := time.Now(); ; {
		at, watched, err := c.Log.Committed(ctx)
		if err != nil {
			return err
		}
		var left int64
		for i := range c.report.Partitions {
			p := &c.report.Partitions[i]
			p.End, p.Committed = p.Latest, -1
			if !watched {
				continue
			}
			from := p.Earliest
			if committed, ok := at[p.Partition]; ok {
				p.Committed, from = committed, max(committed, from)
				if _, known := c.lost[p.Partition]; committed < p.Earliest && !known { // once the group goes on, Kafka no longer tells
					c.lost[p.Partition] = Difference{KindOffsets, fmt.Sprintf("partition %d", p.Partition), LostToRetention, p.Earliest, committed}
				}
			}
			p.Lag, p.End = max(p.Latest-from, 0), min(p.Latest, max(from, p.Start))
			left += min(p.Lag, p.Latest-p.Start)
		}
		c.Progress(StageWait, total-left, total)
		if total-left > best {
			best, moved = total-left, time.Now()
		}
		if left == 0 || time.Since(moved) >= c.Wait {
			c.offsetDifferences()
			return nil
		}
		select {
		case <-time.After(waitPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *comparison) offsetDifferences() {
	for _, p := range c.report.Partitions {
		where := fmt.Sprintf("partition %d", p.Partition)
		if lost, ok := c.lost[p.Partition]; ok {
			c.differ(lost)
		}
		if p.Lag > 0 {
			c.differ(Difference{KindOffsets, where, "not consumed", p.Latest, p.Committed})
		}
		c.spans[p.Partition], c.committed[p.Partition] = Span{p.Partition, p.Start, p.End}, p.Committed
	}
}

// beyond names what lies beyond the log's end: what the group has committed, or rows. Such a log was made anew under an old group or ledger.
// It is asked last, so that whatever was written meanwhile lies below the end.
func (c *comparison) beyond(ctx context.Context) error {
	now, err := c.Log.Partitions(ctx, time.Time{})
	if err != nil {
		return fmt.Errorf("ask for the log's offsets: %w", err)
	}
	at, _, err := c.Log.Committed(ctx)
	if err != nil {
		return fmt.Errorf("ask for the log's offsets: %w", err)
	}
	for _, p := range now {
		where := fmt.Sprintf("partition %d", p.Partition)
		if was := c.committed[p.Partition]; was > p.Latest && at[p.Partition] > p.Latest {
			c.differ(Difference{KindOffsets, where, "committed beyond the end", p.Latest, was})
		}
		if row, ok := c.last[p.Partition]; ok && row >= p.Latest {
			c.differ(Difference{KindEvents, where, "rows from beyond the end of the log, up to offset", p.Latest, row})
		}
	}
	return nil
}

func (c *comparison) readDeadLetters(ctx context.Context) error {
	err := c.Log.DeadLetters(ctx, func(at Place, reason string) {
		if s, ok := c.spans[at.Partition]; !ok || at.Offset < s.Start || at.Offset >= s.End {
			return
		}
		if _, again := c.letters[at]; !again {
			c.letters[at] = reason
			c.report.DeadLetters[reason]++
		}
	})
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	return nil
}

// readLog spills every usable message and accounts for the others.
func (c *comparison) readLog(ctx context.Context) (err error) {
	var spans []Span
	var total int64
	byPartition := map[int]*Partition{}
	for i := range c.report.Partitions {
		p := &c.report.Partitions[i]
		byPartition[p.Partition] = p
		spans = append(spans, c.spans[p.Partition])
		total += p.End - p.Start
	}
	if c.spill, err = newSpill(c.Dir, total); err != nil {
		return err
	}
	lost := map[int]int64{}
	err = c.Log.Read(ctx, spans, func(m Message) error {
		_, dead := c.letters[m.Event.Place]
		if m.Unusable == "" {
			if err := c.spill.add(&entry{m.Event, dead}); err != nil {
				return err
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		p := byPartition[m.Event.Place.Partition]
		p.Messages++
		c.report.Messages++
		if m.Unusable != "" {
			p.Unusable++
			if !dead {
				lost[p.Partition]++
			}
		}
		if c.report.Messages%progressEvery == 0 || c.report.Messages == total {
			c.Progress(StageRead, c.report.Messages, total)
		}
		return nil
	})
	for _, p := range c.report.Partitions {
		if n := lost[p.Partition]; n > 0 {
			c.differ(Difference{KindDeadLetters, fmt.Sprintf("partition %d", p.Partition), "unusable messages", p.Unusable, p.Unusable - n})
		}
	}
	return err
}

// compareEvents compares bucket by bucket.
func (c *comparison) compareEvents(ctx context.Context) error {
	which := Rows{Since: c.Since}
	if !c.Since.IsZero() {
		for _, p := range c.report.Partitions {
			for len(which.Starts) <= p.Partition {
				which.Starts = append(which.Starts, 0)
			}
			which.Starts[p.Partition] = p.Start
		}
	}
	var done, total int64
	for _, b := range c.spill.buckets {
		total += int64(b.n)
	}
	for {
		b, err := c.spill.next()
		if err != nil {
			return err
		}
		if b == nil {
			return nil
		}
		events, err := c.spill.load(b)
		if err != nil {
			return err
		}
		seen := make([]bool, len(events))
		which.From, which.To = b.bounds()
		err = c.Ledger.Events(ctx, which, func(row Event) error {
			i := sort.Search(len(events), func(i int) bool { return bytes.Compare(events[i].ID[:], row.ID[:]) >= 0 })
			if i < len(events) && events[i].ID == row.ID {
				c.meet(events[i:endOf(events, i)], &row, seen[i])
				seen[i] = true
				return nil
			}
			c.unknown(&row)
			return nil
		})
		if err != nil {
			return err
		}
		for i := 0; i < len(events); i = endOf(events, i) {
			if !seen[i] {
				c.missing(&events[i])
			}
		}
		done += int64(b.n)
		c.Progress(StageLedger, done, total)
		if err := c.spill.done(); err != nil {
			return err
		}
	}
}

// endOf gives where the messages of the event at i end.
func endOf(events []entry, i int) int {
	for j := i + 1; j < len(events); j++ {
		if events[j].ID != events[i].ID {
			return j
		}
	}
	return len(events)
}

// bearer gives the message that a row is of, or nil; fault tells why it can't be the one that counts, or that there is none.
func bearer(messages []entry, row *Event) (m *entry, fault string) {
	i := slices.IndexFunc(messages, func(e entry) bool { return e.Place == row.Place })
	if i < 0 {
		return nil, "place"
	}
	m = &messages[i]
	for j := range messages[:i] { // sorted: a real outcome before a guess, then by place
		before := &messages[j]
		switch {
		case before.dead:
		case before.Expired != m.Expired:
			return m, "a real outcome is in the log"
		case before.Place.Partition == m.Place.Partition:
			return m, "an earlier message is in the log"
		}
	}
	return m, ""
}

// counts tells whether an event is among those that are compared.
func (c *comparison) counts(e *Event) bool {
	return c.Since.IsZero() || e.AtMillis >= c.Since.UnixMilli()
}

// meet compares an event's messages with the row of its id.
func (c *comparison) meet(messages []entry, row *Event, again bool) {
	e, fault := bearer(messages, row)
	if e == nil {
		e = &messages[0]
	}
	switch {
	case again:
		c.sample(Repeated, row, nil)
		c.count(row, false)
		return
	case c.fromElsewhere(row.Place) && (e.dead || e.Expired || !row.Expired): // a message that was not read bears the event, too
		c.outside(row.Place)
		return
	case e.dead: // the ledger has what it is said to have refused
		c.sample(Extra, row, nil)
		c.count(row, false)
		return
	}
	c.count(&e.Event, true)
	c.count(row, false)
	var differs []string
	for _, d := range [...]struct {
		name string
		same bool
	}{
		{"input_tokens", e.Input == row.Input}, {"output_tokens", e.Output == row.Output}, {"cached_input_tokens", e.Cached == row.Cached},
		{"timestamp", e.AtMillis == row.AtMillis}, {"was_rate_limited", e.Rejected == row.Rejected}, {"other columns", e.Rest == row.Rest},
	} {
		if !d.same {
			differs = append(differs, d.name)
		}
	}
	if fault != "" {
		differs = append(differs, fault)
	}
	if differs != nil && (c.counts(&e.Event) || c.counts(row)) {
		c.sample(Different, &e.Event, differs)
	}
}

// unknown is a row whose event the log does not have.
func (c *comparison) unknown(row *Event) {
	switch {
	case !c.counts(row):
	case c.fromElsewhere(row.Place):
		c.outside(row.Place)
	default:
		c.sample(Extra, row, nil)
		c.count(row, false)
	}
}

// fromElsewhere tells whether a row may come from a part of the log that was not read: beyond its end at the start, or below what it still holds.
func (c *comparison) fromElsewhere(at Place) bool {
	s, ok := c.spans[at.Partition]
	return ok && (at.Offset < s.Start || at.Offset >= s.End)
}

func (c *comparison) outside(at Place) {
	c.report.Outside++
	c.last[at.Partition] = max(c.last[at.Partition], at.Offset)
}

// missing is an event that the ledger does not have.
func (c *comparison) missing(e *entry) {
	switch {
	case !c.counts(&e.Event):
	case e.dead:
		c.report.PutAside++
	default:
		c.sample(Missing, &e.Event, nil)
		c.count(&e.Event, true)
	}
}

// count adds to the sums of the event's hour.
func (c *comparison) count(e *Event, log bool) {
	if !c.counts(e) {
		return
	}
	at := e.hour()
	h := c.hours[at]
	if h == nil {
		h = &Hour{Hour: time.Unix(at, 0).UTC()}
		c.hours[at] = h
	}
	side := &h.Ledger
	if log {
		side = &h.Log
	}
	if !side.add(e) {
		c.wrapped = true
	}
}

func (c *comparison) sample(what string, e *Event, differs []string) {
	c.report.Counts[what]++
	if c.report.Counts[what] <= int64(c.Samples) {
		c.report.Samples = append(c.report.Samples, Sample{what, e.ID, time.Unix(e.hour(), 0).UTC(), e.Place, differs})
	}
}

func (c *comparison) differ(d Difference) { c.report.Differences = append(c.report.Differences, d) }

// sumUp names what differs: kinds of events, totals, and each hour.
func (c *comparison) sumUp() {
	r := &c.report
	for _, at := range sortedKeys(c.hours) {
		h := *c.hours[at]
		r.Hours = append(r.Hours, h)
		if logFits, ledgerFits := r.Log.plus(h.Log), r.Ledger.plus(h.Ledger); !logFits || !ledgerFits {
			c.wrapped = true
		}
	}
	if n := r.Counts[Missing]; n > 0 {
		c.differ(Difference{KindEvents, "in all", "events not in the ledger", n, 0})
	}
	for _, what := range []struct{ kind, name string }{{Extra, "events not in the log"}, {Repeated, "repeats in usage_events"}} {
		if n := r.Counts[what.kind]; n > 0 {
			c.differ(Difference{KindEvents, "in all", what.name, 0, n})
		}
	}
	if n := r.Counts[Different]; n > 0 {
		c.differ(Difference{KindEvents, "in all", "events that differ", n, n})
	}
	c.differFigures("in all", r.Log, r.Ledger)
	for _, h := range r.Hours {
		c.differFigures(h.Hour.Format(hourFormat), h.Log, h.Ledger)
	}
}

func (c *comparison) differFigures(where string, log, ledger Figures) {
	for _, f := range figures {
		if a, b := f.of(&log), f.of(&ledger); a != b {
			c.differ(Difference{KindFigures, where, f.name, a, b})
		}
	}
}

func sortedKeys[V any](m map[int64]V) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
