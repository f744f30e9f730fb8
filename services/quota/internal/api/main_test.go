package api

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/schemas"
	"github.com/tollgate-dev/tollgate/services/quota/internal/attempts"
	"github.com/tollgate-dev/tollgate/services/quota/internal/refusallog"
)

func TestMain(m *testing.M) { stores.Main(m) }

const (
	adminToken   = "admin-token-canary-1"
	viewerToken  = "viewer-token-canary-2"
	serviceToken = "service-token-canary-3"
	anyToken     = "some-token-canary-4"
)

// published is a Publisher that remembers, and fails while err is set.
type published struct {
	mu     sync.Mutex
	fences []pgquota.Fence
	err    error
}

func (p *published) Publish(_ context.Context, fs []pgquota.Fence) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.fences = append(p.fences, fs...)
	}
	return p.err
}

// harness is the API on a database of its own. Every answer is checked against the OpenAPI file.
type harness struct {
	t       *testing.T
	handler http.Handler
	store   *pgquota.Store
	db      *sql.DB
	redis   *published
	log     *logBuffer
	spec    validator.Validator

	logger   *slog.Logger
	refusals *refusallog.Log
	burst    int // failed attempts that an address has
}

// logBuffer may be written by several calls at once.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func newHarness(t *testing.T, options ...func(*harness)) *harness {
	t.Helper()
	url := stores.Postgres(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	store, err := pgquota.Open(t.Context(), url, pgquota.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(); _ = db.Close() })
	h := &harness{t: t, store: store, db: db, redis: &published{}, log: &logBuffer{}, spec: spec(t), burst: 1_000_000}
	for _, o := range options {
		o(h)
	}
	health := observe.NewHealth(observe.Check{Name: "postgres", Ask: store.Ping})
	health.SetReady(true)
	h.logger = observe.NewLogger(h.log, slog.LevelDebug, "quota", "test")
	h.refusals = refusallog.New(store, "test", h.logger)
	h.handler = New(Config{Store: store, Publisher: h.redis, Committed: func() {}, Health: health, Registry: observe.NewRegistry(),
		Log: h.logger, Refusals: h.refusals, Attempts: attempts.New(h.burst, time.Second, time.Now),
		Tokens: auth.Tokens{auth.NewGrant("admin", auth.Admin, adminToken), auth.NewGrant("viewer", auth.Viewer, viewerToken),
			auth.NewGrant("service", auth.Service, serviceToken)}})
	return h
}

func spec(t *testing.T) validator.Validator {
	t.Helper()
	data, err := fs.ReadFile(schemas.FS, "openapi/quota.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(data)
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	return v
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(a.body, &m); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return m
}

func (a answer) problem(t *testing.T) problem.Problem {
	t.Helper()
	var p problem.Problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return p
}

func (a answer) fields(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, f := range a.problem(t).Errors {
		names = append(names, f.Field)
	}
	return names
}

// call sends a request; headers are name, value pairs. A body of "-" is none.
func (h *harness) call(method, target, token, body string, headers ...string) answer {
	h.t.Helper()
	var in io.Reader
	if body != "-" {
		in = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, target, in)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "-" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	a := answer{w.Code, w.Result().Header, w.Body.Bytes()}
	h.check(method, target, a)
	return a
}

// check validates an answer against the OpenAPI file; one to a call that the file doesn't know must be a problem document.
func (h *harness) check(method, target string, a answer) {
	h.t.Helper()
	if a.status >= 400 && !strings.HasPrefix(target, "/readyz") {
		if ct := a.header.Get("Content-Type"); ct != problem.ContentType {
			h.t.Errorf("%s %s: %d as %q", method, target, a.status, ct)
		}
		if p := a.problem(h.t); p.Status != a.status || p.Code == "" || p.RequestID == "" {
			h.t.Errorf("%s %s: %s", method, target, a.body)
		}
	}
	// The validator matches paths decoded, where an id with a slash is two segments. The answer is the same for any id.
	known, _, _ := strings.Cut(target, "?")
	for _, prefix := range []string{"/internal/quota/", "/internal/tiers/", "/internal/prices/"} {
		if id, ok := strings.CutPrefix(target, prefix); ok && id != "" && !strings.Contains(id, "/") {
			known = prefix + "x"
		}
	}
	switch {
	case (strings.HasPrefix(known, "/internal/orgs/") && strings.HasSuffix(known, "/quota")) || strings.HasPrefix(known, "/internal/api-keys") ||
		strings.HasPrefix(known, "/internal/quotas") || strings.HasPrefix(known, "/internal/admin-tokens") || strings.HasPrefix(known, "/internal/refusals") ||
		known == "/internal/orgs" || strings.HasSuffix(known, "/events"):
		// A refusal may be of a method that the file doesn't know; it has been looked at above.
		if !slices.Contains([]int{401, 403, 404, 405}, a.status) && method != http.MethodHead {
			h.conforms(method, known, a)
		}
		return
	case method != http.MethodGet && (method != http.MethodPut || known == "/internal/tiers" || known == "/internal/prices"):
		return
	}
	switch known {
	case "/internal/quota/x", "/internal/tiers", "/internal/tiers/x", "/internal/prices", "/internal/prices/x", "/healthz", "/readyz":
	default:
		return
	}
	h.conforms(method, known, a)
}

// conforms holds an answer against the OpenAPI file.
func (h *harness) conforms(method, known string, a answer) {
	h.t.Helper()
	resp := &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body))}
	if ok, errs := h.spec.ValidateHttpResponse(httptest.NewRequest(method, known, nil), resp); !ok {
		for _, e := range errs {
			h.t.Errorf("%s %s: %d breaks the OpenAPI file: %s: %s %v", method, known, a.status, e.Message, e.Reason, e.SchemaValidationErrors)
		}
	}
}

func (h *harness) put(target, body string, headers ...string) answer {
	h.t.Helper()
	return h.call(http.MethodPut, target, adminToken, body, headers...)
}

func (h *harness) get(target string, headers ...string) answer {
	h.t.Helper()
	return h.call(http.MethodGet, target, adminToken, "-", headers...)
}

func (h *harness) count(table string) (n int) {
	h.t.Helper()
	if err := h.db.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
		h.t.Fatal(err)
	}
	return n
}

func (h *harness) post(target, body string, headers ...string) answer {
	h.t.Helper()
	return h.call(http.MethodPost, target, adminToken, body, headers...)
}

func (h *harness) delete(target string, headers ...string) answer {
	h.t.Helper()
	return h.call(http.MethodDelete, target, adminToken, "-", headers...)
}
