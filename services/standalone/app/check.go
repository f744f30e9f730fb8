package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/console"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/traffic"
)

// checkEvery is how often log and ledger are compared again while they differ: events may still be on their way.
const checkEvery = 300 * time.Millisecond

// closingCheck compares the whole event log with the whole ledger, shows both and says whether they agree.
func (s *standalone) closingCheck(ctx context.Context) error {
	begin := time.Now()
	s.out.Say("\nDo log and ledger agree? All of Kafka's events against all of ClickHouse's:")
	report, err := s.compare(ctx, begin.Add(ledgerWithin))
	if err != nil {
		return fmt.Errorf("compare log and ledger: %w", err)
	}
	s.out.Say("  %-20s %15s %15s", "", "log", "ledger")
	for _, row := range []struct {
		name        string
		log, ledger int64
	}{
		{"events", report.Log.Events, report.Ledger.Events},
		{"requests", report.Log.Requests, report.Ledger.Requests},
		{"refusals", report.Log.RejectedRequests, report.Ledger.RejectedRequests},
		{"input tokens", report.Log.InputTokens, report.Ledger.InputTokens},
		{"output tokens", report.Log.OutputTokens, report.Ledger.OutputTokens},
	} {
		mark := "✓"
		if row.log != row.ledger {
			mark = "✗"
		}
		s.out.Say("  %-20s %15s %15s  %s", row.name, traffic.Count(row.log), traffic.Count(row.ledger), mark)
	}
	if !report.Agree() {
		return errors.New(report.String())
	}
	s.out.Say("✓ They agree: every event is in the ledger, once (%s)", console.Took(time.Since(begin)))
	return nil
}

// compare repeats the comparison until both agree or time is up.
func (s *standalone) compare(ctx context.Context, until time.Time) (*reconcile.Report, error) {
	db, err := clickhouseledger.OpenSQL(s.stores.ClickHouseURL)
	if err != nil {
		return nil, fmt.Errorf("TOLLGATE_CLICKHOUSE_URL %w", err)
	}
	defer func() { _ = db.Close() }()
	for {
		report, err := reconcile.LogAndLedger(ctx, &kafkalog.Log{Brokers: s.stores.KafkaBrokers}, clickhousetotals.Ledger{DB: db})
		if err != nil || report.Agree() || time.Now().After(until) {
			return report, err
		}
		select {
		case <-time.After(checkEvery):
		case <-ctx.Done():
			return report, ctx.Err()
		}
	}
}
