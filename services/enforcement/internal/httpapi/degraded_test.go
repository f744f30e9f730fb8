package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// without decides as the limiter does while its store is away.
type without struct{ *limit.Memory }

func (l without) Check(ctx context.Context, r limit.CheckRequest) (limit.Decision, error) {
	d, err := l.Memory.Check(ctx, r)
	d.Degraded = true
	return d, err
}

func (l without) Consume(ctx context.Context, r limit.ConsumeRequest) (limit.Consumption, error) {
	c, err := l.Memory.Consume(ctx, r)
	c.Degraded = true
	return c, err
}

func (l without) Status(ctx context.Context, r limit.StatusRequest) (limit.Status, error) {
	s, err := l.Memory.Status(ctx, r)
	s.Degraded = true
	return s, err
}

func TestAnswersSayWhetherRedisWasThere(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away=%v", away), func(t *testing.T) {
			w := newWorld(t)
			if away {
				w.Handler = New(Options{Engine: decide.New(w, without{w.limiter}, w, decide.Options{Now: w.clock}), Loads: w, Health: observe.NewHealth(),
					Registry: prometheus.NewRegistry(), Tokens: auth.Tokens{auth.NewGrant("service", auth.Service, token)}})
			}
			a := w.check(t, `{"user_id":"u1","model":"m","estimated_tokens":1}`)
			c := w.consume(t, a.RequestID, 1)
			st := w.status(t, "user/u1")
			if a.Degraded != away || c.Degraded != away || st.Degraded != away || !a.Allowed || !c.Allowed || st.InFlight != 1 {
				t.Errorf("%+v\n%+v\n%+v", a, c, st)
			}
			if c := w.consume(t, uuid.New(), 1); c.Degraded != away {
				t.Errorf("of no reservation: %+v", c)
			}
		})
	}
}

// Only who has the instances' token may ask; the question is answered by who is given, and its faults are a problem document.
func TestAnotherInstanceAsksWithATokenOfItsOwn(t *testing.T) {
	w := newWorld(t)
	asked := 0
	w.Handler = New(Options{Engine: decide.New(w, w.limiter, w, decide.Options{Now: w.clock}), Loads: w, Health: observe.NewHealth(), Registry: prometheus.NewRegistry(),
		Tokens: auth.Tokens{auth.NewGrant("service", auth.Service, token), auth.NewGrant("admin", auth.Admin, adminToken), auth.NewGrant("instance", auth.Instance, "of-instances")}, PeerPath: "/internal/instances/ask",
		Peer: func(_ http.ResponseWriter, r *http.Request) error {
			if asked++; r.ContentLength == 0 {
				return problem.Invalid(problem.FieldError{Field: "subject", Detail: "is missing"})
			}
			return nil
		}})
	const own = "Bearer of-instances"
	for bearer, want := range map[string]int{own: 200, "": 403, "-": 401, "Bearer wrong": 401, "Bearer " + adminToken: 403} {
		resp := call{method: "POST", path: "/internal/instances/ask", body: "{}", token: bearer, unlisted: true}.do(t, w)
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", bearer, resp.StatusCode, want)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if p := read[problem.Problem](t, call{method: "POST", path: "/internal/instances/ask", token: own, unlisted: true}.do(t, w), 400); !strings.Contains(fmt.Sprint(p.Errors), "subject") {
		t.Errorf("%+v", p)
	}
	if resp := (call{method: "POST", path: "/internal/rate-limit/check", body: "{}", token: own}).do(t, w); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a check with the token of instances: %d", resp.StatusCode)
	}
	if resp := (call{method: "GET", path: "/internal/instances/ask", token: own, unlisted: true}).do(t, w); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
}
