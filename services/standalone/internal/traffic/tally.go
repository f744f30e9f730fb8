package traffic

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Row counts one tier's requests.
type Row struct {
	Tier             string
	Checks           int64
	Allowed, Refused int64
	Reasons          map[string]int64
	Recorded         int64
	Input, Output    int64 // tokens recorded
}

// Snapshot is the tally at one moment.
type Snapshot struct {
	Rows                 []Row // in the profiles' order
	Total                Row
	CheckP50, CheckP99   time.Duration
	RecordP50, RecordP99 time.Duration
	Errors               int64
	LastError            string
}

// Events is how many events the requests so far have left in the log: one for each refusal, one for each record.
func (s Snapshot) Events() int64 { return s.Total.Refused + s.Total.Recorded }

// Tally counts what became of the traffic. Its methods may be called from any goroutine.
type Tally struct {
	mu              sync.Mutex
	rows            map[string]*Row
	order           []string
	checks, records []time.Duration
	errors          int64
	lastError       string
}

// NewTally makes an empty tally with a row for each profile.
func NewTally(ps []Profile) *Tally {
	t := &Tally{rows: map[string]*Row{}}
	for _, p := range ps {
		t.order = append(t.order, p.Tier)
		t.rows[p.Tier] = &Row{Tier: p.Tier, Reasons: map[string]int64{}}
	}
	return t
}

func (t *Tally) decided(tier string, allowed bool, reason string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checks = append(t.checks, took)
	r := t.rows[tier]
	r.Checks++
	if allowed {
		r.Allowed++
		return
	}
	r.Refused++
	r.Reasons[reason]++
}

func (t *Tally) recorded(tier string, input, output int64, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records = append(t.records, took)
	r := t.rows[tier]
	r.Recorded++
	r.Input += input
	r.Output += output
}

func (t *Tally) failed(_ string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors++
	t.lastError = err.Error()
}

// Snapshot copies the counts.
func (t *Tally) Snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Snapshot{Total: Row{Tier: "all", Reasons: map[string]int64{}}, Errors: t.errors, LastError: t.lastError}
	for _, name := range t.order {
		r := *t.rows[name]
		r.Reasons = maps.Clone(r.Reasons)
		s.Rows = append(s.Rows, r)
		s.Total.Checks += r.Checks
		s.Total.Allowed += r.Allowed
		s.Total.Refused += r.Refused
		s.Total.Recorded += r.Recorded
		s.Total.Input += r.Input
		s.Total.Output += r.Output
		for k, v := range r.Reasons {
			s.Total.Reasons[k] += v
		}
	}
	s.CheckP50, s.CheckP99 = percentiles(t.checks)
	s.RecordP50, s.RecordP99 = percentiles(t.records)
	return s
}

func percentiles(ds []time.Duration) (p50, p99 time.Duration) {
	if len(ds) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[(len(sorted)-1)*50/100], sorted[(len(sorted)-1)*99/100]
}
