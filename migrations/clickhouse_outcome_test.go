package migrations

import (
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pressly/goose/v3"
)

func clickhouseProvider(t *testing.T, db *sql.DB) *goose.Provider {
	t.Helper()
	p, err := goose.NewProvider(goose.DialectClickHouse, db, ClickHouseFS(), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// oldEvents are what the views show of the rows that fill wrote to usage_event_rows.
type oldEvents struct{ events, days, refusals []string }

const (
	oldEventsQuery = `SELECT concat(substring(toString(event_id), 34, 3), ' ', outcome, ' ', toString(input_tokens)) AS line FROM usage_events ORDER BY line`
	oldDaysQuery   = `SELECT concat(toString(period), ' ', org_id, ' ', toString(requests), ' ', toString(rejected_requests), ' ', toString(input_tokens)) AS line FROM usage_daily ORDER BY line`
	oldHoursQuery  = `SELECT concat(toString(toStartOfDay(period)), ' ', org_id, ' ', toString(sum(u.requests)), ' ', toString(sum(u.rejected_requests)), ' ', toString(sum(u.input_tokens))) AS line
		FROM %s AS u GROUP BY toStartOfDay(period), org_id ORDER BY line`
	oldRefusalsQuery = `SELECT concat(toString(period), ' ', reason, ' ', toString(requests)) AS line FROM rejections_hourly ORDER BY line`
)

// fill writes repeats of 240 events: other outcomes, other orders, some merged on the way.
func fill(t *testing.T, db *sql.DB) (want oldEvents) {
	t.Helper()
	type row struct {
		event, offset, tokens int
		outcome               string
	}
	var rows []row
	days := map[string]*[3]int{}
	for event := range 240 {
		early, late := 1000+2*event, 1000_000+2*event
		var stands row
		switch event % 6 {
		case 0: // the guess is first in Kafka
			stands = row{event, late, 7, "completed"}
			rows = append(rows, row{event, early, 100, "expired"}, stands)
		case 1: // and last
			stands = row{event, early, 8, "cancelled"}
			rows = append(rows, stands, row{event, late, 100, "expired"})
		case 2: // two that are no guess: the first
			stands = row{event, early + 1, 7, "completed"}
			rows = append(rows, row{event, early, 100, "expired"}, stands, row{event, late, 9, "failed"})
		case 3: // two guesses: the first
			stands = row{event, early, 100, "expired"}
			rows = append(rows, row{event, late, 50, "expired"}, stands)
		case 4:
			stands = row{event, early, 0, "rejected"}
			rows = append(rows, stands, row{event, late, 0, "rejected"})
		case 5: // a correction is no request
			stands = row{event, early, -30, "adjustment"}
			rows = append(rows, stands, stands)
		}
		want.events = append(want.events, fmt.Sprintf("%03d %s %d", event, stands.outcome, stands.tokens))
		day := fmt.Sprintf("2026-01-0%d 00:00:00 o%d", 1+event%3, event%2)
		if days[day] == nil {
			days[day] = new([3]int)
		}
		switch stands.outcome {
		case "rejected":
			days[day][1]++
		case "adjustment":
		default:
			days[day][0]++
		}
		days[day][2] += stands.tokens
	}
	for day, n := range days {
		want.days = append(want.days, fmt.Sprintf("%s %d %d %d", day, n[0], n[1], n[2]))
	}
	slices.Sort(want.days)
	for day, n := range map[int]int{1: 0, 2: 40, 3: 0} { // event%6 == 4 is event%3 == 1
		if n > 0 {
			want.refusals = append(want.refusals, fmt.Sprintf("2026-01-0%d 12:00:00 rpm %d", day, n))
		}
	}
	rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	for i, r := range rows {
		_, err := db.ExecContext(t.Context(), `INSERT INTO usage_event_rows (event_id, user_id, org_id, outcome, was_rate_limited, reason, kafka_offset, kafka_partition, input_tokens, timestamp)
			SELECT toUUID(concat('00000000-0000-0000-0000-000000000', leftPad(toString(?), 3, '0'))), 'u1', ?, ?, ?, ?, ?, 3, ?, toDateTime64(?, 3, 'UTC')`,
			r.event, fmt.Sprintf("o%d", r.event%2), r.outcome, r.outcome == "rejected", map[bool]string{true: "rpm"}[r.outcome == "rejected"], r.offset, r.tokens,
			fmt.Sprintf("2026-01-0%d 12:07:00", 1+r.event%3))
		if err != nil {
			t.Fatal(err)
		}
		if i == len(rows)/2 {
			if _, err := db.ExecContext(t.Context(), `OPTIMIZE TABLE usage_event_rows FINAL`); err != nil {
				t.Fatal(err)
			}
		}
	}
	return want
}

func (want oldEvents) check(t *testing.T, db *sql.DB, moment string, kept bool) {
	t.Helper()
	queries := map[string][]string{oldEventsQuery: want.events, oldDaysQuery: want.days, oldRefusalsQuery: want.refusals,
		fmt.Sprintf(oldHoursQuery, "usage_hourly"): want.days, fmt.Sprintf(oldHoursQuery, "usage_minutely"): want.days}
	if kept {
		queries[fmt.Sprintf(oldHoursQuery, "usage_quarterly")] = want.days
	}
	for q, lists := range queries {
		if got := lines(t, db, q); !slices.Equal(got, lists) {
			t.Errorf("%s: %s\n%v\nwant\n%v", moment, q, got, lists)
		}
	}
}

// What the ledger of earlier versions holds moves into the one with kept sums: each event once, by the same rules, and back.
func TestClickHouseOldRowsAreBroughtOverEachEventOnce(t *testing.T) {
	db := emptyClickHouse(t)
	p := clickhouseProvider(t, db)
	if _, err := p.UpTo(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	want := fill(t, db)
	want.check(t, db, "before", false)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	want.check(t, db, "after", true)
	if n := lines(t, db, `SELECT toString(count()) AS line FROM system.parts WHERE database = currentDatabase() AND table = 'usage_ledger' AND level = 0`); n[0] > "17" && len(n[0]) > 1 {
		t.Errorf("%s parts, want one for each slice and one for fold 0", n[0])
	}
	if _, err := db.ExecContext(t.Context(), `OPTIMIZE TABLE usage_ledger FINAL`); err != nil {
		t.Fatal(err)
	}
	want.check(t, db, "after a merge", true)
	if _, err := p.DownTo(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	want.check(t, db, "down again", false)
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	want.check(t, db, "up again", true)
}

// A process dies anywhere in the file, and another one begins it anew: statements that have run already change nothing.
func TestClickHouseBringingOverMayBeginAnew(t *testing.T) {
	db := emptyClickHouse(t)
	if _, err := clickhouseProvider(t, db).UpTo(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	want := fill(t, db)
	up := statements(t, "00005_usage_ledger.sql")
	for n := 1; n <= len(up); n += 3 {
		for _, s := range up[:n] {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("run up to %d: %s: %v", n, s, err)
			}
		}
	}
	for range 2 {
		for _, s := range up {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
		want.check(t, db, "after all", true)
	}
}
