package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadyOnlyWhileOpenAndEveryCheckPasses(t *testing.T) {
	var fail error
	h := NewHealth(Check{"redis", func(context.Context) error { return fail }})
	mux := http.NewServeMux()
	h.Mount(mux, NewRegistry())
	if code, _ := get(t, mux, "/readyz"); code != 503 {
		t.Errorf("before SetReady: %d", code)
	}
	h.SetReady(true)
	if code, _ := get(t, mux, "/readyz"); code != 200 {
		t.Errorf("open: %d", code)
	}
	fail = errors.New("dial 10.0.0.1: hunter2")
	if code, body := get(t, mux, "/readyz"); code != 503 || !strings.Contains(body, "redis") || strings.Contains(body, "hunter2") {
		t.Errorf("a failing check: %d %s", code, body)
	}
	if code, _ := get(t, mux, "/healthz"); code != 200 {
		t.Errorf("alive: %d", code)
	}
	fail = nil
	h.SetReady(false)
	if code, _ := get(t, mux, "/readyz"); code != 503 {
		t.Errorf("stopping: %d", code)
	}
}

func TestALogLineHasNoNull(t *testing.T) {
	var b bytes.Buffer
	var none error
	NewLogger(&b, slog.LevelInfo, "quota", "a").WithGroup("g").Warn("late", "err", none, "wait", time.Second)
	NewLogger(&b, slog.LevelInfo, "quota", "a").Warn("late", "err", none, "after", errors.New("a fault"))
	if got := b.String(); strings.Contains(got, "null") || strings.Contains(got, "err") || !strings.Contains(got, `"g":{"wait":1000000000}`) || !strings.Contains(got, `"after":"a fault"`) {
		t.Error(got)
	}
}

func TestLabelsStayBoundedWhateverIsAsked(t *testing.T) {
	reg := NewRegistry()
	m := NewHTTPMetrics(reg)
	for i := range 1000 {
		m.Observe(t.Context(), "", fmt.Sprintf("METHOD%d", i), 200+i%400, time.Millisecond)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tollgate_http_request_seconds" && len(f.GetMetric()) > 5 {
			t.Errorf("%d series for one route and unknown methods", len(f.GetMetric()))
		}
	}
}

func TestPanicIsLoggedAndAnswered(t *testing.T) {
	var log bytes.Buffer
	h := Recover(NewLogger(&log, slog.LevelInfo, "s", "i"), func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	if code, _ := get(t, h, "/"); code != 500 || !strings.Contains(log.String(), "boom") {
		t.Errorf("%d, log %s", code, log.String())
	}
}
