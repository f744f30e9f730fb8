package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	enforcement "github.com/tollgate-dev/tollgate/services/enforcement/app"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func rebuildCommand(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rebuild",
		Short:   "Make again what a store has lost, from what the others know",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(rebuildBucketsCommand(s), rebuildLedgerCommand(s), rebuildQuotasCommand(s))
	return cmd
}

func rebuildBucketsCommand(s *session) *cobra.Command {
	var lookback time.Duration
	cmd := &cobra.Command{
		Use:   "buckets",
		Short: "Restore from the ledger what was consumed, after Redis has lost it",
		Long: `Rebuild buckets reads from the ledger what every user, key and org has used, and raises in Redis what was consumed to what that comes to by now, so
that nobody gets a second day's quota. It lowers nothing and touches no slot, so it may run while traffic flows, and again. Run it once the consumer
has no lag, and once more a minute later if there was traffic meanwhile.

Needs TOLLGATE_REDIS_URL, TOLLGATE_POSTGRES_URL and TOLLGATE_CLICKHOUSE_URL.`,
		Example: "  tollgatectl rebuild buckets",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runRebuildBuckets(cmd.Context(), lookback, s) },
	}
	cmd.Flags().DurationVar(&lookback, "lookback", enforcement.DefaultLookback, "how far back the ledger is read: 24h at least. Who has used all that drained for so long counts as having had nothing left before")
	return cmd
}

func runRebuildBuckets(ctx context.Context, lookback time.Duration, s *session) error {
	bar := stages{w: s.Stderr}
	cfg, err := bucketStores(s, &bar, lookback)
	if err != nil {
		return err
	}
	r, err := enforcement.RestoreBuckets(ctx, cfg)
	bar.finish()
	if err != nil {
		return err
	}
	if s.output == outputJSON {
		return show.JSON(s.Stdout, r)
	}
	p := printer{w: s.Stdout}
	p.line("%s", r)
	return p.err
}

// bucketStores says where ledger, quotas and buckets are.
func bucketStores(s *session, bar *stages, lookback time.Duration) (enforcement.RestoreConfig, error) {
	if lookback < 24*time.Hour {
		return enforcement.RestoreConfig{}, usagef("--lookback must be at least 24h, the longest window, is %s", lookback)
	}
	v, err := s.need("TOLLGATE_REDIS_URL", "TOLLGATE_POSTGRES_URL", "TOLLGATE_CLICKHOUSE_URL")
	return enforcement.RestoreConfig{RedisURL: v["TOLLGATE_REDIS_URL"], PostgresURL: v["TOLLGATE_POSTGRES_URL"], ClickHouseURL: v["TOLLGATE_CLICKHOUSE_URL"], Lookback: lookback,
		Progress: func(done, total int64) { bar.show("payers", done, total) }}, err
}

type compareFlags struct {
	lookback, tolerance time.Duration
	most                int
}

func reconcileBucketsCommand(s *session) *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use:   "buckets",
		Short: "Name every bucket that has less than the ledger says",
		Long: `Reconcile buckets compares what was consumed according to Redis with what the ledger's usage comes to by now. A bucket may have more: what is in
flight, and what the ledger doesn't know yet. One that has less has lost something: tollgatectl rebuild buckets puts it back. Nothing is changed.

Needs TOLLGATE_REDIS_URL, TOLLGATE_POSTGRES_URL and TOLLGATE_CLICKHOUSE_URL. Exit code 1 if anything differs.`,
		Example: "  tollgatectl reconcile buckets",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runReconcileBuckets(cmd.Context(), f, s) },
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.lookback, "lookback", enforcement.DefaultLookback, "how far back the ledger is read: 24h at least")
	fs.DurationVar(&f.tolerance, "tolerance", enforcement.DefaultTolerance, "what a limit drains in so long may be lacking; so limits of a shorter window tell nothing")
	fs.IntVar(&f.most, "samples", 100, "how many differences to name")
	return cmd
}

func runReconcileBuckets(ctx context.Context, f compareFlags, s *session) error {
	if f.tolerance <= 0 || f.most < 1 || f.most > 10_000 {
		return usagef("--tolerance must be above 0, --samples must be from 1 to 10000")
	}
	bar := stages{w: s.Stderr}
	cfg, err := bucketStores(s, &bar, f.lookback)
	if err != nil {
		return err
	}
	r, err := enforcement.CompareBuckets(ctx, enforcement.CompareConfig{RestoreConfig: cfg, Tolerance: f.tolerance, Most: f.most})
	bar.finish()
	if err != nil {
		return err
	}
	if s.output == outputJSON {
		err = show.JSON(s.Stdout, r)
	} else {
		p := printer{w: s.Stdout}
		for _, d := range r.Differences {
			p.line("✗ %s", d)
		}
		p.line("%d scopes were compared; %d users and keys were left out, because they have moved in the last day", r.Scopes, r.Moved)
		if r.Agree() {
			p.line("✓ no bucket has less than the ledger says")
		}
		err = p.err
	}
	if err == nil && !r.Agree() {
		s.say("✗ %d limits differ", r.Different)
		err = errReported
	}
	return err
}
