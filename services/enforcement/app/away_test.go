package app

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/testkit/faultproxy"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// The nightly size of case B73 is a minute a phase at the default budget, on a machine that does nothing else:
// go test ./app -run B73Redis -outage-for 60s -away-budget 50ms
var (
	outageFor  = flag.Duration("outage-for", 2500*time.Millisecond, "how long each phase of case B73 lasts once the breaker is open")
	awayBudget = flag.Duration("away-budget", 200*time.Millisecond, "the budget of a check in case B73")
)

// backWithin is how soon decisions are Redis's again after it has returned.
const backWithin = 10 * time.Second

// proxied is an instance whose Redis is behind a proxy.
type proxied struct {
	*service
	*backends
	proxy  *faultproxy.Proxy
	server *realredis.Server
	budget time.Duration
}

func runProxied(t *testing.T, brokers []string, budget time.Duration, opts ...realredis.Option) *proxied {
	t.Helper()
	server := realredis.Start(t, opts...)
	p := &proxied{backends: startOn(t, brokers, server.Addr), proxy: faultproxy.Start(t, server.Addr), server: server, budget: budget}
	cfg := p.config()
	cfg.RedisURL, cfg.CheckBudget = "redis://"+p.proxy.Addr, budget
	p.service = run(t, cfg)
	return p
}

// gauge reads one metric without labels.
func (s *service) gauge(name string) float64 {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(b)
	if m == nil {
		s.t.Fatalf("no metric %s", name)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// awaitGauge waits until a metric has a value.
func (s *service) awaitGauge(name string, want float64, within time.Duration) {
	s.t.Helper()
	for deadline := time.Now().Add(within); s.gauge(name) != want; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s is %v after %s, want %v", name, s.gauge(name), within, want)
		}
	}
}

// answered is one check.
type answered struct {
	at       time.Time // when it was sent
	took     time.Duration
	code     int
	v        map[string]any
	recorded int // the record's status; 0 if the check was refused
}

func (a answered) is(field string) bool { return a.v[field] == true }

// traffic sends requests at a rate until stop is called, which gives the answers in the order of sending.
func (s *service) traffic(user string, perSecond int, tokens int) (stop func() []answered) {
	s.t.Helper()
	var mu sync.Mutex
	var all []answered
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			mu.Lock()
			all = append(all, answered{at: time.Now()})
			mu.Unlock()
			wg.Go(func() {
				id := uuid.New()
				a := answered{at: time.Now()}
				a.code, a.v = s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":%q,"model":"grok-2","estimated_tokens":%d,"request_id":%q}`, user, 2*tokens, id))
				a.took = time.Since(a.at)
				if a.is("allowed") {
					a.recorded, _ = s.record(user, id, tokens)
				}
				mu.Lock()
				all[i] = a
				mu.Unlock()
			})
		}
	})
	return func() []answered {
		close(done)
		wg.Wait()
		return all
	}
}

// validHeaders tells what is wrong with an answer's headers.
func validHeaders(v map[string]any) error {
	h, _ := v["headers"].(map[string]any)
	if len(h) == 0 {
		return fmt.Errorf("none")
	}
	for name, value := range h {
		text, _ := value.(string)
		if strings.Contains(name, "-Reset-") {
			if _, err := time.Parse(time.RFC3339, text); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n < 0 {
			return fmt.Errorf("%s: %q", name, text)
		}
	}
	return nil
}

// Case B72.
func TestB72ForgottenScriptsRestartAndFailoverCostNoErrorAndEnforcementGoesOn(t *testing.T) {
	k := broker(t)
	s := runProxied(t, k.Brokers(), 2*time.Second, realredis.WithAOF()) // a slow machine must not look like an outage here
	s.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(60), TPMLimit: ptr(0), TPDLimit: ptr(0), ConcurrentLimit: ptr(0)})
	replica := realredis.Start(t, realredis.WithArgs("--replicaof", "127.0.0.1", s.server.Addr[strings.LastIndex(s.server.Addr, ":")+1:]))
	began := time.Now()
	stop := s.traffic("u1", 50, 1)

	const rpm, flushes = 60, 20
	for range flushes { // scripts forgotten
		if err := s.rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
	}
	s.awaitGauge("tollgate_limiter_degraded", 0, 0)
	flushed := time.Now()

	s.server.Restart()
	enforcing := func(phase string) {
		t.Helper()
		back := time.Now()
		for {
			v := s.check("u1", uuid.New(), 1)
			if v["degraded"] == false && v["reason"] == "rpm" {
				break
			}
			if time.Since(back) > backWithin {
				t.Fatalf("%s: %v", phase, v)
			}
			<-time.After(20 * time.Millisecond)
		}
		s.awaitGauge("tollgate_limiter_degraded", 0, backWithin)
		t.Logf("%s: Redis decides again after %s", phase, time.Since(back).Round(time.Millisecond))
	}
	enforcing("restart")

	// Failover: the old master refuses writes for a while, then the address leads to the new one, which has never seen a script.
	promoted := redis.NewClient(&redis.Options{Addr: replica.Addr})
	defer promoted.Close()
	synced := func() bool {
		offset := func(c redis.UniversalClient, field string) string {
			info, err := c.InfoMap(t.Context(), "replication").Result()
			if err != nil {
				t.Fatal(err)
			}
			return info["Replication"][field]
		}
		return offset(promoted, "master_link_status") == "up" && offset(promoted, "slave_repl_offset") == offset(s.rdb, "master_repl_offset")
	}
	for deadline := time.Now().Add(20 * time.Second); !synced(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the replica did not follow")
		}
	}
	host, port, _ := net.SplitHostPort(replica.Addr)
	if err := promoted.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.rdb.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	<-time.After(500 * time.Millisecond)
	s.proxy.Forward(replica.Addr)
	enforcing("failover")

	all := stop()
	elapsed := time.Since(began)
	byRedis, whileFlushed, locally := 0, 0, 0
	for _, a := range all {
		switch {
		case a.at.Before(flushed.Add(-a.took)) && a.is("degraded"):
			t.Errorf("a forgotten script made a check be decided locally: %v", a.v)
		case a.is("allowed") && a.is("degraded"):
			locally++
		case a.is("allowed") && a.at.Before(flushed):
			whileFlushed++
		}
		if a.code != 200 || a.is("allowed") && a.recorded != 200 {
			t.Errorf("check %d, record %d: %v", a.code, a.recorded, a.v)
		}
		if a.is("allowed") && !a.is("degraded") {
			byRedis++
		}
		if err := validHeaders(a.v); err != nil {
			t.Errorf("headers: %v", err)
		}
	}
	// A restart costs nothing that was acknowledged. A failover may cost what had not reached the replica, here a moment's worth.
	if most := rpm + int(elapsed/time.Second) + 2; byRedis < rpm || byRedis > most {
		t.Errorf("Redis admitted %d in %s, want %d to %d", byRedis, elapsed, rpm, most)
	}
	if most := rpm + int(flushed.Sub(began)/time.Second) + 1; whileFlushed < rpm || whileFlushed > most {
		t.Errorf("%d admitted while scripts were forgotten, want %d to %d", whileFlushed, rpm, most)
	}
	if most := rpm + int(elapsed/time.Second) + 2; locally > most { // a second capacity, as an outage may give
		t.Errorf("%d admitted locally, want at most %d", locally, most)
	}
	t.Logf("Redis admitted %d, %d of them while scripts were forgotten; %d were admitted locally", byRedis, whileFlushed, locally)
}

// Case B73, a few seconds a phase unless told otherwise.
func TestB73RedisRefusedBlackHoledOrSlowIsServedLocallyInTimeAndAppliedAfterwards(t *testing.T) {
	k := broker(t)
	s := runProxied(t, k.Brokers(), *awayBudget, realredis.WithAOF())
	const perDay, used = 200_000, 7
	sent := 0
	for i, phase := range []struct {
		name          string
		break_, mend_ func()
	}{
		{"refused", s.proxy.Refuse, s.proxy.Pass},
		{"stopped", s.server.Pause, s.server.Resume},
		{"black hole", s.proxy.Swallow, s.proxy.Pass},
		{"slow", func() { s.proxy.Delay(500 * time.Millisecond) }, s.proxy.Pass},
		{"killed", s.server.Kill, s.server.Restart},
	} {
		user := fmt.Sprintf("u%d", i)
		s.put(t, user, "plus", tier.Overrides{RPMLimit: ptr(600), TPMLimit: ptr(0), TPDLimit: ptr(perDay), ConcurrentLimit: ptr(0)})
		began := time.Now()
		stop := s.traffic(user, 10, used)
		<-time.After(time.Second)
		phase.break_()
		s.awaitGauge("tollgate_limiter_degraded", 1, 3*time.Second)
		opened := time.Now()
		<-time.After(*outageFor)
		if code, v := s.send("GET", "/readyz", ""); code != 200 {
			t.Errorf("%s: /readyz says %d %v", phase.name, code, v)
		}
		mending := time.Now()
		phase.mend_()
		mended := time.Now()
		s.awaitGauge("tollgate_limiter_degraded", 0, backWithin)
		back := time.Since(mended)
		<-time.After(500 * time.Millisecond)
		all := stop()
		var slowest time.Duration
		local := 0
		for _, a := range all {
			if a.code != 200 || !a.is("allowed") || a.recorded != 200 {
				t.Errorf("%s: check %d, record %d: %v", phase.name, a.code, a.recorded, a.v)
			}
			if err := validHeaders(a.v); err != nil {
				t.Errorf("%s: headers: %v", phase.name, err)
			}
			if a.is("degraded") {
				local++
			}
			if a.at.After(opened) && a.at.Before(mending) {
				if slowest = max(slowest, a.took); !a.is("degraded") {
					t.Errorf("%s: not degraded: %v", phase.name, a.v)
				}
			}
		}
		if slowest > 3*s.budget {
			t.Errorf("%s: a check took %s while the breaker was open", phase.name, slowest)
		}
		if last := all[len(all)-1]; last.is("degraded") {
			t.Errorf("%s: still degraded at the end", phase.name)
		}
		t.Logf("%s: %d of %d requests decided locally, slowest %s, back after %s", phase.name, local, len(all), slowest.Round(time.Microsecond), back.Round(time.Millisecond))
		sent += len(all)

		// All that was used is in Redis, once, and nothing else.
		s.awaitGauge("tollgate_limiter_pending_applications", 0, 10*time.Second)
		gone := perDay - int(s.remaining(user, "tokens_1d"))
		if drained := int(time.Since(began).Seconds()*perDay/86400) + 1; gone > used*len(all) || gone < used*len(all)-drained {
			t.Errorf("%s: %d tokens are gone, want %d", phase.name, gone, used*len(all))
		}
		if code, v := s.send("GET", "/internal/rate-limit/status/user/"+user, ""); code != 200 || v["in_flight"] != 0.0 {
			t.Errorf("%s: %d %v", phase.name, code, v)
		}
	}
	degraded := 0
	seen := events(t, k.Brokers(), sent)
	for _, recs := range seen {
		if r := recs[0]; len(recs) != 1 || r.Outcome != usage.Completed || r.InputTokens != used || r.Model != "grok-2" || r.Tier != "plus" || r.ReservedTokens != 2*used {
			t.Errorf("%d events: %+v", len(recs), recs)
		}
		if recs[0].Reservation == usage.Degraded {
			degraded++
		}
	}
	if len(seen) != sent || degraded == 0 {
		t.Errorf("%d events of %d requests, %d of them degraded", len(seen), sent, degraded)
	}
}
