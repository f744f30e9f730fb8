// Package observe is what every service shows of itself: JSON logs, Prometheus metrics with labels from closed sets, OpenTelemetry traces
// where an OTLP endpoint is set, and the three endpoints /healthz (alive), /readyz (can do its job) and /metrics.
package observe

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewLogger makes a slog JSON logger whose every line names the service and the instance. An attribute that is nil, such as the error of what
// did not fail, is left out.
func NewLogger(w io.Writer, level slog.Level, service, instance string) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: withoutNil})).With("service", service, "instance", instance)
}

func withoutNil(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindAny && a.Value.Any() == nil {
		return slog.Attr{}
	}
	return a
}

// NewRegistry makes a registry with Go's and the process's own metrics.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Check is one thing readiness depends on. It must answer soon after its context ends.
type Check struct {
	Name string
	Ask  func(context.Context) error
}

// Once makes an Ask of a Check that passes for ever after ask has passed for the first time: what a service can do without for a while, but
// not begin without.
func Once(ask func(context.Context) error) func(context.Context) error {
	var passed atomic.Bool
	return func(ctx context.Context) error {
		if passed.Load() {
			return nil
		}
		err := ask(ctx)
		if err == nil {
			passed.Store(true)
		}
		return err
	}
}

// Health answers /healthz and /readyz. It begins not ready.
type Health struct {
	ready  atomic.Bool
	checks []Check
}

// NewHealth makes a Health that also asks the given checks at each /readyz.
func NewHealth(checks ...Check) *Health { return &Health{checks: checks} }

// SetReady opens or closes the service for traffic. Closing is the first act of a stop.
func (h *Health) SetReady(ready bool) { h.ready.Store(ready) }

// Mount adds the three endpoints to mux.
func (h *Health) Mount(mux *http.ServeMux, reg *prometheus.Registry) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, http.StatusOK, nil) })
	mux.HandleFunc("GET /readyz", h.Ready)
	mux.Handle("GET /metrics", MetricsHandler(reg))
}

// Ready answers 200 if the service is open and every check passes within 2 s, else 503 with the names of the failing ones. What
// went wrong is for the log: a probe needs no address or password.
func (h *Health) Ready(w http.ResponseWriter, r *http.Request) {
	if !h.ready.Load() {
		writeStatus(w, http.StatusServiceUnavailable, []string{"stopping or not started"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	var failing []string
	for _, c := range h.checks {
		if err := c.Ask(ctx); err != nil {
			failing = append(failing, c.Name)
		}
	}
	if len(failing) > 0 {
		writeStatus(w, http.StatusServiceUnavailable, failing)
		return
	}
	writeStatus(w, http.StatusOK, nil)
}

// MetricsHandler serves a registry.
func MetricsHandler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg})
}

func writeStatus(w http.ResponseWriter, code int, failing []string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	status := "ok"
	if code != http.StatusOK {
		status = "unavailable"
	}
	_ = json.NewEncoder(w).Encode(struct { // the prober has gone if this fails
		Status  string   `json:"status"`
		Failing []string `json:"failing,omitempty"`
	}{status, failing})
}

// HTTPMetrics counts and times requests by route template, method and status class.
type HTTPMetrics struct{ seconds *prometheus.HistogramVec }

// NewHTTPMetrics registers tollgate_http_request_seconds.
func NewHTTPMetrics(reg prometheus.Registerer) *HTTPMetrics {
	m := &HTTPMetrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tollgate_http_request_seconds",
		Help: "Time to answer a request, by route template.", Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, 1, 5}}, []string{"route", "method", "status"})}
	reg.MustRegister(m.seconds)
	return m
}

// Observe records one request, and names the span in ctx by it. route must be a template or "other", never a path; unknown methods become
// "other".
func (m *HTTPMetrics) Observe(ctx context.Context, route, method string, status int, d time.Duration) {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodPatch, http.MethodOptions:
	default:
		method = "other"
	}
	if route == "" {
		route = "other"
	}
	nameSpan(ctx, route, method, status)
	m.seconds.WithLabelValues(route, method, []string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"}[min(status/100, 5)]).Observe(d.Seconds())
}

// Recorder remembers the status that was sent, for Observe; 0 if none was.
type Recorder struct {
	http.ResponseWriter
	Status int
}

// WriteHeader implements http.ResponseWriter.
func (r *Recorder) WriteHeader(status int) {
	if r.Status == 0 {
		r.Status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(b []byte) (int, error) {
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Recover turns a handler's panic into a 500 by calling answer, and logs the stack.
func Recover(log *slog.Logger, answer func(http.ResponseWriter), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler { //nolint:errorlint // the sentinel is compared by identity, as net/http does
					panic(v) //nolint:forbidigo // net/http asks handlers to panic with it, and so do we
				}
				log.ErrorContext(r.Context(), "panic in a handler", "panic", v, "stack", string(debug.Stack()))
				answer(w)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
