package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/progress"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

type reconcileFlags struct {
	since, wait time.Duration
	dir, group  string
	samples     int
	hours       bool
}

func reconcileCommand(s *session) *cobra.Command {
	var f reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Prove that the event log and the ledger agree, and name every difference",
		Long: `Reconcile compares every event of the log in Kafka, once, with the ledger in ClickHouse: what it used, when, by whom, how it ended; the sums by
hour and in all; every view with the events; the consumer's offsets with the log's ends. Messages in the dead letters are accounted for.
It may run while events are flowing: it compares what the log held when it began, once the consumer has passed that.

Memory is bounded; temporary files take 67 bytes a message. Needs TOLLGATE_KAFKA_BROKERS and TOLLGATE_CLICKHOUSE_URL.
Exit code 1 if anything differs.`,
		Example: "  tollgatectl reconcile\n  tollgatectl reconcile --since 24h -o json",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runReconcile(cmd.Context(), f, s) },
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.since, "since", 0, "only events of so long ago and since, from a whole hour on (0: all that the log holds)")
	fs.DurationVar(&f.wait, "wait", time.Minute, "how long the consumer may stand still before it is no longer waited for")
	fs.StringVar(&f.group, "group", "", "the consumer's `group` (default: TOLLGATE_CONSUMER_GROUP, else tollgate-consumer)")
	fs.StringVar(&f.dir, "tmp", "", "`directory` for temporary files (default: the system's)")
	fs.IntVar(&f.samples, "samples", 10, "how many event ids to name of each kind of difference")
	fs.BoolVar(&f.hours, "hours", false, "show every hour, not only those that differ")
	return cmd
}

func runReconcile(ctx context.Context, f reconcileFlags, s *session) error {
	if f.since < 0 || f.wait < 0 || f.samples < 1 || f.samples > 10_000 {
		return usagef("--since and --wait must not be negative, --samples must be from 1 to 10000")
	}
	v, err := s.need("TOLLGATE_KAFKA_BROKERS", "TOLLGATE_CLICKHOUSE_URL")
	if err != nil {
		return err
	}
	vars, err := s.vars()
	if err != nil {
		return err
	}
	db, err := clickhouseledger.OpenSQL(v["TOLLGATE_CLICKHOUSE_URL"])
	if err != nil {
		return usagef("TOLLGATE_CLICKHOUSE_URL %w", err)
	}
	defer func() { _ = db.Close() }()
	cfg := reconcile.Config{
		Log:    &kafkalog.Log{Brokers: strings.Split(v["TOLLGATE_KAFKA_BROKERS"], ","), Group: cmp.Or(f.group, vars("TOLLGATE_CONSUMER_GROUP"), "tollgate-consumer")},
		Ledger: clickhousetotals.Ledger{DB: db},
		Wait:   f.wait, Dir: f.dir, Samples: f.samples,
	}
	if f.since > 0 {
		cfg.Since = time.Now().Add(-f.since)
	}
	bars := stages{w: s.Stderr}
	cfg.Progress = bars.show
	report, err := reconcile.Run(ctx, cfg)
	bars.finish()
	if err != nil {
		return err
	}
	if s.output == outputJSON {
		err = show.JSON(s.Stdout, report)
	} else {
		err = printReport(s.Stdout, report, f.hours)
	}
	if err != nil {
		return err
	}
	if !report.Agree() {
		s.say("✗ %d differences", len(report.Differences))
		return errReported
	}
	return nil
}

// stages shows one bar after the other.
type stages struct {
	w     io.Writer
	stage string
	bar   *progress.Progress
}

func (b *stages) show(stage string, done, total int64) {
	if stage != b.stage {
		b.finish()
		b.stage, b.bar = stage, progress.Start(b.w, stage, total)
	}
	b.bar.Set(done)
}

func (b *stages) finish() {
	if b.bar != nil {
		b.bar.Finish()
		b.bar = nil
	}
}

func printReport(w io.Writer, r *reconcile.Report, allHours bool) error {
	n := replay.Commas
	var rows [][]string
	for _, p := range r.Partitions {
		committed := "-"
		if p.Committed >= 0 {
			committed = n(p.Committed)
		}
		rows = append(rows, []string{strconv.Itoa(p.Partition), n(p.Earliest), n(p.Latest), committed, n(p.Lag), n(p.Messages), n(p.Unusable)})
	}
	p := printer{w: w}
	p.grid([]string{"PARTITION", "EARLIEST", "LATEST", "COMMITTED", "LAG", "READ", "UNUSABLE"}, rows)

	rows = figureRows("in all", r.Log, r.Ledger)
	for _, h := range r.Hours {
		if allHours || h.Log != h.Ledger {
			rows = append(rows, figureRows(h.Hour.Format("2006-01-02 15:04"), h.Log, h.Ledger)...)
		}
	}
	p.line("")
	p.grid([]string{"", "", "EVENTS", "REQUESTS", "REFUSED", "INPUT TOKENS", "OUTPUT TOKENS", "CACHED"}, rows)
	p.line("")
	p.line("%s messages were read, with repeats of an event; usage_ledger holds %s rows of all time.", n(r.Messages), n(r.StoredRows))
	for _, reason := range slices.Sorted(maps.Keys(r.DeadLetters)) {
		p.line("%s messages are in the dead letters: %s.", n(r.DeadLetters[reason]), reason)
	}
	if r.PutAside > 0 {
		p.line("%s events are in the dead letters and, rightly, not in the ledger.", n(r.PutAside))
	}
	if r.Outside > 0 {
		p.line("%s rows come from outside the part of the log that was read, and were not compared.", n(r.Outside))
	}
	for _, u := range r.Unsettled {
		p.line("not settled, because it moves: %s", u)
	}
	for _, s := range r.Samples {
		p.line("  %-9s %s  hour %s, partition %d, offset %d  %s", s.What, s.EventID, s.Hour.Format("2006-01-02 15:04"), s.Partition, s.Offset, strings.Join(s.Differs, " "))
	}
	for _, d := range r.Differences {
		p.line("✗ %s", d)
	}
	if r.Agree() {
		p.line("✓ log and ledger agree: every event is in the ledger, once, and every view says so")
	}
	return p.err
}

func figureRows(where string, log, ledger reconcile.Figures) [][]string {
	row := func(where, side string, f reconcile.Figures) []string {
		out := []string{where, side}
		for _, v := range [...]int64{f.Events, f.Requests, f.RejectedRequests, f.InputTokens, f.OutputTokens, f.CachedInputTokens} {
			out = append(out, replay.Commas(v))
		}
		return out
	}
	return [][]string{row(where, "log", log), row("", "ledger", ledger)}
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) grid(header []string, rows [][]string) {
	numeric := make([]bool, len(header))
	for i := range numeric {
		numeric[i] = i > 0 && header[i] != ""
	}
	if p.err == nil {
		p.err = show.Grid(p.w, header, numeric, rows)
	}
}
