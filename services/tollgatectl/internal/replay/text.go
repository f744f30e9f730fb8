package replay

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Commas writes 1234567 as 1,234,567.
func Commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Print writes the account for people.
func (a *Account) Print(w io.Writer) {
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "  %-16s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("checks", "%10s   of %s requests in the trace", Commas(a.Checks), Commas(int64(a.Planned)))
	line("allowed", "%10s", Commas(a.Allowed))
	line("refused", "%10s%s", Commas(a.Refused), byReason(a.RefusedBy))
	line("recorded", "%10s", Commas(a.Recorded))
	line("input tokens", "%10s", Commas(a.InputTokens))
	line("output tokens", "%10s", Commas(a.OutputTokens))
	if a.Degraded > 0 {
		line("degraded", "%10s   decided without Redis", Commas(a.Degraded))
	}
	if a.Retried > 0 {
		line("sent again", "%10s   calls, because the service was unavailable or too slow", Commas(a.Retried))
	}
	line("errors", "%10s", Commas(a.Errors))
	for _, text := range slices.Sorted(maps.Keys(a.ErrorTexts)) {
		line("", "%10s × %s", Commas(a.ErrorTexts[text]), text)
	}
	line("time", "%10s   %s", a.Elapsed.Round(10*time.Millisecond), a.pace())
	line("check", "p50 %s   p99 %s   max %s", ms(a.Check.P50), ms(a.Check.P99), ms(a.Check.Max))
	line("record", "p50 %s   p99 %s   max %s", ms(a.Record.P50), ms(a.Record.P99), ms(a.Record.Max))
}

// pace tells the rate and whether the system kept up with the trace.
func (a *Account) pace() string {
	s := fmt.Sprintf("%s checks/s", Commas(int64(float64(a.Checks)/max(a.Elapsed.Seconds(), 1e-9))))
	switch late := a.Elapsed - a.Target; {
	case a.Target == 0:
		return s
	case late > a.Target/20+time.Second:
		return s + fmt.Sprintf("; the pace asked for was %s: the system is slower, checks began up to %s late",
			a.Target.Round(10*time.Millisecond), a.Behind.Round(10*time.Millisecond))
	default:
		return s + fmt.Sprintf("; the pace asked for was %s: kept", a.Target.Round(10*time.Millisecond))
	}
}

func byReason(m map[string]int64) string {
	if len(m) == 0 {
		return ""
	}
	reasons := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		if m[a] != m[b] {
			return int(m[b] - m[a])
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, len(reasons))
	for i, r := range reasons {
		parts[i] = r + " " + Commas(m[r])
	}
	return "   " + strings.Join(parts, ", ")
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
