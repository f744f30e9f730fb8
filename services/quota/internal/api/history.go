package api

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// readAt reads the instant that is asked for; nil: now. Nobody knows what will be.
func readAt(c echo.Context) (*time.Time, []problem.FieldError) {
	var at *time.Time
	wrong := params{"at": func(v string) error {
		t, err := usage.ParseInstant(v)
		switch {
		case err != nil:
			return err
		case t.After(time.Now().Add(time.Minute)): // clocks differ
			return errors.New("must not lie in the future")
		}
		at = &t
		return nil
	}}.read(c.QueryParams())
	return at, wrong
}

// eventView is one change as the API shows it. Before and after are what was stored: own limits, not the tier's.
type eventView[S any] struct {
	Version int64      `json:"version"`
	At      usage.Time `json:"at"`
	Actor   string     `json:"actor"`
	Reason  string     `json:"reason"`
	Before  *S         `json:"before"`
	After   *S         `json:"after"`
}

type eventPage[S any] struct {
	Events []eventView[S] `json:"events"`
	Next   string         `json:"next_cursor"`
}

// events answers with a page of a name's history. w: what of other orgs it tells is left out.
func (s *server) events(c echo.Context, p page, name string, w pgquota.Within) error {
	es, err := s.Store.EventsWithin(c.Request().Context(), name, string(w), p.version(), p.limit+1)
	if err != nil {
		return err
	}
	return answerEvents(c, p, es, w)
}

func answerEvents(c echo.Context, p page, es []pgquota.Event, w pgquota.Within) error {
	ours := func(st *pgquota.State) *pgquota.State {
		if st != nil && w.Holds(st.OrgID) != nil {
			return nil
		}
		return st
	}
	var answer eventPage[pgquota.State]
	answer.Events, answer.Next = fill(p, es, func(e pgquota.Event) eventView[pgquota.State] {
		return eventView[pgquota.State]{e.Version, usage.At(e.At), e.Actor, e.Reason, ours(e.Before), ours(e.After)}
	}, func(e pgquota.Event) string { return strconv.FormatInt(e.Version, 10) })
	return c.JSON(http.StatusOK, answer)
}

func (s *server) quotaEvents(c echo.Context) error {
	id, err := pathID(c, "user_id")
	if err != nil {
		return err
	}
	p, wrong := readPage(c, nil)
	if wrong = append(checkID("user_id", id), wrong...); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	e, err := s.userEntry(c, id)
	if err != nil {
		return err
	}
	return s.events(c, p, e.Subject.String(), within(c))
}

// keyEvents shows a key's whole history to its org, for an owner never changes; but of a user's key, to an org-admin, what was while the user was
// in the org.
func (s *server) keyEvents(c echo.Context) error {
	e, err := s.keyEntry(c)
	if err != nil {
		return err
	}
	p, wrong := readPage(c, nil)
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	if w := within(c); w != "" && e.Key.UserID != "" {
		user := subject.Subject{Kind: subject.User, ID: e.Key.UserID}
		es, err := s.Store.KeyEventsWithin(c.Request().Context(), e.Subject, user, string(w), p.version(), p.limit+1)
		if err != nil {
			return err
		}
		return answerEvents(c, p, es, "")
	}
	return s.events(c, p, e.Subject.String(), "")
}

func (s *server) orgEvents(c echo.Context) error {
	id, err := pathID(c, "org_id")
	if err != nil {
		return err
	}
	p, wrong := readPage(c, nil)
	if wrong = append(checkID("org_id", id), wrong...); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	if err := inOrg(c, id); err != nil {
		return err
	}
	return s.events(c, p, tier.OrgName(id), "")
}

func (s *server) tierEvents(c echo.Context) error {
	name, err := pathID(c, "tier")
	if err != nil {
		return err
	}
	p, wrong := readPage(c, nil)
	if wrong = append(checkID("tier", name), wrong...); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	es, err := s.Store.TierEvents(c.Request().Context(), name, p.version(), p.limit+1)
	if err != nil {
		return err
	}
	var answer eventPage[pgquota.TierState]
	answer.Events, answer.Next = fill(p, es, func(e pgquota.TierEvent) eventView[pgquota.TierState] {
		after := pgquota.StateOfTier(e.After)
		v := eventView[pgquota.TierState]{Version: e.Version, At: usage.At(e.At), Actor: e.Actor, Reason: e.Reason, After: &after}
		if e.Before != nil {
			before := pgquota.StateOfTier(*e.Before)
			v.Before = &before
		}
		return v
	}, func(e pgquota.TierEvent) string { return strconv.FormatInt(e.Version, 10) })
	return c.JSON(http.StatusOK, answer)
}
