package clickhouseledger

import (
	"errors"
	"fmt"
	"math/big"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

const codeDoesNotFit = 70 // CANNOT_CONVERT_TYPE, of accurateCast

// Sums of tokens beyond 64 bits: in one batch, by several folds, at merges, and back again by corrections. What a view can't show is an error, never a
// wrong sum, and only where it is asked for.
func TestSumsBeyond64BitsAreAnErrorNeverAWrongSum(t *testing.T) {
	dsn, db := migrated(t)
	l := writer(t, dsn)
	big1 := func(i int) Event {
		e := event(i)
		e.OrgID, e.UserID, e.Timestamp = "big", "u", event(0).Timestamp
		e.InputTokens, e.OutputTokens, e.CachedInputTokens = usage.MaxTokens, 7, usage.MaxTokens
		return e
	}
	var batch []Event
	for i := range 1025 { // 2^63 + 2^53 - 1,025
		batch = append(batch, big1(i))
	}
	small := event(9000)
	small.OrgID, small.InputTokens, small.OutputTokens = "small", 40, 2
	store(t, l, append(batch, small))
	half := func(from int) {
		for i := range 512 {
			batch[i] = big1(from + i)
		}
		store(t, l, batch[:512])
	}
	half(2000)
	half(3000)
	exec(t, db, "INSERT INTO price_rows VALUES ('"+small.Model+"', '2000-01-01', 'USD', 3, 1, 15, 1, now64(3), 'test')")
	want := new(big.Int).Mul(big.NewInt(2049), big.NewInt(usage.MaxTokens)).String()
	views := map[string]string{"usage_minutely": "total_tokens", "usage_quarterly": "input_tokens", "usage_hourly": "cached_input_tokens", "usage_daily": "input_tokens", "cost_daily": "cost", "invoice_lines": "amount"}
	check := func(when string) {
		t.Helper()
		for _, grain := range []string{"event", "minute", "quarter", "day"} {
			var input, cached string
			if err := db.QueryRowContext(t.Context(), "SELECT toString(sum(input_tokens)), toString(sum(cached_input_tokens)) FROM usage_ledger WHERE org_id = 'big' AND grain = '"+grain+"'").Scan(&input, &cached); err != nil || input != want || cached != want {
				t.Errorf("%s: by %s: %s input and %s cached tokens, want %s: %v", when, grain, input, cached, want, err)
			}
		}
		for view, column := range views {
			var got string
			err := db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT toString(%s) FROM %s WHERE org_id = 'big'", column, view)).Scan(&got)
			var ex *clickhouse.Exception
			if !errors.As(err, &ex) || ex.Code != codeDoesNotFit {
				t.Errorf("%s: %s says %s of %s: %v", when, view, got, column, err)
			}
			if err := db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT toString(%s) FROM %s WHERE org_id = 'small'", column, view)).Scan(&got); err != nil {
				t.Errorf("%s: %s of another org: %v", when, view, err)
			}
		}
	}
	check("before merges")
	exec(t, db, "OPTIMIZE TABLE usage_ledger FINAL")
	check("after merges")
	if got := number(t, db, "SELECT count() FROM usage_events WHERE input_tokens = 9007199254740991"); got != 2049 {
		t.Errorf("%d events have their tokens", got)
	}

	// Corrections bring the sums back to where they fit.
	for i := range 2049 {
		e := big1(i)
		e.EventID = event(100_000 + i).EventID
		e.Outcome, e.InputTokens, e.OutputTokens, e.CachedInputTokens = usage.Adjustment, -usage.MaxTokens, -7, -usage.MaxTokens
		if i == 0 {
			e.InputTokens, e.CachedInputTokens = 3-usage.MaxTokens, 1-usage.MaxTokens
		}
		batch = append(batch[:i:i], e)
	}
	store(t, l, batch)
	for _, merged := range []bool{false, true} {
		if merged {
			exec(t, db, "OPTIMIZE TABLE usage_ledger FINAL")
		}
		for _, view := range []string{"usage_minutely", "usage_quarterly", "usage_hourly", "usage_daily"} {
			if got := number(t, db, "SELECT total_tokens * 10 + cached_input_tokens FROM "+view+" WHERE org_id = 'big'"); got != 31 {
				t.Errorf("corrected (merged %v): %s gives %d", merged, view, got)
			}
		}
		if got := number(t, db, "SELECT toInt64(cost * 1000000) FROM cost_daily WHERE org_id = 'big'"); got != 2*3+1 {
			t.Errorf("corrected (merged %v): costs %d millionths", merged, got)
		}
	}
}
