package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// world is the API on the in-memory limiter, with what Postgres and Kafka would say.
type world struct {
	http.Handler
	reg     *prometheus.Registry
	limiter *limit.Memory

	mu         sync.Mutex
	now        time.Time
	quotas     map[string]tier.Quota
	plans      map[string]tier.Plan // whoever has more than a quota
	quotaErr   error
	kafkaErr   error
	usage      []usage.Record
	rejections []usage.Record
	loads      map[string]shed.Report // by group; a model is one by itself
	loadErr    error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{reg: prometheus.NewRegistry(), now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), quotas: map[string]tier.Quota{}, plans: map[string]tier.Plan{}, loads: map[string]shed.Report{}}
	w.limiter = limit.NewMemory(limit.MemoryOptions{Now: w.clock})
	health := observe.NewHealth()
	health.SetReady(true)
	w.Handler = New(Options{Engine: decide.New(w, w.limiter, w, decide.Options{Region: "eu", Instance: "i1", Now: w.clock,
		Load: w, Fallback: shed.Fallbacks{"grok-4": "grok-2"}}), Loads: w, Health: health, Registry: w.reg,
		Tokens: auth.Tokens{auth.NewGrant("service", auth.Service, token), auth.NewGrant("admin", auth.Admin, adminToken)}, Models: []string{"grok-2", "grok-4"}})
	return w
}

func (w *world) clock() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now }

func (w *world) wait(d time.Duration) { w.mu.Lock(); defer w.mu.Unlock(); w.now = w.now.Add(d) }

func (w *world) sell(name string, q tier.Quota) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quotas[name] = q
}

// plan sells a plan to its subject.
func (w *world) plan(p tier.Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plans[p.Subject.String()] = p
}

func (w *world) Get(_ context.Context, s subject.Subject) (tier.Plan, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, ok := w.plans[s.String()]; ok {
		return p, w.quotaErr
	}
	q, ok := w.quotas[s.String()]
	if !ok {
		q = tier.Effective(s, "", tier.Shipped()[1], tier.Overrides{}, false, 0, time.Time{})
	}
	q.Subject = s
	return tier.PlanOf(q, tier.NoPool(q.OrgID)), w.quotaErr
}

func (w *world) Reload(ctx context.Context, s subject.Subject, _ tier.Plan) (tier.Plan, error) {
	return w.Get(ctx, s)
}

func (w *world) Usage(_ context.Context, r usage.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kafkaErr != nil {
		return w.kafkaErr
	}
	if err := r.Validate(); err != nil {
		return err
	}
	w.usage = append(w.usage, r)
	return nil
}

func (w *world) Rejection(r usage.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rejections = append(w.rejections, r)
}

func (w *world) kafka(err error) { w.mu.Lock(); defer w.mu.Unlock(); w.kafkaErr = err }

func read[T any](t *testing.T, resp *http.Response, status int) T {
	t.Helper()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != status {
		t.Fatalf("%d, want %d: %s", resp.StatusCode, status, body)
	}
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return v
}

func (w *world) check(t *testing.T, body string) checkAnswer {
	t.Helper()
	return read[checkAnswer](t, call{method: "POST", path: "/internal/rate-limit/check", body: body}.do(t, w), 200)
}

func (w *world) record(t *testing.T, body string) recordAnswer {
	t.Helper()
	return read[recordAnswer](t, call{method: "POST", path: "/internal/rate-limit/record", body: body}.do(t, w), 200)
}

func (w *world) status(t *testing.T, path string) statusAnswer {
	t.Helper()
	return read[statusAnswer](t, call{method: "GET", path: "/internal/rate-limit/status/" + path}.do(t, w), 200)
}

func n(v *int64) int64 {
	if v == nil {
		return -1
	}
	return *v
}

// text makes rooms comparable.
func text(r rooms) map[string]string {
	out := map[string]string{}
	for d := range r.Limit {
		out[d] = fmt.Sprint(n(r.Limit[d]), n(r.Remaining[d]), r.ResetAt[d])
	}
	return out
}
