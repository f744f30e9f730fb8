package replay

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Totals is what the ledger says, or should say, of a replay's users.
type Totals struct {
	Requests     int64 `json:"requests"`          // admitted
	Rejected     int64 `json:"rejected_requests"` // was_rate_limited
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// Minus gives what was added since before.
func (t Totals) Minus(before Totals) Totals {
	return Totals{t.Requests - before.Requests, t.Rejected - before.Rejected, t.InputTokens - before.InputTokens, t.OutputTokens - before.OutputTokens}
}

// Differences names every figure in which the ledger's totals t differ from want.
func (t Totals) Differences(want Totals) []string {
	var out []string
	for _, f := range []struct {
		name      string
		got, want int64
	}{{"requests", t.Requests, want.Requests}, {"rejected requests", t.Rejected, want.Rejected},
		{"input tokens", t.InputTokens, want.InputTokens}, {"output tokens", t.OutputTokens, want.OutputTokens}} {
		if f.got != f.want {
			out = append(out, fmt.Sprintf("%s: the ledger has %s, the replay %s (%+d)", f.name, Commas(f.got), Commas(f.want), f.got-f.want))
		}
	}
	return out
}

// Account is what became of a replay.
type Account struct {
	Planned   int              `json:"planned"` // requests in the trace
	Checks    int64            `json:"checks"`  // answered
	Allowed   int64            `json:"allowed"`
	Refused   int64            `json:"refused"`
	RefusedBy map[string]int64 `json:"refused_by_reason"`
	Recorded  int64            `json:"recorded"`
	// Of the recorded requests.
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// Calls that got no answer, or another than a decision, by their text.
	Errors      int64            `json:"errors"`
	ErrorTexts  map[string]int64 `json:"error_texts,omitempty"`
	Retried     int64            `json:"retried"` // calls that were sent again because the service was unavailable
	Degraded    int64            `json:"degraded"`
	Interrupted bool             `json:"interrupted"`

	Elapsed time.Duration `json:"elapsed_ns"` // first check to last record
	Target  time.Duration `json:"target_ns"`  // the trace's length divided by the speed
	Behind  time.Duration `json:"behind_ns"`  // the most that a check started after its time
	Check   Latency       `json:"check_ns"`   // round trip
	Record  Latency       `json:"record_ns"`  // round trip, until durable
	checks  []time.Duration
	records []time.Duration
}

// Latency sums up how long calls took.
type Latency struct {
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}

// Want is what the ledger must say after this replay.
func (a *Account) Want() Totals {
	return Totals{Requests: a.Recorded, Rejected: a.Refused, InputTokens: a.InputTokens, OutputTokens: a.OutputTokens}
}

// Faults names everything that should not have happened: errors, requests without a decision, decisions without a record.
func (a *Account) Faults() []string {
	var out []string
	if a.Interrupted {
		out = append(out, fmt.Sprintf("interrupted after %s of %s checks", Commas(a.Checks), Commas(int64(a.Planned))))
	}
	if a.Errors > 0 {
		out = append(out, fmt.Sprintf("%s calls failed", Commas(a.Errors)))
	}
	if missing := int64(a.Planned) - a.Checks; missing != 0 && !a.Interrupted {
		out = append(out, fmt.Sprintf("%s requests got no decision", Commas(missing)))
	}
	if a.Allowed != a.Recorded {
		out = append(out, fmt.Sprintf("%s allowed requests were not recorded", Commas(a.Allowed-a.Recorded)))
	}
	return out
}

// tally collects an account from many workers.
type tally struct {
	mu sync.Mutex
	a  Account
}

func newTally(planned int) *tally {
	return &tally{a: Account{Planned: planned, RefusedBy: map[string]int64{}, ErrorTexts: map[string]int64{}}}
}

func (c *tally) checked(took time.Duration, allowed bool, reason string, degraded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.a.Checks++
	c.a.checks = append(c.a.checks, took)
	if degraded {
		c.a.Degraded++
	}
	if allowed {
		c.a.Allowed++
		return
	}
	c.a.Refused++
	c.a.RefusedBy[reason]++
}

func (c *tally) recorded(took time.Duration, input, output int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.a.Recorded++
	c.a.records = append(c.a.records, took)
	c.a.InputTokens += input
	c.a.OutputTokens += output
}

// maxErrorTexts bounds how many different errors are told.
const maxErrorTexts = 10

func (c *tally) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.a.Errors++
	text := err.Error()
	if _, known := c.a.ErrorTexts[text]; !known && len(c.a.ErrorTexts) >= maxErrorTexts {
		text = "other errors"
	}
	c.a.ErrorTexts[text]++
}

func (c *tally) behind(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.a.Behind = max(c.a.Behind, d)
}

func (c *tally) account() Account {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.a
	a.Check, a.Record = latencyOf(a.checks), latencyOf(a.records)
	return a
}

// latencyOf sorts ds.
func latencyOf(ds []time.Duration) Latency {
	if len(ds) == 0 {
		return Latency{}
	}
	slices.Sort(ds)
	return Latency{P50: percentile(ds, 50), P99: percentile(ds, 99), Max: ds[len(ds)-1]}
}

// percentile gives the least of the sorted values that at least p in a hundred don't exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	i := (len(sorted)*p + 99) / 100
	return sorted[max(i, 1)-1]
}
