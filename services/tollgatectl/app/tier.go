package app

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func tierCommand(s *session) *cobra.Command {
	cmd := s.adminGroup("tier", "The catalogue, the defaults of everyone on a tier: get, set, list, history")
	history := s.historyCommand("history TIER", "Show who changed a tier, when, from what and to what", "TIER",
		func(k *api, ctx context.Context, name string, p client.Page) ([]told, string, error) {
			events, next, err := k.TierEvents(ctx, name, p)
			out := make([]told, len(events))
			for i, e := range events {
				out[i] = told{e.Version, e.At, e.Actor, e.Reason, e.Before, e.After, ""}
			}
			return out, next, err
		})
	history.ValidArgsFunction = s.oneTier
	cmd.AddCommand(tierGetCommand(s), tierSetCommand(s), tierListCommand(s), history)
	return cmd
}

func tierGetCommand(s *session) *cobra.Command {
	return getCommand(s, &cobra.Command{Use: "get TIER", Short: "Show a tier", ValidArgsFunction: s.oneTier},
		named("TIER"), (*api).GetTier, nil, func(_ context.Context, k *api, t tier.Tier, _ *time.Time) error {
			return s.showTier(k, client.ChangedTier{Tier: t})
		})
}

func tierSetCommand(s *session) *cobra.Command {
	var f changeFlags
	var limits limitFlags
	var priority, away string
	cmd := &cobra.Command{
		Use:   "set TIER",
		Short: "Add or change a tier; the limits of everyone on it change at once",
		Long: `Set states the whole tier, for it has nothing to fall back on: all but --limits and --model-limits must be given. With --keep all stays that is not
given. It changes the limits of everyone on the tier, except those that are their own, and holds on the next check. It is made only if nobody else changed the
tier in between (exit code 5).`,
		Example: `  tollgatectl tier set plus --keep --rpm 60 --reason "spring offer"
  tollgatectl tier set trial --rpm 5 --tpm 5000 --tpd 20000 --concurrent 1 --priority 10 --models grok-2-mini --max-context 8192 --redis-away closed`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.oneTier,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, ctx := args[0], cmd.Context()
			var own tier.Overrides
			given, err := limits.apply(cmd, &own)
			if err != nil {
				return err
			}
			change := client.TierChange{RedisAway: tier.RedisAway(away), Reason: f.reason}
			if cmd.Flags().Changed("priority") {
				if change.Priority, err = strconv.ParseInt(priority, 10, 64); err != nil {
					return usagef("--priority: %q is not a whole number", priority)
				}
			}
			if missing := notGiven(cmd, "rpm", "tpm", "tpd", "concurrent", "priority", "models", "max-context", "redis-away"); !f.keep && len(missing) > 0 {
				return usagef("%s: must be given, or --keep to leave what is not given as it is", strings.Join(missing, ", "))
			}
			if err := id("TIER", name); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var before tier.Tier
			err = k.get(ctx, func(ctx context.Context) (err error) { before, err = k.GetTier(ctx, name); return err })
			if err != nil && (f.keep || !isNotFound(err)) {
				return err
			}
			if change.IfVersion, err = f.base(cmd, k, before.Version); err != nil {
				return err
			}
			if f.keep {
				own = wholeTier(before)
				if _, err := limits.apply(cmd, &own); err != nil {
					return err
				}
				if !cmd.Flags().Changed("priority") {
					change.Priority = before.Priority
				}
				if away == "" {
					change.RedisAway = before.RedisAway
				}
			} else if err := s.mayDrop(ctx, f, name, dropped(furtherLimits(before), given), "the tier has no such limit then"); err != nil {
				return err
			}
			change.RPMLimit, change.TPMLimit, change.TPDLimit, change.ConcurrentLimit = value(own.RPMLimit), value(own.TPMLimit), value(own.TPDLimit), value(own.ConcurrentLimit)
			change.AllowedModels, change.MaxContext, change.Limits, change.ModelLimits = noNil(value(own.AllowedModels)), value(own.MaxContext), value(own.Limits), value(own.ModelLimits)
			var after client.ChangedTier
			if err := k.call(ctx, false, unanswered("tier history "+name), func(ctx context.Context) (err error) { after, err = k.PutTier(ctx, name, change); return err }); err != nil {
				return err
			}
			s.sayIfUnchanged(before.Version, after.Version)
			return s.showTier(k, after)
		},
	}
	limits.add(cmd, limitSet{models: true, maxContext: true, modelLimits: true}, "")
	cmd.Flags().StringVar(&priority, "priority", "", "0 to 100; the higher, the later it is shed under load")
	cmd.Flags().StringVar(&away, "redis-away", "", "what requests meet while Redis is away: local, open or closed")
	f.addKeep(cmd, "asking for all of it")
	s.complete(cmd, "redis-away", fixed("local", "open", "closed"))
	return cmd
}

// notGiven names flags that were not given.
func notGiven(cmd *cobra.Command, flags ...string) (missing []string) {
	for _, name := range flags {
		if !cmd.Flags().Changed(name) {
			missing = append(missing, "--"+name)
		}
	}
	return missing
}

func wholeTier(t tier.Tier) tier.Overrides {
	return tier.Overrides{RPMLimit: &t.RPMLimit, TPMLimit: &t.TPMLimit, TPDLimit: &t.TPDLimit, ConcurrentLimit: &t.ConcurrentLimit, MaxContext: &t.MaxContext,
		AllowedModels: &t.AllowedModels, Limits: &t.Limits, ModelLimits: &t.ModelLimits}
}

// furtherLimits are the limits of a tier that a PUT may leave out, if there are any.
func furtherLimits(t tier.Tier) (o tier.Overrides) {
	if len(t.Limits) > 0 {
		o.Limits = &t.Limits
	}
	if len(t.ModelLimits) > 0 {
		o.ModelLimits = &t.ModelLimits
	}
	return o
}

// showTier shows the API's last answer, which is t.
func (s *session) showTier(k *api, t client.ChangedTier) error {
	s.sayPropagation(t.Propagation)
	if s.output == outputJSON {
		return s.raw(k)
	}
	pairs := [][2]string{{"tier", t.Name}, {"priority", itoa(t.Priority)}, {"models", modelsText(t.AllowedModels)}, {"redis away", string(t.RedisAway)},
		{"version", itoa(t.Version)}, {"updated", when(&t.UpdatedAt)}}
	if t.Propagation != "" {
		pairs = append(pairs, [2]string{"propagation", t.Propagation})
	}
	if err := show.Pairs(s.Stdout, pairs); err != nil {
		return err
	}
	var rows [][]string
	for _, row := range limitRows(lineLimits(t.RPMLimit, t.TPMLimit, t.TPDLimit, t.ConcurrentLimit, t.Limits), t.ModelLimits, func(string) string { return "" }) {
		rows = append(rows, row[:2])
	}
	rows = append(rows, []string{"context tokens", amount(t.MaxContext)})
	s.skip()
	return show.Grid(s.Stdout, []string{"limit", "amount"}, []bool{false, true}, rows)
}

func tierListCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the tiers, the lowest priority first",
		Long:  "List the tiers, the lowest priority first. \"-\" of a limit is unlimited; slots are requests at once, context is the most tokens of one, redis is what happens while Redis is away.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := s.api(reads)
			if err != nil {
				return err
			}
			defer k.Close()
			var tiers []tier.Tier
			if err := k.get(cmd.Context(), func(ctx context.Context) (err error) { tiers, err = k.Tiers(ctx); return err }); err != nil {
				return err
			}
			if s.output == outputJSON {
				return s.raw(k)
			}
			var rows [][]string
			for _, t := range tiers {
				rows = append(rows, []string{t.Name, cell(t.RPMLimit), cell(t.TPMLimit), cell(t.TPDLimit), cell(t.ConcurrentLimit), cell(t.MaxContext), itoa(t.Priority),
					string(t.RedisAway)})
			}
			return show.List(s.Stdout, []string{"tier", "rpm", "tpm", "tpd", "slots", "context", "priority", "redis"},
				[]bool{false, true, true, true, true, true, true, false}, rows)
		},
	}
}
