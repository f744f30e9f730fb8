package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/redisload"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// Loads keeps the load that is reported.
type Loads interface {
	// Put returns once the report counts here; redisload.ErrUnknownGroup if no known model is in the group.
	Put(ctx context.Context, group string, load float64, ttl time.Duration) (redisload.Group, error)
	Now() []redisload.Group
}

var _ Loads = (*redisload.Loads)(nil)

// loadBody is PUT /internal/load. nil: the field was left out.
type loadBody struct {
	ModelGroup *string  `json:"model_group"`
	Load       *float64 `json:"load"`
	TTLMillis  *int64   `json:"ttl_ms"`
}

// report checks every field.
func (b loadBody) report() (group string, load float64, ttl time.Duration, err error) {
	var f faults
	if b.ModelGroup != nil {
		group = *b.ModelGroup
		if err := subject.ValidateID(group); err != nil {
			f.add("model_group", "%v", err)
		}
	}
	switch {
	case b.Load == nil:
		f.add("load", missing)
	case !(*b.Load >= 0 && *b.Load <= 1):
		f.add("load", "must be from 0 to 1, is %v", *b.Load)
	default:
		load = *b.Load
	}
	least, most := redisload.MinTTL.Milliseconds(), redisload.MaxTTL.Milliseconds()
	switch {
	case b.TTLMillis == nil:
		f.add("ttl_ms", missing)
	case *b.TTLMillis < least || *b.TTLMillis > most:
		f.add("ttl_ms", "must be from %d to %d, is %d", least, most, *b.TTLMillis)
	default:
		ttl = time.Duration(*b.TTLMillis) * time.Millisecond
	}
	return group, load, ttl, f.problem()
}

type loadAnswer struct {
	ModelGroup string     `json:"model_group"`
	Load       float64    `json:"load"`
	Level      float64    `json:"level"`
	ExpiresAt  usage.Time `json:"expires_at"`
	Shed       []share    `json:"shed"`
}

type share struct {
	Priority int64   `json:"priority"`
	Share    float64 `json:"share"`
}

func loadAnswerOf(g redisload.Group) loadAnswer {
	a := loadAnswer{ModelGroup: g.Name, Load: g.Load, Level: g.Level, ExpiresAt: instant(g.Until), Shed: []share{}}
	for _, t := range tier.Shipped() {
		a.Shed = append(a.Shed, share{t.Priority, math.Round(1000*shed.Share(g.Level, t.Priority)) / 1000})
	}
	return a
}

func (s *server) putLoad(w http.ResponseWriter, r *http.Request) error {
	var b loadBody
	if err := strictjson.Read(r, &b); err != nil {
		return err
	}
	group, load, ttl, err := b.report()
	if err != nil {
		return err
	}
	g, err := s.loads.Put(r.Context(), group, load, ttl)
	switch {
	case errors.Is(err, redisload.ErrUnknownGroup):
		return problem.Invalid(problem.FieldError{Field: "model_group", Detail: group + " is not the group of a known model (TOLLGATE_MODELS, TOLLGATE_MODEL_GROUPS)"})
	case err != nil:
		return problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "The load could not be kept; what was reported before counts until its time ends. Repeat the call.").Because(err)
	}
	return writeJSON(w, loadAnswerOf(g))
}

func (s *server) getLoad(w http.ResponseWriter, _ *http.Request) error {
	out := struct {
		Loads []loadAnswer `json:"loads"`
	}{[]loadAnswer{}}
	for _, g := range s.loads.Now() {
		out.Loads = append(out.Loads, loadAnswerOf(g))
	}
	return writeJSON(w, out)
}

// mountLoad adds the two calls of /internal/load.
func (s *server) mountLoad(mux *http.ServeMux) {
	const path = "/internal/load"
	mux.Handle(http.MethodPut+" "+path, s.route(path, s.authorised(whoever(s.putLoad), auth.Service)))
	mux.Handle(http.MethodGet+" "+path, s.route(path, s.authorised(whoever(s.getLoad), auth.Service, auth.Admin)))
	mux.Handle(path, s.route(path, s.authorised(whoever(methodNotAllowed(http.MethodGet+", "+http.MethodPut)), auth.Service, auth.Admin)))
}
