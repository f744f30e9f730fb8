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

// Bill is what the ledger says of a customer.
type Bill struct {
	User              string
	Requests, Refused int64
	Input, Output     int64
	Cost              string // exact, with its currency; "" while there is no price
}

// row is the form of the tables' lines, for 80 columns.
const row = "  %-15s %8s %7s %7s %9s %8s  %s"

var rule = "  " + strings.Repeat("─", 76)

// Table shows the tally in lines for 80 columns.
func Table(s Snapshot, l Ledger, elapsed, planned time.Duration) []string {
	lines := []string{fmt.Sprintf(row, "who", "requests", "served", "refused", "tokens in", "out", "refused with")}
	for _, r := range append(slices.Clone(s.Rows), s.Total) {
		if r.User == s.Total.User {
			lines = append(lines, rule)
		}
		line := fmt.Sprintf(row, r.User, Count(r.Requests), Count(r.Served), Count(r.refused()), Count(r.Input), Count(r.Output), statuses(r.Refused))
		lines = append(lines, strings.TrimRight(line, " "))
	}
	lines = append(lines, "", fmt.Sprintf("  %4.1f of %.0f s, %s requests/s   %s", elapsed.Seconds(), planned.Seconds(), Count(perSecond(s.Total.Requests, elapsed)), lag(s, l)))
	if s.Errors > 0 {
		lines = append(lines, fmt.Sprintf("  %s requests failed, last: %s", Count(s.Errors), s.LastError))
	}
	return lines
}

// Line is the table in one line, for where there is no terminal.
func Line(s Snapshot, l Ledger, elapsed, planned time.Duration) string {
	return fmt.Sprintf("  %4.1f of %.0f s   %s requests, %s served, %s refused   %s", elapsed.Seconds(), planned.Seconds(),
		Count(s.Total.Requests), Count(s.Total.Served), Count(s.Total.refused()), lag(s, l))
}

// Bills shows what the ledger bills, beside what the answers told their clients (nil: nothing to compare), in lines for 80 columns.
func Bills(bills []Bill, told *Row) []string {
	const row = "  %-15s %8s %8s  %10s %9s   %s"
	lines := []string{fmt.Sprintf(row, "who", "requests", "refused", "tokens in", "out", "owes")}
	for _, b := range bills {
		if b.User == allUsers {
			lines = append(lines, rule)
		}
		lines = append(lines, fmt.Sprintf(row, b.User, Count(b.Requests), Count(b.Refused), Count(b.Input), Count(b.Output), cmp.Or(b.Cost, "no price")))
	}
	if told != nil {
		lines = append(lines, fmt.Sprintf(row, "clients counted", Count(told.Served), Count(told.refused()), Count(told.Input), Count(told.Output), "by the answers"))
	}
	return lines
}

// allUsers is the row of all customers together.
const allUsers = "all"

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

func statuses(m map[int]int64) string {
	var out []string
	for _, status := range slices.Backward(slices.Sorted(maps.Keys(m))) {
		out = append(out, fmt.Sprintf("%d ×%s", status, Count(m[status])))
	}
	return strings.Join(out, " ")
}

func perSecond(n int64, d time.Duration) int64 { return int64(float64(n) / max(d.Seconds(), 0.1)) }

// Count writes 1234567 as 1,234,567.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
