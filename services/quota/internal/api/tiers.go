package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// tierBody is the body of PUT tier. A tier has nothing to fall back on, so every named limit must be there. Further limits and model groups
// that are left out are none.
type tierBody struct {
	RPMLimit        *int64             `json:"rpm_limit"`
	TPMLimit        *int64             `json:"tpm_limit"`
	TPDLimit        *int64             `json:"tpd_limit"`
	ConcurrentLimit *int64             `json:"concurrent_limit"`
	Priority        *int64             `json:"priority"`
	AllowedModels   *[]string          `json:"allowed_models"`
	MaxContext      *int64             `json:"max_context"`
	RedisAway       *tier.RedisAway    `json:"redis_away"`
	Limits          []tier.Limit       `json:"limits"`
	ModelLimits     []tier.ModelLimits `json:"model_limits"`
	Reason          string             `json:"reason"`
}

// tier gives what the body states and names what it leaves out.
func (b tierBody) tier(name string) (tier.Tier, []problem.FieldError) {
	t := tier.Tier{Name: name, RedisAway: tier.AwayLocal, Limits: b.Limits, ModelLimits: b.ModelLimits}
	var missing []problem.FieldError
	lacks := func(field string) {
		missing = append(missing, problem.FieldError{Field: field, Detail: "is missing; a tier is stated completely"})
	}
	for _, f := range []struct {
		name string
		from *int64
		to   *int64
	}{{"rpm_limit", b.RPMLimit, &t.RPMLimit}, {"tpm_limit", b.TPMLimit, &t.TPMLimit}, {"tpd_limit", b.TPDLimit, &t.TPDLimit},
		{"concurrent_limit", b.ConcurrentLimit, &t.ConcurrentLimit}, {"priority", b.Priority, &t.Priority}, {"max_context", b.MaxContext, &t.MaxContext}} {
		if f.from == nil {
			lacks(f.name)
			continue
		}
		*f.to = *f.from
	}
	if b.AllowedModels == nil {
		lacks("allowed_models")
	} else {
		t.AllowedModels = *b.AllowedModels
	}
	if b.RedisAway == nil {
		lacks("redis_away")
	} else {
		t.RedisAway = *b.RedisAway
	}
	return t, missing
}

func (s *server) listTiers(c echo.Context) error {
	ts, err := s.Store.Tiers(c.Request().Context())
	if err != nil {
		return err
	}
	views := make([]pgquota.TierView, len(ts))
	for i, t := range ts {
		views[i] = pgquota.ViewTier(t)
	}
	return c.JSON(http.StatusOK, struct {
		Tiers []pgquota.TierView `json:"tiers"`
	}{views})
}

func (s *server) getTier(c echo.Context) error {
	name, err := pathID(c, "tier")
	if err != nil {
		return err
	}
	if wrong := checkID("tier", name); wrong != nil {
		return problem.Invalid(wrong...)
	}
	t, err := s.Store.Tier(c.Request().Context(), name)
	if isMissing(err) {
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "There is no such tier.")
	}
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(t.Version))
	if notModified(c.Request().Header, t.Version) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.JSON(http.StatusOK, pgquota.ViewTier(t))
}

func (s *server) putTier(c echo.Context) error {
	name, err := pathID(c, "tier")
	if err != nil {
		return err
	}
	ctx, r := c.Request().Context(), c.Request()
	cond, wrong := precondition(r.Header)
	var body tierBody
	if err := strictjson.Read(r, &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	t, missing := body.tier(name)
	change := pgquota.TierChange{Tier: t, If: cond, Actor: actor(c), Reason: body.Reason}
	wrong = merge(merge(wrong, missing), fieldErrors(change.Validate()))
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	res, err := s.Store.PutTier(ctx, change)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(res.Tier.Version))
	return c.JSON(http.StatusOK, struct {
		pgquota.TierView
		Propagation string `json:"propagation"`
	}{pgquota.ViewTier(res.Tier), s.settle(ctx, pgquota.KindTier, res.Changed, res.Fences)})
}
