package observe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestSpanContinuesTheCallersTraceAndNamesNobody(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	tr := newTracer(sdktrace.SpanProcessor(rec), "enforcement", "i1")
	m := NewHTTPMetrics(NewRegistry())
	h := tr.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		m.Observe(r.Context(), "/status/user/{user_id}", r.Method, 503, time.Millisecond)
	}))
	r := httptest.NewRequest(http.MethodGet, "/status/user/canary?x=canary", nil)
	r.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	r.Header.Set("Authorization", "Bearer canary")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := rec.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans", len(spans))
	}
	s := spans[0]
	if s.Name() != "GET /status/user/{user_id}" || s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || s.Status().Description == "" {
		t.Errorf("%s %s %+v", s.Name(), s.SpanContext().TraceID(), s.Status())
	}
	if all := fmt.Sprintf("%+v %+v", s.Attributes(), s.Name()); strings.Contains(all, "canary") {
		t.Errorf("the span tells who asked: %s", all)
	}
}

func TestWithoutAnEndpointNothingIsTraced(t *testing.T) {
	tr, err := NewTracer(t.Context(), "", "s", "i")
	if err != nil || tr != nil {
		t.Fatal(tr, err)
	}
	h := http.NewServeMux()
	if tr.Wrap(h) != http.Handler(h) {
		t.Error("a handler was wrapped")
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
