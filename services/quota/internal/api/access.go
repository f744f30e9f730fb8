package api

import (
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/problem"
)

const grantKey = "tollgate.grant"

// access lets in admins, and viewers to read. It runs before a path or a method is found wrong. Whoever is refused is logged by name
// where the token is known; the token itself never is.
func (s *server) access(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		grant, known := s.Tokens.Find(auth.Bearer(r))
		if !known {
			s.refuse(c, "unauthorized")
			return problem.New(http.StatusUnauthorized, problem.CodeUnauthorized, "Send a valid admin token as Authorization: Bearer.")
		}
		c.Set(grantKey, grant)
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if grant.Role != auth.Admin && (grant.Role != auth.Viewer || !reads) {
			s.refuse(c, "forbidden")
			return problem.New(http.StatusForbidden, problem.CodeForbidden, "This token's role does not allow that.")
		}
		return next(c)
	}
}

func (s *server) refuse(c echo.Context, reason string) {
	s.refused.WithLabelValues(reason).Inc()
	r := c.Request()
	s.Log.LogAttrs(r.Context(), slog.LevelWarn, "refused", slog.String("reason", reason), slog.String("actor", actor(c)),
		slog.String("method", r.Method), slog.String("path", cut(r.URL.Path)), slog.String("remote", r.RemoteAddr),
		slog.String("request_id", c.Response().Header().Get("X-Request-Id")))
}

// actor is the name of who calls; "" if nobody knows.
func actor(c echo.Context) string {
	g, _ := c.Get(grantKey).(auth.Grant)
	return g.Name
}
