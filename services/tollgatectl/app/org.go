package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func orgCommand(s *session) *cobra.Command {
	cmd := s.adminGroup("org", "What all of an org share, and its time zone: get, set, lift, list, history")
	cmd.AddCommand(orgGetCommand(s), orgSetCommand(s), orgLiftCommand(s), orgListCommand(s),
		s.historyCommand("history ORG", "Show who changed an org's pool, when, from what and to what", "ORG",
			func(k *api, ctx context.Context, org string, p client.Page) ([]told, string, error) {
				return quotaEvents(k.OrgEvents(ctx, org, p))
			}))
	return cmd
}

func orgGetCommand(s *session) *cobra.Command {
	return getCommand(s, &cobra.Command{
		Use:     "get ORG",
		Short:   "Show an org's pool and time zone, now or at an instant",
		Example: "  tollgatectl org get acme\n  tollgatectl org get acme --at 2026-11-30T23:59:59Z",
	}, named("ORG"), (*api).GetOrg, (*api).OrgAt, func(_ context.Context, k *api, o client.Org, _ *time.Time) error { return s.showOrg(k, o) })
}

// poolLimits are a pool's limits but those that say nothing.
func poolLimits(o client.Org) (own tier.Overrides) {
	for _, l := range []struct {
		n  int64
		to **int64
	}{{o.RPMLimit, &own.RPMLimit}, {o.TPMLimit, &own.TPMLimit}, {o.TPDLimit, &own.TPDLimit}, {o.ConcurrentLimit, &own.ConcurrentLimit}} {
		if l.n != 0 {
			*l.to = &l.n
		}
	}
	if o.Shards > 1 {
		own.Shards = &o.Shards
	}
	if len(o.Limits) > 0 {
		own.Limits = &o.Limits
	}
	return own
}

func orgSetCommand(s *session) *cobra.Command {
	var f changeFlags
	var limits limitFlags
	var zone string
	cmd := &cobra.Command{
		Use:   "set ORG",
		Short: "Create or change an org's pool and time zone",
		Long: `Set states the whole pool, as the API's PUT does: what is not given is unlimited, one shard, UTC, and you are asked before anything is dropped that way.
With --keep all stays that is not given. Another time zone holds for days and invoices from then on.

The change holds on the next check. It is made only if nobody else changed the pool in between (exit code 5).`,
		Example: "  tollgatectl org set acme --tpm 2000000 --concurrent 200 --time-zone Europe/Berlin\n  tollgatectl org set acme --keep --limits requests/1d=1000000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			org, ctx := args[0], cmd.Context()
			var own tier.Overrides
			given, err := limits.apply(cmd, &own)
			if err != nil {
				return err
			}
			if err := id("ORG", org); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var before client.Org
			if err := k.get(ctx, func(ctx context.Context) (err error) { before, err = k.GetOrg(ctx, org); return err }); err != nil {
				return err
			}
			version, err := f.base(cmd, k, before.Version)
			if err != nil {
				return err
			}
			if f.keep {
				own = poolLimits(before)
				if _, err := limits.apply(cmd, &own); err != nil {
					return err
				}
				if !cmd.Flags().Changed("time-zone") {
					zone = before.TimeZone
				}
			} else {
				lost := dropped(poolLimits(before), given)
				if before.TimeZone != "UTC" && !cmd.Flags().Changed("time-zone") {
					lost = append(lost, "time_zone "+before.TimeZone)
				}
				if err := s.mayDrop(ctx, f, org, lost, "unlimited, one shard, UTC then"); err != nil {
					return err
				}
			}
			pool := client.Pool{RPMLimit: value(own.RPMLimit), TPMLimit: value(own.TPMLimit), TPDLimit: value(own.TPDLimit), ConcurrentLimit: value(own.ConcurrentLimit),
				Limits: value(own.Limits), Shards: value(own.Shards), TimeZone: zone, Reason: f.reason, IfVersion: version}
			var after client.Org
			if err := k.call(ctx, false, unanswered("org history "+org), func(ctx context.Context) (err error) { after, err = k.PutOrg(ctx, org, pool); return err }); err != nil {
				return err
			}
			s.sayIfUnchanged(before.Version, after.Version)
			return s.showOrg(k, after)
		},
	}
	limits.add(cmd, limitSet{shards: true}, "")
	cmd.Flags().StringVar(&zone, "time-zone", "", "IANA `zone` of the org's days and invoices, such as Europe/Berlin")
	f.addKeep(cmd, "unlimited, one shard, UTC")
	return cmd
}

// value is what p points to, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func orgLiftCommand(s *session) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   "lift ORG",
		Short: "Lift an org's pool: it is unlimited again, one shard, UTC",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			org, ctx := args[0], cmd.Context()
			if err := id("ORG", org); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			if err := s.confirm(ctx, f.yes, fmt.Sprintf("Lift the pool of %s? All of it may then use as much as their own quotas say.", org)); err != nil {
				return err
			}
			var o client.Org
			if err := k.call(ctx, f.version(cmd) == nil, unanswered("org history "+org), func(ctx context.Context) (err error) {
				o, err = k.DeleteOrg(ctx, org, f.version(cmd))
				return err
			}); err != nil {
				return err
			}
			return s.showOrg(k, o)
		},
	}
	cmd.Flags().Int64Var(&f.ifVersion, "if-version", 0, "lift only if this is still the `version`, else exit code 5")
	f.addYes(cmd, "lift without asking")
	return cmd
}

// showOrg shows the API's last answer, which is o.
func (s *session) showOrg(k *api, o client.Org) error {
	s.sayPropagation(o.Propagation)
	if s.output == outputJSON {
		return s.raw(k)
	}
	pairs := [][2]string{{"org", o.ID}, {"time zone", o.TimeZone}, {"shards", itoa(o.Shards)}, {"version", itoa(o.Version)}, {"updated", when(o.UpdatedAt)}}
	if o.Propagation != "" {
		pairs = append(pairs, [2]string{"propagation", o.Propagation})
	}
	if err := show.Pairs(s.Stdout, pairs); err != nil {
		return err
	}
	var rows [][]string
	for _, l := range lineLimits(o.RPMLimit, o.TPMLimit, o.TPDLimit, o.ConcurrentLimit, o.Limits) {
		rows = append(rows, []string{l.name, amount(l.capacity)})
	}
	s.skip()
	return show.Grid(s.Stdout, []string{"limit", "amount"}, []bool{false, true}, rows)
}

func orgListCommand(s *session) *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List orgs: all that have or had a pool, a user or a key",
		Long:  "List orgs, by id: all that have or had a pool, a user or a key. \"-\" of a limit is unlimited; slots are requests at once; version 0 is a pool that was never set.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd.Context(), s, page, "orgs", (*api).ListOrgs, func(orgs []client.Org) error {
				var rows [][]string
				for _, o := range orgs {
					rows = append(rows, []string{o.ID, cell(o.RPMLimit), cell(o.TPMLimit), cell(o.TPDLimit), cell(o.ConcurrentLimit), itoa(o.Shards), o.TimeZone, itoa(o.Version)})
				}
				return show.List(s.Stdout, []string{"org", "rpm", "tpm", "tpd", "slots", "shards", "time zone", "version"},
					[]bool{false, true, true, true, true, true, false, true}, rows)
			})
		},
	}
	page.add(cmd)
	return cmd
}
