package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/quota/internal/attempts"
	"github.com/tollgate-dev/tollgate/services/quota/internal/refusallog"
)

// callTimeout bounds what one call may take of Postgres; publication to Redis comes on top.
const callTimeout = 10 * time.Second

// Store is what the API needs of Postgres.
type Store interface {
	Entry(ctx context.Context, s subject.Subject) (pgquota.Entry, error)
	PutQuota(ctx context.Context, c pgquota.Change) (pgquota.QuotaResult, error)
	Tier(ctx context.Context, name string) (tier.Tier, error)
	Tiers(ctx context.Context) ([]tier.Tier, error)
	PutTier(ctx context.Context, c pgquota.TierChange) (pgquota.TierResult, error)
	Org(ctx context.Context, orgID string) (tier.Pool, error)
	PutOrg(ctx context.Context, c pgquota.OrgChange) (pgquota.OrgResult, error)
	DeleteOrg(ctx context.Context, c pgquota.OrgChange) (pgquota.OrgResult, error)
	CreateKey(ctx context.Context, n pgquota.NewKey) (pgquota.QuotaResult, error)
	RotateKey(ctx context.Context, c pgquota.KeyChange, secret pgquota.Secret) (pgquota.QuotaResult, error)
	RevokeKey(ctx context.Context, c pgquota.KeyChange) (pgquota.QuotaResult, error)
	Keys(ctx context.Context, f pgquota.KeyFilter) ([]pgquota.ListedKey, error)
	Prices(ctx context.Context, model string) (pgquota.Book, error)
	PriceBook(ctx context.Context) ([]pgquota.Book, error)
	PriceEvents(ctx context.Context, model string, after int64, limit int) ([]pgquota.PriceEvent, error)
	PutPrice(ctx context.Context, c pgquota.PriceChange) (pgquota.PriceResult, error)
	Lists
	History
	Tokens
}

// Lists are pages of what there is.
type Lists interface {
	Entries(ctx context.Context, f pgquota.Filter) ([]pgquota.Entry, error)
	OrgPools(ctx context.Context, one, after string, limit int) ([]tier.Pool, error)
	Refusals(ctx context.Context, before int64, limit int) ([]pgquota.Refusal, error)
}

// History tells what was.
type History interface {
	EventsWithin(ctx context.Context, name, orgID string, after int64, limit int) ([]pgquota.Event, error)
	KeyEventsWithin(ctx context.Context, key, user subject.Subject, orgID string, after int64, limit int) ([]pgquota.Event, error)
	TierEvents(ctx context.Context, name string, after int64, limit int) ([]pgquota.TierEvent, error)
	EntryAt(ctx context.Context, s subject.Subject, at time.Time) (pgquota.Entry, error)
	OrgAt(ctx context.Context, orgID string, at time.Time) (tier.Pool, error)
	Fences(ctx context.Context, names []string) ([]pgquota.Fence, error)
}

// Tokens are the credentials that are not in the environment.
type Tokens interface {
	KeyOf(ctx context.Context, secret string) (pgquota.ListedKey, error)
	TokenOf(ctx context.Context, token string) (pgquota.AdminToken, error)
	Token(ctx context.Context, name string) (pgquota.AdminToken, error)
	AdminTokens(ctx context.Context, after string, limit int) ([]pgquota.AdminToken, error)
	CreateToken(ctx context.Context, n pgquota.NewToken) (pgquota.AdminToken, error)
	RevokeToken(ctx context.Context, name, actor string) (pgquota.AdminToken, error)
}

var _ Store = (*pgquota.Store)(nil)

// Publisher makes committed changes known to Redis before a PUT answers. An error: not now, but later.
type Publisher interface {
	Publish(ctx context.Context, fences []pgquota.Fence) error
}

// slowPlaces is how many callers from addresses with too many failed attempts may have their tokens looked up at once.
const slowPlaces = 2

// Config is what the API is made of. Committed is called after each change.
type Config struct {
	Store     Store
	Publisher Publisher
	Committed func()
	Tokens    auth.Tokens // of the environment
	Proxies   attempts.Proxies
	Attempts  *attempts.Limiter
	Refusals  *refusallog.Log
	Health    *observe.Health
	Registry  *prometheus.Registry
	Log       *slog.Logger
}

type server struct {
	Config
	http    *observe.HTTPMetrics
	changes *prometheus.CounterVec
	refused *prometheus.CounterVec
	routes  map[string]bool // templates
	methods map[string]bool
	slow    chan struct{}

	operations map[string]bool // "GET /internal/tiers": what is served
}

// New makes the handler of the whole port: probes and API.
func New(cfg Config) http.Handler {
	s := &server{Config: cfg, http: observe.NewHTTPMetrics(cfg.Registry), routes: map[string]bool{}, methods: map[string]bool{}, operations: map[string]bool{},
		slow: make(chan struct{}, slowPlaces),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_quota_changes_total",
			Help: "Answered changes by kind and by how far the change has come: done, pending, unchanged."}, []string{"kind", "result"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_quota_refused_total",
			Help: "Calls refused for want of a right, by reason."}, []string{"reason"})}
	cfg.Registry.MustRegister(s.changes, s.refused)
	for _, kind := range []string{pgquota.KindQuota, pgquota.KindTier, kindKey, kindOrg, pgquota.KindPrice} {
		for _, result := range []string{"done", "pending", "unchanged"} {
			s.changes.WithLabelValues(kind, result)
		}
	}

	e := echo.New()
	e.HTTPErrorHandler = s.fail
	e.Use(s.frame, s.access)
	read := []string{http.MethodGet, http.MethodHead}
	e.Match(read, "/internal/quota/:user_id", s.getQuota)
	e.PUT("/internal/quota/:user_id", s.putQuota)
	e.Match(read, "/internal/tiers", s.listTiers)
	e.Match(read, "/internal/tiers/:tier", s.getTier)
	e.PUT("/internal/tiers/:tier", s.putTier)
	e.Match(read, "/internal/prices", s.listPrices)
	e.Match(read, "/internal/prices/:model", s.getPrices)
	e.PUT("/internal/prices/:model", s.putPrice)
	e.Match(read, "/internal/orgs/:org_id/quota", s.getOrg)
	e.PUT("/internal/orgs/:org_id/quota", s.putOrg)
	e.DELETE("/internal/orgs/:org_id/quota", s.deleteOrg)
	e.Match(read, "/internal/api-keys", s.listKeys)
	e.POST("/internal/api-keys", s.postKey)
	e.Match(read, "/internal/api-keys/:key_id", s.getKey)
	e.DELETE("/internal/api-keys/:key_id", s.deleteKey)
	e.Match(read, "/internal/api-keys/:key_id/quota", s.getKeyQuota)
	e.PUT("/internal/api-keys/:key_id/quota", s.putKeyQuota)
	e.POST("/internal/api-keys/:key_id/rotate", s.rotateKey)
	e.Match(read, "/internal/quota/:user_id/events", s.quotaEvents)
	e.Match(read, "/internal/quotas", s.listQuotas)
	e.Match(read, "/internal/tiers/:tier/events", s.tierEvents)
	e.Match(read, "/internal/prices/:model/events", s.priceEvents)
	e.Match(read, "/internal/orgs", s.listOrgs)
	e.Match(read, "/internal/orgs/:org_id/quota/events", s.orgEvents)
	e.Match(read, "/internal/api-keys/:key_id/events", s.keyEvents)
	e.Match(read, "/internal/admin-tokens", s.listTokens)
	e.POST("/internal/admin-tokens", s.postToken)
	e.DELETE("/internal/admin-tokens/:name", s.deleteToken)
	e.Match(read, "/internal/refusals", s.listRefusals)
	for _, r := range e.Routes() {
		s.routes[r.Path], s.methods[r.Method], s.operations[r.Method+" "+r.Path] = true, true, true
	}

	probes := http.NewServeMux()
	cfg.Health.Mount(probes, cfg.Registry)
	recovering := observe.Recover(cfg.Log, func(w http.ResponseWriter) {
		problem.Write(w, problem.New(http.StatusInternalServerError, problem.CodeInternal, "Something went wrong on our side."))
	}, e)
	// No ServeMux in front of echo: it would redirect paths with // or .. in an id before anybody has asked who is calling.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/metrics":
			probes.ServeHTTP(w, r)
		default:
			recovering.ServeHTTP(w, r)
		}
	})
}

// frame goes around every call: headers, a deadline, one log line, one observation.
func (s *server) frame(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start, r := time.Now(), c.Request()
		id := r.Header.Get("X-Request-Id")
		if subject.ValidateID(id) != nil {
			id = uuid.NewString()
		}
		h := c.Response().Header()
		h.Set("X-Request-Id", id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		c.SetRequest(r.WithContext(ctx))

		err := next(c)
		if err != nil {
			c.Error(err)
		}
		route, status, took := c.Path(), c.Response().Status, time.Since(start)
		if !s.routes[route] {
			route = ""
		}
		s.http.Observe(r.Context(), route, r.Method, status, took)
		level := slog.LevelInfo
		attrs := []slog.Attr{slog.String("request_id", id), slog.String("method", r.Method), slog.String("path", cut(r.URL.Path)),
			slog.Int("status", status), slog.Float64("ms", float64(took.Microseconds())/1000), slog.String("actor", actor(c))}
		if err != nil && status >= http.StatusInternalServerError {
			level = slog.LevelError
			attrs = append(attrs, slog.Any("err", err))
		}
		s.Log.LogAttrs(ctx, level, "request", attrs...)
		return nil
	}
}

// fail is where failures become HTTP.
func (s *server) fail(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	switch {
	case errors.Is(err, pgquota.ErrOutside):
		s.refuse(c, reasonOutside)
	case errors.As(err, new(*pgquota.Beyond)):
		s.refuse(c, reasonForbidden)
	}
	p := asProblem(err)
	p.RequestID = c.Response().Header().Get("X-Request-Id")
	problem.Write(c.Response(), p)
}

func asProblem(err error) *problem.Problem {
	var he *echo.HTTPError
	var vm *pgquota.VersionMismatch
	switch {
	case errors.As(err, &he) && he.Code == http.StatusNotFound:
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "There is nothing at this path.")
	case errors.As(err, &he) && he.Code == http.StatusMethodNotAllowed:
		return problem.New(http.StatusMethodNotAllowed, problem.CodeMethodNotAllowed, "This path does not know that method; Allow names those it knows.")
	case errors.As(err, &vm):
		return mismatch(vm)
	case errors.Is(err, pgquota.ErrKeyMissing):
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "There is no such API key.")
	case errors.Is(err, pgquota.ErrKeyRevoked):
		return problem.New(http.StatusConflict, problem.CodeConflict, "The API key is revoked, for good. Make another one.")
	case errors.Is(err, pgquota.ErrOutside):
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "There is no such thing in your org.")
	case errors.Is(err, pgquota.ErrTokenMissing):
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "There is no such admin token.")
	case errors.Is(err, pgquota.ErrTokenNameTaken):
		return problem.New(http.StatusConflict, problem.CodeConflict, "There was an admin token of that name before. Names are never used again: histories know people by them.")
	case errors.Is(err, pgquota.ErrUnknownThen):
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "The history does not reach back to that instant.")
	case errors.Is(err, pgquota.ErrOnceOtherRequest):
		return problem.New(http.StatusUnprocessableEntity, problem.CodeIdempotencyReused, "Another request came with this Idempotency-Key before. Take a new one for each request.")
	}
	var beyond *pgquota.Beyond
	if errors.As(err, &beyond) {
		p := problem.New(http.StatusForbidden, problem.CodeForbidden, "That is beyond what an org-admin may change.")
		p.Errors = fieldErrors(beyond.Err)
		return p
	}
	if fields := fieldErrors(err); len(fields) > 0 {
		return problem.Invalid(fields...)
	}
	var p *problem.Problem
	if !errors.As(err, &p) && pgquota.Unavailable(err) {
		return problem.New(http.StatusServiceUnavailable, problem.CodeUnavailable, "The quota store can't be reached. The call may be repeated.").Because(err)
	}
	p = problem.From(err)
	clone := *p // it is about to get this call's request_id
	return &clone
}
