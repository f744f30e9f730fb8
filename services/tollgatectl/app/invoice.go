package app

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

// invoiceForPeople makes an invoice's answer one to be read; another answer stays as it is. An amount that is 0 only because its line is rounded to the cent is
// marked: a reader would take it for free of charge. Prices have short names, and what is unpriced is told by its amount, which is none: so it fits 100 columns.
func invoiceForPeople(t *clickhousehttp.Table) {
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
	for i := range t.Columns {
		t.Columns[i].Name = strings.Replace(t.Columns[i].Name, "_per_million", "_price", 1)
	}
	if i := slices.IndexFunc(t.Columns, func(c clickhousehttp.Column) bool { return c.Name == "unpriced" }); i >= 0 {
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for n := range t.Rows {
			t.Rows[n] = slices.Delete(t.Rows[n], i, i+1)
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
