package api

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// tokenBody is the body of POST admin token.
type tokenBody struct {
	Name      string  `json:"name"`
	Role      string  `json:"role"`
	OrgID     string  `json:"org_id"`     // of an org-admin
	ExpiresAt *string `json:"expires_at"` // absent: never
}

// tokenView is an admin token as the API shows it. The token itself is there once, in the answer that made it.
type tokenView struct {
	Name      string      `json:"name"`
	Role      auth.Role   `json:"role"`
	OrgID     string      `json:"org_id"`
	CreatedBy string      `json:"created_by"`
	CreatedAt usage.Time  `json:"created_at"`
	ExpiresAt *usage.Time `json:"expires_at"`
	RevokedBy string      `json:"revoked_by"`
	RevokedAt *usage.Time `json:"revoked_at"`
	Token     string      `json:"token,omitempty"`
}

func viewToken(t pgquota.AdminToken) tokenView {
	return tokenView{Name: t.Name, Role: t.Role, OrgID: t.OrgID, CreatedBy: t.CreatedBy, CreatedAt: usage.At(t.CreatedAt), ExpiresAt: usage.AtOrNil(t.ExpiresAt),
		RevokedBy: t.RevokedBy, RevokedAt: usage.AtOrNil(t.RevokedAt)}
}

func (s *server) postToken(c echo.Context) error {
	once, wrong, err := readOnce(c)
	if err != nil {
		return err
	}
	var body tokenBody
	if err := strictjson.Read(c.Request(), &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	token := auth.NewAdminToken()
	n := pgquota.NewToken{Name: body.Name, Role: auth.Role(body.Role), OrgID: body.OrgID, Hash: auth.Hash(token), Actor: actor(c)}
	location := "/internal/admin-tokens/" + url.PathEscape(body.Name)
	n.Once = askOnce(once, func(t pgquota.AdminToken) (kept, any) {
		v := viewToken(t)
		v.Token = token
		return kept{Status: http.StatusCreated, Location: location}, v
	})
	errs := []error{}
	if body.ExpiresAt != nil {
		at, err := usage.ParseInstant(*body.ExpiresAt)
		if err != nil {
			errs = append(errs, &tier.FieldError{Field: "expires_at", Err: err})
		} else {
			n.ExpiresAt = &at
		}
	}
	if wrong = merge(wrong, fieldErrors(errors.Join(append(errs, n.Validate(time.Now()))...))); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	t, err := s.Store.CreateToken(c.Request().Context(), n)
	if done, err := s.replay(c, once, "", err); done || err != nil {
		return err
	}
	c.Response().Header().Set("Location", location)
	v := viewToken(t)
	v.Token = token
	return c.JSON(http.StatusCreated, v)
}

func (s *server) listTokens(c echo.Context) error {
	p, wrong := readPage(c, nil)
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	ts, err := s.Store.AdminTokens(c.Request().Context(), p.after, p.limit+1)
	if err != nil {
		return err
	}
	var answer struct {
		Tokens []tokenView `json:"admin_tokens"`
		Next   string      `json:"next_cursor"`
	}
	answer.Tokens, answer.Next = fill(p, ts, viewToken, func(t pgquota.AdminToken) string { return t.Name })
	return c.JSON(http.StatusOK, answer)
}

func (s *server) deleteToken(c echo.Context) error {
	name, err := pathID(c, "name")
	if err != nil {
		return err
	}
	if wrong := checkID("name", name); wrong != nil {
		return problem.Invalid(wrong...)
	}
	t, err := s.Store.RevokeToken(c.Request().Context(), name, actor(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewToken(t))
}
