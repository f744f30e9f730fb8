package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/ledger"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/progress"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/trace"
)

// Values of --quota beside the names of tiers.
const (
	quotaKeep      = "keep"
	quotaUnlimited = "unlimited"
)

type replayFlags struct {
	trace, quota, prefix, model             string
	enforcementURL, quotaURL, clickhouseURL string
	tokenFile, adminTokenFile               string
	token, adminToken                       string // from the environment or those files
	users, max, workers                     int
	speed                                   float64
	seed                                    uint64
	waitLedger                              time.Duration
	json                                    bool
}

func replayCommand(s *session) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --trace FILE",
		Short: "Send a recorded trace through check and record, and compare the ledger with it",
		Long: `Replay sends a recorded trace through the whole path: a check for every request at its time, a record for every allowed one. Then it
waits for the ledger and compares requests, refusals and tokens of this replay's users.

The trace is CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, in any order. It names no users: a seeded Zipf law draws
them. Addresses come from the flags, else from TOLLGATE_… variables, else from .tollgate/env in this directory or a parent, where a running
standalone writes it; tokens from files, else from there too. Exit code 1: a call failed, or the ledger differs.`,
		Example: "  tollgatectl replay --trace trace.csv --users 500 --speed 600 --quota unlimited",
		Args:    cobra.NoArgs,
		GroupID: groupOperate,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.json = f.json || s.output == outputJSON
			return runReplay(cmd.Context(), f, s)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.trace, "trace", "", "CSV `file` to replay (required)")
	fs.IntVar(&f.max, "max", 0, "replay only the first `N` requests (0: all)")
	fs.IntVar(&f.users, "users", 100, "`number` of users that send them")
	fs.Float64Var(&f.speed, "speed", 60, "trace seconds per second: 600 replays an hour in 6 s (0: as fast as it goes)")
	fs.Uint64Var(&f.seed, "seed", 1, "of the draw of users")
	fs.StringVar(&f.quota, "quota", quotaKeep, "quota to give every user first: keep, unlimited, or a tier's `name`")
	s.complete(cmd, "quota", func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		names, directive := s.tierNames(cmd, args, begin)
		return append([]string{quotaKeep, quotaUnlimited}, names...), directive
	})
	fs.StringVar(&f.prefix, "prefix", "", "of the user ids u00000, u00001, … (default: one of this run's own, so that replays don't mix)")
	fs.StringVar(&f.model, "model", "grok-2", "`name` of the model asked for")
	fs.IntVar(&f.workers, "workers", 32, "checks, and as many records, at once")
	fs.DurationVar(&f.waitLedger, "wait-ledger", time.Minute, "give up when the ledger has not moved for so long (0: don't compare)")
	fs.BoolVar(&f.json, "json", false, "the same as --output json")
	fs.StringVar(&f.enforcementURL, "enforcement-url", "", "default: TOLLGATE_ENFORCEMENT_URL")
	fs.StringVar(&f.quotaURL, "quota-url", "", "default: TOLLGATE_QUOTA_URL")
	fs.StringVar(&f.clickhouseURL, "clickhouse-url", "", "default: TOLLGATE_CLICKHOUSE_URL; without one nothing is compared")
	fs.StringVar(&f.tokenFile, "token-file", "", "`file` that holds the service token (default: TOLLGATE_SERVICE_TOKEN)")
	fs.StringVar(&f.adminTokenFile, "admin-token-file", "", "`file` that holds the admin token, for --quota (default: TOLLGATE_ADMIN_TOKEN)")
	return cmd
}

// fill takes what no flag gave from the environment and checks the rest.
func (f *replayFlags) fill(s *session) error {
	vars, err := s.vars()
	if err != nil {
		return err
	}
	f.enforcementURL = cmp.Or(f.enforcementURL, vars("TOLLGATE_ENFORCEMENT_URL"))
	f.quotaURL = cmp.Or(f.quotaURL, vars("TOLLGATE_QUOTA_URL"))
	if u, err := url.Parse(f.clickhouseURL); f.clickhouseURL != "" && (err != nil || u.User != nil || u.RawQuery != "") {
		return usagef("--clickhouse-url: every user of the machine can read a flag: put an address with a password into TOLLGATE_CLICKHOUSE_URL")
	}
	f.clickhouseURL = cmp.Or(f.clickhouseURL, vars("TOLLGATE_CLICKHOUSE_URL"))
	f.token, f.adminToken = vars("TOLLGATE_SERVICE_TOKEN"), vars("TOLLGATE_ADMIN_TOKEN")
	for _, t := range []struct {
		flag, path string
		to         *string
	}{{"token-file", f.tokenFile, &f.token}, {"admin-token-file", f.adminTokenFile, &f.adminToken}} {
		if t.path == "" {
			continue
		}
		if *t.to, err = s.tokenIn(t.flag, t.path); err != nil {
			return usageError{err}
		}
	}
	f.prefix = cmp.Or(f.prefix, "replay-"+time.Now().UTC().Format("20060102T150405.000")+"-")
	if f.trace == "" {
		return usageError{fmt.Errorf("--trace is required")}
	}
	for _, n := range []struct {
		flag string
		v    int
	}{{"users", f.users}, {"workers", f.workers}} {
		if n.v < 1 || n.v > 100_000 {
			return usageError{fmt.Errorf("--%s must be from 1 to 100000, is %d", n.flag, n.v)}
		}
	}
	if f.speed < 0 || f.speed > 1e9 || f.speed != f.speed {
		return usageError{fmt.Errorf("--speed must be 0 or more, is %g", f.speed)}
	}
	if err := subject.ValidateID(replay.UserID(f.prefix, f.users-1)); err != nil {
		return usageError{fmt.Errorf("--prefix makes user ids that are refused: %w", err)}
	}
	need := []struct{ flag, v string }{{"enforcement-url", f.enforcementURL}, {"token-file", f.token}}
	if f.quota != quotaKeep {
		need = append(need, []struct{ flag, v string }{{"quota-url", f.quotaURL}, {"admin-token-file", f.adminToken}}...)
	}
	for _, n := range need {
		if n.v == "" {
			return usageError{fmt.Errorf("--%s is not given, nor set in the environment or .tollgate/env; is `make run` running?", n.flag)}
		}
	}
	for _, u := range []struct{ flag, v string }{{"enforcement-url", f.enforcementURL}, {"quota-url", f.quotaURL}} {
		if u.v == "" {
			continue
		}
		if err := httpURL("--"+u.flag, u.v); err != nil {
			return err
		}
	}
	return nil
}

func runReplay(ctx context.Context, f replayFlags, s *session) error {
	world := s.IO
	if err := f.fill(s); err != nil {
		return err
	}
	file, err := os.Open(f.trace)
	if err != nil {
		return err
	}
	requests, err := trace.Read(file, f.max)
	_ = file.Close() // read only
	if err != nil {
		return fmt.Errorf("%s: %w", f.trace, err)
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(world.Stderr, format+"\n", args...) }
	say("%s requests of %s users, %s… to %s", replay.Commas(int64(len(requests))), replay.Commas(int64(f.users)), f.prefix, withoutSecrets(f.enforcementURL))
	if err := setQuotas(ctx, f, world); err != nil {
		return err
	}
	var book *ledger.Reader
	var before replay.Totals
	if f.clickhouseURL != "" && f.waitLedger > 0 {
		if book, err = ledger.Open(f.clickhouseURL); err != nil {
			return err
		}
		defer func() { _ = book.Close() }()
		if before, err = book.Totals(ctx, f.prefix); err != nil {
			return err
		}
	}

	var retried atomic.Int64
	api := client.NewEnforcement(f.enforcementURL, f.token, client.WithConnections(2*f.workers), client.WithPatience(2*time.Minute),
		client.WithRetryHook(func(error) { retried.Add(1) }))
	defer api.Close()
	bar := progress.Start(world.Stderr, "requests", int64(len(requests)))
	account := replay.Run(ctx, replay.Config{Requests: requests, Users: replay.Users(f.seed, f.users, len(requests)), Prefix: f.prefix,
		Model: f.model, Speed: f.speed, Workers: f.workers}, api, bar.Add)
	bar.Finish()
	account.Retried = retried.Load()

	report := report{Account: account, Prefix: f.prefix}
	report.Faults = account.Faults()
	if book != nil {
		got, err := awaitLedger(ctx, book, f, before, account.Want(), world)
		if err != nil {
			report.Faults = append(report.Faults, err.Error())
		} else {
			report.Ledger = &got
			report.Faults = append(report.Faults, got.Differences(account.Want())...)
		}
	}
	return report.print(f, world)
}

// setQuotas gives every user the quota that --quota names.
func setQuotas(ctx context.Context, f replayFlags, world IO) error {
	if f.quota == quotaKeep {
		return nil
	}
	change := client.QuotaChange{Tier: f.quota}
	if f.quota == quotaUnlimited {
		change = client.Unlimited()
	}
	api := client.NewQuotas(f.quotaURL, f.adminToken)
	defer api.Close()
	bar := progress.Start(world.Stderr, "quotas", int64(f.users))
	defer bar.Finish()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range f.users {
		g.Go(func() error {
			user := replay.UserID(f.prefix, i)
			if _, err := api.PutQuota(ctx, user, change); err != nil {
				return fmt.Errorf("set the quota of %s to %s: %w", user, f.quota, err)
			}
			bar.Add(1)
			return nil
		})
	}
	return g.Wait()
}

func awaitLedger(ctx context.Context, book *ledger.Reader, f replayFlags, before, want replay.Totals, world IO) (replay.Totals, error) {
	bar := progress.Start(world.Stderr, "ledger", want.Requests+want.Rejected)
	defer bar.Finish()
	return replay.Await(ctx, book, f.prefix, before, want, f.waitLedger, func(t replay.Totals) { bar.Set(t.Requests + t.Rejected) })
}

// report is the final account with the ledger's side.
type report struct {
	replay.Account
	Prefix string         `json:"prefix"`
	Ledger *replay.Totals `json:"ledger,omitempty"`
	Faults []string       `json:"faults,omitempty"`
}

func (r *report) print(f replayFlags, world IO) error {
	if f.json {
		e := json.NewEncoder(world.Stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			return err
		}
	} else {
		r.Account.Print(world.Stdout)
		switch {
		case r.Ledger != nil:
			_, _ = fmt.Fprintf(world.Stdout, "  %-16s %s requests, %s refusals, %s input, %s output tokens\n", "ledger",
				replay.Commas(r.Ledger.Requests), replay.Commas(r.Ledger.Rejected), replay.Commas(r.Ledger.InputTokens), replay.Commas(r.Ledger.OutputTokens))
		case f.waitLedger > 0 && f.clickhouseURL == "":
			_, _ = fmt.Fprintln(world.Stdout, "  ledger           not compared: no ClickHouse URL is known")
		}
	}
	if len(r.Faults) > 0 {
		for _, fault := range r.Faults {
			_, _ = fmt.Fprintln(world.Stderr, "✗ "+fault)
		}
		return errReported
	}
	if !f.json && r.Ledger != nil {
		_, _ = fmt.Fprintln(world.Stdout, "✓ the ledger agrees with the replay in every figure")
	}
	return nil
}
