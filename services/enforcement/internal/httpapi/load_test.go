package httpapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/redisload"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

func (w *world) Level(model string) float64 {
	now := w.clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.loads[shed.All].At(now), w.loads[model].At(now))
}

func (w *world) Put(_ context.Context, group string, load float64, ttl time.Duration) (redisload.Group, error) {
	now := w.clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.loadErr != nil:
		return redisload.Group{}, w.loadErr
	case group != shed.All && group != "grok-2" && group != "grok-4":
		return redisload.Group{}, redisload.ErrUnknownGroup
	}
	w.loads[group] = w.loads[group].Next(load, now, ttl)
	return redisload.Group{Name: group, Report: w.loads[group]}, nil
}

func (w *world) Now() []redisload.Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []redisload.Group
	for _, name := range slices.Sorted(maps.Keys(w.loads)) {
		out = append(out, redisload.Group{Name: name, Report: w.loads[name]})
	}
	return out
}

// counted reads a counter, by its line in /metrics.
func (w *world) counted(t *testing.T, line string) float64 {
	t.Helper()
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for l := range strings.Lines(answer.Body.String()) {
		if value, ok := strings.CutPrefix(l, line+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

func (w *world) load(t *testing.T, body string) loadAnswer {
	t.Helper()
	return read[loadAnswer](t, call{method: "PUT", path: "/internal/load", body: body}.do(t, w), 200)
}

func quotaOf(name string) tier.Quota {
	for _, s := range tier.Shipped() {
		if s.Name == name {
			return tier.Quota{Tier: s.Name, Priority: s.Priority}
		}
	}
	return tier.Quota{}
}

// drawn gives ids of one kind: shed at a share, or not.
func drawn(under bool, share float64) string {
	for {
		if id := uuid.New(); (shed.Draw(id) < share) == under {
			return id.String()
		}
	}
}

func TestLoadIsToldAsItCounts(t *testing.T) {
	w := newWorld(t)
	want := loadAnswer{Load: 0.83, Level: 0.83, ExpiresAt: instant(w.now.Add(15 * time.Second)), Shed: []share{{20, 0.6}, {60, 0}, {80, 0}, {100, 0}}}
	if got := w.load(t, `{"load":0.83,"ttl_ms":15000}`); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	w.load(t, `{"model_group":"grok-4","load":1,"ttl_ms":1000}`)
	got := read[struct{ Loads []loadAnswer }](t, call{method: "GET", path: "/internal/load"}.do(t, w), 200)
	if len(got.Loads) != 2 || !reflect.DeepEqual(got.Loads[0], want) || got.Loads[1].ModelGroup != "grok-4" || got.Loads[1].Shed[2].Share != 1 || got.Loads[1].Shed[3].Share != 0 {
		t.Errorf("%+v", got)
	}
	if got := read[struct{ Loads []loadAnswer }](t, call{method: "GET", path: "/internal/load"}.do(t, newWorld(t)), 200); got.Loads == nil || len(got.Loads) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestBadLoadNamesTheFieldAndChangesNothing(t *testing.T) {
	w := newWorld(t)
	for body, field := range map[string]string{
		`{"load":1.01,"ttl_ms":5000}`:                        "load",
		`{"load":-0.01,"ttl_ms":5000}`:                       "load",
		`{"load":"0.5","ttl_ms":5000}`:                       "load",
		`{"ttl_ms":5000}`:                                    "load",
		`{"load":0.5}`:                                       "ttl_ms",
		`{"load":0.5,"ttl_ms":999}`:                          "ttl_ms",
		`{"load":0.5,"ttl_ms":3600001}`:                      "ttl_ms",
		`{"load":0.5,"ttl_ms":1000.5}`:                       "ttl_ms",
		`{"model_group":"a b","load":0.5,"ttl_ms":5000}`:     "model_group",
		`{"model_group":"","load":0.5,"ttl_ms":5000}`:        "model_group",
		`{"models":["grok-4"],"load":0.5,"ttl_ms":5000}`:     "models",
		`{"model_group":"grok-9","load":0.5,"ttl_ms":50000}`: "model_group",
	} {
		p := read[problem.Problem](t, call{method: "PUT", path: "/internal/load", body: body, beyond: strings.Contains(body, "grok-9")}.do(t, w), 400)
		if len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, p)
		}
	}
	if len(w.loads) != 0 {
		t.Error(w.loads)
	}
	w.loadErr = errors.New("redis is away")
	if p := read[problem.Problem](t, call{method: "PUT", path: "/internal/load", body: `{"load":0.5,"ttl_ms":5000}`}.do(t, w), 503); p.Code != problem.CodeUnavailable {
		t.Errorf("%+v", p)
	}
	for _, m := range []string{"PUT", "GET"} {
		call{method: m, path: "/internal/load", body: `{"load":0.5,"ttl_ms":5000}`, token: "-"}.do(t, w)
	}
	if resp := (call{method: "DELETE", path: "/internal/load", unlisted: true}).do(t, w); resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, PUT" {
		t.Error(resp.StatusCode, resp.Header)
	}
}

func TestShedRequestChangesNoCounterAndLeavesOneRejection(t *testing.T) {
	w := newWorld(t)
	q := quotaOf("free")
	q.RPMLimit, q.ConcurrentLimit = 5, 1
	w.sell("user:u1", q)
	w.load(t, `{"load":0.82,"ttl_ms":60000}`)
	lucky, unlucky := drawn(false, 0.5), drawn(true, 0.3)
	body := `{"user_id":"u1","model":"grok-2","estimated_tokens":10,"request_id":%q}`
	for range 3 {
		a := w.check(t, fmt.Sprintf(body, unlucky))
		if a.Allowed || a.Reason != "shed" || a.Scope != "" || a.RetryAfterMS < 5000 || a.RetryAfterMS > 10_000 || a.RetryAfterMS != shed.Hint(uuid.MustParse(unlucky)).Milliseconds() ||
			n(a.Remaining["requests"]) != 5 || n(a.Remaining["concurrent"]) != 1 || a.ReservedTokens != 0 {
			t.Errorf("%+v", a)
		}
	}
	if a := w.check(t, fmt.Sprintf(`{"user_id":"u1","model":"grok-2","estimated_tokens":10,"dry_run":true,"request_id":%q}`, unlucky)); a.Reason != "shed" {
		t.Errorf("a dry run says %+v", a)
	}
	if a := w.check(t, fmt.Sprintf(body, lucky)); !a.Allowed || n(a.Remaining["requests"]) != 4 {
		t.Errorf("%+v", a)
	}
	if len(w.rejections) != 3 || w.rejections[0].EventID != w.rejections[2].EventID {
		t.Fatalf("%+v", w.rejections)
	}
	if r := w.rejections[0]; r.Validate() != nil || r.Reason != "shed" || !r.WasRateLimited || r.RequestedModel != "grok-2" || r.Tier != "free" {
		t.Errorf("%v %+v", r.Validate(), r)
	}
	if got := w.counted(t, `tollgate_checks_total{model="grok-2",result="shed",tier="free"}`); got != 3 {
		t.Errorf("%v shed checks were counted", got)
	}
}

func TestGrantedRequestKeepsItsAnswerWhateverTheLoadIsByThen(t *testing.T) {
	w := newWorld(t)
	w.sell("user:u1", quotaOf("free"))
	id := drawn(true, 0.3)
	body := fmt.Sprintf(`{"user_id":"u1","model":"grok-4","input_tokens":10,"max_output_tokens":20,"request_id":%q}`, id)
	first := w.check(t, body)
	w.load(t, `{"load":1,"ttl_ms":60000}`)
	again := w.check(t, body)
	if !first.Allowed || !again.Allowed || first.Model != "grok-4" || again.Model != "grok-4" || again.ReservedTokens != 30 {
		t.Errorf("%+v\n%+v", first, again)
	}
	w.record(t, fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"grok-4","input_tokens":10,"output_tokens":5,"latency_ms":1,"outcome":"completed"}`, id))
	if settled := w.check(t, body); !settled.Allowed {
		t.Errorf("%+v", settled)
	}
	if len(w.rejections) != 0 {
		t.Errorf("%+v", w.rejections)
	}

	// What was given the small model keeps it under any load that would give it one.
	small := newWorld(t)
	small.sell("user:u1", quotaOf("free"))
	small.load(t, `{"model_group":"grok-4","load":0.8,"ttl_ms":60000}`)
	for _, load := range []string{"0.8", "1", "0.8"} {
		small.load(t, `{"model_group":"grok-4","load":`+load+`,"ttl_ms":60000}`)
		if a := small.check(t, body); !a.Allowed || a.Model != "grok-2" {
			t.Errorf("at %s: %+v", load, a)
		}
	}
}

// The large model's load decides which is served; then only the small one's counts: its load, its limits.
func TestFreeUsersAreServedTheSmallModelAndItsLimitsCount(t *testing.T) {
	w := newWorld(t)
	groups := []tier.ModelLimits{{Group: "small", Models: []string{"grok-2"}, RPMLimit: 7}, {Group: "big", Models: []string{"grok-4"}, RPMLimit: 3}}
	for _, name := range []string{"free", "plus"} {
		q := quotaOf(name)
		q.ModelLimits = groups
		w.sell("user:"+name, q)
	}
	q := quotaOf("free")
	q.AllowedModels = []string{"grok-4"}
	w.sell("user:only-big", q)
	check := func(user string, dry bool) checkAnswer {
		return w.check(t, fmt.Sprintf(`{"user_id":%q,"model":"grok-4","estimated_tokens":10,"dry_run":%t}`, user, dry))
	}
	if a := check("free", true); a.Model != "grok-4" || n(a.Limit["requests"]) != 3 {
		t.Errorf("without load: %+v", a)
	}
	w.load(t, `{"model_group":"grok-4","load":0.8,"ttl_ms":60000}`)
	for range 2 { // a dry run says what a check would do
		if a := check("free", true); !a.Allowed || a.Model != "grok-2" || n(a.Limit["requests"]) != 7 {
			t.Errorf("%+v", a)
		}
	}
	w.load(t, `{"model_group":"grok-4","load":1,"ttl_ms":60000}`) // the small one has no load: nobody who may use it is shed
	a := check("free", false)
	if !a.Allowed || a.Model != "grok-2" || n(a.Remaining["requests"]) != 6 {
		t.Errorf("%+v", a)
	}
	for _, user := range []string{"plus", "only-big"} {
		if a := check(user, true); a.Reason != "shed" || a.Model != "grok-4" {
			t.Errorf("%s: %+v", user, a)
		}
	}
	w.record(t, fmt.Sprintf(`{"user_id":"free","request_id":%q,"actual_tokens":10}`, a.RequestID))
	if len(w.usage) != 1 || w.usage[0].RequestedModel != "grok-4" || w.usage[0].Model != "grok-2" || w.usage[0].Validate() != nil {
		t.Errorf("%+v", w.usage)
	}
	if got := w.counted(t, `tollgate_fallbacks_total{requested="grok-4",served="grok-2",tier="free"}`); got != 1 {
		t.Errorf("%v fallbacks were counted", got)
	}
	w.load(t, `{"model_group":"grok-2","load":1,"ttl_ms":60000}`)
	if a := check("free", false); a.Reason != "shed" || a.Model != "grok-2" {
		t.Errorf("%+v", a)
	}
	if r := w.rejections[0]; r.RequestedModel != "grok-4" || r.Model != "grok-2" {
		t.Errorf("%+v", r)
	}
}

// A key is shed by the priority of the user who owns it.
func TestRefusalsForGoodComeBeforeSheddingAndKeysShedByTheirUser(t *testing.T) {
	w := newWorld(t)
	q := quotaOf("free")
	q.AllowedModels = []string{"grok-2"}
	w.sell("user:u1", q)
	w.sell("user:vip", quotaOf("enterprise"))
	w.load(t, `{"load":1,"ttl_ms":60000}`)
	if a := w.check(t, `{"user_id":"u1","model":"grok-9","estimated_tokens":10}`); a.Reason != "model_not_allowed" {
		t.Errorf("%+v", a)
	}
	if a := w.check(t, `{"user_id":"vip","model":"grok-4","estimated_tokens":10}`); !a.Allowed || a.Model != "grok-4" {
		t.Errorf("%+v", a)
	}
	w.wait(61 * time.Second)
	if a := w.check(t, `{"user_id":"u1","model":"grok-2","estimated_tokens":10}`); !a.Allowed {
		t.Errorf("a load that nobody renewed sheds: %+v", a)
	}
}

func TestAdminSeesTheLoadAndDoesNotReportIt(t *testing.T) {
	w := newWorld(t)
	if resp := (call{method: "GET", path: "/internal/load", token: "Bearer " + adminToken}).do(t, w); resp.StatusCode != http.StatusOK {
		t.Error(resp.StatusCode)
	}
	if resp := (call{method: "PUT", path: "/internal/load", body: `{"load":0.5,"ttl_ms":5000}`, token: "Bearer " + adminToken, beyond: true}).do(t, w); resp.StatusCode != http.StatusForbidden || len(w.loads) != 0 {
		t.Error(resp.StatusCode, w.loads)
	}
}
