package app

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func rebuildQuotasCommand(s *session) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "quotas",
		Short: "Derive quotas, keys, orgs and tiers again from their events, and compare",
		Long: `Rebuild quotas derives from the events in Postgres what every quota, key, org and tier must be, and names what is stored differently. With --repair that
is put right, but for what only a person can. Changes may go on meanwhile; enforcement follows a repair within 60 s.

Needs TOLLGATE_POSTGRES_URL. Exit code 1 if a difference is left.`,
		Example: "  tollgatectl rebuild quotas --repair",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runRebuildQuotas(cmd.Context(), repair, s) },
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "make what differs what its events say")
	return cmd
}

// quotaDifference is a pgquota.Difference as JSON shows it.
type quotaDifference struct {
	Name     string `json:"name"`
	Field    string `json:"field,omitempty"`
	Stored   string `json:"stored,omitempty"`
	Derived  string `json:"derived,omitempty"`
	Repaired bool   `json:"repaired"`
	Why      string `json:"why,omitempty"`
}

func runRebuildQuotas(ctx context.Context, repair bool, s *session) error {
	v, err := s.need("TOLLGATE_POSTGRES_URL")
	if err != nil {
		return err
	}
	store, err := pgquota.Open(ctx, v["TOLLGATE_POSTGRES_URL"], pgquota.Options{Application: "tollgatectl", MaxConns: 2})
	if err != nil {
		return err
	}
	defer store.Close()
	bar := stages{w: s.Stderr}
	r, err := pgquota.RebuildQuotas(ctx, store, pgquota.RebuildOptions{Repair: repair, Progress: func(done, total int64) { bar.show("projections", done, total) }})
	bar.finish()
	if err != nil {
		return err
	}
	if s.output == outputJSON {
		differences := []quotaDifference{}
		for _, d := range r.Differences {
			differences = append(differences, quotaDifference(d))
		}
		err = show.JSON(s.Stdout, map[string]any{"projections": r.Projections, "events": r.Events, "differences": differences, "left": r.Left()})
	} else {
		n, p := replay.Commas, printer{w: s.Stdout}
		for _, d := range r.Differences {
			mark := "✗"
			if d.Repaired {
				mark = "✓"
			}
			p.line("%s %s", mark, d)
		}
		p.line("%s projections were compared with what %s events say: %d differed, %d are left", n(r.Projections), n(r.Events), len(r.Differences), r.Left())
		err = p.err
	}
	if err == nil && r.Left() > 0 {
		s.say("✗ %d differences are left", r.Left())
		err = errReported
	}
	return err
}
