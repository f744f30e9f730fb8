package quotacache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// sold is what Postgres would say. Each load takes delay and gives what held at its begin.
type sold struct {
	mu      sync.Mutex
	version int64
	tier    string
	err     error
	delay   time.Duration
	loads   atomic.Int64
}

func (f *sold) Plan(_ context.Context, s subject.Subject) (tier.Plan, error) {
	f.loads.Add(1)
	f.mu.Lock()
	p, err, d := f.plan(s), f.err, f.delay
	f.mu.Unlock()
	pass(d)
	return p, err
}

// plan gives each subject the version that holds, as its own. Users are in the org o1 where their id begins with o; a key belongs to the
// user whose id it begins with.
func (f *sold) plan(s subject.Subject) tier.Plan {
	p := tier.PlanOf(tier.Quota{Subject: s, Tier: f.tier, Version: f.version}, tier.Pool{})
	if owner, _, ok := strings.Cut(s.ID, "-"); ok && s.Kind == subject.APIKey {
		p.Quotas[0].Tier = ""
		p.Quotas = append(p.Quotas, f.plan(subject.Subject{Kind: subject.User, ID: owner}).Quotas...)
	}
	if s.ID[0] == 'o' {
		p.OrgID = "o1"
	}
	return p
}

func (f *sold) set(version int64) {
	f.mu.Lock()
	f.version = version
	f.mu.Unlock()
}

var u1 = subject.Subject{Kind: subject.User, ID: "u1"}

// pass lets the bubble's time pass.
func pass(d time.Duration) { <-time.After(d) }

// each runs a test in a bubble of its own clock.
func each(t *testing.T, f func(t *testing.T, s *sold, c *Cache)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sold{version: 1, tier: "plus", delay: 10 * time.Millisecond}
		c := New(s, Options{Size: 3})
		f(t, s, c)
		c.Close()
	})
}

func get(t *testing.T, c *Cache, want int64) { t.Helper(); getOf(t, c, u1, want) }

func getOf(t *testing.T, c *Cache, s subject.Subject, want int64) {
	t.Helper()
	p, err := c.Get(t.Context(), s)
	if err != nil || p.Own().Version != want {
		t.Fatalf("%s: %+v, %v; want version %d", s, p, err, want)
	}
}

// refuted is a plan of u1 that a limiter has refused.
func refuted(version int64) tier.Plan {
	return tier.PlanOf(tier.Quota{Subject: u1, Tier: "plus", Version: version}, tier.Pool{})
}

func TestQuotaIsNeverOlderThanItsTime(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		get(t, c, 1)
		s.set(2)
		pass(redisfence.CacheTTL - 11*time.Millisecond) // its load took 10 ms: the time counts from before it
		get(t, c, 1)
		pass(time.Millisecond)
		get(t, c, 2)
	})
}

func TestManyWhoAskAtOnceShareOneLoad(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { get(t, c, 1) })
		}
		wg.Wait()
		if n := s.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

func TestAnnouncedChangeIsSeenByTheNextGet(t *testing.T) {
	for _, name := range []string{"user:u1", "tier:plus", ""} {
		each(t, func(t *testing.T, s *sold, c *Cache) {
			get(t, c, 1)
			s.set(2)
			if name == "" {
				c.DropAll()
			} else {
				c.Drop(redisfence.Change{Name: name, Version: 2})
			}
			get(t, c, 2)
		})
	}
}

func TestChangeOfAnotherDropsNothing(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		get(t, c, 1)
		for _, name := range []string{"user:u2", "api_key:u1", "tier:free", "org:o1", "nonsense", "tier:"} {
			c.Drop(redisfence.Change{Name: name, Version: 2})
		}
		get(t, c, 1)
		if n := s.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

func TestLoadThatBeganBeforeADropIsNotKept(t *testing.T) {
	for _, name := range []string{"user:u1", "tier:plus", ""} {
		each(t, func(t *testing.T, s *sold, c *Cache) {
			var wg sync.WaitGroup
			wg.Go(func() { get(t, c, 1) })
			pass(5 * time.Millisecond) // the load is under way with version 1
			s.set(2)
			if name == "" {
				c.DropAll()
			} else {
				c.Drop(redisfence.Change{Name: name, Version: 2})
			}
			get(t, c, 2) // not the load under way
			wg.Wait()
			get(t, c, 2)
		})
	}
}

func TestReloadNeverGivesWhatWasRefused(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		get(t, c, 1)
		s.set(2)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if q, err := c.Reload(t.Context(), u1, refuted(1)); err != nil || q.Own().Version != 2 {
					t.Errorf("%+v, %v", q, err)
				}
			})
		}
		wg.Wait()
		if n := s.loads.Load(); n != 2 {
			t.Errorf("%d loads for 50 who were refused at once", n)
		}
	})
}

func TestWhoGivesUpWaitingLeavesTheLoadToTheNext(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.Get(ctx, u1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		pass(10 * time.Millisecond)
		get(t, c, 1)
		if n := s.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

func TestCachedQuotaServesWhilePostgresIsAway(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		get(t, c, 1)
		s.mu.Lock()
		s.err = errors.New("away")
		s.mu.Unlock()
		get(t, c, 1)
		pass(redisfence.CacheTTL)
		if _, err := c.Get(t.Context(), u1); err == nil {
			t.Error("an expired quota was served")
		}
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		get(t, c, 1) // the error was not cached
	})
}

func TestCacheHoldsNoMoreThanItsSize(t *testing.T) {
	each(t, func(t *testing.T, _ *sold, c *Cache) {
		for i := range 10 {
			if _, err := c.Get(t.Context(), subject.Subject{Kind: subject.User, ID: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if c.Len() != 3 {
			t.Errorf("%d entries", c.Len())
		}
	})
}

// Whatever drops and loads overlap: after a change was announced, no Get gives an older version.
func TestNoOrderOfLoadsAndDropsBringsAnOldQuotaBack(t *testing.T) {
	for seed := range uint64(200) {
		each(t, func(t *testing.T, s *sold, c *Cache) {
			r := rand.New(rand.NewPCG(seed, 0))
			var wg sync.WaitGroup
			var announced atomic.Int64
			for range 8 {
				wait := time.Duration(r.IntN(40)) * time.Millisecond
				reload := r.IntN(4) == 0
				wg.Go(func() {
					for range 10 {
						pass(wait)
						least := announced.Load()
						var p tier.Plan
						var err error
						if reload {
							p, err = c.Reload(t.Context(), u1, refuted(least))
						} else {
							p, err = c.Get(t.Context(), u1)
						}
						if err != nil || (!reload && p.Own().Version < least) {
							t.Errorf("seed %d: %+v after version %d was announced, %v", seed, p, least, err)
						}
					}
				})
			}
			for v := int64(2); v < 20; v++ {
				pass(time.Duration(r.IntN(30)) * time.Millisecond)
				s.set(v)
				switch r.IntN(3) {
				case 0:
					c.Drop(redisfence.Change{Name: "user:u1", Version: v})
				case 1:
					c.Drop(redisfence.Change{Name: "tier:plus", Version: v})
				default:
					c.DropAll()
				}
				announced.Store(v)
			}
			wg.Wait()
		})
	}
}

var (
	k1 = subject.Subject{Kind: subject.APIKey, ID: "u1-k1"} // of the user u1
	k2 = subject.Subject{Kind: subject.APIKey, ID: "o1-k2"} // of a user in the org o1
	o1 = subject.Subject{Kind: subject.User, ID: "o1"}      // in the org o1
)

// A change drops every plan that depends on what it names, and no other; a load that began before it is not kept, and nobody who asks
// later joins it.
func TestChangeDropsEveryPlanThatDependsOnIt(t *testing.T) {
	for name, dropped := range map[string][]subject.Subject{
		"user:u1": {u1, k1}, "api_key:u1-k1": {k1}, "api_key:o1-k2": {k2}, "user:o1": {o1, k2}, "org:o1": {o1, k2}, "tier:plus": {u1, k1, o1, k2},
		"user:u2": nil, "org:o2": nil, "tier:free": nil, "tier:": nil, "nonsense": nil,
	} {
		each(t, func(t *testing.T, s *sold, _ *Cache) {
			c := New(s, Options{})
			defer c.Close()
			for _, warm := range []bool{true, false} {
				c.DropAll()
				before := s.version
				var wg sync.WaitGroup
				for _, sub := range []subject.Subject{u1, k1, o1, k2} {
					wg.Go(func() { getOf(t, c, sub, before) })
				}
				if warm {
					wg.Wait()
				}
				pass(5 * time.Millisecond) // else the loads are under way
				s.set(before + 1)
				c.Drop(redisfence.Change{Name: name, Version: before + 1})
				for _, sub := range []subject.Subject{u1, k1, o1, k2} {
					switch {
					case slices.Contains(dropped, sub):
						getOf(t, c, sub, before+1)
					case warm:
						getOf(t, c, sub, before)
					}
				}
				wg.Wait()
				for _, sub := range dropped {
					getOf(t, c, sub, before+1)
				}
			}
		})
	}
}

func TestChangesAreForgottenWithTheLastPlanThatIsOlder(t *testing.T) {
	each(t, func(t *testing.T, _ *sold, c *Cache) {
		for i := range 500 {
			c.Drop(redisfence.Change{Name: fmt.Sprintf("user:v%d", i), Version: 1})
		}
		pass(redisfence.CacheTTL)
		c.Drop(redisfence.Change{Name: "user:v1", Version: 2})
		if len(c.changes.at) != 1 || len(c.changes.queue) != 1 {
			t.Errorf("%d changes are remembered", len(c.changes.at))
		}
	})
}

func TestFloodOfChangesDropsEverything(t *testing.T) {
	each(t, func(t *testing.T, s *sold, c *Cache) {
		get(t, c, 1)
		s.set(2)
		for i := range maxChanges + 1 {
			c.Drop(redisfence.Change{Name: fmt.Sprintf("user:v%d", i), Version: 1})
		}
		get(t, c, 2)
		if len(c.changes.at) > 1 {
			t.Errorf("%d changes are remembered", len(c.changes.at))
		}
	})
}
