package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Kinds of changes that metrics tell apart, beside the outbox's.
const (
	kindKey = "api_key"
	kindOrg = "org"
)

// settle publishes what a change has committed and tells how far it has come.
func (s *server) settle(ctx context.Context, kind string, changed bool, fences []pgquota.Fence) string {
	if changed {
		s.Committed()
	}
	result, label := done, done
	if len(fences) > 0 {
		if err := s.Publisher.Publish(ctx, fences); err != nil {
			s.Log.WarnContext(ctx, "the change is kept and will be published later", "err", err)
			result, label = pending, pending
		}
	}
	if !changed {
		label = "unchanged"
	}
	s.changes.WithLabelValues(kind, label).Inc()
	return result
}

// pathID gives an id from the path, decoded once. echo routes by RawPath where there is one and hands out its parts as they are.
func pathID(c echo.Context, name string) (string, error) {
	id := c.Param(name)
	if strings.Contains(id, "/") { // echo lets the last part of a path run on over slashes; one that belongs to an id is encoded
		return "", echo.ErrNotFound
	}
	if c.Request().URL.RawPath != "" {
		var err error
		if id, err = url.PathUnescape(id); err != nil {
			return "", echo.ErrNotFound
		}
	}
	if id == "" { // echo takes /internal/quota/ for a quota with an empty id
		return "", echo.ErrNotFound
	}
	return id, nil
}

func checkID(field, id string) []problem.FieldError {
	if err := subject.ValidateID(id); err != nil {
		return []problem.FieldError{{Field: field, Detail: err.Error()}}
	}
	return nil
}

func isMissing(err error) bool { return errors.Is(err, pgquota.ErrTierMissing) }

// split takes the field errors out of a decoding error; other is an error that makes looking further pointless.
func split(err error) (fields []problem.FieldError, other error) {
	var p *problem.Problem
	if errors.As(err, &p) && p.Code == problem.CodeInvalidRequest {
		return p.Errors, nil
	}
	return nil, err
}

// fieldErrors finds the tier.FieldErrors in err, joined ones included.
func fieldErrors(err error) []problem.FieldError {
	switch e := err.(type) { //nolint:errorlint // the tree is walked by hand: errors.As finds only the first
	case nil:
		return nil
	case *tier.FieldError:
		return []problem.FieldError{{Field: e.Field, Detail: e.Err.Error()}}
	case interface{ Unwrap() []error }:
		var all []problem.FieldError
		for _, child := range e.Unwrap() {
			all = append(all, fieldErrors(child)...)
		}
		return all
	default:
		return fieldErrors(errors.Unwrap(err))
	}
}

// merge adds the further errors of fields that nothing was said of yet.
func merge(have, more []problem.FieldError) []problem.FieldError {
	named := map[string]bool{}
	for _, f := range have {
		named[f.Field] = true
	}
	for _, f := range more {
		if root, _, _ := strings.Cut(f.Field, "["); !named[f.Field] && !named[root] {
			have = append(have, f)
		}
	}
	return have
}

// alsoUnknownTier adds that the tier is unknown to a list of other faults. It asks the store only where the tier's text is good.
func (s *server) alsoUnknownTier(ctx context.Context, name *string, wrong []problem.FieldError) []problem.FieldError {
	if name == nil || subject.ValidateID(*name) != nil {
		return wrong
	}
	if _, err := s.Store.Tier(ctx, *name); isMissing(err) {
		return merge(wrong, []problem.FieldError{{Field: "tier", Detail: `"` + *name + `" is not a known tier`}})
	}
	return wrong
}

func mismatch(vm *pgquota.VersionMismatch) *problem.Problem {
	detail := vm.Error() + ", which the precondition does not name. Read it again, then decide."
	if vm.Current == 0 {
		detail = vm.Name + " has no version yet."
	}
	return problem.New(http.StatusPreconditionFailed, problem.CodePreconditionFailed, detail)
}
