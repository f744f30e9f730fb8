package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// completeWithin bounds what a person waits for after a Tab.
const completeWithin = time.Second

type completer = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective)

// complete completes a flag's values.
func (s *session) complete(cmd *cobra.Command, flag string, f completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		s.faulty = err // a flag that is not there: root tells
	}
}

func fixed(words ...string) completer {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// tierNames completes tiers: the catalogue's, or those that are shipped where it can't be asked.
func (s *session) tierNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	names := []string{tier.Free, tier.Plus, tier.API, tier.Enterprise}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	if k, err := s.api(reads); err == nil {
		defer k.Close()
		if tiers, err := k.Tiers(ctx); err == nil {
			names = nil
			for _, t := range tiers {
				names = append(names, t.Name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// oneTier completes a command's only argument.
func (s *session) oneTier(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.tierNames(cmd, args, begin)
}
