package clickhouseledger

import (
	"context"
	"database/sql"
	_ "embed" // the statements
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"
)

var (
	//go:embed sql/rebuild_clock.sql
	rebuildClockSQL string
	//go:embed sql/rebuild_bound.sql
	rebuildBoundSQL string
	//go:embed sql/rebuild_lacking.sql
	rebuildLackingSQL string
)

const guardRange = 1_000_000 // events that are looked for at once

// moment is an instant by the server's clock and by this process's.
type moment struct {
	serverMillis int64
	since        time.Time
}

func (r *rebuild) clock(ctx context.Context) (m moment, err error) {
	if err := r.db.QueryRowContext(ctx, rebuildClockSQL).Scan(&m.serverMillis); err != nil {
		return m, fmt.Errorf("ask for the server's clock: %w", err)
	}
	m.since = time.Now()
	return m, nil
}

// guard refuses, before the exchange, to drop events that the ledger held at the beginning and the log lacks; with Force it counts them.
//
// What consumers store meanwhile is left out, for that comes with the last catch-up. An event that was marked as ingested up to the beginning may have
// been read from the log up to lookAge after it, though. So if any is lacking, that time is waited for and the log read once more; what is lacking
// then isn't in the log.
func (r *rebuild) guard(ctx context.Context, own string, began moment) error {
	lacking, _, err := r.lacking(ctx, began, guardRange)
	if err != nil || lacking == 0 {
		return err
	}
	select {
	case <-time.After(time.Until(began.since.Add(lookAge))):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := r.catchUp(ctx, own); err != nil {
		return err
	}
	lacking, example, err := r.lacking(ctx, began, guardRange)
	if err != nil || lacking == 0 {
		return err
	}
	if !r.Force {
		return fmt.Errorf("%w: it lacks %d of the ledger's events, %s for one", ErrIncomplete, lacking, example)
	}
	r.report.Lost = lacking
	return nil
}

// lacking counts the events of the ledger, ingested until a moment, that the rebuild's table has not, range by range of so many; example is one of them.
func (r *rebuild) lacking(ctx context.Context, until moment, most int) (n int64, example uuid.UUID, err error) {
	statement := of64(rebuildLackingSQL, r.generation)
	for after, last := uuid.Nil, false; !last; {
		to := uuid.Max
		ask := clickhouse.Context(ctx, clickhouse.WithParameters(clickhouse.Parameters{"after": after.String(), "most": strconv.Itoa(most - 1)}))
		if err := r.db.QueryRowContext(ask, rebuildBoundSQL).Scan(&to); errors.Is(err, sql.ErrNoRows) {
			last = true
		} else if err != nil {
			return 0, example, fmt.Errorf("cut the ledger into ranges: %w", err)
		}
		ask = clickhouse.Context(ctx, clickhouse.WithParameters(clickhouse.Parameters{"after": after.String(), "to": to.String(),
			"until": strconv.FormatInt(until.serverMillis, 10)}))
		var some int64
		var one uuid.UUID
		if err := r.db.QueryRowContext(ask, statement).Scan(&some, &one); err != nil {
			return 0, example, fmt.Errorf("look for what the log lacks: %w", err)
		}
		if some > 0 {
			n, example = n+some, one
		}
		after = to
	}
	return n, example, nil
}
