package app

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// awaitLevel waits until an instance sheds by a level.
func (s *service) awaitLevel(want float64) {
	s.t.Helper()
	level := func() float64 {
		_, v := s.send("GET", "/internal/load", "")
		for _, l := range v["loads"].([]any) {
			return l.(map[string]any)["level"].(float64)
		}
		return 0
	}
	for deadline := time.Now().Add(5 * time.Second); level() != want; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("level %v, want %v", level(), want)
		}
	}
}

// Load is swept 0 → 1 → 0 on one of three instances, with traffic of all tiers on all. At each step the same requests are asked about, so that
// what is shed can be compared request by request, and fresh ones are admitted or shed for good.
func TestSweptLoadShedsByTierMonotonelyAndEnterpriseNever(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	tiers := []string{"free", "plus", "api", "enterprise"}
	for _, name := range tiers {
		b.put(t, name, name, unlimited(tier.Overrides{}))
	}
	c := client.NewEnforcement(services[0].url, token)
	defer c.Close()
	const each = 60
	ids := make([]uuid.UUID, each)
	for i := range ids {
		ids[i] = uuid.New()
	}
	steps := []float64{0, 0.5, 0.80, 0.81, 0.83, 0.85, 0.86, 0.88, 0.90, 0.92, 0.94, 0.95, 1}
	up := len(steps)
	for _, load := range slices.Backward(steps[:up-1]) {
		steps = append(steps, load)
	}
	type group struct{ shed, real map[uuid.UUID]bool }
	byLevel := map[float64]map[string]group{}
	rejected := 0
	for step, load := range steps {
		l, err := c.PutLoad(t.Context(), "", load, 5*time.Minute)
		if err != nil || l.Load != load || l.Level < load || l.Level > load+shed.Band+1e-9 || step < up && l.Level != load {
			t.Fatalf("%+v, %v", l, err)
		}
		for _, s := range services {
			s.awaitLevel(l.Level)
		}
		shedNow := map[string]group{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, name := range tiers {
			g := group{map[uuid.UUID]bool{}, map[uuid.UUID]bool{}}
			shedNow[name] = g
			for n, s := range services {
				wg.Go(func() {
					for i := n; i < each; i += 3 {
						ask := func(id uuid.UUID, dry bool) bool {
							code, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":%q,"model":"grok-2-mini","estimated_tokens":1,"request_id":%q,"dry_run":%t}`, name, id, dry))
							if code != 200 || v["degraded"] != false || (v["allowed"] == true) == (v["reason"] == "shed") {
								t.Errorf("%d %v", code, v)
							}
							return v["allowed"] != true
						}
						same, fresh := ask(ids[i], true), uuid.New()
						refused := ask(fresh, false)
						mu.Lock()
						if g.shed[ids[i]] = same; refused {
							rejected++
						}
						g.real[fresh] = refused
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		byLevel[l.Level] = shedNow
		for id := range shedNow["free"].shed {
			before := true
			for _, name := range tiers { // whoever is shed, so is everybody of a lower priority, with the same id
				if now := shedNow[name].shed[id]; now && !before {
					t.Errorf("level %v: %s of %s is shed, a lower tier's is not", l.Level, id, name)
				} else {
					before = now
				}
			}
		}
		for i, name := range tiers {
			share := shed.Share(l.Level, []int64{20, 60, 80, 100}[i])
			for _, m := range []map[uuid.UUID]bool{shedNow[name].shed, shedNow[name].real} {
				for id, was := range m {
					if was != (shed.Draw(id) < share) {
						t.Errorf("level %v: %s of %s: shed %v at a share of %v", l.Level, id, name, was, share)
					}
				}
			}
		}
		t.Logf("load %.2f level %.2f: shed %3d %3d %3d %3d of %d", load, l.Level, count(shedNow["free"].shed), count(shedNow["plus"].shed), count(shedNow["api"].shed), count(shedNow["enterprise"].shed), each)
	}
	levels := slices.Sorted(maps.Keys(byLevel))
	for _, name := range tiers {
		for i, level := range levels[1:] {
			for id, was := range byLevel[levels[i]][name].shed {
				if was && !byLevel[level][name].shed[id] {
					t.Errorf("%s of %s is shed at %v and not at %v", id, name, levels[i], level)
				}
			}
		}
		if n := count(byLevel[1][name].shed) + count(byLevel[1][name].real); n != map[bool]int{true: 0, false: 2 * each}[name == "enterprise"] {
			t.Errorf("%s: %d shed at full load", name, n)
		}
		if n := count(byLevel[0.8][name].shed); n != 0 {
			t.Errorf("%s: %d shed at 0.80", name, n)
		}
	}
	seen := map[uuid.UUID]bool{}
	for id, recs := range events(t, k.Brokers(), rejected) {
		if r := recs[0]; len(recs) != 1 || r.Reason != "shed" || r.Outcome != usage.Rejected || r.Tier == "enterprise" || r.Scope != "" {
			t.Errorf("%+v", recs)
		}
		seen[id] = true
	}
	if len(seen) != rejected {
		t.Errorf("%d rejection events of %d shed requests", len(seen), rejected)
	}
}

func count(m map[uuid.UUID]bool) (n int) {
	for _, v := range m {
		if v {
			n++
		}
	}
	return n
}

// The large model's servers are loaded: who may use the small one gets that, on every instance, and is billed by it.
func TestEventOfAFallbackNamesBothModels(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	cfg := b.config()
	cfg.ModelGroups = []string{"grok-4:big"}
	one, two := run(t, cfg), run(t, cfg)
	b.put(t, "u1", "free", tier.Overrides{AllowedModels: &[]string{"grok-4", "grok-2-mini"}, ConcurrentLimit: ptr(0)})
	if code, v := one.send("PUT", "/internal/load", `{"model_group":"big","load":0.97,"ttl_ms":60000}`); code != 200 {
		t.Fatal(code, v)
	}
	two.awaitLevel(0.97)
	for _, s := range []*service{one, two} {
		id := uuid.New()
		_, v := s.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":"u1","model":"grok-4","estimated_tokens":10,"request_id":%q}`, id))
		if v["allowed"] != true || v["model"] != "grok-2-mini" {
			t.Fatal(v)
		}
		if code, v := s.send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{"user_id":"u1","request_id":%q,"model":"grok-2-mini","input_tokens":3,"output_tokens":4,"latency_ms":1,"outcome":"completed"}`, id)); code != 200 {
			t.Fatal(v)
		}
		rec := events(t, k.Brokers(), 1)[usage.EventID(subject.Subject{Kind: subject.User, ID: "u1"}, id, usage.KindUsage)]
		if len(rec) != 1 || rec[0].RequestedModel != "grok-4" || rec[0].Model != "grok-2-mini" {
			t.Errorf("%+v", rec)
		}
	}
}

// Redis is away: what is known of the load counts, and what it sheds is counted nowhere.
func TestLoadIsShedWhileRedisIsAway(t *testing.T) {
	s := runProxied(t, broker(t).Brokers(), 200*time.Millisecond)
	s.put(t, "u1", "free", tier.Overrides{ConcurrentLimit: ptr(0), RPMLimit: ptr(1000)})
	before := uuid.New()
	for shed.Draw(before) > 0.3 {
		before = uuid.New()
	}
	if v := s.check("u1", before, 1); v["allowed"] != true {
		t.Fatal(v)
	}
	if code, v := s.send("PUT", "/internal/load", `{"load":0.825,"ttl_ms":600000}`); code != 200 {
		t.Fatal(v)
	}
	s.proxy.Refuse()
	n, shedOnes := 0, 0
	for ; n < 40; n++ {
		id := uuid.New()
		v := s.check("u1", id, 1)
		if v["degraded"] != true || (v["reason"] == "shed") != (shed.Draw(id) < 0.5) || (v["allowed"] == true) == (v["reason"] == "shed") {
			t.Errorf("%v: %v", shed.Draw(id), v)
		}
		if v["reason"] == "shed" {
			shedOnes++
		}
	}
	if v := s.check("u1", before, 1); v["allowed"] != true {
		t.Errorf("granted before: %v", v)
	}
	if code, v := s.send("PUT", "/internal/load", `{"load":0.1,"ttl_ms":60000}`); code != 503 {
		t.Error(code, v)
	}
	s.proxy.Pass()
	s.awaitGauge("tollgate_limiter_degraded", 0, backWithin)
	t.Logf("%d of %d were shed", shedOnes, n)
}
