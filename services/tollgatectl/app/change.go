package app

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// changeFlags are those of every change; keep is for one that states a whole.
type changeFlags struct {
	reason    string
	ifVersion int64
	keep, yes bool
}

func (f *changeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.reason, "reason", "", "`why`, for the history")
	cmd.Flags().Int64Var(&f.ifVersion, "if-version", 0, "change only if this is still the `version` (0: never changed), else exit code 5")
}

// addKeep adds what a change needs that states the whole.
func (f *changeFlags) addKeep(cmd *cobra.Command, otherwise string) {
	f.add(cmd)
	cmd.Flags().BoolVar(&f.keep, "keep", false, "leave what is not given as it is, instead of "+otherwise)
	f.addYes(cmd, "drop what is not given without asking")
}

func (f *changeFlags) addYes(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, what)
}

// version is --if-version; nil if it was not given.
func (f *changeFlags) version(cmd *cobra.Command) *int64 {
	if !cmd.Flags().Changed("if-version") {
		return nil
	}
	return &f.ifVersion
}

// base tells which version a change is made of that was read at now: that one, or it is too late already.
func (f *changeFlags) base(cmd *cobra.Command, k *api, now int64) (*int64, error) {
	if v := f.version(cmd); v != nil && *v != now {
		return nil, &adminError{err: problem.New(http.StatusPreconditionFailed, problem.CodePreconditionFailed, "It is at version "+itoa(now)+", not at version "+itoa(*v)+"."), token: k.tokenFrom}
	}
	return &now, nil
}

// mayDrop asks before a change takes away what it does not mention. back tells what holds then.
func (s *session) mayDrop(ctx context.Context, f changeFlags, name string, lost []string, back string) error {
	if f.keep || len(lost) == 0 {
		return nil
	}
	return s.confirm(ctx, f.yes, name+": this would drop what is not given ("+back+"): "+strings.Join(lost, ", ")+". --keep keeps it. Go on?")
}

// unanswered is what to do where a guarded change had no answer.
func unanswered(history string) string {
	return "It may have been made all the same: tollgatectl " + history + " tells."
}

// sayIfUnchanged tells that all was as it was asked for: the version stayed.
func (s *session) sayIfUnchanged(before, after int64) {
	if after == before {
		s.say("Nothing had to be changed.")
	}
}

// id checks an argument before it becomes a path.
func id(what, text string) error {
	if err := subject.ValidateID(text); err != nil {
		return usagef("%s: %w", what, err)
	}
	return nil
}

// instant reads an instant that was given by a flag; nil if none was.
func instant(flag, text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	at, err := usage.ParseInstant(text)
	if err != nil {
		return nil, usagef("--%s: %w", flag, err)
	}
	return &at, nil
}

func isNotFound(err error) bool {
	var p *problem.Problem
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

// when writes an instant for people; "-" is never.
func when(at *time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}
