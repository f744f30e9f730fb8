package app

import (
	"context"
	_ "embed" // the query
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

//go:embed usage.sql
var usageSQL string

// usageFlags are what usage and top have in common.
type usageFlags struct {
	org, user, key, model string
	limit                 uint32
}

func (f *usageFlags) add(cmd *cobra.Command, limit uint32) {
	fs := cmd.Flags()
	fs.StringVar(&f.org, "org", "", "only of this `org`")
	fs.StringVar(&f.user, "user", "", "only of this `user`")
	fs.StringVar(&f.key, "key", "", "only of this API `key`'s id")
	fs.StringVar(&f.model, "model", "", "only of this `model`")
	fs.Uint32Var(&f.limit, "limit", limit, "at most so many `rows`")
}

// sumUp asks for usage by one thing, and writes it under that name.
func (s *session) sumUp(ctx context.Context, f usageFlags, view, by string, from, to time.Time) error {
	if f.limit == 0 {
		return usagef("--limit must be 1 or more")
	}
	book, err := s.finance()
	if err != nil {
		return err
	}
	t, err := book.Table(ctx, clickhousehttp.Query{SQL: usageSQL, Params: map[string]string{"view": view, "by": by, "from": from.Format(time.DateTime), "to": to.Format(time.DateTime),
		"org": f.org, "user": f.user, "key": f.key, "model": f.model, "limit": strconv.FormatUint(uint64(f.limit), 10)}})
	if err != nil {
		return fmt.Errorf("ask for usage: %w", err)
	}
	t.Columns[0].Name = by
	return s.answer(t)
}

var usageBy = []string{"day", "hour", "org", "user", "key", "tier", "model"}

func usageCommand(s *session) *cobra.Command {
	var f usageFlags
	var from, to, by string
	cmd := &cobra.Command{
		Use:     "usage",
		Short:   "Show what was used, by day, hour, org, user, key, tier or model",
		Example: "  tollgatectl usage --org acme --from 2026-12 --to 2026-12\n  tollgatectl usage --user ann --by model",
		GroupID: groupFinance,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(usageBy, by) {
				return usagef("--by must be one of %s, is %q", strings.Join(usageBy, ", "), by)
			}
			first, last, err := days(from, to)
			if err != nil {
				return err
			}
			view := "usage_daily"
			if by == "hour" {
				view = "usage_hourly"
			}
			return s.sumUp(cmd.Context(), f, view, by, first, last.AddDate(0, 0, 1))
		},
	}
	f.add(cmd, 1000)
	cmd.Flags().StringVar(&from, "from", "this month", "first `day`")
	cmd.Flags().StringVar(&to, "to", "today", "last `day`")
	cmd.Flags().StringVar(&by, "by", "day", strings.Join(usageBy, ", "))
	s.complete(cmd, "by", fixed(usageBy...))
	return cmd
}

func topCommand(s *session) *cobra.Command {
	var f usageFlags
	var last time.Duration
	whats := map[string]string{"users": "user", "orgs": "org", "keys": "key", "models": "model", "tiers": "tier"}
	names := []string{"users", "orgs", "keys", "models", "tiers"}
	cmd := &cobra.Command{
		Use:       "top [" + strings.Join(names, "|") + "]",
		Short:     "Show who or what used most tokens of late",
		Example:   "  tollgatectl top users --last 1h\n  tollgatectl top models --org acme",
		GroupID:   groupFinance,
		ValidArgs: names,
		Args:      cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			by := "user"
			if len(args) == 1 {
				if by = whats[args[0]]; by == "" {
					return usagef("%q is none of %s", args[0], strings.Join(names, ", "))
				}
			}
			if last < time.Minute || last > 366*24*time.Hour {
				return usagef("--last must be from 1m to 8784h, is %s", last)
			}
			view, unit := "usage_minutely", time.Minute
			if last >= 24*time.Hour {
				view, unit = "usage_hourly", time.Hour
			}
			now := time.Now().UTC()
			return s.sumUp(cmd.Context(), f, view, by, now.Add(-last).Truncate(unit), now.Add(unit))
		},
	}
	f.add(cmd, 10)
	cmd.Flags().DurationVar(&last, "last", 24*time.Hour, "how far back, by whole minutes; from a day on by whole hours")
	return cmd
}
