package quotacache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func (f *sold) Quota(_ context.Context, s subject.Subject) (tier.Quota, error) {
	f.loads.Add(1)
	f.mu.Lock()
	q, err, d := tier.Quota{Subject: s, Tier: f.tier, Version: f.version}, f.err, f.delay
	f.mu.Unlock()
	pass(d)
	return q, err
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

func get(t *testing.T, c *Cache, want int64) {
	t.Helper()
	q, err := c.Get(t.Context(), u1)
	if err != nil || q.Version != want {
		t.Fatalf("version %d, %v; want %d", q.Version, err, want)
	}
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
				if q, err := c.Reload(t.Context(), u1, tier.Quota{Tier: "plus", Version: 1}); err != nil || q.Version != 2 {
					t.Errorf("version %d, %v", q.Version, err)
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
						var q tier.Quota
						var err error
						if reload {
							q, err = c.Reload(t.Context(), u1, tier.Quota{Tier: "plus", Version: least})
						} else {
							q, err = c.Get(t.Context(), u1)
						}
						if err != nil || (!reload && q.Version < least) {
							t.Errorf("seed %d: version %d after %d was announced, %v", seed, q.Version, least, err)
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
