package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// getCommand completes a command that shows one thing: as it is, or was at the instant --at names, if the thing can be read then. check looks at its name.
func getCommand[T any](s *session, cmd *cobra.Command, check func(name string) error, now func(*api, context.Context, string) (T, error),
	then func(*api, context.Context, string, time.Time) (T, error), show func(ctx context.Context, k *api, thing T, at *time.Time) error,
) *cobra.Command {
	var text string
	if then != nil {
		cmd.Flags().StringVar(&text, "at", "", "as it was at this `instant`, RFC 3339")
	}
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		at, err := instant("at", text)
		if err != nil {
			return err
		}
		if err := check(args[0]); err != nil {
			return err
		}
		k, err := s.api(reads)
		if err != nil {
			return err
		}
		defer k.Close()
		thing, err := getAt(cmd.Context(), k, args[0], at, now, then)
		if err != nil {
			return err
		}
		return show(cmd.Context(), k, thing, at)
	}
	return cmd
}

// getAt reads one thing as it was at an instant; nil: as it is now.
func getAt[T any](ctx context.Context, k *api, name string, at *time.Time, now func(*api, context.Context, string) (T, error),
	then func(*api, context.Context, string, time.Time) (T, error),
) (thing T, err error) {
	err = k.get(ctx, func(ctx context.Context) (err error) {
		if at != nil {
			thing, err = then(k, ctx, name, *at)
		} else {
			thing, err = now(k, ctx, name)
		}
		return err
	})
	return thing, err
}

// named checks a name before it becomes a path.
func named(what string) func(string) error {
	return func(text string) error { return id(what, text) }
}
