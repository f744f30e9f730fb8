package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/upstream"
	"github.com/tollgate-dev/tollgate/schemas"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// contract is schemas/openapi/gateway.yaml.
var contract = sync.OnceValues(func() (validator.Validator, error) {
	data, err := fs.ReadFile(schemas.FS, "openapi/gateway.yaml")
	if err != nil {
		return nil, err
	}
	doc, err := libopenapi.NewDocument(data)
	if err != nil {
		return nil, err
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return v, nil
})

var counter = sync.OnceValue(func() *tokens.Counter {
	c, err := tokens.New(nil)
	if err != nil {
		panic(err)
	}
	return c
})

// enforcement is a decision API that answers what the test says, and keeps what it was told.
type enforcement struct {
	mu      sync.Mutex
	check   string // the answer; of an admission if empty
	consume func(tokens int64) string
	away    int           // so many records are answered with 503
	asked   chan struct{} // closed when a slow check is asked for
	checks  []client.CheckRequest
	draws   []int64
	records []client.RecordRequest
}

const (
	admitted = `{"allowed":true,"model":"","limit":{"concurrent":1},"remaining":{"concurrent":0},"headers":{"X-RateLimit-Limit-Requests":"40"}}`
	status   = `{"limit":{"requests":40},"remaining":{"requests":39},"reset_at":{"requests":"2026-01-01T12:00:01.5Z"}}`
)

func (e *enforcement) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	read := func(v any) { _ = json.NewDecoder(r.Body).Decode(v) }
	switch strings.TrimPrefix(r.URL.Path, "/internal/rate-limit/") {
	case "check":
		var c client.CheckRequest
		read(&c)
		e.checks = append(e.checks, c)
		if e.check == "" {
			e.check = admitted
		}
		if e.check == "lost" { // it is granted, but its answer comes too late
			time.Sleep(650 * time.Millisecond)
		}
		if e.check == "slow" { // granted, in time, but not at once
			close(e.asked)
			time.Sleep(50 * time.Millisecond)
			e.check = admitted
		}
		if e.check == "away" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, e.check)
	case "consume":
		var c client.ConsumeRequest
		read(&c)
		e.draws = append(e.draws, c.Tokens)
		answer := `{"allowed":true}`
		if e.consume != nil {
			answer = e.consume(c.Tokens)
		}
		_, _ = io.WriteString(w, answer)
	case "record":
		if e.away > 0 {
			e.away--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var rec client.RecordRequest
		read(&rec)
		e.records = append(e.records, rec)
		_, _ = io.WriteString(w, `{"success":true}`)
	default:
		_, _ = io.WriteString(w, status)
	}
}

// everybody is who every request is of.
type everybody struct{ confirm error }

func (everybody) Find(_ context.Context, token string) (identity.Identity, error) {
	if token == "" {
		return identity.Identity{}, &identity.Unauthorized{Detail: "Who are you?"}
	}
	return identity.Identity{Subject: subject.Subject{Kind: subject.APIKey, ID: token}}, nil
}

func (e everybody) Confirm(context.Context, string, identity.Identity, int64) error { return e.confirm }

type world struct {
	t      *testing.T
	url    string
	e      *enforcement
	up     *upstream.Server
	server *Server
}

func newWorld(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := &world{t: t, e: &enforcement{}, up: upstream.New(upstream.Options{Scripted: true, Remember: true})}
	up, decides := httptest.NewServer(w.up), httptest.NewServer(w.e)
	at, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Identities: everybody{}, Enforcement: client.NewEnforcement(decides.URL, "token", client.WithCheckBudget(500*time.Millisecond)), LostAfter: 300 * time.Millisecond, Counter: counter(),
		Upstream: at, Models: []string{"grok-2"}, Health: observe.NewHealth(), Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	w.server = New(o)
	api := httptest.NewServer(w.server)
	w.url = api.URL
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
		if err := w.server.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		up.CloseClientConnections()
		up.Close()
		decides.Close()
	})
	return w
}

// ask asks and holds the answer against the contract, unless it is a stream.
func (w *world) ask(path, body string, header ...string) (*http.Response, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k1")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil && resp.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatal(err)
	}
	w.conforms(req, resp, text)
	return resp, string(text)
}

// conforms holds an answer in JSON against the contract.
func (w *world) conforms(req *http.Request, resp *http.Response, text []byte) {
	w.t.Helper()
	if v, err := contract(); err != nil {
		w.t.Fatal(err)
	} else if listed := (resp.StatusCode != http.StatusNotFound || req.Method == http.MethodGet) && resp.StatusCode != http.StatusMethodNotAllowed; listed && resp.Header.Get("Content-Type") == "application/json" {
		again := *resp
		again.Body = io.NopCloser(bytes.NewReader(text))
		again.Header = resp.Header.Clone()
		asked := req.Clone(w.t.Context())
		asked.URL.Host = "localhost:8080"
		if ok, errs := v.ValidateHttpResponse(asked, &again); !ok {
			w.t.Errorf("%s: the answer %d breaks the contract: %v\n%s", req.URL.Path, resp.StatusCode, errs, text)
		}
	}
}

// recorded waits for the one record.
func (w *world) recorded() client.RecordRequest {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	for {
		if err := w.server.Wait(ctx); err != nil {
			w.t.Fatal(err)
		}
		w.e.mu.Lock()
		records := w.e.records
		w.e.mu.Unlock()
		if len(records) > 1 {
			w.t.Fatalf("%d records: %+v", len(records), records)
		}
		if len(records) == 1 {
			return records[0]
		}
		select {
		case <-ctx.Done():
			w.t.Fatal("no record")
		case <-time.After(time.Millisecond):
		}
	}
}

// get asks for a path, and holds the answer against the contract.
func (w *world) get(path string) (*http.Response, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	w.conforms(req, resp, text)
	return resp, string(text)
}
