package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func quotaCommand(s *session) *cobra.Command {
	cmd := s.adminGroup("quota", "What one user may use: get, set, list, history")
	cmd.AddCommand(quotaGetCommand(s), quotaSetCommand(s), quotaListCommand(s),
		s.historyCommand("history USER", "Show who changed a user's quota, when, from what and to what", "USER",
			func(k *api, ctx context.Context, user string, p client.Page) ([]told, string, error) {
				return quotaEvents(k.UserEvents(ctx, user, p))
			}))
	return cmd
}

func quotaGetCommand(s *session) *cobra.Command {
	return getCommand(s, &cobra.Command{
		Use:   "get USER",
		Short: "Show what a user may use, now or at an instant",
		Long: `Show what a user may use, and what all of its org may together. Nobody is unknown: a user without a quota of its own has the free tier's, at version 0.
With --output json it is the user's quota only.`,
		Example: "  tollgatectl quota get ann\n  tollgatectl quota get ann --at 2026-11-30T23:59:59Z -o json",
	}, named("USER"), (*api).GetQuota, (*api).QuotaAt, s.showQuota)
}

func quotaSetCommand(s *session) *cobra.Command {
	var f changeFlags
	var tierName, org string
	var suspended bool
	limits := limitFlags{own: true}
	cmd := &cobra.Command{
		Use:   "set USER",
		Short: "Create or change a user's quota",
		Long: `Set states the whole set of the user's own limits, as the API's PUT does: one that is not given is the tier's again, and you are asked before one
is dropped that way. With --keep all limits stay that are not given. Tier, org and suspension stay in any case where they are not given.

The change holds on the next check. It is made only if nobody else changed the quota in between (exit code 5).`,
		Example: `  tollgatectl quota set ann --tier plus --reason "bought plus"
  tollgatectl quota set ann --keep --rpm 500 --limits requests/1d=5000
  tollgatectl quota set ann --keep --rpm default
  tollgatectl quota set ann --keep --suspended --reason chargeback --if-version 7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			user, ctx := args[0], cmd.Context()
			var own tier.Overrides
			given, err := limits.apply(cmd, &own)
			if err != nil {
				return err
			}
			if err := id("USER", user); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var before client.Quota
			if err := k.get(ctx, func(ctx context.Context) (err error) { before, err = k.GetQuota(ctx, user); return err }); err != nil {
				return err
			}
			change := client.QuotaChange{Tier: tierName, Reason: f.reason, Overrides: own}
			if change.IfVersion, err = f.base(cmd, k, before.Version); err != nil {
				return err
			}
			if f.keep {
				change.Overrides = before.Overrides
				if _, err := limits.apply(cmd, &change.Overrides); err != nil {
					return err
				}
			} else if err := s.mayDrop(ctx, f, user, dropped(before.Overrides, given), "the tier's holds then"); err != nil {
				return err
			}
			if cmd.Flags().Changed("org") {
				change.OrgID = &org
			}
			if cmd.Flags().Changed("suspended") {
				change.Suspended = &suspended
			}
			var after client.Quota
			if err := k.call(ctx, false, unanswered("quota history "+user), func(ctx context.Context) (err error) {
				after, err = k.PutQuota(ctx, user, change)
				return err
			}); err != nil {
				return err
			}
			s.sayIfUnchanged(before.Version, after.Version)
			return s.showQuota(ctx, k, after, nil)
		},
	}
	cmd.Flags().StringVar(&tierName, "tier", "", "the user's `tier`")
	cmd.Flags().StringVar(&org, "org", "", "the user's `org`; \"\" leaves it")
	cmd.Flags().BoolVar(&suspended, "suspended", false, "block every request; --suspended=false lets them again")
	limits.add(cmd, limitSet{models: true, maxContext: true, modelLimits: true, shards: true}, "the tier's")
	f.addKeep(cmd, "the tier's again")
	s.complete(cmd, "tier", s.tierNames)
	return cmd
}

// showQuota shows the API's last answer, which is q, as it was at an instant or is now; people also see what limits all of the user's org.
func (s *session) showQuota(ctx context.Context, k *api, q client.Quota, at *time.Time) error {
	s.sayPropagation(q.Propagation)
	if s.output == outputJSON {
		return s.raw(k)
	}
	var pool [][]string
	if q.OrgID != "" {
		o, err := getAt(ctx, k, q.OrgID, at, (*api).GetOrg, (*api).OrgAt)
		if err != nil {
			return err
		}
		for _, l := range lineLimits(o.RPMLimit, o.TPMLimit, o.TPDLimit, o.ConcurrentLimit, o.Limits) {
			if l.capacity != 0 {
				pool = append(pool, []string{"all of " + q.OrgID + ": " + l.name, amount(l.capacity), "org"})
			}
		}
	}
	pairs := [][2]string{{"user", q.UserID}, {"org", dash(q.OrgID)}, {"tier", q.Tier}}
	return s.limits(append(pairs, quotaPairs(q.Quota, q.Propagation, true)...), q.Quota, q.Overrides, "tier", pool...)
}

// dash is a text, or "-" for none.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// quotaPairs are what a quota tells beside limits. payer: it has shards.
func quotaPairs(q tier.Quota, propagation string, payer bool) [][2]string {
	pairs := [][2]string{{"suspended", yesNo(q.Suspended)}, {"models", modelsText(q.AllowedModels)}}
	if payer {
		pairs = append(pairs, [2]string{"shards", itoa(q.Shards)})
	}
	pairs = append(pairs, [2]string{"version", itoa(q.Version)}, [2]string{"updated", when(&q.UpdatedAt)})
	if propagation != "" {
		pairs = append(pairs, [2]string{"propagation", propagation})
	}
	return pairs
}

// limits shows what a quota is and, below, its limits with whose each is, and further rows.
func (s *session) limits(pairs [][2]string, q tier.Quota, own tier.Overrides, otherwise string, further ...[]string) error {
	if err := show.Pairs(s.Stdout, pairs); err != nil {
		return err
	}
	mine := members(own)
	of := func(field string) string {
		if _, ok := mine[field]; ok {
			return "own"
		}
		return otherwise
	}
	rows := limitRows(lineLimits(q.RPMLimit, q.TPMLimit, q.TPDLimit, q.ConcurrentLimit, q.Limits), q.ModelLimits, of)
	rows = append(rows, []string{"context tokens", amount(q.MaxContext), of("max_context")})
	s.skip()
	return show.Grid(s.Stdout, []string{"limit", "amount", "of"}, []bool{false, true, false}, append(rows, further...))
}

func quotaListCommand(s *session) *cobra.Command {
	var page pageFlags
	var org, tierName string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List users that have a quota of their own, by id",
		Long:    "List users that have a quota of their own, by id. Everybody else has the free tier's. \"-\" of a limit is unlimited; slots are requests at once.",
		Example: "  tollgatectl quota list --org acme\n  tollgatectl quota list --tier enterprise --limit 0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd.Context(), s, page, "quotas", func(k *api, ctx context.Context, p client.Page) ([]client.Quota, string, error) {
				return k.ListQuotas(ctx, org, tierName, p)
			},
				func(quotas []client.Quota) error {
					var rows [][]string
					for _, q := range quotas {
						rows = append(rows, []string{q.UserID, dash(q.OrgID), q.Tier, cell(q.RPMLimit), cell(q.TPMLimit), cell(q.TPDLimit), cell(q.ConcurrentLimit), state(q.Suspended)})
					}
					return show.List(s.Stdout, []string{"user", "org", "tier", "rpm", "tpm", "tpd", "slots", "state"},
						[]bool{false, false, false, true, true, true, true, false}, rows)
				})
		},
	}
	cmd.Flags().StringVar(&org, "org", "", "only users of this `org`")
	cmd.Flags().StringVar(&tierName, "tier", "", "only users on this `tier`")
	page.add(cmd)
	s.complete(cmd, "tier", s.tierNames)
	return cmd
}

func state(suspended bool) string {
	if suspended {
		return "suspended"
	}
	return "active"
}

// cell is a limit in a list: "-" is unlimited.
func cell(n int64) string {
	if n == 0 {
		return "-"
	}
	return replay.Commas(n)
}
