package app

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

// showRounded marks, for people, the amounts of an invoice that are 0 only because a line is rounded to the cent: a reader would take 0 for free of charge.
// An answer without an invoice's columns stays as it is.
func showRounded(t *clickhousehttp.Table) {
	at := map[string]int{}
	for _, name := range []string{"input_tokens", "cached_input_tokens", "output_tokens", "input_per_million", "cached_input_per_million", "output_per_million", "amount"} {
		i := slices.IndexFunc(t.Columns, func(c clickhousehttp.Column) bool { return c.Name == name })
		if i < 0 {
			return
		}
		at[name] = i
	}
	for _, row := range t.Rows {
		number := func(name string) *big.Rat { return exact(row[at[name]]) }
		if amount := number("amount"); amount == nil || amount.Sign() != 0 {
			continue
		}
		uncached := new(big.Rat).Sub(number("input_tokens"), number("cached_input_tokens"))
		cost := uncached.Mul(uncached, number("input_per_million"))
		for _, kind := range []string{"cached_input", "output"} {
			cost.Add(cost, new(big.Rat).Mul(number(kind+"_tokens"), number(kind+"_per_million")))
		}
		switch cost.Sign() {
		case 1:
			row[at["amount"]] = json.RawMessage(`"<0.01"`)
		case -1:
			row[at["amount"]] = json.RawMessage(`">-0.01"`)
		}
	}
}

// exact reads a number that ClickHouse wrote, bare or in quotes; nil for null.
func exact(v json.RawMessage) *big.Rat {
	n, ok := new(big.Rat).SetString(strings.Trim(string(v), `"`))
	if !ok {
		return nil
	}
	return n
}
