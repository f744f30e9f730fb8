package identity_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
)

// slowStore takes its time for each look-up, and counts those at once.
type slowStore struct {
	takes       time.Duration
	mu          sync.Mutex
	known       map[string]bool
	asked, open int
	most        atomic.Int64
}

func (s *slowStore) KeyOf(ctx context.Context, secret string) (pgquota.ListedKey, error) {
	s.mu.Lock()
	s.asked++
	s.open++
	s.most.Store(max(s.most.Load(), int64(s.open)))
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if !s.known[secret] {
		return pgquota.ListedKey{}, pgquota.ErrKeyMissing
	}
	return pgquota.ListedKey{Key: pgquota.Key{ID: secret}, Version: 1}, ctx.Err()
}

func (s *slowStore) add(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[secret] = true
}

func TestAnUnknownKeyIsNotLookedUpAgainForAWhile(t *testing.T) {
	now := time.Unix(1000, 0)
	st := &keyStore{secret: "tg-a", key: pgquota.ListedKey{Key: pgquota.Key{ID: "k1"}}}
	keys := identity.NewKeys(st, func() time.Time { return now })
	f := identity.Finder{Keys: keys}
	ask := func(asked int) {
		t.Helper()
		if _, err := f.Find(t.Context(), "tg-none"); !unauthorized(err) || st.asked != asked {
			t.Fatalf("%v, asked %d times, want %d", err, st.asked, asked)
		}
	}
	for range 3 {
		ask(1)
	}
	now = now.Add(identity.UnknownTTL)
	ask(2)
	keys.Drop(redisfence.Change{Name: "user:u1"})
	ask(2)
	keys.DropAll()
	ask(3)
}

// Even a key whose secret was asked for before it was made is good from its announcement on, also if that comes during the look-up; any other is good
// at once, with no announcement at all.
func TestANewKeyIsGoodAtItsNextRequest(t *testing.T) {
	st := &keyStore{secret: "tg-a", key: pgquota.ListedKey{Key: pgquota.Key{ID: "k1"}}}
	keys := identity.NewKeys(st, nil)
	f := identity.Finder{Keys: keys}
	if _, err := f.Find(t.Context(), "tg-b"); !unauthorized(err) {
		t.Fatal(err)
	}
	st.secret = "tg-c"
	if _, err := f.Find(t.Context(), "tg-c"); err != nil {
		t.Errorf("a key of which nothing was announced: %v", err)
	}
	st.secret = "tg-b"
	keys.Drop(redisfence.Change{Name: "api_key:k1"})
	if _, err := f.Find(t.Context(), "tg-b"); err != nil {
		t.Errorf("one that was asked for before it was made: %v", err)
	}
	made := &droppingStore{keyStore: keyStore{secret: "tg-z"}}
	made.keys = identity.NewKeys(made, nil)
	f = identity.Finder{Keys: made.keys}
	if _, err := f.Find(t.Context(), "tg-a"); !unauthorized(err) {
		t.Fatal(err)
	}
	made.secret, made.key = "tg-a", pgquota.ListedKey{Key: pgquota.Key{ID: "k1"}}
	if _, err := f.Find(t.Context(), "tg-a"); err != nil {
		t.Errorf("one that was made during a look-up: %v", err)
	}
}

func TestAFloodOfUnknownKeysTakesAFewLookUpsAtOnceAndHoldsUpNoKnownKey(t *testing.T) {
	for name, forget := range map[string]func(*identity.Keys){
		"its time is over":    func(*identity.Keys) { time.Sleep(redisfence.CacheTTL) },
		"announced":           func(k *identity.Keys) { k.Drop(redisfence.Change{Name: "api_key:tg-known"}) },
		"all have to be anew": (*identity.Keys).DropAll,
	} {
		t.Run(name, func(t *testing.T) { flood(t, forget) })
	}
}

func flood(t *testing.T, forget func(*identity.Keys)) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowStore{takes: time.Second, known: map[string]bool{"tg-known": true}}
		keys := identity.NewKeys(st, nil)
		f := identity.Finder{Keys: keys}
		if _, err := f.Find(t.Context(), "tg-known"); err != nil {
			t.Fatal(err)
		}
		forget(keys)
		st.asked = 0
		var refused, undecided atomic.Int64
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				switch _, err := f.Find(t.Context(), fmt.Sprintf("tg-%d", i)); {
				case unauthorized(err):
					refused.Add(1)
				case errors.Is(err, identity.ErrUnavailable):
					undecided.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		if _, err := f.Find(t.Context(), "tg-known"); err != nil || time.Since(begin) > time.Second {
			t.Errorf("the known key: %v after %s", err, time.Since(begin))
		}
		all.Wait()
		// A turn takes a second, and nobody waits for more than two.
		if n := refused.Load(); st.most.Load() > identity.Lookups+1 || n > 3*identity.Lookups || n < 2*identity.Lookups || n+undecided.Load() != 1000 {
			t.Errorf("%d look-ups at once, %d in all, %d refused, %d told to come again", st.most.Load(), st.asked, n, undecided.Load())
		}
		st.add("tg-new")
		if _, err := f.Find(t.Context(), "tg-new"); err != nil {
			t.Errorf("a new key after the flood: %v", err)
		}
	})
}

func TestOneSecretThatManyBringAtOnceIsLookedUpAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowStore{takes: 100 * time.Millisecond, known: map[string]bool{"tg-a": true}}
		f := identity.Finder{Keys: identity.NewKeys(st, nil)}
		var all sync.WaitGroup
		for _, secret := range []string{"tg-a", "tg-none"} {
			for range 500 {
				all.Go(func() {
					if _, err := f.Find(t.Context(), secret); (err == nil) != (secret == "tg-a") || err != nil && !unauthorized(err) {
						t.Errorf("%s: %v", secret, err)
					}
				})
			}
		}
		all.Wait()
		if st.asked > 3*identity.Lookups {
			t.Errorf("asked %d times for two secrets", st.asked)
		}
	})
}
