package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// IO is what a run may see of the world.
type IO struct {
	Environ        []string // "NAME=value" lines
	Dir            string   // where the search for .tollgate/env begins
	Stdout, Stderr io.Writer
}

// errReported is a failure that the command has told in its own words.
var errReported = errors.New("failed")

// Run runs one command. It returns 0, or 1 if anything went wrong or differs, or 2 for a wrong command line.
func Run(ctx context.Context, args []string, world IO) int {
	root := &cobra.Command{
		Use:           "tollgatectl",
		Short:         "Tollgate's command line: decide, meter and bill requests to AI inference services",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(replayCommand(world), versionCommand(world))
	root.SetArgs(args)
	root.SetOut(world.Stdout)
	root.SetErr(world.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported):
		return 1
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(world.Stderr, "tollgatectl: %v\nSee tollgatectl --help.\n", err)
		return 2
	}
	_, _ = fmt.Fprintf(world.Stderr, "tollgatectl: %v\n", err)
	return 1
}

// usageError is a command line that can't be followed.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func versionCommand(world IO) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version this command was built from",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(world.Stdout, version())
			return err
		},
	}
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "tollgatectl (unknown build)"
	}
	v, revision, dirty := info.Main.Version, "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " with local changes"
		}
	}
	return fmt.Sprintf("tollgatectl %s%s%s %s", v, revision, dirty, info.GoVersion)
}
