package traffic

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Ledger is how far the ledger has come.
type Ledger struct {
	Events int64         // of this traffic, counted by the ledger
	Lag    time.Duration // since when events have been waiting to be counted; 0: none are
	Known  bool
}

// why is the width of the column of reasons.
const why = 40

// Table shows the tally in lines of at most 100 columns.
func Table(s Snapshot, l Ledger, elapsed, planned time.Duration) []string {
	const row = "  %-10s %7s %8s %8s  %-*s %9s %9s"
	lines := []string{fmt.Sprintf(row, "tier", "checks", "allowed", "refused", why, "why", "in", "out")}
	for _, r := range append(slices.Clone(s.Rows), s.Total) {
		reasons := reasons(r.Reasons)
		if r.Tier == s.Total.Tier {
			lines = append(lines, "  "+strings.Repeat("─", why+57))
			reasons = fmt.Sprintf("%s checks/s", Count(perSecond(r.Checks, elapsed)))
		}
		lines = append(lines, fmt.Sprintf(row, r.Tier, Count(r.Checks), Count(r.Allowed), Count(r.Refused), why, fit(reasons), Count(r.Input), Count(r.Output)))
	}
	lines = append(lines, "",
		fmt.Sprintf("  %4.1f of %.0f s   check p50 %s, p99 %s   record p50 %s, p99 %s", elapsed.Seconds(), planned.Seconds(),
			millis(s.CheckP50), millis(s.CheckP99), millis(s.RecordP50), millis(s.RecordP99)),
		"  "+lag(s, l))
	if s.Errors > 0 {
		lines = append(lines, fmt.Sprintf("  %s calls failed, last: %s", Count(s.Errors), s.LastError))
	}
	return lines
}

// Line is the table in one line, for where there is no terminal.
func Line(s Snapshot, l Ledger, elapsed, planned time.Duration) string {
	return fmt.Sprintf("  %4.1f of %.0f s   %s checks, %s allowed, %s refused (%s)   %s", elapsed.Seconds(), planned.Seconds(),
		Count(s.Total.Checks), Count(s.Total.Allowed), Count(s.Total.Refused), reasons(s.Total.Reasons), lag(s, l))
}

func lag(s Snapshot, l Ledger) string {
	switch waiting := s.Events() - l.Events; {
	case !l.Known:
		return "ledger: not read yet"
	case waiting <= 0:
		return "ledger: up to date"
	default:
		return fmt.Sprintf("ledger: %s behind, %.1f s", Count(waiting), l.Lag.Seconds())
	}
}

func reasons(m map[string]int64) string {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	for i, k := range keys {
		keys[i] = k + " " + Count(m[k])
	}
	return strings.Join(keys, ", ")
}

func fit(s string) string {
	if len(s) <= why {
		return s
	}
	return s[:why-1] + "…"
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func perSecond(n int64, d time.Duration) int64 { return int64(float64(n) / max(d.Seconds(), 0.1)) }

// Count writes 1234567 as 1,234,567.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
