package clickhouseledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// model is a plain ledger: what the views must show.
type model struct{ events map[string]Event }

func (m *model) store(batch []Event) {
	for _, e := range batch {
		old, ok := m.events[e.EventID.String()]
		if !ok || old.guess() && !e.guess() {
			m.events[e.EventID.String()] = e
		}
	}
}

var periods = map[string]time.Duration{"usage_minutely": time.Minute, "usage_quarterly": 15 * time.Minute, "usage_hourly": time.Hour, "usage_daily": 24 * time.Hour}

// views gives each view's rows as text, in order.
func (m *model) views() map[string][]string {
	out := map[string][]string{"usage_events": {}, "rejections_hourly": {}}
	refused := map[string]int64{}
	for _, e := range m.events {
		out["usage_events"] = append(out["usage_events"], fmt.Sprintf("%s %s %s %d %d %d %d", e.EventID, e.OrgID, e.Outcome, e.InputTokens, e.OutputTokens, e.CachedInputTokens, time.Time(e.Timestamp).UnixMilli()))
		if e.WasRateLimited {
			refused[fmt.Sprintf("%d %s %s %s", time.Time(e.Timestamp).Truncate(time.Hour).Unix(), e.Tier, e.Reason, e.Scope)]++
		}
	}
	for k, n := range refused {
		out["rejections_hourly"] = append(out["rejections_hourly"], fmt.Sprintf("%s %d", k, n))
	}
	for view, d := range periods {
		groups := map[string][5]int64{}
		for _, e := range m.events {
			k := fmt.Sprintf("%d %s %s %s %s %s", time.Time(e.Timestamp).Truncate(d).Unix(), e.OrgID, e.UserID, e.APIKeyID, e.Tier, e.Model)
			g, v := groups[k], of(&e, 1)
			groups[k] = [5]int64{g[0] + v.requests, g[1] + v.rejected, g[2] + e.InputTokens, g[3] + e.OutputTokens, g[4] + e.CachedInputTokens}
		}
		out[view] = []string{}
		for k, g := range groups {
			out[view] = append(out[view], fmt.Sprintf("%s %d %d %d %d %d %d", k, g[0], g[1], g[2], g[3], g[4], g[2]+g[3]))
		}
	}
	for _, rows := range out {
		slices.Sort(rows)
	}
	return out
}

// shown gives what the views show, in the same form.
func shown(t testing.TB, db *sql.DB) map[string][]string {
	t.Helper()
	queries := map[string]string{
		"usage_events":      "concat_ws(' ', event_id, org_id, outcome, input_tokens, output_tokens, cached_input_tokens, toUnixTimestamp64Milli(timestamp))",
		"rejections_hourly": "concat_ws(' ', toUnixTimestamp(period), tier, reason, scope, requests)",
	}
	for view := range periods {
		queries[view] = "concat_ws(' ', toUnixTimestamp(period), org_id, user_id, api_key_id, tier, model, requests, rejected_requests, input_tokens, output_tokens, cached_input_tokens, total_tokens)"
	}
	out := map[string][]string{}
	for view, line := range queries {
		rows, err := db.QueryContext(context.Background(), "SELECT "+line+" AS line FROM "+view+" ORDER BY line")
		if err != nil {
			t.Fatalf("%s: %v", view, err)
		}
		out[view] = []string{}
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				t.Fatal(err)
			}
			out[view] = append(out[view], s)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // closed in a loop, with its error
			t.Fatal(err)
		}
		slices.Sort(out[view])
	}
	return out
}

func (m *model) check(t testing.TB, db *sql.DB, when string) {
	t.Helper()
	got := shown(t, db)
	for view, want := range m.views() {
		if !slices.Equal(got[view], want) {
			t.Fatalf("%s, %s shows %d rows, want %d:\n%.300v\nwant\n%.300v", when, view, len(got[view]), len(want), got[view], want)
		}
	}
}

// anyVersion makes one of the versions that event i may come in: other timestamps, orgs, places in the log and outcomes. Of real outcomes all versions
// tell the same figures, so that a race of writers has one right result.
func anyVersion(rng *rand.Rand, i int, vary bool) Event {
	e := event(i)
	e.Partition, e.Offset = rng.IntN(12), rng.Int64N(1000)
	e.CachedInputTokens = int64(i % 3)
	switch i % 5 {
	case 0:
		e.WasRateLimited, e.Outcome, e.Reservation, e.Reason, e.Scope = true, usage.Rejected, "", "rpm", "user"
		e.InputTokens, e.OutputTokens, e.CachedInputTokens, e.ReservedTokens = 0, 0, 0, 0
	case 1:
		e.Outcome, e.InputTokens = usage.Adjustment, -4
	case 2:
		if rng.IntN(2) == 0 { // what was held, or the very figures of the outcome
			e.Outcome = usage.Expired
			if i%2 == 0 {
				e.InputTokens, e.OutputTokens = 100, 50
			}
		}
	}
	if vary {
		e.Timestamp = usage.At(time.Time(e.Timestamp).Add(time.Duration(rng.IntN(200)) * time.Minute))
		e.OrgID = fmt.Sprint("o", rng.IntN(3))
		e.APIKeyID = []string{"", "k1"}[rng.IntN(2)]
	}
	return e
}

func randomBatch(rng *rand.Rand, ids, most int, vary bool) []Event {
	out := make([]Event, 1+rng.IntN(most))
	for i := range out {
		out[i] = anyVersion(rng, rng.IntN(ids), vary)
	}
	return out
}

// Random batches with repeats, in all views, before and after merges, against the plain model at every step; some steps fail, before or after
// the statement has run.
func TestEachEventCountsOnceInEveryViewAtEveryMoment(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			dsn, db := migrated(t)
			rng := rand.New(rand.NewPCG(seed, 7))
			l, m := writer(t, dsn), &model{map[string]Event{}}
			broken := errors.New("cut by the test")
			if seed%2 == 0 {
				exec(t, db, "SYSTEM STOP MERGES usage_ledger")
			}
			for step := range 40 {
				batch := randomBatch(rng, 80, 60, true)
				l.fault = func(string) error {
					if rng.IntN(12) == 0 {
						return broken
					}
					return nil
				}
				for {
					_, err := l.Store(t.Context(), batch)
					if err == nil {
						break
					}
					if !errors.Is(err, broken) {
						t.Fatal(err)
					}
					if rng.IntN(3) == 0 { // a successor, whose batches are cut elsewhere
						l = writer(t, dsn)
					}
				}
				m.store(batch)
				m.check(t, db, fmt.Sprint("after step ", step))
				if step%10 == 9 {
					exec(t, db, "SYSTEM START MERGES usage_ledger")
					exec(t, db, "OPTIMIZE TABLE usage_ledger FINAL")
					m.check(t, db, fmt.Sprint("merged after step ", step))
				}
			}
			if n, want := number(t, db, "SELECT toInt64(count()) FROM usage_ledger WHERE grain = 'event'"), int64(len(m.events)); n != want {
				t.Errorf("%d rows of events after a merge, want %d: what gave way is still there", n, want)
			}
		})
	}
}

// Four writers store the same events at once, in other batches and orders.
func TestWritersRacingOnTheSameEventsCountThemOnce(t *testing.T) {
	dsn, db := migrated(t)
	m := &model{map[string]Event{}}
	for i := range 600 {
		e := anyVersion(rand.New(rand.NewPCG(uint64(i), 1)), i, false)
		if i%5 == 2 {
			e.Outcome, e.InputTokens, e.OutputTokens = usage.Completed, 7, 3 // at least one of the four tells the real outcome
		}
		m.store([]Event{e})
	}
	watching, stop := context.WithCancel(t.Context())
	var watch, wg sync.WaitGroup
	watch.Go(func() { // at every moment, sums are those of the events
		for watching.Err() == nil {
			var daily, minutely, quarterly int64
			err := db.QueryRowContext(t.Context(), "SELECT (SELECT sum(total_tokens + requests + rejected_requests) FROM usage_daily), (SELECT sum(total_tokens + requests + rejected_requests) FROM usage_minutely), "+
				"(SELECT count() - uniqExact(event_id) FROM usage_events)").Scan(&daily, &minutely, &quarterly)
			if err != nil || quarterly != 0 {
				t.Errorf("at some moment %d events are shown twice (%v)", quarterly, err)
				return
			}
		}
	})
	var lost, added [4]int
	for w := range 4 {
		l := writer(t, dsn)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			order := rng.Perm(600)
			for len(order) > 0 {
				n := min(len(order), 10+rng.IntN(50))
				var batch []Event
				for _, i := range order[:n] {
					e := anyVersion(rng, i, false)
					if w == 0 && i%5 == 2 {
						e.Outcome, e.InputTokens, e.OutputTokens = usage.Completed, 7, 3
					}
					batch = append(batch, e)
				}
				s, err := l.Store(t.Context(), batch)
				if err != nil {
					t.Error(err)
					return
				}
				lost[w], added[w] = lost[w]+s.Lost, added[w]+s.Added
				order = order[n:]
			}
		})
	}
	wg.Wait()
	stop()
	watch.Wait()
	m.check(t, db, "after the race")
	exec(t, db, "OPTIMIZE TABLE usage_ledger FINAL")
	m.check(t, db, "after a merge")
	if sumOf(lost[:]) == 0 || sumOf(added[:]) != 600 {
		t.Errorf("%v blocks lost, %v events added: without a lost block this proves nothing", lost, added)
	}
}

func sumOf(ns []int) (total int) {
	for _, n := range ns {
		total += n
	}
	return total
}

// A writer has looked, sleeps, and meanwhile others store the same events; one that slept for too long is refused by the clock, not by the token.
func TestAWriterThatSleptChangesNothing(t *testing.T) {
	dsn, db := migrated(t)
	zombie, other, m := writer(t, dsn), writer(t, dsn), &model{map[string]Event{}}
	batch := events(0, 20)
	slept := false
	zombie.fault = func(step string) error {
		if step == "before insert" && !slept {
			slept = true
			store(t, other, batch[:15])
		}
		return nil
	}
	if s := store(t, zombie, batch); !slept || s.Lost != 1 || s.Added != 5 || s.Known != 15 {
		t.Errorf("%+v", s)
	}
	m.store(batch)
	m.check(t, db, "after the sleep")

	batch, slept = events(20, 10), false
	zombie.fault = func(step string) error {
		if step == "before insert" && !slept {
			slept = true
			for i := range zombie.block.ingested.Data { // as if a minute had passed since the look, and its token been forgotten
				zombie.block.ingested.Data[i] -= 61_000
			}
		}
		return nil
	}
	if s := store(t, zombie, batch); !slept || s.Lost != 1 || s.Added != 10 {
		t.Errorf("%+v", s)
	}
	m.store(batch)
	m.check(t, db, "after the long sleep")
}

// A fold whose token ClickHouse noted and whose part it never had, as when it is killed in between, does not hold up the ledger.
func TestAUsedUpFoldIsPassedOver(t *testing.T) {
	dsn, db := migrated(t)
	a, b, m := writer(t, dsn), writer(t, dsn), &model{map[string]Event{}}
	store(t, a, events(0, 5))
	m.store(events(0, 5))
	exec(t, db, "INSERT INTO usage_ledger (grain, generation) SETTINGS insert_deduplicate = 1, insert_deduplication_token = '1/2', optimize_on_insert = 0 VALUES ('day', 1)")
	for i, l := range []*Ledger{a, b, a} {
		batch := events(5+5*i, 5)
		if s := store(t, l, batch); s.Added != 5 {
			t.Errorf("%+v", s)
		}
		m.store(batch)
		m.check(t, db, fmt.Sprint("after batch ", i))
	}
	if n := number(t, db, "SELECT toInt64(count()) FROM usage_ledger WHERE grain = 'fold' AND event_id = toUUID('00000000-0000-0000-0000-000000000002')"); n != 0 {
		t.Error("fold 2 was not used up: this proves nothing")
	}
}
