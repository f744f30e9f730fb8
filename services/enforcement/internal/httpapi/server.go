package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// Engine decides, settles and tells what is left.
type Engine interface {
	Check(ctx context.Context, r decide.Request) (decide.Answer, error)
	Consume(ctx context.Context, r decide.Draw) (decide.Drawn, error)
	Record(ctx context.Context, u decide.Used) (decide.Recorded, error)
	Status(ctx context.Context, s subject.Subject) (decide.Status, error)
	Adjust(ctx context.Context, a decide.Adjustment) (uuid.UUID, error)
}

var _ Engine = (*decide.Engine)(nil)

// Options are what the API is made of. All are required but Log and Peer.
type Options struct {
	Engine   Engine
	Loads    Loads
	Peer     func(w http.ResponseWriter, r *http.Request) error // answers other instances, at PeerPath; nobody if nil
	PeerPath string
	Tokens   auth.Tokens
	Models   []string // names that may become metric labels
	Health   *observe.Health
	Registry *prometheus.Registry
	Log      *slog.Logger
}

type server struct {
	engine  Engine
	loads   Loads
	tokens  auth.Tokens
	log     *slog.Logger
	m       *metrics
	http    *observe.HTTPMetrics
	handler http.Handler
}

// New makes the handler of the whole API.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{engine: o.Engine, loads: o.Loads, tokens: o.Tokens, log: o.Log, m: newMetrics(o.Registry, o.Models), http: observe.NewHTTPMetrics(o.Registry)}
	mux := http.NewServeMux()
	o.Health.Mount(mux, o.Registry)
	for _, open := range []string{"/healthz", "/readyz", "/metrics"} {
		mux.Handle(open, s.route(open, methodNotAllowed(http.MethodGet)))
	}
	for _, r := range []struct {
		method, template string
		role             auth.Role
		h                grantedFunc
	}{
		{http.MethodPost, "/internal/rate-limit/check", auth.Service, whoever(s.check)},
		{http.MethodPost, "/internal/rate-limit/consume", auth.Service, whoever(s.consume)},
		{http.MethodPost, "/internal/rate-limit/record", auth.Service, whoever(s.record)},
		{http.MethodGet, "/internal/rate-limit/status/user/{user_id}", auth.Service, whoever(s.userStatus)},
		{http.MethodGet, "/internal/rate-limit/status/api_key/{key_id}", auth.Service, whoever(s.keyStatus)},
		{http.MethodPost, "/internal/adjustments", auth.Admin, s.adjust},
	} {
		mux.Handle(r.method+" "+r.template, s.route(r.template, s.authorised(r.h, r.role)))
		mux.Handle(r.template, s.route(r.template, s.authorised(whoever(methodNotAllowed(r.method)), r.role)))
	}
	s.mountLoad(mux)
	if o.Peer != nil {
		mux.Handle(http.MethodPost+" "+o.PeerPath, s.route(o.PeerPath, s.authorised(whoever(o.Peer), auth.Instance)))
		mux.Handle(o.PeerPath, s.route(o.PeerPath, s.authorised(whoever(methodNotAllowed(http.MethodPost)), auth.Instance)))
	}
	for _, p := range []string{"/internal", "/internal/"} { // without the first the mux would redirect to the second
		mux.Handle(p, s.route("other", s.authorised(whoever(notFound), auth.Service, auth.Admin)))
	}
	mux.Handle("/", s.route("other", notFound))
	s.handler = mux
	return s
}

// ServeHTTP answers a path that is not in its canonical form with 404; the mux would redirect it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p := r.URL.EscapedPath(); path.Clean(p) != p {
		s.route("other", s.authorised(whoever(notFound), auth.Service, auth.Admin)).ServeHTTP(w, r)
		return
	}
	s.handler.ServeHTTP(w, r)
}

// handlerFunc answers, or returns why it can't.
type handlerFunc func(w http.ResponseWriter, r *http.Request) error

// grantedFunc is a handlerFunc that is told who calls.
type grantedFunc func(w http.ResponseWriter, r *http.Request, g auth.Grant) error

// whoever makes a grantedFunc of a handler to which the caller's name is nothing.
func whoever(h handlerFunc) grantedFunc {
	return func(w http.ResponseWriter, r *http.Request, _ auth.Grant) error { return h(w, r) }
}

// route gives a request its id, counts it by the route's template, and turns what the handler returns into a problem document.
func (s *server) route(template string, h handlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start, rec := time.Now(), &observe.Recorder{ResponseWriter: w}
		id := requestID(r)
		rec.Header().Set("X-Request-Id", id)
		log := s.log.With("request_id", id)
		fail := func(w http.ResponseWriter, err error) {
			p := *problem.From(err)
			p.RequestID = id
			switch {
			case p.Status == http.StatusServiceUnavailable:
				log.WarnContext(r.Context(), "request not served", "route", template, "status", p.Status, "err", err)
			case p.Status >= http.StatusInternalServerError:
				log.ErrorContext(r.Context(), "request failed", "route", template, "status", p.Status, "err", err)
			}
			problem.Write(w, &p)
		}
		guarded := observe.Recover(log, func(w http.ResponseWriter) { fail(w, errors.New("a handler panicked")) },
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := h(w, r); err != nil {
					fail(w, err)
				}
			}))
		guarded.ServeHTTP(rec, r)
		s.http.Observe(r.Context(), template, r.Method, rec.Status, time.Since(start))
		log.DebugContext(r.Context(), "request", "route", template, "status", rec.Status, "ms", time.Since(start).Milliseconds())
	})
}

// authorised lets only bearers of a token of one of the roles through. A known one of another role is logged by its name; a token never is.
func (s *server) authorised(h grantedFunc, roles ...auth.Role) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		g, ok := s.tokens.Find(auth.Bearer(r))
		switch {
		case !ok:
			return problem.New(http.StatusUnauthorized, problem.CodeUnauthorized, "Send the "+string(roles[0])+" token: Authorization: Bearer <token>.")
		case !slices.Contains(roles, g.Role):
			s.log.WarnContext(r.Context(), "refused", "reason", problem.CodeForbidden, "actor", g.Name, "route", r.Pattern, "request_id", w.Header().Get("X-Request-Id"))
			return problem.New(http.StatusForbidden, problem.CodeForbidden, "This token's role does not allow that.")
		}
		return h(w, r, g)
	}
}

func notFound(http.ResponseWriter, *http.Request) error {
	return problem.New(http.StatusNotFound, problem.CodeNotFound, "There is nothing at this path.")
}

func methodNotAllowed(allowed string) handlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Allow", allowed)
		return problem.New(http.StatusMethodNotAllowed, problem.CodeMethodNotAllowed, "This path takes "+allowed+" only.")
	}
}

// requestID takes the caller's X-Request-Id if it can stand in a log and a header, else makes one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); subject.ValidateID(id) == nil {
		return id
	}
	return uuid.Must(uuid.NewV7()).String()
}

func writeJSON(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(b, '\n')) // the caller has gone if this fails
	return nil
}

// failure maps an engine's error. unavailable is the public text for what may be repeated.
func failure(err error, unavailable string) error {
	switch {
	case errors.Is(err, decide.ErrUnsendable):
		return problem.New(http.StatusInternalServerError, problem.CodeInternal,
			"The usage is settled, but Kafka refuses its event. It is kept aside for the operator; do not repeat the record.").Because(err)
	case errors.Is(err, decide.ErrSpool):
		unavailable = "The usage is settled, but its event is not durable yet: Kafka is away and the local spool takes no more. " +
			"Repeat the record with the same request_id: it is charged and billed once."
		fallthrough
	case errors.Is(err, decide.ErrUnavailable):
		return problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, unavailable).Because(err)
	}
	return err
}

func pathSubject(r *http.Request, kind subject.Kind, name string) (subject.Subject, error) {
	id := r.PathValue(name)
	if err := subject.ValidateID(id); err != nil {
		return subject.Subject{}, problem.Invalid(problem.FieldError{Field: name, Detail: err.Error()})
	}
	return subject.Subject{Kind: kind, ID: id}, nil
}

// headerName turns a dimension into the last part of its header's name: tokens_1m into Tokens-1m.
func headerName(dimension string) string {
	parts := strings.Split(dimension, "_")
	for i, p := range parts {
		parts[i] = strings.ToUpper(p[:1]) + p[1:]
	}
	return strings.Join(parts, "-")
}
