// Package clickhousetotals reads the LEDGER stage for a comparison: the events that its views show, and the views' sums. It only reads.
package clickhousetotals

import (
	"context"
	"database/sql"
	_ "embed" // the queries
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
)

var (
	//go:embed events.sql
	eventsQuery string
	//go:embed sums.sql
	sumsQuery string
	//go:embed groups.sql
	groupsQuery string
	//go:embed refusals.sql
	refusalsQuery string
	//go:embed rows.sql
	rowsQuery string
)

// Ledger is a ledger's database, as clickhouse-go opens it for database/sql.
type Ledger struct{ DB *sql.DB }

var _ reconcile.Ledger = Ledger{}

// Events implements reconcile.Ledger. Rows are streamed: memory does not grow with them.
func (l Ledger) Events(ctx context.Context, which reconcile.Rows, add func(reconcile.Event) error) (err error) {
	bounded, since := "0", int64(0)
	if which.To != uuid.Nil {
		bounded = "1"
	}
	if !which.Since.IsZero() {
		since = which.Since.UnixMilli()
	}
	ctx = clickhouse.Context(ctx, clickhouse.WithParameters(clickhouse.Parameters{"from_id": which.From.String(), "to_id": which.To.String(), "bounded": bounded,
		"since": strconv.FormatInt(since, 10), "starts": array(which.Starts)}))
	rows, err := l.DB.QueryContext(ctx, eventsQuery)
	if err != nil {
		return fmt.Errorf("read usage_events: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var (
		e         reconcile.Event
		r         reconcile.Rest
		partition uint16
		schema    uint16
		buf       []byte
	)
	for rows.Next() {
		if err := rows.Scan(&e.ID, &partition, &e.Place.Offset, &e.AtMillis, &e.Input, &e.Output, &e.Cached,
			&r.UserID, &r.APIKeyID, &r.OrgID, &r.Tier, &r.RequestedModel, &r.Model, &r.Reason, &r.Scope, &r.Outcome, &r.Reservation, &r.Region, &r.Instance,
			&r.RequestID, &r.CorrectsEventID, &r.ReservedTokens, &r.LatencyMS, &schema, &r.Estimated, &e.Rejected); err != nil {
			return fmt.Errorf("read usage_events: %w", err)
		}
		e.Place.Partition = int(partition)
		r.SchemaVersion = int(schema)
		buf = e.SetRest(&r, buf)
		if err := add(e); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read usage_events: %w", err)
	}
	return nil
}

// array writes a parameter of type Array(Int64).
func array(ns []int64) string {
	texts := make([]string, len(ns))
	for i, n := range ns {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// StoredRows implements reconcile.Ledger.
func (l Ledger) StoredRows(ctx context.Context) (n int64, err error) {
	if err := l.DB.QueryRowContext(ctx, rowsQuery).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the rows of usage_ledger: %w", err)
	}
	return n, nil
}

// Sums implements reconcile.Sums.
func (l Ledger) Sums(ctx context.Context, since time.Time) (sums []reconcile.Sum, err error) {
	var from int64
	if !since.IsZero() {
		from = since.Unix()
	}
	rows, err := l.DB.QueryContext(clickhouse.Context(ctx, clickhouse.WithParameters(clickhouse.Parameters{"since": strconv.FormatInt(from, 10)})), sumsQuery)
	if err != nil {
		return nil, fmt.Errorf("sum up the views: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var s reconcile.Sum
		var period int64
		f := &s.Figures
		if err := rows.Scan(&s.View, &period, &f.Requests, &f.RejectedRequests, &f.InputTokens, &f.OutputTokens, &f.CachedInputTokens,
			&s.Groups.Payers, &s.Groups.Minutes, &s.Groups.Quarters, &s.Groups.Refusals); err != nil {
			return nil, fmt.Errorf("sum up the views: %w", err)
		}
		s.Period = time.Unix(period, 0).UTC()
		sums = append(sums, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("sum up the views: %w", err)
	}
	return sums, nil
}

// units are the seconds of a view's own periods; hours and days are also what Groups is asked by.
var units = map[string]int64{reconcile.ViewMinutely: 60, reconcile.ViewQuarterly: 900, reconcile.ViewHourly: 3600, reconcile.ViewDaily: 86400, reconcile.ViewRejections: 3600}

// Groups implements reconcile.Ledger.
func (l Ledger) Groups(ctx context.Context, view string, period time.Time, limit int) (groups []reconcile.Group, err error) {
	unit, ok := units[view]
	if !ok {
		return nil, fmt.Errorf("compare the groups of %q: no such view", view)
	}
	query := groupsQuery
	if view == reconcile.ViewRejections {
		query = refusalsQuery
	}
	rows, err := l.DB.QueryContext(clickhouse.Context(ctx, clickhouse.WithParameters(clickhouse.Parameters{"view": view, "unit": strconv.FormatInt(unit, 10),
		"from": strconv.FormatInt(period.Unix(), 10), "to": strconv.FormatInt(period.Unix()+max(unit, 3600), 10), "limit": strconv.Itoa(limit)})), query)
	if err != nil {
		return nil, fmt.Errorf("compare the groups of %s: %w", view, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var g reconcile.Group
		var at int64
		var org, user, key, tier, model, reason, scope string
		e, v := &g.Events, &g.View
		if err := rows.Scan(&at, &org, &user, &key, &tier, &model, &reason, &scope, &e.Requests, &e.RejectedRequests, &e.InputTokens, &e.OutputTokens,
			&e.CachedInputTokens, &v.Requests, &v.RejectedRequests, &v.InputTokens, &v.OutputTokens, &v.CachedInputTokens); err != nil {
			return nil, fmt.Errorf("compare the groups of %s: %w", view, err)
		}
		g.At = time.Unix(at, 0).UTC()
		g.Who = named("org", org, "user", user, "key", key, "tier", tier, "model", model, "reason", reason, "scope", scope)
		groups = append(groups, g)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("compare the groups of %s: %w", view, err)
	}
	return groups, nil
}

// named joins names and values, without what is empty.
func named(pairs ...string) string {
	var parts []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, pairs[i]+" "+pairs[i+1])
		}
	}
	return strings.Join(parts, ", ")
}
