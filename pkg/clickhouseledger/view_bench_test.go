package clickhouseledger

import (
	"database/sql"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
)

var benchEvents = flag.Int("events", 200_000, "events of the ledger in BenchmarkUsageDaily, which also measures a tenth of them, BenchmarkComparison and BenchmarkCostDaily")

const fillSlice = 500_000

// fill adds events of 30 days as the writer would: 50 orgs of 20 users with four models, each event with its sums.
const fill = `INSERT INTO usage_ledger (grain, event_id, org_id, period, user_id, tier, model, events, requests, input_tokens, output_tokens, request_id, requested_model,
	timestamp, outcome, reservation, ingested_at, generation)
SELECT g, if(g = 'event', generateUUIDv4(n), toUUID('00000000-0000-0000-0000-000000000000')), 'org-' || toString(n %% 50),
	multiIf(g = 'minute', toStartOfMinute(at), g = 'quarter', toStartOfFifteenMinutes(at), g = 'day', toStartOfDay(at), toDateTime(0, 'UTC')),
	'user-' || toString(n %% 1000), 'plus', 'model-' || toString(intDiv(n, 1000) %% 4), 1, 1, 100, 20, generateUUIDv4(n + 1), '', if(g = 'event', at, toDateTime64(0, 3, 'UTC')),
	if(g = 'event', 'completed', ''), if(g = 'event', 'held', ''), now64(3), 1
FROM (SELECT number AS n, toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalMillisecond(intDiv(number * 2592000000, %d)) AS at FROM numbers(%d, %d))
ARRAY JOIN ['event', 'minute', 'quarter', 'day'] AS g`

func filled(b *testing.B, events int) *sql.DB {
	_, db := migrated(b)
	for from := 0; from < events; from += fillSlice { // each well within the client's patience
		exec(b, db, fmt.Sprintf(fill, events, from, min(fillSlice, events-from)))
	}
	return db
}

// BenchmarkComparison sums up all views for the last two of 30 days, as the consumer does every minute. The yardstick is one of its six
// queries as it would be through usage_events, which merges while it reads.
func BenchmarkComparison(b *testing.B) {
	db := filled(b, *benchEvents)
	since := time.Date(2026, 1, 29, 0, 0, 0, 0, time.UTC)
	ledger := clickhousetotals.Ledger{DB: db}
	var all, merged []time.Duration
	for b.Loop() {
		began := time.Now()
		sums, err := ledger.Sums(b.Context(), since)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(began))
		if len(sums) != 4*48+2 {
			b.Fatalf("%d sums", len(sums))
		}
		if len(merged) < 3 {
			began = time.Now()
			exec(b, db, "SELECT toStartOfHour(timestamp) AS hour, count(), sum(input_tokens), sum(output_tokens) FROM usage_events WHERE timestamp >= '2026-01-29' GROUP BY hour FORMAT Null")
			merged = append(merged, time.Since(began))
		}
	}
	slices.Sort(all)
	slices.Sort(merged)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "all-views-ms")
	b.ReportMetric(float64(merged[len(merged)/2].Microseconds())/1000, "events-merged-ms")
}

// BenchmarkCostDaily reads the costs of one org over 30 days, with a price that begins inside a quarter of an hour, whose events are read one by
// one. The same with prices that begin on a quarter is the yardstick.
func BenchmarkCostDaily(b *testing.B) {
	db := filled(b, *benchEvents)
	took := map[string][]time.Duration{}
	price := func(model, from string) {
		exec(b, db, fmt.Sprintf("INSERT INTO price_rows VALUES ('%s', '%s', 'USD', 3, 1, 15, 1, now64(3), 'bench')", model, from))
	}
	for i := range 4 {
		price(fmt.Sprintf("model-%d", i), "2025-01-01")
	}
	const query = "SELECT day, user_id, model, cost FROM cost_daily WHERE org_id = 'org-7' FORMAT Null"
	for range 5 {
		began := time.Now()
		exec(b, db, query)
		took["quarters"] = append(took["quarters"], time.Since(began))
	}
	price("model-1", "2026-01-10 10:07:00")
	price("model-2", "2026-01-20 10:07:00")
	for b.Loop() {
		began := time.Now()
		exec(b, db, query)
		took["split"] = append(took["split"], time.Since(began))
	}
	for name, t := range took {
		slices.Sort(t)
		b.ReportMetric(float64(t[len(t)/2].Microseconds())/1000, name+"-ms")
	}
}

// BenchmarkUsageDaily reads 30 days of one org through usage_daily, over -events events and over a tenth of them with the same groups:
// the time goes with the groups. The same sums worked out from the events are the yardstick.
func BenchmarkUsageDaily(b *testing.B) {
	for _, events := range []int{*benchEvents / 10, *benchEvents} {
		b.Run(fmt.Sprintf("%d events", events), func(b *testing.B) {
			db := filled(b, events)
			groups := 0
			read := func(query string) time.Duration {
				began := time.Now()
				rows, err := db.QueryContext(b.Context(), query)
				if err != nil {
					b.Fatal(err)
				}
				defer rows.Close()
				for groups = 0; rows.Next(); groups++ {
				}
				if err := rows.Err(); err != nil {
					b.Fatal(err)
				}
				return time.Since(began)
			}
			var view, raw []time.Duration
			for b.Loop() {
				view = append(view, read("SELECT period, user_id, model, requests, total_tokens FROM usage_daily WHERE org_id = 'org-7'"))
				if groups != 30*20*4 {
					b.Fatalf("%d groups", groups)
				}
				if len(raw) < 3 {
					raw = append(raw, read("SELECT toStartOfDay(timestamp), user_id, model, count(), sum(input_tokens + output_tokens) FROM usage_events WHERE org_id = 'org-7' GROUP BY ALL"))
				}
			}
			slices.Sort(view)
			slices.Sort(raw)
			b.ReportMetric(float64(view[len(view)/2].Microseconds())/1000, "view-ms")
			b.ReportMetric(float64(view[len(view)-1].Microseconds())/1000, "view-worst-ms")
			b.ReportMetric(float64(raw[len(raw)/2].Microseconds())/1000, "from-events-ms")
			b.ReportMetric(float64(groups), "groups")
		})
	}
}
