package api

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Every list has a total order that never changes (ids and versions, no times) and pages by the last one seen. So a row that was there all the
// time is listed once, whatever is made or deleted meanwhile, that last one included.

// listQuotas lists the users that have a quota of their own.
func (s *server) listQuotas(c echo.Context) error {
	f := pgquota.Filter{Kind: subject.User}
	p, wrong := readPage(c, params{"org_id": takeID(&f.OrgID), "tier": takeID(&f.Tier)})
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	if f.OrgID != "" {
		if err := inOrg(c, f.OrgID); err != nil {
			return err
		}
	}
	if w := within(c); w != "" {
		f.OrgID = string(w)
	}
	f.Limit = p.limit + 1
	if p.after != "" {
		f.After = subject.Subject{Kind: subject.User, ID: p.after}.String()
	}
	es, err := s.Store.Entries(c.Request().Context(), f)
	if err != nil {
		return err
	}
	var answer struct {
		Quotas []pgquota.View `json:"quotas"`
		Next   string         `json:"next_cursor"`
	}
	answer.Quotas, answer.Next = fill(p, es, pgquota.Entry.View, func(e pgquota.Entry) string { return e.Subject.ID })
	return c.JSON(http.StatusOK, answer)
}

// listOrgs lists all that have or had a pool, a user or a key.
func (s *server) listOrgs(c echo.Context) error {
	p, wrong := readPage(c, nil)
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	pools, err := s.Store.OrgPools(c.Request().Context(), string(within(c)), p.after, p.limit+1)
	if err != nil {
		return err
	}
	var answer struct {
		Orgs []orgView `json:"orgs"`
		Next string    `json:"next_cursor"`
	}
	answer.Orgs, answer.Next = fill(p, pools, viewOrg, func(o tier.Pool) string { return o.OrgID })
	return c.JSON(http.StatusOK, answer)
}

// refusalView is a row of the audit log as the API shows it.
type refusalView struct {
	ID        int64      `json:"id"`
	Instance  string     `json:"instance"`
	Reason    string     `json:"reason"`
	Actor     string     `json:"actor"`
	Address   string     `json:"address"`
	Method    string     `json:"method"`
	Path      string     `json:"path"`
	RequestID string     `json:"request_id"`
	Attempts  int64      `json:"attempts"`
	FirstAt   usage.Time `json:"first_at"`
	LastAt    usage.Time `json:"last_at"`
}

// listRefusals lists who tried what without the right, the newest first.
func (s *server) listRefusals(c echo.Context) error {
	p, wrong := readPage(c, nil)
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	rows, err := s.Store.Refusals(c.Request().Context(), p.version(), p.limit+1)
	if err != nil {
		return err
	}
	var answer struct {
		Refusals []refusalView `json:"refusals"`
		Next     string        `json:"next_cursor"`
	}
	answer.Refusals, answer.Next = fill(p, rows, func(r pgquota.Refusal) refusalView {
		return refusalView{r.ID, r.Instance, r.Reason, r.Actor, r.Address, r.Method, r.Path, r.RequestID, r.Attempts, usage.At(r.FirstAt), usage.At(r.LastAt)}
	}, func(r pgquota.Refusal) string { return strconv.FormatInt(r.ID, 10) })
	return c.JSON(http.StatusOK, answer)
}
