package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func keyQuotaCommand(s *session) *cobra.Command {
	cmd := s.group("quota", "What limits a key itself, below its user or org: get, set")
	cmd.AddCommand(keyQuotaGetCommand(s), keyQuotaSetCommand(s))
	return cmd
}

func keyQuotaGetCommand(s *session) *cobra.Command {
	return getCommand(s, &cobra.Command{Use: "get KEY", Short: "Show what limits a key itself, now or at an instant"},
		keyID, (*api).GetKeyQuota, (*api).KeyQuotaAt, func(_ context.Context, k *api, q client.KeyQuota, _ *time.Time) error { return s.showKeyQuota(k, q) })
}

func keyQuotaSetCommand(s *session) *cobra.Command {
	var f changeFlags
	var tierName string
	var suspended bool
	limits := limitFlags{own: true}
	cmd := &cobra.Command{
		Use:   "set KEY",
		Short: "Change what limits a key itself",
		Long: `Set states the whole set of the key's own limits, as the API's PUT does: one that is not given is unlimited for a key of a user, else the tier's, and
you are asked before one is dropped that way. With --keep all limits stay that are not given. Tier and suspension stay in any case where they are not given.

The change holds on the next check. It is made only if nobody else changed the key in between (exit code 5).`,
		Example: "  tollgatectl key quota set 01936f2e-7c1a-7b02-9c21-2d3e4f5a6b02 --keep --tpm 600\n  tollgatectl key quota set 01936f2e-7c1a-7b02-9c21-2d3e4f5a6b02 --keep --suspended=false",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, ctx := args[0], cmd.Context()
			var own tier.Overrides
			given, err := limits.apply(cmd, &own)
			if err != nil {
				return err
			}
			if err := keyID(key); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var before client.KeyQuota
			if err := k.get(ctx, func(ctx context.Context) (err error) { before, err = k.GetKeyQuota(ctx, key); return err }); err != nil {
				return err
			}
			change := client.KeyQuotaChange{Tier: tierName, Reason: f.reason, Overrides: own}
			if change.IfVersion, err = f.base(cmd, k, before.Version); err != nil {
				return err
			}
			if f.keep {
				change.Overrides = before.Overrides
				if _, err := limits.apply(cmd, &change.Overrides); err != nil {
					return err
				}
			} else if err := s.mayDrop(ctx, f, key, dropped(before.Overrides, given), "the key itself has no such limit then"); err != nil {
				return err
			}
			if cmd.Flags().Changed("suspended") {
				change.Suspended = &suspended
			}
			var after client.KeyQuota
			if err := k.call(ctx, false, unanswered("key history "+key), func(ctx context.Context) (err error) {
				after, err = k.PutKeyQuota(ctx, key, change)
				return err
			}); err != nil {
				return err
			}
			s.sayIfUnchanged(before.Version, after.Version)
			return s.showKeyQuota(k, after)
		},
	}
	cmd.Flags().StringVar(&tierName, "tier", "", "the key's `tier`, if an org owns it")
	cmd.Flags().BoolVar(&suspended, "suspended", false, "block every request with the key; --suspended=false lets them again")
	limits.add(cmd, keyLimits, "none of the key's own")
	f.addKeep(cmd, "dropping it")
	s.complete(cmd, "tier", s.tierNames)
	return cmd
}

// showKeyQuota shows the API's last answer, which is q.
func (s *session) showKeyQuota(k *api, q client.KeyQuota) error {
	s.sayPropagation(q.Propagation)
	if s.output == outputJSON {
		return s.raw(k)
	}
	who, otherwise := "org "+q.OrgID, "tier"
	if q.UserID != "" {
		who, otherwise = "user "+q.UserID, "-"
	}
	pairs := [][2]string{{"key", q.ID}, {"owner", who}, {"tier", dash(q.Tier)}}
	return s.limits(append(pairs, quotaPairs(q.Quota, q.Propagation, false)...), q.Quota, q.Overrides, otherwise)
}
