package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/quota/internal/refusallog"
)

const (
	grantKey   = "tollgate.grant"
	addressKey = "tollgate.address"
)

// inference is the role of an API key: known here only to be refused with 403 instead of 401.
const inference auth.Role = "api-key"

// maxToken is how long a token may be that is worth a look into Postgres.
const maxToken = 256

// Reasons of refusals.
const (
	reasonUnauthorized = "unauthorized"
	reasonForbidden    = "forbidden"
	reasonOutside      = "outside_org"
	reasonTooMany      = "too_many_requests"
)

// orgAdmins lists what an org-admin may call; each handler binds it to the org. A route that is not here is for others.
var orgAdmins = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"GET /internal/quota/:user_id":            true,
	"PUT /internal/quota/:user_id":            true,
	"GET /internal/quota/:user_id/events":     true,
	"GET /internal/quotas":                    true,
	"GET /internal/orgs":                      true,
	"GET /internal/orgs/:org_id/quota":        true,
	"GET /internal/orgs/:org_id/quota/events": true,
	"GET /internal/api-keys":                  true,
	"POST /internal/api-keys":                 true,
	"GET /internal/api-keys/:key_id":          true,
	"DELETE /internal/api-keys/:key_id":       true,
	"GET /internal/api-keys/:key_id/quota":    true,
	"PUT /internal/api-keys/:key_id/quota":    true,
	"GET /internal/api-keys/:key_id/events":   true,
	"POST /internal/api-keys/:key_id/rotate":  true,
	"GET /internal/tiers":                     true,
	"GET /internal/tiers/:tier":               true,
}

// access lets in admins, viewers to read, and org-admins to what is an org's. It runs before a path or a method is found wrong. Whoever is refused
// is logged by name where the token is known; the token itself never is.
func (s *server) access(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		grant, err := s.identify(c)
		if err != nil {
			return err
		}
		c.Set(grantKey, grant)
		if !s.may(grant.Role, c) {
			s.refuse(c, reasonForbidden)
			return problem.New(http.StatusForbidden, problem.CodeForbidden, "This token's role does not allow that.")
		}
		return next(c)
	}
}

func (s *server) may(role auth.Role, c echo.Context) bool {
	method := c.Request().Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	switch role {
	case auth.Admin:
		return true
	case auth.Viewer:
		return method == http.MethodGet
	case auth.OrgAdmin:
		operation := method + " " + c.Path()
		return orgAdmins[operation] || !s.operations[operation] // what is not there may be found missing
	}
	return false
}

// identify finds out who calls. Failed attempts are counted by address; a good token passes whatever that count is.
func (s *server) identify(c echo.Context) (auth.Grant, error) {
	r := c.Request()
	addr := s.Proxies.Address(r)
	c.Set(addressKey, addr)
	token := auth.Bearer(r)
	grant, err := s.grantOf(r.Context(), token, addr)
	switch {
	case err == nil:
		return grant, nil
	case !errors.Is(err, pgquota.ErrTokenMissing) && !errors.Is(err, pgquota.ErrKeyMissing):
		return auth.Grant{}, err
	}
	if wait := s.Attempts.Failed(addr); wait > 0 {
		s.refuse(c, reasonTooMany)
		c.Response().Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
		return auth.Grant{}, problem.New(http.StatusTooManyRequests, problem.CodeTooManyRequests, "Too many attempts from this address without a valid token.")
	}
	s.refuse(c, reasonUnauthorized)
	return auth.Grant{}, problem.New(http.StatusUnauthorized, problem.CodeUnauthorized, "Send a valid admin token as Authorization: Bearer.")
}

// grantOf looks a token up: among those of the environment, then by its hash in Postgres. Callers from an address with too many failed attempts
// share a few places, so that none of them keeps Postgres from the others.
func (s *server) grantOf(ctx context.Context, token string, addr netip.Addr) (auth.Grant, error) {
	if grant, known := s.Tokens.Find(token); known {
		return grant, nil
	}
	isKey := !strings.HasPrefix(token, auth.AdminTokenPrefix)
	if len(token) > maxToken || !strings.HasPrefix(token, subject.SecretPrefix) {
		return auth.Grant{}, pgquota.ErrTokenMissing
	}
	if s.Attempts.Wait(addr) > 0 {
		select {
		case s.slow <- struct{}{}:
			defer func() { <-s.slow }()
		case <-ctx.Done():
			return auth.Grant{}, problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "Too many attempts from this address are being looked at.").Because(ctx.Err())
		}
	}
	if isKey {
		k, err := s.Store.KeyOf(ctx, token)
		if err == nil && k.RevokedAt != nil {
			err = pgquota.ErrKeyMissing
		}
		return auth.Grant{Name: k.Subject().String(), Role: inference}, err
	}
	t, err := s.Store.TokenOf(ctx, token)
	return auth.Grant{Name: t.Name, Role: t.Role, OrgID: t.OrgID}, err
}

// within is the org that the caller is bound to; "" if to none.
func within(c echo.Context) pgquota.Within {
	g, _ := c.Get(grantKey).(auth.Grant)
	return pgquota.Within(g.OrgID)
}

// inOrg refuses an org-admin what is not its org's. Foreign and missing things look alike.
func inOrg(c echo.Context, orgID string) error {
	if w := within(c); w != "" && string(w) != orgID {
		return pgquota.ErrOutside
	}
	return nil
}

func (s *server) refuse(c echo.Context, reason string) {
	s.refused.WithLabelValues(reason).Inc()
	r := c.Request()
	addr, _ := c.Get(addressKey).(netip.Addr)
	id := c.Response().Header().Get("X-Request-Id")
	s.Log.LogAttrs(r.Context(), slog.LevelWarn, "refused", slog.String("reason", reason), slog.String("actor", actor(c)),
		slog.String("method", cut(r.Method)), slog.String("path", cut(r.URL.Path)), slog.String("remote", r.RemoteAddr), slog.String("address", addr.String()),
		slog.String("request_id", id))
	route, method := c.Path(), r.Method
	if !s.routes[route] {
		route = ""
	}
	if !s.methods[method] {
		method = "other"
	}
	s.Refusals.Add(refusallog.Attempt{Reason: reason, Actor: actor(c), Address: addr.String(), Method: method, Route: route, Path: cut(r.URL.Path), RequestID: id,
		At: time.Now()})
}

// actor is the name of who calls; "" if nobody knows.
func actor(c echo.Context) string {
	g, _ := c.Get(grantKey).(auth.Grant)
	return g.Name
}

// secrets are what looks like the secret of a key or an admin token.
var secrets = regexp.MustCompile(`(tg-(?:admin-)?)[A-Z2-7]{8,}`)

// cut keeps a forged path from filling the log, and a secret that somebody took for an id out of it. NUL and broken UTF-8 can't be stored.
func cut(s string) string {
	s = secrets.ReplaceAllString(strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD"), "$1…")
	if len(s) > 300 {
		return strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
