package app

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/export"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func exportCommand(s *session) *cobra.Command {
	var cfg export.Config
	var from, to string
	cmd := &cobra.Command{
		Use:   "export --view VIEW --out FILE",
		Short: "Write a view of the ledger to a file, as CSV or Parquet",
		Long: `Export writes the rows of a view, from one day to another, as finance's read-only user sees them: ` + strings.Join(export.Views, ", ") + `.

The file appears under its name only when it is whole; a failed export leaves what was there. Rows are streamed, whatever their number, for up
to 300 s, which is finance's limit in ClickHouse: export long periods in parts. Days are UTC; of cost_daily and invoice_lines they are the org's own.

CSV has a line of names, and a ' in front of texts that a spreadsheet would take for a formula: those that begin with = + - @ ' tab or return,
which ids may do. --formulas keep leaves them bare, for programs.`,
		Example: "  tollgatectl export --view usage_daily --from 2026-12 --to 2026-12 --org acme --out december.csv\n  tollgatectl export --view usage_events --from 2026-12-01 --to 2026-12-01 --format parquet --out events.parquet",
		GroupID: groupFinance,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			for _, f := range []struct {
				flag, v string
				of      []string
			}{{"view", cfg.View, export.Views}, {"format", cfg.Format, []string{export.CSV, export.Parquet}}, {"formulas", cfg.Formulas, []string{export.FormulasEscape, export.FormulasKeep}}} {
				if !slices.Contains(f.of, f.v) {
					return usagef("--%s must be one of %s, is %q", f.flag, strings.Join(f.of, ", "), f.v)
				}
			}
			if cfg.Out == "" {
				return usagef("--out is required")
			}
			cfg.HasOrg = cmd.Flags().Changed("org")
			if cfg.From, cfg.To, err = days(from, to); err != nil {
				return err
			}
			book, err := s.finance()
			if err != nil {
				return err
			}
			began := time.Now()
			size, err := export.Run(cmd.Context(), book, cfg)
			if errors.Is(err, export.ErrNoOrg) {
				return usagef("--org: %w", err)
			}
			if err != nil {
				return err
			}
			if s.output == outputJSON {
				return show.JSON(s.Stdout, map[string]any{"file": cfg.Out, "bytes": size, "seconds": time.Since(began).Seconds()})
			}
			s.say("%s: %s bytes in %s", cfg.Out, replay.Commas(size), time.Since(began).Round(time.Millisecond))
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.View, "view", "", "`view` to export (required)")
	fs.StringVar(&cfg.Out, "out", "", "`file` to write; replaced if it is there (required)")
	fs.StringVar(&from, "from", "this month", "first `day`")
	fs.StringVar(&to, "to", "today", "last `day`")
	fs.StringVar(&cfg.Org, "org", "", "only of this `org`; '' is usage without one")
	fs.StringVar(&cfg.Format, "format", export.CSV, "csv or parquet")
	fs.StringVar(&cfg.Formulas, "formulas", export.FormulasEscape, "of texts in CSV that a spreadsheet would run: escape or keep")
	return cmd
}

// days reads --from and --to.
func days(from, to string) (first, last time.Time, err error) {
	now := time.Now()
	if first, err = parseDay(from, now, false); err != nil {
		return first, last, usagef("--from: %w", err)
	}
	if last, err = parseDay(to, now, true); err != nil {
		return first, last, usagef("--to: %w", err)
	}
	if last.Before(first) {
		return first, last, usagef("--to: %s is before --from %s", last.Format(time.DateOnly), first.Format(time.DateOnly))
	}
	return first, last, nil
}
