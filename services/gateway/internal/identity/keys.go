package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/semaphore"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Size is how many keys are held.
const Size = 100_000

// What secrets that nobody has may cost.
const (
	// UnknownTTL is how long a secret that nobody has is not looked up again. It may be longer than a new key may wait, for none waits: a secret is 130
	// random bits, and is told to nobody before it is stored.
	UnknownTTL = 10 * time.Second
	// UnknownSize is how many such secrets are held, 32 bytes and some more each.
	UnknownSize = 10_000
	// Lookups is how many secrets that are not cached are looked up at once: half of the connections to Postgres. The others are for keys that are known.
	Lookups = 4
	// LookupWait bounds how long a secret waits for its turn.
	LookupWait = 2 * time.Second
)

// Store looks keys up where they are kept. Error: pgquota.ErrKeyMissing, or it could not be asked.
type Store interface {
	KeyOf(ctx context.Context, secret string) (pgquota.ListedKey, error)
}

var _ Store = (*pgquota.Store)(nil)

type hash = [sha256.Size]byte

type entry struct {
	subject subject.Subject
	version int64
	until   time.Time // guarded by Keys.mu
}

// Keys is a cache of API keys. It is safe for concurrent use.
type Keys struct {
	store Store
	now   func() time.Time

	mu      sync.Mutex
	entries *simplelru.LRU[hash, *entry]
	of      map[string]map[hash]struct{} // by the subject's name
	drops   uint64                       // an entry looked up before a drop is not kept after it
	unknown *simplelru.LRU[hash, time.Time]

	turns *semaphore.Weighted // of look-ups of secrets that may be nobody's
}

// NewKeys makes an empty cache. now is time.Now if nil.
func NewKeys(s Store, now func() time.Time) *Keys {
	if now == nil {
		now = time.Now
	}
	k := &Keys{store: s, now: now, of: map[string]map[hash]struct{}{}, turns: semaphore.NewWeighted(Lookups)}
	k.unknown, _ = simplelru.NewLRU[hash, time.Time](UnknownSize, nil) // its only error is a size below 1
	k.entries, _ = simplelru.NewLRU(Size, func(h hash, e *entry) {     // its only error is a size below 1
		name := e.subject.String()
		delete(k.of[name], h)
		if len(k.of[name]) == 0 {
			delete(k.of, name)
		}
	})
	return k
}

var errUnknown = &Unauthorized{"The API key is not known."}

// cached gives what is known of a secret: its entry, or that it is nobody's. known tells that it was somebody's a while ago.
func (k *Keys) cached(h hash) (e *entry, known bool, drops uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	drops = k.drops
	if e, known = k.entries.Get(h); known && k.now().Before(e.until) {
		return e, known, drops, nil
	}
	if known {
		k.entries.Remove(h)
	} else if until, ok := k.unknown.Get(h); ok && k.now().Before(until) {
		return nil, false, drops, errUnknown
	}
	return nil, known, drops, nil
}

func (k *Keys) find(ctx context.Context, secret string) (Identity, error) {
	h := sha256.Sum256([]byte(secret))
	e, known, drops, err := k.cached(h)
	if e == nil && err == nil && !known {
		// It may be nobody's. Those wait for each other, not for them those whose keys are known.
		wait, cancel := context.WithTimeout(ctx, LookupWait)
		defer cancel()
		if err := k.turns.Acquire(wait, 1); err != nil {
			return Identity{}, fmt.Errorf("%w: too many unknown keys: %w", ErrUnavailable, err)
		}
		defer k.turns.Release(1)
		e, _, drops, err = k.cached(h) // it may have been looked up meanwhile
	}
	if e == nil && err == nil {
		e, err = k.load(ctx, secret, h, drops)
	}
	if err != nil {
		return Identity{}, err
	}
	return Identity{e.subject, e}, nil
}

func (k *Keys) load(ctx context.Context, secret string, h hash, drops uint64) (*entry, error) {
	until := k.now().Add(redisfence.CacheTTL)
	found, err := k.store.KeyOf(ctx, secret)
	switch {
	case errors.Is(err, pgquota.ErrKeyMissing):
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.drops == drops {
			k.unknown.Add(h, k.now().Add(UnknownTTL))
		}
		return nil, errUnknown
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case found.RevokedAt != nil:
		return nil, &Unauthorized{"The API key is revoked."}
	}
	e := &entry{found.Subject(), found.Version, until}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.drops == drops {
		k.entries.Add(h, e)
		name := e.subject.String()
		if k.of[name] == nil {
			k.of[name] = map[hash]struct{}{}
		}
		k.of[name][h] = struct{}{}
	}
	return e, nil
}

// again looks a key up anew.
func (k *Keys) again(ctx context.Context, secret string, old *entry) error {
	h := sha256.Sum256([]byte(secret))
	k.mu.Lock()
	if e, ok := k.entries.Peek(h); ok && e == old {
		k.entries.Remove(h)
	}
	drops := k.drops
	k.mu.Unlock()
	_, err := k.load(ctx, secret, h, drops)
	return err
}

// Drop has what an announced change names looked up anew.
func (k *Keys) Drop(c redisfence.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drops++
	if strings.HasPrefix(c.Name, string(subject.APIKey)+":") { // a new one, for all that is known
		k.unknown.Purge()
	}
	for h := range k.of[c.Name] {
		if e, ok := k.entries.Peek(h); ok {
			e.until = time.Time{} // it is known to be a key: see find
		}
	}
}

// DropAll has everything looked up anew: announcements may have been missed.
func (k *Keys) DropAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drops++
	k.unknown.Purge()
	for _, e := range k.entries.Values() {
		e.until = time.Time{}
	}
}
