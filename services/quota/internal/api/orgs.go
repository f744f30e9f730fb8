package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// orgBody is the body of PUT org quota. It states the whole pool: what is absent is unlimited, one shard, UTC.
type orgBody struct {
	RPMLimit        int64        `json:"rpm_limit"`
	TPMLimit        int64        `json:"tpm_limit"`
	TPDLimit        int64        `json:"tpd_limit"`
	ConcurrentLimit int64        `json:"concurrent_limit"`
	Limits          []tier.Limit `json:"limits"`
	Shards          int64        `json:"shards"`
	TimeZone        string       `json:"time_zone"`
	Reason          string       `json:"reason"`
}

// orgView is a pool as the API shows it.
type orgView struct {
	OrgID           string       `json:"org_id"`
	RPMLimit        int64        `json:"rpm_limit"`
	TPMLimit        int64        `json:"tpm_limit"`
	TPDLimit        int64        `json:"tpd_limit"`
	ConcurrentLimit int64        `json:"concurrent_limit"`
	Limits          []tier.Limit `json:"limits"`
	Shards          int64        `json:"shards"`
	TimeZone        string       `json:"time_zone"`
	Version         int64        `json:"version"`
	UpdatedAt       *usage.Time  `json:"updated_at"` // null: never set
	Propagation     string       `json:"propagation,omitempty"`
}

func viewOrg(p tier.Pool) orgView {
	v := orgView{OrgID: p.OrgID, RPMLimit: p.RPMLimit, TPMLimit: p.TPMLimit, TPDLimit: p.TPDLimit, ConcurrentLimit: p.ConcurrentLimit, Limits: p.Limits,
		Shards: p.Shards, TimeZone: p.TimeZone, Version: p.Version}
	if p.Version > 0 {
		at := usage.At(p.UpdatedAt)
		v.UpdatedAt = &at
	}
	return v
}

func (s *server) getOrg(c echo.Context) error {
	id, err := pathID(c, "org_id")
	if err != nil {
		return err
	}
	if wrong := checkID("org_id", id); wrong != nil {
		return problem.Invalid(wrong...)
	}
	at, wrong := readAt(c)
	if wrong != nil {
		return problem.Invalid(wrong...)
	}
	if err := inOrg(c, id); err != nil {
		return err
	}
	if at != nil {
		p, err := s.Store.OrgAt(c.Request().Context(), id, *at)
		if err != nil {
			return err
		}
		c.Response().Header().Set("ETag", etag(p.Version))
		return c.JSON(http.StatusOK, viewOrg(p))
	}
	p, err := s.Store.Org(c.Request().Context(), id)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(p.Version))
	if notModified(c.Request().Header, p.Version) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.JSON(http.StatusOK, viewOrg(p))
}

func (s *server) putOrg(c echo.Context) error {
	id, err := pathID(c, "org_id")
	if err != nil {
		return err
	}
	r := c.Request()
	cond, wrong := precondition(r.Header)
	body := orgBody{Shards: 1, TimeZone: tier.UTC}
	if err := strictjson.Read(r, &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	change := pgquota.OrgChange{If: cond, Actor: actor(c), Reason: body.Reason, Pool: tier.Pool{OrgID: id, RPMLimit: body.RPMLimit, TPMLimit: body.TPMLimit,
		TPDLimit: body.TPDLimit, ConcurrentLimit: body.ConcurrentLimit, Limits: body.Limits, Shards: body.Shards, TimeZone: body.TimeZone}}
	if wrong = merge(wrong, fieldErrors(change.Validate())); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	res, err := s.Store.PutOrg(r.Context(), change)
	return s.answerOrg(c, res, err)
}

func (s *server) deleteOrg(c echo.Context) error {
	id, err := pathID(c, "org_id")
	if err != nil {
		return err
	}
	cond, wrong := precondition(c.Request().Header)
	change := pgquota.OrgChange{Pool: tier.NoPool(id), If: cond, Actor: actor(c)}
	if wrong = merge(wrong, fieldErrors(change.Validate())); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	res, err := s.Store.DeleteOrg(c.Request().Context(), change)
	return s.answerOrg(c, res, err)
}

func (s *server) answerOrg(c echo.Context, res pgquota.OrgResult, err error) error {
	if err != nil {
		return err
	}
	v := viewOrg(res.Pool)
	v.Propagation = s.settle(c.Request().Context(), kindOrg, res.Changed, res.Fences)
	c.Response().Header().Set("ETag", etag(res.Pool.Version))
	return c.JSON(http.StatusOK, v)
}
