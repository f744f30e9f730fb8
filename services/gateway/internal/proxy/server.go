package proxy

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// Identities tells who a request is of. Confirm holds that against the version of the quota by which a decision was made.
type Identities interface {
	Find(ctx context.Context, token string) (identity.Identity, error)
	Confirm(ctx context.Context, token string, id identity.Identity, version int64) error
}

var _ Identities = identity.Finder{}

// Enforcement decides.
type Enforcement interface {
	Reserve(ctx context.Context, r client.CheckRequest) (*client.Reservation, error)
	Consume(ctx context.Context, r client.ConsumeRequest) (client.Draw, error)
	Record(ctx context.Context, r client.RecordRequest) (client.Receipt, error)
	UserStatus(ctx context.Context, userID string) (client.Status, error)
	KeyStatus(ctx context.Context, keyID string) (client.Status, error)
}

var _ Enforcement = (*client.Enforcement)(nil)

// Counter counts tokens.
type Counter interface {
	Count(kind tokens.Kind, model string, text []byte) (tokens.Counted, error)
	NewText(model string) *tokens.Text
}

var _ Counter = (*tokens.Counter)(nil)

// Options are what a Server is made of. Identities, Enforcement, Counter, Upstream, Health, Registry are required.
type Options struct {
	Identities  Identities
	Enforcement Enforcement
	Counter     Counter
	Dialect     dialect.Dialect // of the headers; dialect.Tollgate if empty

	Upstream       *url.URL // without /v1
	UpstreamKey    string   // its credential; none if empty
	Transport      http.RoundTripper
	ForwardHeaders []string // of requests, beside those that are handed on anyway

	Models      []string         // that may be metric labels
	MaxOutput   map[string]int64 // tokens, by model; no bound for others
	Predicted   int64            // output tokens of a request that sets no limit; 1,024 if 0
	MaxBody     int64            // bytes; 20 MiB if 0
	MaxBodies   int64            // bytes of all bodies together; of one subject's, a quarter of it, or MaxBody if that is more; 512 MiB if 0
	MaxAnswer   int64            // bytes of an answer that is no stream; 64 MiB if 0
	BodyWait    time.Duration    // for a request's body; 2 min if 0
	HeaderWait  time.Duration    // for the server's header; 10 min if 0
	IdleWait    time.Duration    // for the next bytes of an answer; 2 min if 0
	Stall       time.Duration    // for a client that doesn't read; 1 min if 0
	SettleFirst time.Duration    // how long an answer's end waits for its settlement; 1 s if 0

	LostAfter time.Duration // until a check whose answer was lost has been made or not; 3 s if 0

	Health   *observe.Health
	Registry *prometheus.Registry
	Log      *slog.Logger
}

// Server is the gateway's HTTP API.
type Server struct {
	o       Options
	m       *metrics
	http    *observe.HTTPMetrics
	mux     *http.ServeMux
	bodies  *bodies
	pending pending // requests, and settlements
}

// New makes the handler.
func New(o Options) *Server {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.BodyWait, 2*time.Minute)
	def(&o.HeaderWait, 10*time.Minute)
	def(&o.IdleWait, 2*time.Minute)
	def(&o.Stall, time.Minute)
	def(&o.SettleFirst, time.Second)
	def(&o.LostAfter, 3*time.Second)
	if o.Predicted == 0 {
		o.Predicted = 1024
	}
	if o.MaxBody == 0 {
		o.MaxBody = 20 << 20
	}
	if o.MaxBodies == 0 {
		o.MaxBodies = max(512<<20, o.MaxBody)
	}
	if o.MaxAnswer == 0 {
		o.MaxAnswer = 64 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport
	}
	s := &Server{o: o, m: newMetrics(o.Registry, o.Models), http: observe.NewHTTPMetrics(o.Registry), mux: http.NewServeMux(), bodies: newBodies(o.MaxBodies, o.MaxBody)}
	o.Health.Mount(s.mux, o.Registry)
	s.route("/v1/chat/completions", http.MethodPost, s.generate(tokens.Chat))
	s.route("/v1/completions", http.MethodPost, s.generate(tokens.Completion))
	s.route("/v1/embeddings", http.MethodPost, s.generate(tokens.Embedding))
	s.route("/v1/models", http.MethodGet, s.models)
	s.mux.Handle("/", s.handle("other", notFound))
	return s
}

// limits writes a decision's limits.
func (s *Server) limits(h http.Header, d client.Decision) {
	maps.Copy(h, s.o.Dialect.Headers(d, time.Now()))
}

// Wait returns when no request runs any more and all are settled, or when ctx ends.
func (s *Server) Wait(ctx context.Context) error { return s.pending.Wait(ctx) }

// ServeHTTP answers a path that is not in its canonical form with 404; the mux would redirect it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p := r.URL.EscapedPath(); path.Clean(p) != p {
		s.handle("other", notFound).ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// exchange is one request being answered.
type exchange struct {
	w       *observe.Recorder
	r       *http.Request
	id      uuid.UUID
	log     *slog.Logger
	arrived time.Time
	token   string
	who     identity.Identity
	body    held   // its memory
	model   string // that was asked for; "" until it is known
	outcome string
	alive   time.Time // when the client was last given its time to read
}

// restWithin bounds how long an error waits for the rest of a body that nobody has read: net/http reads on before it answers.
const restWithin = time.Second

func (x *exchange) awaitBody(d time.Duration) {
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(d)) // without deadlines the server's own apply
}

type handlerFunc func(x *exchange) error

func (s *Server) route(template, method string, h handlerFunc) {
	s.mux.Handle(method+" "+template, s.handle(template, s.identified(h)))
	s.mux.Handle(template, s.handle(template, func(x *exchange) error {
		x.w.Header().Set("Allow", method)
		return refusedAs(http.StatusMethodNotAllowed, "method_not_allowed", "This path takes "+method+" only.")
	}))
}

func notFound(*exchange) error {
	return refusedAs(http.StatusNotFound, "not_found", "There is nothing at this path.")
}

// handle gives a request its id, which is also its id in bills and hence never the client's, counts it, and answers what the handler returns.
func (s *Server) handle(template string, h handlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{w: &observe.Recorder{ResponseWriter: w}, r: r, id: uuid.Must(uuid.NewV7()), arrived: time.Now(), outcome: outcomeCompleted}
		x.log = s.o.Log.With("request_id", x.id.String())
		x.w.Header().Set("X-Request-Id", x.id.String())
		s.alive(x)
		if r.Body != http.NoBody {
			x.awaitBody(s.o.BodyWait)
		}
		defer func() {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the connection's next request has its own
			s.http.Observe(r.Context(), template, r.Method, x.w.Status, time.Since(x.arrived))
			if template != "other" {
				s.m.requests.WithLabelValues(s.m.label(x.model), x.outcome).Inc()
			}
			x.log.DebugContext(r.Context(), "request", "route", template, "status", x.w.Status, "outcome", x.outcome, "ms", time.Since(x.arrived).Milliseconds())
		}()
		answer := func(err error) {
			e := asAPIError(err)
			x.outcome = e.outcome
			if e.Status >= http.StatusInternalServerError {
				x.log.WarnContext(r.Context(), "request not served", "route", template, "status", e.Status, "code", e.Code, "err", e.cause)
			}
			if x.w.Status != 0 { // too late for an answer: the client must not take what it has for a whole one
				panic(http.ErrAbortHandler) //nolint:forbidigo // net/http asks handlers to panic with it
			}
			if e.limits != nil {
				s.limits(x.w.Header(), *e.limits)
			}
			x.awaitBody(restWithin)
			s.alive(x)
			e.Write(x.w)
		}
		observe.Recover(x.log, func(http.ResponseWriter) { answer(errPanicked) }, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if err := h(x); err != nil {
				answer(err)
			}
		})).ServeHTTP(x.w, r)
	})
}
