package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

// Exit codes are a contract.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitRefused = 3
	exitAway    = 4
	exitRaced   = 5
)

const exitCodes = `Exit codes:
  0  done, and nothing differs
  1  a failure, or a difference was found
  2  the command line, or an address or token it needs, can't be used; nothing was done
  3  the API refused (4xx); nothing was changed
  4  a service or store can't be reached, or is unavailable (503); the command may be repeated
  5  somebody else changed it meanwhile (412); nothing was changed`

// errReported is a failure that the command has told in its own words.
var errReported = errors.New("failed")

// usageError is a command line that can't be followed.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// isCobraUsage knows cobra's own complaints, which have no type.
func isCobraUsage(err error) bool {
	return slices.ContainsFunc([]string{"unknown command", "required flag", "accepts ", "requires at least", "if any flags in the group", "at least one of the flags"},
		func(begin string) bool { return strings.HasPrefix(err.Error(), begin) })
}

// adminError is a call of the quota API that failed.
type adminError struct {
	err   error
	token string // where the token came from
	after string // what to do where no answer came
}

func (e *adminError) Error() string { return e.err.Error() }
func (e *adminError) Unwrap() error { return e.err }

// end tells what became of a command and gives its exit code.
func (s *session) end(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var usage usageError
	var api *adminError
	var p *problem.Problem
	var dial *net.OpError
	switch {
	case errors.Is(err, errReported):
		return exitFailure
	case errors.As(err, &usage), isCobraUsage(err):
		s.say("tollgatectl: %s", lines(err.Error()))
		if isCobraUsage(err) {
			s.say("Usage: %s", cmd.UseLine())
		}
		s.say("See %s --help.", cmd.CommandPath())
		return exitUsage
	case ctx.Err() != nil:
		s.say("tollgatectl: interrupted")
		return exitFailure
	case errors.As(err, &api) && errors.As(err, &p):
		s.sayRefused(cmd, api, p)
		switch {
		case p.Status == http.StatusPreconditionFailed:
			return exitRaced
		case p.Status/100 == 4:
			return exitRefused
		case p.Code == problem.CodeUnavailable:
			return exitAway
		}
		return exitFailure
	case errors.As(err, new(*json.SyntaxError)), errors.As(err, new(*json.UnmarshalTypeError)):
		s.say("tollgatectl: %s\nIs that the quota API's address?", lines(err.Error()))
		return exitFailure
	case errors.As(err, &api):
		s.say("tollgatectl: %s", lines(cause(err)))
		if api.after != "" {
			s.say("%s", api.after)
		}
		return exitAway
	}
	s.say("tollgatectl: %s", lines(err.Error()))
	if errors.As(err, &dial) {
		return exitAway
	}
	return exitFailure
}

// lines is a text of several lines, each fit for a terminal.
func lines(text string) string {
	parts := strings.Split(text, "\n")
	for i := range parts {
		parts[i] = show.Text(strings.TrimSpace(strings.ReplaceAll(parts[i], "\t", " ")))
	}
	return strings.Join(parts, "\n  ")
}

// cause is an error of net/http without the address, which is told elsewhere.
func cause(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		host := "the quota API"
		if at, parseErr := url.Parse(u.URL); parseErr == nil {
			host += " at " + at.Scheme + "://" + at.Host
		}
		return fmt.Sprintf("%s did not answer: %v", host, u.Err)
	}
	return err.Error()
}

// sayRefused tells a problem document whole: every field by the name of its flag, what to do, and under which id the service's log has it.
func (s *session) sayRefused(cmd *cobra.Command, e *adminError, p *problem.Problem) {
	detail := p.Detail
	if len(p.Errors) == 1 && p.Status == http.StatusBadRequest { // the detail says the same
		detail = "A field is not valid."
	}
	s.say("tollgatectl: the quota API answered %d %s: %s", p.Status, show.Text(p.Code), show.Text(detail))
	for _, f := range p.Errors {
		field := f.Field
		if flag := flagOf(cmd, field); flag != "" {
			field += " (" + flag + ")"
		}
		s.say("  %s: %s", show.Text(field), show.Text(f.Detail))
	}
	if todo := remedy(e, p); todo != "" {
		s.say("%s", todo)
	}
	if p.RequestID != "" {
		s.say("Request id: %s", show.Text(p.RequestID))
	}
}

func remedy(e *adminError, p *problem.Problem) string {
	switch p.Status {
	case http.StatusUnauthorized:
		return "The token from " + e.token + " is unknown, revoked or expired. Name another one with --token-file or TOLLGATE_ADMIN_TOKEN."
	case http.StatusForbidden:
		return "The token from " + e.token + " may not do that. Ask an admin, or name an admin's token with --token-file or TOLLGATE_ADMIN_TOKEN."
	case http.StatusNotFound:
		return "Check the id. With an org-admin's token, all outside of its org is not found."
	case http.StatusPreconditionFailed:
		return "Somebody else changed it meanwhile. Look at it as it is now, and give the command again."
	case http.StatusUnprocessableEntity:
		return "Leave --idempotency-key out, or take a new one."
	case http.StatusTooManyRequests:
		return "Wait a minute, then try again with a valid token."
	}
	if p.Code == problem.CodeUnavailable && e.after != "" {
		return e.after
	}
	return ""
}

// flagOfField is the flag that states a field of the API.
var flagOfField = map[string]string{"rpm_limit": "rpm", "tpm_limit": "tpm", "tpd_limit": "tpd", "concurrent_limit": "concurrent", "allowed_models": "models",
	"max_context": "max-context", "limits": "limits", "model_limits": "model-limits", "org_id": "org", "user_id": "user", "time_zone": "time-zone",
	"valid_from": "valid-from", "input_per_million": "input-price", "cached_input_per_million": "cached-input-price", "output_per_million": "output-price",
	"expires_at": "expires-at", "redis_away": "redis-away", "If-Match": "if-version", "Idempotency-Key": "idempotency-key"}

var fieldName = regexp.MustCompile(`^[A-Za-z_-]+`)

// flagOf gives "--rpm" for "rpm_limit", and "" where the command has no such flag.
func flagOf(cmd *cobra.Command, field string) string {
	name := fieldName.FindString(field)
	if flag, ok := flagOfField[name]; ok {
		name = flag
	}
	if name == "" || cmd.Flags().Lookup(name) == nil {
		return ""
	}
	return "--" + name
}
