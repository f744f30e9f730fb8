package observe

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracer makes a span for each request and sends it to an OTLP endpoint over HTTP. A nil Tracer does nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// NewTracer exports to endpoint, a URL like http://collector:4318; without one it returns nil. An endpoint that is away costs spans, never
// requests.
func NewTracer(ctx context.Context, endpoint, service, instance string) (*Tracer, error) {
	if endpoint == "" {
		return nil, nil //nolint:nilnil // a nil Tracer is one that does nothing
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimSuffix(endpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("trace to %s: %w", endpoint, err)
	}
	return newTracer(sdktrace.NewBatchSpanProcessor(exporter), service, instance), nil
}

func newTracer(p sdktrace.SpanProcessor, service, instance string) *Tracer {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p), sdktrace.WithResource(resource.NewSchemaless(
		attribute.String("service.name", service), attribute.String("service.instance.id", instance))))
	return &Tracer{provider, provider.Tracer("github.com/tollgate-dev/tollgate")}
}

// Wrap puts a server span around each request, as a child of the caller's (W3C traceparent). HTTPMetrics.Observe names it by the route
// template. It is not otelhttp's because that notes the path, and ours hold user ids.
func (t *Tracer) Wrap(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, "http", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Close sends what is left.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

func nameSpan(ctx context.Context, route, method string, status int) {
	span := trace.SpanFromContext(ctx)
	span.SetName(method + " " + route)
	span.SetAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route), attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
}
