package app

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func rebuildLedgerCommand(s *session) *cobra.Command {
	var keep, force, leftovers bool
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Make the ledger again from the whole log, and swap it in",
		Long: `Rebuild ledger stores all of usage.records.v1 in a new table, swaps it with the live one in one step, and then stores what has come meanwhile.
Consumers may go on, and views answer all the time. If it ends early, run it again: nothing is lost for good, but after the swap and before the end
the ledger may lack the newest events (tollgatectl reconcile tells).

It refuses a log that has lost its beginning, or that lacks an event that the ledger holds. ClickHouse must have room for a second ledger.
Into an empty ClickHouse, start a consumer first: it makes the tables, and copies prices and time zones, which are not in this log.

A rebuild that is killed may leave a table as large as the ledger. The next one drops it once nobody has written to it for a day; --drop-leftovers drops
all of them now, but for those written to within ten minutes, which may be of a rebuild that runs, and rebuilds nothing.

Needs TOLLGATE_KAFKA_BROKERS and TOLLGATE_CLICKHOUSE_URL; with --drop-leftovers only the latter.`,
		Example: "  tollgatectl rebuild ledger --keep\n  tollgatectl rebuild ledger --drop-leftovers",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if leftovers {
				return runDropLeftovers(cmd.Context(), s)
			}
			return runRebuildLedger(cmd.Context(), keep, force, s)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the replaced table, as usage_ledger_kept_<generation>")
	cmd.Flags().BoolVar(&force, "force", false, "rebuild even if the log holds less than the ledger: what it lacks is lost")
	cmd.Flags().BoolVar(&leftovers, "drop-leftovers", false, "only drop what rebuilds that were killed have left")
	cmd.MarkFlagsMutuallyExclusive("drop-leftovers", "keep")
	cmd.MarkFlagsMutuallyExclusive("drop-leftovers", "force")
	return cmd
}

func runDropLeftovers(ctx context.Context, s *session) error {
	v, err := s.need("TOLLGATE_CLICKHOUSE_URL")
	if err != nil {
		return err
	}
	dsn := v["TOLLGATE_CLICKHOUSE_URL"]
	if _, err := clickhouseledger.Options(dsn); err != nil {
		return usagef("TOLLGATE_CLICKHOUSE_URL %w", err)
	}
	dropped, running, err := clickhouseledger.DropLeftovers(ctx, dsn)
	if err != nil {
		return err
	}
	if s.output == outputJSON {
		return show.JSON(s.Stdout, struct {
			Dropped    []string `json:"dropped"`
			Unfinished []string `json:"unfinished"`
		}{append([]string{}, dropped...), append([]string{}, running...)})
	}
	p := printer{w: s.Stdout}
	for _, name := range dropped {
		p.line("%s is dropped", name)
	}
	for _, name := range running {
		p.line("%s was made or written to within ten minutes and may be of a rebuild that runs: left alone", name)
	}
	if len(dropped)+len(running) == 0 {
		p.line("there are no leftovers")
	}
	return p.err
}

func runRebuildLedger(ctx context.Context, keep, force bool, s *session) error {
	v, err := s.need("TOLLGATE_KAFKA_BROKERS", "TOLLGATE_CLICKHOUSE_URL")
	if err != nil {
		return err
	}
	dsn := v["TOLLGATE_CLICKHOUSE_URL"]
	if _, err := clickhouseledger.Options(dsn); err != nil {
		return usagef("TOLLGATE_CLICKHOUSE_URL %w", err)
	}
	bar := stages{w: s.Stderr}
	r, err := clickhouseledger.Rebuild(ctx, clickhouseledger.RebuildConfig{DSN: dsn, Keep: keep, Force: force,
		Log:      usageLog{kafkalog.Log{Brokers: strings.Split(v["TOLLGATE_KAFKA_BROKERS"], ",")}},
		Progress: func(done, total int64) { bar.show("messages", done, total) }})
	bar.finish()
	if err != nil {
		return err
	}
	if s.output == outputJSON {
		return show.JSON(s.Stdout, r)
	}
	n, p := replay.Commas, printer{w: s.Stdout}
	p.line("✓ %s events stored from %s messages, %s of them unusable, in %.1f s", n(int64(r.Events)), n(r.Messages), n(r.Unusable), r.Seconds)
	if r.Lost > 0 {
		p.line("%s events that the replaced table held are not in the log", n(r.Lost))
	}
	if r.Kept != "" {
		p.line("the replaced table is %s", r.Kept)
	}
	for _, name := range r.Dropped {
		p.line("%s, left by a rebuild that was killed, is dropped", name)
	}
	for _, name := range r.Unfinished {
		p.line("%s is another rebuild's, running or killed less than a day ago: left alone", name)
	}
	return p.err
}

// usageLog is the usage topic, as a rebuild reads it.
type usageLog struct{ kafkalog.Log }

var _ clickhouseledger.Log = usageLog{}

// Spans implements clickhouseledger.Log.
func (l usageLog) Spans(ctx context.Context) (out []clickhouseledger.LogSpan, err error) {
	partitions, err := l.Partitions(ctx, time.Time{})
	for _, p := range partitions {
		out = append(out, clickhouseledger.LogSpan{Partition: p.Partition, Start: p.Earliest, End: p.Latest})
	}
	return out, err
}

// Read implements clickhouseledger.Log.
func (l usageLog) Read(ctx context.Context, spans []clickhouseledger.LogSpan, add func(*clickhouseledger.Event) error) error {
	var of []reconcile.Span
	for _, s := range spans {
		of = append(of, reconcile.Span(s))
	}
	return l.Records(ctx, of, func(at reconcile.Place, rec *usage.Record, _ string) error {
		if rec == nil {
			return add(nil)
		}
		return add(&clickhouseledger.Event{Record: *rec, Topic: usage.Topic, Partition: at.Partition, Offset: at.Offset})
	})
}
