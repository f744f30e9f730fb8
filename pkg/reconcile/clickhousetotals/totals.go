// Package clickhousetotals sums up the LEDGER stage: the view usage_events, which shows each event once. It only reads.
package clickhousetotals

import (
	"context"
	"database/sql"
	_ "embed" // the query
	"fmt"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
)

//go:embed totals.sql
var query string

// Ledger is a ledger's database, as clickhouse-go opens it for database/sql.
type Ledger struct{ DB *sql.DB }

var _ reconcile.Side = Ledger{}

// Totals implements reconcile.Side.
func (l Ledger) Totals(ctx context.Context) (t reconcile.Totals, err error) {
	err = l.DB.QueryRowContext(ctx, query).Scan(&t.Events, &t.Requests, &t.RejectedRequests, &t.InputTokens, &t.OutputTokens, &t.CachedInputTokens,
		&t.EventIDs[0], &t.EventIDs[1])
	if err != nil {
		return reconcile.Totals{}, fmt.Errorf("sum up usage_events: %w", err)
	}
	return t, nil
}
