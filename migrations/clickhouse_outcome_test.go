package migrations

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
)

// An expired event is a guess; whatever else is told under its id is not. Orders of arrival, batches and merges change nothing.
func TestClickHouseRealOutcomeStandsAgainstExpiredInWhateverOrder(t *testing.T) {
	db := emptyClickHouse(t)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	type row struct {
		event   int
		outcome string
		offset  int
		tokens  int
	}
	var rows []row
	var want []string
	for event := range 60 {
		early, late := 1000+2*event, 1000_000+2*event
		switch event % 4 {
		case 0: // the guess is first in Kafka
			rows = append(rows, row{event, "expired", early, 100}, row{event, "completed", late, 7})
			want = append(want, fmt.Sprintf("%02d completed 7", event))
		case 1: // and last
			rows = append(rows, row{event, "cancelled", early, 8}, row{event, "expired", late, 100})
			want = append(want, fmt.Sprintf("%02d cancelled 8", event))
		case 2: // two that are no guess: the first
			rows = append(rows, row{event, "expired", early, 100}, row{event, "completed", early + 1, 7}, row{event, "failed", late, 9})
			want = append(want, fmt.Sprintf("%02d completed 7", event))
		case 3: // two guesses: the first
			rows = append(rows, row{event, "expired", late, 50}, row{event, "expired", early, 100})
			want = append(want, fmt.Sprintf("%02d expired 100", event))
		}
	}
	rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	insert := `INSERT INTO usage_event_rows (event_id, user_id, outcome, kafka_offset, kafka_partition, input_tokens, timestamp)
		SELECT toUUID(concat('00000000-0000-0000-0000-0000000000', leftPad(toString(?), 2, '0'))), 'u1', ?, ?, 3, ?, toDateTime64('2026-01-01 12:00:00', 3, 'UTC')`
	const events = `SELECT concat(substring(toString(event_id), 35, 2), ' ', outcome, ' ', toString(input_tokens)) AS line FROM usage_events ORDER BY line`
	sum := 0
	for _, w := range want {
		var n int
		_, _ = fmt.Sscanf(w, "%d %s %d", new(int), new(string), &n)
		sum += n
	}
	for i, r := range rows {
		if _, err := db.ExecContext(t.Context(), insert, r.event, r.outcome, r.offset, r.tokens); err != nil {
			t.Fatal(err)
		}
		if i == len(rows)/2 { // half of them are merged on the way
			if _, err := db.ExecContext(t.Context(), `OPTIMIZE TABLE usage_event_rows FINAL`); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, moment := range []string{"before", "after"} {
		if got := lines(t, db, events); !slices.Equal(got, want) {
			t.Errorf("%s a merge:\n%v\nwant\n%v", moment, got, want)
		}
		if got := lines(t, db, `SELECT concat(toString(sum(requests)), ' ', toString(sum(input_tokens))) AS line FROM usage_daily`); got[0] != fmt.Sprintf("60 %d", sum) {
			t.Errorf("%s a merge: %v, want 60 requests with %d tokens", moment, got, sum)
		}
		if _, err := db.ExecContext(t.Context(), `OPTIMIZE TABLE usage_event_rows FINAL`); err != nil {
			t.Fatal(err)
		}
	}
}

// Guesses that were stored before the migration give way, too.
func TestClickHouseOldGuessGivesWayToARealOutcome(t *testing.T) {
	db := emptyClickHouse(t)
	p, err := goose.NewProvider(goose.DialectClickHouse, db, ClickHouseFS(), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	insert := func(outcome string, offset int) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), `INSERT INTO usage_event_rows (event_id, outcome, kafka_offset) VALUES (toUUID('00000000-0000-0000-0000-000000000001'), ?, ?)`, outcome, offset); err != nil {
			t.Fatal(err)
		}
	}
	insert("expired", 1)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	insert("completed", 2)
	for deadline := time.Now().Add(20 * time.Second); lines(t, db, `SELECT outcome AS line FROM usage_events`)[0] != "completed"; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the old guess stands")
		}
	}
}
