package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

var noon = time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)

// event is one of one partition, i seconds after noon: 10 input, 3 output and 1 cached tokens.
func event(i int) Event {
	return Event{ID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i)), Place: Place{0, int64(i)}, AtMillis: noon.UnixMilli() + int64(i)*1000,
		Input: 10, Output: 3, Cached: 1, Rest: 7}
}

func eventsOf(n int) (out []Event) {
	for i := range n {
		out = append(out, event(i))
	}
	return out
}

// fakeLog is one partition.
type fakeLog struct {
	messages  []Message
	letters   map[Place]string
	committed func() (int64, bool)
	earliest  int64
	latest    int64
	err       error
}

func logOf(events []Event) *fakeLog {
	l := &fakeLog{committed: func() (int64, bool) { return 0, false }, latest: int64(len(events))}
	for _, e := range events {
		l.messages = append(l.messages, Message{Event: e})
	}
	return l
}

func (l *fakeLog) Partitions(context.Context, time.Time) ([]Partition, error) {
	return []Partition{{Earliest: l.earliest, Start: l.earliest, Latest: l.latest}, {Partition: 1, Latest: 1}}, l.err
}

func (l *fakeLog) Committed(context.Context) (map[int]int64, bool, error) {
	at, ok := l.committed()
	return map[int]int64{0: at, 1: 1}, ok, nil
}

func (l *fakeLog) Read(_ context.Context, spans []Span, add func(Message) error) error {
	for _, m := range l.messages {
		if s := spans[m.Event.Place.Partition]; m.Event.Place.Offset >= s.Start && m.Event.Place.Offset < s.End {
			if err := add(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *fakeLog) DeadLetters(_ context.Context, add func(Place, string)) error {
	for at, reason := range l.letters {
		add(at, reason)
		add(at, reason) // a letter may be there twice
	}
	return nil
}

// fakeLedger has rows, and views that follow from them unless change says otherwise.
type fakeLedger struct {
	rows   []Event
	change func(run int, sums []Sum) []Sum
	runs   int
	err    error
}

func (l *fakeLedger) Events(_ context.Context, which Rows, add func(Event) error) error {
	for _, e := range l.rows {
		in := slices.Compare(e.ID[8:], which.From[8:]) >= 0 && (which.To == uuid.Nil || slices.Compare(e.ID[8:], which.To[8:]) < 0)
		if in && (which.Since.IsZero() || e.AtMillis >= which.Since.UnixMilli() || e.Place.Offset >= which.Starts[e.Place.Partition]) {
			if err := add(e); err != nil {
				return err
			}
		}
	}
	return l.err
}

func (l *fakeLedger) StoredRows(context.Context) (int64, error) { return int64(len(l.rows)) + 5, nil }

func (l *fakeLedger) Groups(_ context.Context, view string, period time.Time, limit int) (groups []Group, _ error) {
	for i := range min(limit, 2) {
		groups = append(groups, Group{At: period, Who: fmt.Sprint(view, " payer ", i), Events: Figures{InputTokens: 7}, View: Figures{InputTokens: 7 + int64(i)}})
	}
	return groups, nil
}

func (l *fakeLedger) Sums(context.Context, time.Time) (sums []Sum, _ error) {
	for _, e := range l.rows {
		var f Figures
		f.add(&e)
		at := time.UnixMilli(e.AtMillis).UTC()
		for _, v := range Views {
			s := Sum{View: v, Period: at.Truncate(time.Hour), Figures: f}
			switch v {
			case ViewDaily:
				s.Period = at.Truncate(24 * time.Hour)
			case ViewRejections:
				s.Figures = Figures{RejectedRequests: f.RejectedRequests}
			}
			sums = append(sums, s)
		}
	}
	l.runs++
	if l.change != nil {
		sums = l.change(l.runs, sums)
	}
	return sums, nil
}

func compared(t *testing.T, log *fakeLog, ledger *fakeLedger, change ...func(*Config)) *Report {
	t.Helper()
	cfg := Config{Log: log, Ledger: ledger, Dir: t.TempDir()}
	for _, f := range change {
		f(&cfg)
	}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(cfg.Dir)
	if err != nil || len(left) != 0 {
		t.Fatalf("files are left behind: %v, %v", left, err)
	}
	return r
}

// names are the differences' names and places, without their numbers.
func names(r *Report) string {
	var out []string
	for _, d := range r.Differences {
		out = append(out, d.Kind+" "+d.Where+" "+d.Name)
	}
	return strings.Join(out, "; ")
}

func with(events []Event, i int, change func(*Event)) []Event {
	events = slices.Clone(events)
	change(&events[i])
	return events
}

func TestEachDifferenceIsNamed(t *testing.T) {
	const hour, all = "figures 2026-05-06T12:00Z ", "figures in all "
	figures := func(names ...string) string {
		var out []string
		for _, where := range []string{all, hour} {
			for _, n := range names {
				out = append(out, where+n)
			}
		}
		return strings.Join(out, "; ")
	}
	six := []string{"events", "requests", "input_tokens", "output_tokens", "cached_input_tokens"}
	base := eventsOf(20)
	for name, c := range map[string]struct {
		rows []Event
		want string
		what string // of the sample
	}{
		"another order":    {slices.Concat(base[10:], base[:10]), "", ""},
		"one missing":      {base[1:], "events in all events not in the ledger; " + figures(six...), "missing"},
		"one extra":        {append(slices.Clone(base), with(base, 3, func(e *Event) { e.ID = uuid.New() })[3]), "events in all events not in the log; " + figures(six...), "extra"},
		"one twice":        {append(slices.Clone(base), base[4]), "events in all repeats in usage_events; " + figures(six...), "repeated"},
		"other tokens":     {with(base, 5, func(e *Event) { e.Input++ }), "events in all events that differ; " + figures("input_tokens"), "different"},
		"another payer":    {with(base, 5, func(e *Event) { e.Rest++ }), "events in all events that differ", "different"},
		"another second":   {with(base, 5, func(e *Event) { e.AtMillis++ }), "events in all events that differ", "different"},
		"a refusal":        {with(base, 5, func(e *Event) { e.Rejected = true }), "events in all events that differ; " + figures("requests", "rejected_requests"), "different"},
		"one for another":  {with(base, 6, func(e *Event) { e.ID = uuid.New() }), "events in all events not in the ledger; events in all events not in the log", "missing"},
		"beyond the log":   {append(slices.Clone(base), with(base, 3, func(e *Event) { e.ID, e.Place.Offset = uuid.New(), 99 })[3]), "events partition 0 rows from beyond the end of the log, up to offset", ""},
		"no such":          {append(slices.Clone(base), with(base, 3, func(e *Event) { e.ID, e.Place.Partition = uuid.New(), 9 })[3]), "events in all events not in the log; " + figures(six...), "extra"},
		"nothing at all":   {nil, "events in all events not in the ledger; " + figures(six...), "missing"},
		"other cached":     {with(base, 5, func(e *Event) { e.Cached-- }), "events in all events that differ; " + figures("cached_input_tokens"), "different"},
		"other adjustment": {with(base, 5, func(e *Event) { e.Adjustment, e.Rest = true, 8 }), "events in all events that differ; " + figures("requests"), "different"},
	} {
		t.Run(name, func(t *testing.T) {
			r := compared(t, logOf(base), &fakeLedger{rows: c.rows})
			if got := names(r); got != c.want || r.Agree() != (c.want == "") {
				t.Errorf("differ in %q, want %q", got, c.want)
			}
			if c.what != "" && (!slices.ContainsFunc(r.Samples, func(s Sample) bool { return s.What == c.what }) || r.Counts[c.what] == 0 || len(r.Samples) > 10) {
				t.Errorf("samples %+v, want %s", r.Samples, c.what)
			}
			for _, d := range r.Differences {
				if !strings.Contains(r.String(), d.Name) {
					t.Errorf("%q does not name %s", r, d.Name)
				}
			}
		})
	}
}

// The log may bear an event many times; the one that counts is the ledger's choice, in whatever bucket it lies.
func TestRepeatsCountOnceAndAGuessGivesWay(t *testing.T) {
	base := eventsOf(6)
	log := slices.Clone(base)
	repeat := func(i int, change func(*Event)) {
		e := base[i]
		e.Place.Offset = int64(len(log))
		change(&e)
		log = append(log, e)
	}
	base[1].Expired, log[1].Expired = true, true
	repeat(0, func(e *Event) { e.Input = 99 })                   // a repeat with other figures: the first stands
	repeat(1, func(e *Event) { e.Input, e.Expired = 40, false }) // the guess gives way
	repeat(2, func(e *Event) { e.Input, e.Expired = 50, true })  // the guess comes late
	rows := with(base, 1, func(e *Event) { *e = log[7] })
	if r := compared(t, logOf(log), &fakeLedger{rows: rows}); !r.Agree() || r.Log.Events != 6 || r.Log.InputTokens != 90 || r.Messages != 9 {
		t.Errorf("%s: %+v", r, r.Log)
	}
	for name, wrong := range map[string][]Event{
		"a guess stands":              with(rows, 1, func(e *Event) { *e = log[1] }),
		"a later repeat stands":       with(rows, 0, func(e *Event) { *e = log[6] }),
		"a row of no message at all":  with(rows, 4, func(e *Event) { e.Place.Offset = 3 }),
		"a late guess stands":         with(rows, 2, func(e *Event) { *e = log[8] }),
		"figures of another message":  with(rows, 0, func(e *Event) { e.Input = 99 }),
		"a guess from beyond the end": with(rows, 1, func(e *Event) { e.Expired, e.Place.Offset = true, 9 }),
	} {
		if r := compared(t, logOf(log), &fakeLedger{rows: wrong}); r.Counts[Different] != 1 {
			t.Errorf("%s: %s", name, r)
		}
	}
	elsewhere := slices.Clone(log) // a repeat in another partition may well have been stored first
	elsewhere[6].Place = Place{1, 0}
	if r := compared(t, logOf(elsewhere), &fakeLedger{rows: with(rows, 0, func(e *Event) { *e = elsewhere[6] })}); r.Counts[Different] != 0 {
		t.Errorf("a repeat in another partition: %s", r)
	}
}

func TestDeadLettersAreAccountedFor(t *testing.T) {
	base := eventsOf(5)
	log := logOf(base)
	log.messages[2] = Message{Event: Event{Place: Place{0, 2}}, Unusable: usage.ReasonNotJSON}
	log.letters = map[Place]string{{0, 2}: usage.ReasonNotJSON, {0, 3}: "refused_by_ledger", {0, 77}: usage.ReasonEmpty}
	rows := slices.Concat(base[:2], base[4:])
	r := compared(t, log, &fakeLedger{rows: rows})
	if !r.Agree() || r.PutAside != 1 || r.DeadLetters[usage.ReasonNotJSON] != 1 || r.DeadLetters["refused_by_ledger"] != 1 || len(r.DeadLetters) != 2 || r.Partitions[0].Unusable != 1 {
		t.Errorf("%s: %+v", r, r)
	}
	delete(log.letters, Place{0, 2})
	if r := compared(t, log, &fakeLedger{rows: rows}); names(r) != "dead_letters partition 0 unusable messages" {
		t.Errorf("a lost letter: %s", names(r))
	}
	log.letters[Place{0, 2}] = usage.ReasonNotJSON
	if r := compared(t, log, &fakeLedger{rows: append(rows, base[3])}); !strings.Contains(names(r), "events not in the log") {
		t.Errorf("a refused event that is in the ledger: %s", names(r))
	}
}

// While events flow, what the log held at the start is compared, once the consumer has passed it.
func TestAConsumerThatIsBehindIsWaitedFor(t *testing.T) { synctest.Test(t, consumerBehind) }

func consumerBehind(t *testing.T) {
	t.Helper()
	base := eventsOf(10)
	log, asked := logOf(base), 0
	log.latest = 8
	ledger := &fakeLedger{rows: base} // two are newer than the start
	log.committed = func() (int64, bool) {
		asked++
		if asked > 1 {
			log.latest = 10
		}
		return min(int64(asked)*4, 10), true
	}
	r := compared(t, log, ledger, func(c *Config) { c.Wait = time.Minute })
	if !r.Agree() || r.Log.Events != 8 || r.Outside != 2 || r.Partitions[0].Lag != 0 {
		t.Errorf("%s: %+v", r, r)
	}

	log = logOf(base)
	log.committed = func() (int64, bool) { return 6, true }
	r = compared(t, log, &fakeLedger{rows: base[:6]}, func(c *Config) { c.Wait = time.Millisecond })
	if names(r) != "offsets partition 0 not consumed" || r.Log.Events != 6 || r.Partitions[0].Lag != 4 {
		t.Errorf("%s: %+v", names(r), r)
	}
	log.committed = func() (int64, bool) { return 60, true }
	if r = compared(t, log, &fakeLedger{rows: base}); names(r) != "offsets partition 0 committed beyond the end" {
		t.Errorf("a log made anew: %s", names(r))
	}
}

// Retention took offsets 3 to 5, which the group had not committed; that it then goes on, while it is waited for, does not hide them.
func TestMessagesLostToRetentionAreADifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, asked := eventsOf(10), 0
		log := logOf(base)
		log.earliest = 6
		log.committed = func() (int64, bool) {
			asked++
			return []int64{3, 3, 10}[min(asked-1, 2)], true
		}
		r := compared(t, log, &fakeLedger{rows: append(slices.Clone(base[:3]), base[6:]...)}, func(c *Config) { c.Wait = time.Minute })
		if names(r) != "offsets partition 0 lost to retention before it was consumed" || r.Partitions[0].Lag != 0 {
			t.Errorf("%s: %+v", r, r)
		}
		if want := "partition 0: lost to retention before it was consumed: beginning of the log 6, committed 3 (-3)"; !strings.Contains(r.String(), want) {
			t.Errorf("%s; want %s", r, want)
		}
		log.committed = func() (int64, bool) { return 6, true } // all that is gone was consumed
		r = compared(t, log, &fakeLedger{rows: base[:6]}, func(c *Config) { c.Wait = time.Millisecond })
		if names(r) != "offsets partition 0 not consumed" {
			t.Errorf("%s: %+v", r, r)
		}
	})
}

// A message that was not read may bear an event, too, and be the one that counts.
func TestAnEventThatIsOvertakenMeanwhileIsNotCompared(t *testing.T) {
	base := eventsOf(4)
	base[2].Expired = true
	log := logOf(base)
	rows := with(base, 2, func(e *Event) { e.Expired, e.Input, e.Place.Offset = false, 77, 4 })
	log.latest = 4
	ledger := &fakeLedger{rows: rows}
	ledger.change = func(_ int, s []Sum) []Sum { return s }
	r, err := Run(t.Context(), Config{Log: &growing{log}, Ledger: ledger})
	if err != nil || !r.Agree() || r.Log.Events != 3 || r.Outside != 1 {
		t.Errorf("%v: %s: %+v", err, r, r)
	}
}

// growing has one message more whenever it is asked again.
type growing struct{ *fakeLog }

func (g *growing) Partitions(ctx context.Context, since time.Time) ([]Partition, error) {
	p, err := g.fakeLog.Partitions(ctx, since)
	g.latest++
	return p, err
}

func TestSinceComparesTheRecentHoursOnly(t *testing.T) {
	base := eventsOf(3)
	old := with(eventsOf(1), 0, func(e *Event) { e.AtMillis -= 7_200_000; e.Input = 1 })
	log := logOf(append(old, base[1:]...))
	rows := slices.Concat(with(old, 0, func(e *Event) { e.Input = 2 }), base[1:])
	since := func(c *Config) { c.Since = noon.Add(10 * time.Minute) }
	if r := compared(t, log, &fakeLedger{rows: rows}, since); !r.Agree() || r.Log.Events != 2 {
		t.Errorf("%s: %+v", r, r)
	}
	if r := compared(t, log, &fakeLedger{rows: rows[:2]}, since); r.Agree() {
		t.Error("a missing event of the last hour is not seen")
	}
	if r := compared(t, log, &fakeLedger{rows: rows}); r.Agree() {
		t.Error("without since the older difference is not seen")
	}
}

func TestViewsThatDisagreeAreNamedOnceTheyStandStill(t *testing.T) {
	synctest.Test(t, viewsThatDisagree) // pauses take no time
}

func viewsThatDisagree(t *testing.T) {
	t.Helper()
	base := eventsOf(3)
	for _, v := range Views[1:] {
		wrong := func(_ int, sums []Sum) []Sum {
			return append(sums, Sum{View: v, Period: noon.Truncate(24 * time.Hour), Figures: Figures{Requests: 1, RejectedRequests: 1}})
		}
		r := compared(t, logOf(base), &fakeLedger{rows: base, change: wrong})
		want := "views " + v + " 2026-05-06T00:00Z rejected_requests"
		if v == ViewDaily {
			want = "views usage_daily 2026-05-06 rejected_requests"
		}
		if !strings.HasPrefix(names(r), want) || len(r.Unsettled) != 0 {
			t.Errorf("%s: %q, want %s; unsettled %v", v, names(r), want, r.Unsettled)
		}
	}
	moves := func(run int, sums []Sum) []Sum {
		return append(sums, Sum{View: ViewHourly, Period: noon, Figures: Figures{InputTokens: int64(run)}})
	}
	if r := compared(t, logOf(base), &fakeLedger{rows: base, change: moves}); !r.Agree() || !slices.Equal(r.Unsettled, []string{"usage_hourly 2026-05-06T12:00Z: input_tokens"}) {
		t.Errorf("a figure that moves: %s, %v", names(r), r.Unsettled)
	}
}

func TestSumsOfOtherGroupsAreADifferenceThatNamesTheGroups(t *testing.T) {
	synctest.Test(t, sumsOfOtherGroups) // pauses take no time
}

func sumsOfOtherGroups(t *testing.T) {
	t.Helper()
	base := eventsOf(3)
	for _, v := range Views[1:] {
		moved := func(_ int, sums []Sum) []Sum {
			at := noon
			if v == ViewDaily {
				at = noon.Truncate(24 * time.Hour)
			}
			return append(sums, Sum{View: v, Period: at, Groups: Checksums{1, 1, 1, 1}})
		}
		r := compared(t, logOf(base), &fakeLedger{rows: base, change: moved})
		at := "2026-05-06T12:00Z"
		if v == ViewDaily {
			at = "2026-05-06"
		}
		where := "views " + v + " " + at
		if want := where + " " + figureGroups + "; " + where + ", " + v + " payer 1 input_tokens"; names(r) != want {
			t.Errorf("%s: %q, want %q", v, names(r), want)
		}
		if !strings.Contains(r.String(), "not of the same groups") {
			t.Errorf("%s", r)
		}
	}
	moves := func(run int, sums []Sum) []Sum {
		return append(sums, Sum{View: ViewHourly, Period: noon, Groups: Checksums{Payers: uint64(run)}})
	}
	if r := compared(t, logOf(base), &fakeLedger{rows: base, change: moves}); !r.Agree() || !slices.Equal(r.Unsettled, []string{"usage_hourly 2026-05-06T12:00Z: " + figureGroups}) {
		t.Errorf("a checksum that moves: %s, %v", names(r), r.Unsettled)
	}
}

// Neither an hour's sums nor those in all are ever shown wrong.
func TestSumsThatDoNotFitAreAnError(t *testing.T) {
	for _, apart := range []int64{0, 3_600_000} {
		base := eventsOf(1025)
		for i := range base {
			base[i].Cached, base[i].AtMillis = usage.MaxTokens, noon.UnixMilli()+int64(i)*apart
		}
		if r, err := LogAndLedger(t.Context(), logOf(base), &fakeLedger{rows: base}); !errors.Is(err, errTooMany) {
			t.Errorf("%v: %v", err, r)
		}
		if r, err := LogAndLedger(t.Context(), logOf(base[:1023]), &fakeLedger{rows: base[:1023]}); err != nil || r.Log.CachedInputTokens != 1023*usage.MaxTokens {
			t.Errorf("%v: %v", err, r)
		}
	}
}

func TestASideThatCannotBeAskedIsNotAgreement(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		log    *fakeLog
		ledger *fakeLedger
	}{{&fakeLog{err: boom}, &fakeLedger{}}, {logOf(nil), &fakeLedger{err: boom}}} {
		if _, err := LogAndLedger(t.Context(), c.log, c.ledger); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	}
}

// Ids that are spread evenly and ids that lie side by side: every message is in one bucket, between its bounds, and no bucket is too full.
func TestBucketsHoldEachMessageBetweenTheirBounds(t *testing.T) {
	s, err := newSpill(t.TempDir(), 5*perBucket)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if len(s.buckets) != 8 {
		t.Fatalf("%d buckets", len(s.buckets))
	}
	sample := func(i int) entry {
		e := entry{Event{ID: event(i).ID, Place: Place{4095, 1 << 50}, AtMillis: -5, Input: int64(-i), Output: 1 << 52, Cached: 3, Rest: 1 << 63, Rejected: i%2 == 0, Adjustment: i%3 == 0, Expired: i%5 == 0}, i%7 == 0}
		switch {
		case i == 0:
			e.ID = uuid.Nil
		case i == 1:
			e.ID = uuid.Max
		case i > 1000: // of one second
			copy(e.ID[8:], []byte{0x9a, 1, 2, 3, 4})
		}
		return e
	}
	const n = 3 * perBucket
	want := map[uuid.UUID]entry{}
	for i := range n {
		e := sample(i)
		want[e.ID] = e
		if err := s.add(&e); err != nil {
			t.Fatal(err)
		}
	}
	seen, next := 0, uuid.Nil
	for {
		b, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			break
		}
		from, to := b.bounds()
		if from != next || b.n > 2*perBucket {
			t.Fatalf("a bucket of %d begins at %s, the one before ended at %s", b.n, from, next)
		}
		next = to
		got, err := s.load(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got {
			if e != want[e.ID] || slices.Compare(e.ID[8:], from[8:]) < 0 || (to != uuid.Nil && slices.Compare(e.ID[8:], to[8:]) >= 0) {
				t.Fatalf("from %s to %s: %+v, want %+v", from, to, e, want[e.ID])
			}
		}
		seen += len(got)
		if err := s.done(); err != nil {
			t.Fatal(err)
		}
	}
	if seen != n || next != uuid.Nil {
		t.Errorf("%d messages, want %d; the last bucket ends at %s", seen, n, next)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("files are left: %d, %v", len(left), err)
	}
}
