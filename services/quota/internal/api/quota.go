package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// propagation tells how far a change has come.
const (
	done    = "done"    // every check that starts from now on sees it
	pending = "pending" // Redis can't be reached; it will be told as soon as it can
)

// quotaBody is the body of PUT quota. An absent limit is the tier's; absent org_id, tier and suspended stay as they are.
type quotaBody struct {
	tier.Overrides
	OrgID     *string `json:"org_id"`
	Tier      *string `json:"tier"`
	Suspended *bool   `json:"suspended"`
	Reason    string  `json:"reason"`
}

func (b quotaBody) change(s subject.Subject, p pgquota.Precondition, actor string) pgquota.Change {
	return pgquota.Change{Subject: s, OrgID: b.OrgID, Tier: b.Tier, Suspended: b.Suspended, Own: b.Overrides, If: p, Actor: actor, Reason: b.Reason}
}

func (s *server) getQuota(c echo.Context) error {
	id, err := pathID(c, "user_id")
	if err != nil {
		return err
	}
	if wrong := checkID("user_id", id); wrong != nil {
		return problem.Invalid(wrong...)
	}
	at, wrong := readAt(c)
	if wrong != nil {
		return problem.Invalid(wrong...)
	}
	e, err := s.userEntry(c, id)
	if err == nil && at != nil {
		if e, err = s.Store.EntryAt(c.Request().Context(), e.Subject, *at); err == nil {
			err = inOrg(c, e.OrgID)
		}
	}
	if err != nil {
		return err
	}
	// No 304 here: the version is the quota's own, but what it amounts to also changes with its tier.
	c.Response().Header().Set("ETag", etag(e.Version))
	return c.JSON(http.StatusOK, e.View())
}

// userEntry reads a user's quota, for whom it may concern.
func (s *server) userEntry(c echo.Context, id string) (pgquota.Entry, error) {
	e, err := s.Store.Entry(c.Request().Context(), subject.Subject{Kind: subject.User, ID: id})
	if err == nil {
		err = inOrg(c, e.OrgID)
	}
	return e, err
}

func (s *server) putQuota(c echo.Context) error {
	id, err := pathID(c, "user_id")
	if err != nil {
		return err
	}
	ctx, r := c.Request().Context(), c.Request()
	cond, wrong := precondition(r.Header)
	wrong = append(checkID("user_id", id), wrong...)
	var body quotaBody
	if err := strictjson.Read(r, &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	change := body.change(subject.Subject{Kind: subject.User, ID: id}, cond, actor(c))
	change.Within = within(c)
	wrong = merge(wrong, fieldErrors(change.Validate()))
	if len(wrong) > 0 {
		return problem.Invalid(s.alsoUnknownTier(ctx, body.Tier, wrong)...)
	}
	res, err := s.Store.PutQuota(ctx, change)
	if err != nil {
		return err
	}
	c.Response().Header().Set("ETag", etag(res.Version))
	return c.JSON(http.StatusOK, struct {
		pgquota.View
		Propagation string `json:"propagation"`
	}{res.View(), s.settle(ctx, pgquota.KindQuota, res.Changed, res.Fences)})
}
