package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Size is how many keys are held.
const Size = 100_000

// Store looks keys up where they are kept. Error: pgquota.ErrKeyMissing, or it could not be asked.
type Store interface {
	KeyOf(ctx context.Context, secret string) (pgquota.ListedKey, error)
}

var _ Store = (*pgquota.Store)(nil)

type hash = [sha256.Size]byte

type entry struct {
	subject subject.Subject
	version int64
	until   time.Time
}

// Keys is a cache of API keys. It is safe for concurrent use.
type Keys struct {
	store Store
	now   func() time.Time

	mu      sync.Mutex
	entries *simplelru.LRU[hash, *entry]
	of      map[string]map[hash]struct{} // by the subject's name
	drops   uint64                       // an entry looked up before a drop is not kept after it
}

// NewKeys makes an empty cache. now is time.Now if nil.
func NewKeys(s Store, now func() time.Time) *Keys {
	if now == nil {
		now = time.Now
	}
	k := &Keys{store: s, now: now, of: map[string]map[hash]struct{}{}}
	k.entries, _ = simplelru.NewLRU(Size, func(h hash, e *entry) { // its only error is a size below 1
		name := e.subject.String()
		delete(k.of[name], h)
		if len(k.of[name]) == 0 {
			delete(k.of, name)
		}
	})
	return k
}

func (k *Keys) find(ctx context.Context, secret string) (Identity, error) {
	h := sha256.Sum256([]byte(secret))
	k.mu.Lock()
	e, ok := k.entries.Get(h)
	if ok && !k.now().Before(e.until) {
		k.entries.Remove(h)
		ok = false
	}
	drops := k.drops
	k.mu.Unlock()
	if !ok {
		var err error
		if e, err = k.load(ctx, secret, h, drops); err != nil {
			return Identity{}, err
		}
	}
	return Identity{e.subject, e}, nil
}

func (k *Keys) load(ctx context.Context, secret string, h hash, drops uint64) (*entry, error) {
	until := k.now().Add(redisfence.CacheTTL)
	found, err := k.store.KeyOf(ctx, secret)
	switch {
	case errors.Is(err, pgquota.ErrKeyMissing):
		return nil, &Unauthorized{"The API key is not known."}
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

// Drop forgets what an announced change names.
func (k *Keys) Drop(c redisfence.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drops++
	for h := range k.of[c.Name] {
		k.entries.Remove(h)
	}
}

// DropAll forgets everything: announcements may have been missed.
func (k *Keys) DropAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drops++
	k.entries.Purge()
}
