package redisbucket

import (
	"strconv"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// loan is what a shard has lent to a scope that a reservation holds, by limit, as prelude.lua has it.
type loan struct {
	scope   string
	shard   int
	amounts map[string]int64
}

// limitID names a limit as a signature does, without its capacity.
func limitID(l limit.Limit) string {
	ms := l.Window.Milliseconds()
	if span, short := spans[ms]; short {
		return counted[l.Counted] + span
	}
	return counted[l.Counted] + "X" + strconv.FormatInt(ms, 36)
}

// loansOf gives what others have lent to scopes.
func loansOf(scopes []limit.Scope) (texts []string) {
	for _, s := range scopes {
		for _, l := range s.Loans() {
			var amounts []string
			for j, n := range l.Amounts {
				if n > 0 {
					amounts = append(amounts, limitID(s.Limits[j])+"="+strconv.FormatInt(n, 10))
				}
			}
			if len(amounts) > 0 {
				texts = append(texts, "+"+scopeID(s)+"#"+strconv.Itoa(l.Shard)+"#"+strings.Join(amounts, "/"))
			}
		}
	}
	return texts
}

// parseLoans reads them from what a reservation holds, the earliest first.
func parseLoans(held string) (loans []loan) {
	for text := range strings.SplitSeq(held, ",") {
		rest, isLoan := strings.CutPrefix(text, "+")
		parts := strings.Split(rest, "#")
		if !isLoan || len(parts) != 3 {
			continue
		}
		shard, err := strconv.Atoi(parts[1])
		if err != nil {
			continue
		}
		l := loan{parts[0], shard, map[string]int64{}}
		for amount := range strings.SplitSeq(parts[2], "/") {
			id, digits, _ := strings.Cut(amount, "=")
			if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
				l.amounts[id] = n
			}
		}
		loans = append(loans, l)
	}
	return loans
}
