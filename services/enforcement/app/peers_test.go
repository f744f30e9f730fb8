package app

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/testkit/faultproxy"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// fleet is several instances behind a balancer that gives each call to the next one.
type fleet struct {
	*service // asks the balancer
	*backends
	members []*service
	proxies []*faultproxy.Proxy // before each member's Redis
}

func runFleet(t *testing.T, brokers []string, n int) *fleet {
	t.Helper()
	server := realredis.Start(t)
	f := &fleet{backends: startOn(t, brokers, server.Addr)}
	var next atomic.Int64
	var behind []*httputil.ReverseProxy
	for range n {
		p := faultproxy.Start(t, server.Addr)
		cfg := f.config()
		cfg.RedisURL, cfg.CheckBudget = "redis://"+p.Addr, time.Second
		m := run(t, cfg)
		at, err := url.Parse(m.url)
		if err != nil {
			t.Fatal(err)
		}
		f.members, f.proxies, behind = append(f.members, m), append(f.proxies, p), append(behind, httputil.NewSingleHostReverseProxy(at))
	}
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		behind[int(next.Add(1))%n].ServeHTTP(w, r)
	}))
	t.Cleanup(balancer.Close)
	f.service = &service{t: t, url: balancer.URL}
	for _, m := range f.members {
		m.awaitGauge("tollgate_limiter_instances", float64(n), 10*time.Second)
	}
	<-time.After(1200 * time.Millisecond) // a beat: all know where the others are
	return f
}

// request checks, draws and records one request. It tells whether it was allowed.
func (f *fleet) request(user string, used int, during func()) bool {
	f.t.Helper()
	id := uuid.New()
	v := f.check(user, id, 20)
	if v["allowed"] != true {
		if v["reason"] != "concurrent" && v["reason"] != "rpm" { // the shares of the one or the other
			f.t.Errorf("check: %v", v)
		}
		return false
	}
	during()
	if id[0]%2 == 0 { // so that the next check meets another instance than this one has
		if c := f.consume(user, id, 1); c["allowed"] != true || c["degraded"] != v["degraded"] {
			f.t.Errorf("consume: %v", c)
		}
	}
	if code, v := f.record(user, id, used); code != 200 || v["already_recorded"] != false {
		f.t.Errorf("record: %d %v", code, v)
	}
	return true
}

// Case B73 with several instances: whoever is told of a request's end, the slot and what was not used are free again at the instance that granted it.
func TestB73NoFalseRefusalForFewSlotsBehindARoundRobinBalancer(t *testing.T) {
	k := broker(t)
	f := runFleet(t, k.Brokers(), 3)
	const perDay, used, pairs, slots = 60_000, 7, 300, 2
	f.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(480), TPMLimit: ptr(0), TPDLimit: ptr(perDay), ConcurrentLimit: ptr(slots)})
	f.remaining("u1", "tokens_1d")
	for _, p := range f.proxies {
		p.Refuse()
	}
	for _, m := range f.members {
		m.awaitGauge("tollgate_limiter_degraded", 1, 5*time.Second)
	}
	began := time.Now()
	sent := 0
	for n := range pairs { // rpm and tpd are shared out, too: what another instance records must not be charged there again
		if !f.request("u1", used, func() {}) {
			t.Fatalf("request %d was refused though none was in flight", n)
		}
		sent++
	}

	// Many at once: never more in flight than was sold, but for the one slot that each instance has at least.
	var inFlight, most, granted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 15 {
				if f.request("u1", used, func() {
					n := inFlight.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					<-time.After(2 * time.Millisecond)
					inFlight.Add(-1)
				}) {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if bound := int64(max(slots, len(f.members))); most.Load() > bound || granted.Load() == 0 {
		t.Errorf("%d in flight at once of %d granted, the bound is %d", most.Load(), granted.Load(), bound)
	}
	sent += int(granted.Load())
	for _, m := range f.members {
		m.awaitGauge("tollgate_limiter_local_reservations", 0, 0)
	}

	for _, p := range f.proxies {
		p.Pass()
	}
	for _, m := range f.members {
		m.awaitGauge("tollgate_limiter_degraded", 0, backWithin)
		m.awaitGauge("tollgate_limiter_pending_applications", 0, 20*time.Second)
	}
	gone := perDay - int(f.remaining("u1", "tokens_1d"))
	if drained := int(time.Since(began).Seconds()*perDay/86400) + 1; gone > used*sent || gone < used*sent-drained {
		t.Errorf("%d tokens are gone in Redis, want %d", gone, used*sent)
	}
	billed := 0
	for _, recs := range events(t, k.Brokers(), sent) {
		r := recs[0]
		if r.WasRateLimited {
			continue
		}
		billed++
		if len(recs) != 1 || r.Outcome != usage.Completed || r.InputTokens != used || r.Reservation != usage.Degraded || r.Tier != "plus" || r.ReservedTokens != 20 {
			t.Errorf("%d events: %+v", len(recs), r)
		}
	}
	t.Logf("%d requests, at most %d in flight, %d billed", sent, most.Load(), billed)
}

// One instance alone is cut off from Redis: what it grants is recorded by the others, whose Redis knows nothing of it.
func TestRequestsOfAnInstanceThatIsCutOffAloneEndWhereverTheyAreRecorded(t *testing.T) {
	k := broker(t)
	f := runFleet(t, k.Brokers(), 3)
	f.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(0), TPMLimit: ptr(0), TPDLimit: ptr(60_000), ConcurrentLimit: ptr(3)})
	f.remaining("u1", "tokens_1d")
	cut := f.members[0]
	f.proxies[0].Refuse()
	cut.awaitGauge("tollgate_limiter_degraded", 1, 5*time.Second)
	const n = 20
	for i := range n {
		id := uuid.New()
		if v := cut.check("u1", id, 20); v["allowed"] != true || v["degraded"] != true {
			t.Fatalf("request %d: %v", i, v)
		}
		other := f.members[1+i%2]
		if c := other.consume("u1", id, 1); c["allowed"] != true || c["degraded"] != true {
			t.Errorf("consume: %v", c)
		}
		if code, v := other.record("u1", id, 7); code != 200 || v["already_recorded"] != false {
			t.Errorf("record: %d %v", code, v)
		}
	}
	cut.awaitGauge("tollgate_limiter_local_reservations", 0, 0)
	for _, m := range f.members[1:] {
		m.awaitGauge("tollgate_limiter_pending_applications", 0, 20*time.Second)
	}
	if gone := 60_000 - int(f.members[1].remaining("u1", "tokens_1d")); gone > 7*n || gone < 7*n-30 {
		t.Errorf("%d tokens are gone, want %d", gone, 7*n)
	}
	for _, recs := range events(t, k.Brokers(), n) {
		for _, r := range recs {
			if r.InputTokens != 7 || r.Reservation != usage.Degraded || r.ReservedTokens != 20 || r.Tier != "plus" {
				t.Errorf("%+v", r)
			}
		}
	}
}
