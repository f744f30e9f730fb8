package chaos

import (
	"context"
	"database/sql"
	_ "embed" // the queries
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
)

//go:embed view_differs.sql
var viewDiffers string

const (
	watchEvery  = 250 * time.Millisecond
	settledFor  = 5 * time.Minute // how long the ledger may take to hold what was answered, once the faults are over
	namedAtMost = 10              // differences that an error names
)

// periods are the views that sum events up by period, with the function that gives the period's start.
var periods = map[string]string{"usage_minutely": "toStartOfMinute", "usage_hourly": "toStartOfHour", "usage_daily": "toStartOfDay"}

// watch looks at the views until ctx ends. No moment is exempt: an event that shows twice or a sum outside what the events were before
// and after it was read fails. A ledger that is away says nothing.
func watch(ctx context.Context, db *sql.DB) (looks int, err error) {
	for ; ctx.Err() == nil; lifecycle.Sleep(ctx, watchEvery) {
		ok, lie := look(ctx, db)
		if lie != nil {
			return looks, lie
		}
		if ok {
			looks++
		}
	}
	return looks, nil
}

func look(ctx context.Context, db *sql.DB) (bool, error) {
	events := func() (n, distinct uint64, err error) {
		err = db.QueryRowContext(ctx, "SELECT count(), uniqExact(event_id) FROM usage_events").Scan(&n, &distinct)
		return n, distinct, err
	}
	before, distinct, err := events()
	if err != nil {
		return false, nil //nolint:nilerr // killed just now
	}
	if before != distinct {
		return false, fmt.Errorf("usage_events shows %d rows of %d events", before, distinct)
	}
	sums := map[string]uint64{}
	for view := range periods {
		var n uint64
		if err := db.QueryRowContext(ctx, "SELECT sum(requests) + sum(rejected_requests) FROM "+view).Scan(&n); err != nil {
			return false, nil //nolint:nilerr // killed just now
		}
		sums[view] = n
	}
	after, _, err := events()
	if err != nil {
		return false, nil //nolint:nilerr // killed just now
	}
	for view, n := range sums {
		if n < before || n > after {
			return false, fmt.Errorf("%s counts %d requests, usage_events %d before and %d after", view, n, before, after)
		}
	}
	return true, nil
}

// verify compares the ledger with what was answered, the views with the events, and the ledger with the log. It waits until the
// ledger has caught up.
func verify(ctx context.Context, db *sql.DB, brokers []string, l *load) error {
	ctx, cancel := context.WithTimeout(ctx, settledFor)
	defer cancel()
	var missing, report error
	for {
		missing = l.compare(ctx, db)
		if missing == nil {
			var r *reconcile.Report
			r, report = reconcile.LogAndLedger(ctx, &kafkalog.Log{Brokers: brokers}, clickhousetotals.Ledger{DB: db})
			if report == nil && !r.Agree() {
				report = errors.New(r.String())
			}
			if report == nil {
				break
			}
		}
		if ctx.Err() != nil {
			return errors.Join(missing, report)
		}
		lifecycle.Sleep(ctx, time.Second)
	}
	for view, start := range periods {
		var groups uint64
		query := strings.NewReplacer("{view}", view, "{start}", start).Replace(viewDiffers)
		if err := db.QueryRowContext(ctx, query).Scan(&groups); err != nil {
			return fmt.Errorf("compare %s with the events: %w", view, err)
		}
		if groups > 0 {
			return fmt.Errorf("%s differs from usage_events in %d groups", view, groups)
		}
	}
	return nil
}

// compare looks for every answered record in the ledger.
func (l *load) compare(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT event_id, user_id, input_tokens, output_tokens, cached_input_tokens FROM usage_events")
	if err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	defer rows.Close()
	seen := make(map[uuid.UUID]bool, len(l.uses))
	var wrong []string
	for rows.Next() {
		var id uuid.UUID
		var got use
		if err := rows.Scan(&id, &got.user, &got.input, &got.output, &got.cached); err != nil {
			return fmt.Errorf("read the events: %w", err)
		}
		want, known := l.uses[id]
		switch {
		case seen[id]:
			wrong = append(wrong, fmt.Sprintf("%s shows twice", id))
		case !known:
			wrong = append(wrong, fmt.Sprintf("%s of %s was never answered", id, got.user))
		case got != want:
			wrong = append(wrong, fmt.Sprintf("%s is %+v, not %+v", id, got, want))
		}
		seen[id] = true
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	for id := range l.uses {
		if !seen[id] {
			wrong = append(wrong, fmt.Sprintf("%s was answered and is missing", id))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%d events differ: %s", len(wrong), strings.Join(wrong[:min(len(wrong), namedAtMost)], "; "))
}
