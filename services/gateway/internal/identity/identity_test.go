package identity_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
)

// keyStore is a store of one key.
type keyStore struct {
	secret string
	key    pgquota.ListedKey
	away   bool
	asked  int
}

func (s *keyStore) KeyOf(_ context.Context, secret string) (pgquota.ListedKey, error) {
	s.asked++
	switch {
	case s.away:
		return pgquota.ListedKey{}, errors.New("postgres is away")
	case secret != s.secret:
		return pgquota.ListedKey{}, pgquota.ErrKeyMissing
	}
	return s.key, nil
}

func unauthorized(err error) bool {
	var u *identity.Unauthorized
	return errors.As(err, &u)
}

func TestAKeyIsCachedUntilItIsAnnouncedOrItsTimeIsOver(t *testing.T) {
	now := time.Unix(1000, 0)
	st := &keyStore{secret: "tg-a", key: pgquota.ListedKey{Key: pgquota.Key{ID: "k1"}, Version: 3}}
	keys := identity.NewKeys(st, func() time.Time { return now })
	f := identity.Finder{Keys: keys}
	find := func(asked int) identity.Identity {
		t.Helper()
		id, err := f.Find(t.Context(), "tg-a")
		if err != nil || id.Subject.String() != "api_key:k1" || st.asked != asked {
			t.Fatalf("%v, %v, asked %d times, want %d", id, err, st.asked, asked)
		}
		return id
	}
	find(1)
	id := find(1)
	keys.Drop(redisfence.Change{Name: "api_key:k2"})
	find(1)
	keys.Drop(redisfence.Change{Name: "api_key:k1"})
	find(2)
	keys.DropAll()
	find(3)
	now = now.Add(redisfence.CacheTTL)
	find(4)
	if err := f.Confirm(t.Context(), "tg-a", id, 3); err != nil || st.asked != 4 {
		t.Errorf("%v, asked %d times", err, st.asked)
	}
	st.away = true
	find(4)
	if _, err := f.Find(t.Context(), "tg-b"); !errors.Is(err, identity.ErrUnavailable) {
		t.Error(err)
	}
}

func TestARotationThatWasNotAnnouncedIsSeenByTheDecisionsVersion(t *testing.T) {
	st := &keyStore{secret: "tg-a", key: pgquota.ListedKey{Key: pgquota.Key{ID: "k1"}, Version: 3}}
	f := identity.Finder{Keys: identity.NewKeys(st, nil)}
	id, err := f.Find(t.Context(), "tg-a")
	if err != nil {
		t.Fatal(err)
	}
	st.key.Version = 4
	if err := f.Confirm(t.Context(), "tg-a", id, 4); err != nil {
		t.Errorf("the key was changed, not its secret: %v", err)
	}
	if id, _ = f.Find(t.Context(), "tg-a"); f.Confirm(t.Context(), "tg-a", id, 4) != nil || st.asked != 2 {
		t.Errorf("asked %d times, want 2", st.asked)
	}
	st.secret, st.key.Version = "tg-b", 5
	if err := f.Confirm(t.Context(), "tg-a", id, 5); !unauthorized(err) {
		t.Errorf("rotated: %v", err)
	}
	if _, err := f.Find(t.Context(), "tg-a"); !unauthorized(err) {
		t.Errorf("the old secret is cached: %v", err)
	}
	id, _ = f.Find(t.Context(), "tg-b")
	st.key.RevokedAt, st.key.Version = new(time.Now()), 6
	if err := f.Confirm(t.Context(), "tg-b", id, 6); !unauthorized(err) {
		t.Errorf("revoked: %v", err)
	}
}

// droppingStore has the key announced as changed while it is being looked up.
type droppingStore struct {
	keyStore
	keys *identity.Keys
}

func (s *droppingStore) KeyOf(ctx context.Context, secret string) (pgquota.ListedKey, error) {
	k, err := s.keyStore.KeyOf(ctx, secret)
	s.keys.Drop(redisfence.Change{Name: "api_key:k1"})
	return k, err
}

func TestWhatWasLookedUpBeforeAChangeIsNotKeptAfterIt(t *testing.T) {
	st := &droppingStore{keyStore: keyStore{secret: "tg-a", key: pgquota.ListedKey{Key: pgquota.Key{ID: "k1"}}}}
	st.keys = identity.NewKeys(st, nil)
	for n := 1; n <= 2; n++ {
		if _, err := (identity.Finder{Keys: st.keys}).Find(t.Context(), "tg-a"); err != nil || st.asked != n {
			t.Errorf("%v, asked %d times", err, st.asked)
		}
	}
}

var secret = []byte("a-shared-secret-of-32-characters")

func claims(change func(jwt.MapClaims)) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "u1", "iss": "https://issuer", "aud": []string{"other", "tollgate"}, "exp": time.Now().Add(time.Hour).Unix()}
	if change != nil {
		change(c)
	}
	return c
}

func sign(t *testing.T, m jwt.SigningMethod, key any, c jwt.MapClaims, kid string) string {
	t.Helper()
	tok := jwt.NewWithClaims(m, c)
	if kid != "" {
		tok.Header["kid"] = kid
	}
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestOnlyASoundSessionIsTaken(t *testing.T) {
	key, other := rsaKey(t), rsaKey(t)
	s, err := identity.NewSessions(t.Context(), identity.SessionOptions{Secret: secret, PublicKey: &key.PublicKey, Issuer: "https://issuer", Audience: "tollgate"})
	if err != nil {
		t.Fatal(err)
	}
	f := identity.Finder{Sessions: s}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: func() []byte { b, _ := x509.MarshalPKIXPublicKey(&key.PublicKey); return b }()})
	hs, rs := jwt.SigningMethodHS256, jwt.SigningMethodRS256
	for name, token := range map[string]string{
		"hs256": sign(t, hs, secret, claims(nil), ""),
		"rs256": sign(t, rs, key, claims(nil), "some-kid"),
	} {
		if id, err := f.Find(t.Context(), token); err != nil || id.Subject.String() != "user:u1" {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
	for name, token := range map[string]string{
		"no token":               "",
		"no jwt":                 "abc",
		"none":                   sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims(nil), ""),
		"public key as a secret": sign(t, hs, public, claims(nil), ""),
		"another secret":         sign(t, hs, []byte("another"), claims(nil), ""),
		"another key":            sign(t, rs, other, claims(nil), ""),
		"another algorithm":      sign(t, jwt.SigningMethodHS512, secret, claims(nil), ""),
		"rs512":                  sign(t, jwt.SigningMethodRS512, key, claims(nil), ""),
		"expired":                sign(t, hs, secret, claims(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }), ""),
		"no expiry":              sign(t, hs, secret, claims(func(c jwt.MapClaims) { delete(c, "exp") }), ""),
		"not yet":                sign(t, hs, secret, claims(func(c jwt.MapClaims) { c["nbf"] = time.Now().Add(time.Minute).Unix() }), ""),
		"another issuer":         sign(t, hs, secret, claims(func(c jwt.MapClaims) { c["iss"] = "x" }), ""),
		"no issuer":              sign(t, hs, secret, claims(func(c jwt.MapClaims) { delete(c, "iss") }), ""),
		"another audience":       sign(t, hs, secret, claims(func(c jwt.MapClaims) { c["aud"] = "x" }), ""),
		"no audience":            sign(t, hs, secret, claims(func(c jwt.MapClaims) { delete(c, "aud") }), ""),
		"no user":                sign(t, hs, secret, claims(func(c jwt.MapClaims) { delete(c, "sub") }), ""),
		"a number as user":       sign(t, hs, secret, claims(func(c jwt.MapClaims) { c["sub"] = 7 }), ""),
		"a user that is no id":   sign(t, hs, secret, claims(func(c jwt.MapClaims) { c["sub"] = "u1:{2}" }), ""),
	} {
		if id, err := f.Find(t.Context(), token); !unauthorized(err) {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
}

func TestJWKSIsCachedAndFollowsARotation(t *testing.T) {
	first, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	second := rsaKey(t)
	var rotated atomic.Bool
	var fetched atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		var keys []jwkset.JWKMarshal
		add := func(k any, kid string) {
			j, err := jwkset.NewJWKFromKey(k, jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: kid}})
			if err != nil {
				t.Error(err)
			}
			keys = append(keys, j.Marshal())
		}
		if !rotated.Load() {
			add(&first.PublicKey, "k1")
		} else {
			add(&second.PublicKey, "k2")
		}
		_ = json.NewEncoder(w).Encode(jwkset.JWKSMarshal{Keys: keys})
	}))
	defer srv.Close()
	s, err := identity.NewSessions(t.Context(), identity.SessionOptions{JWKS: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	f := identity.Finder{Sessions: s}
	old := sign(t, jwt.SigningMethodES256, first, claims(nil), "k1")
	for range 20 {
		if _, err := f.Find(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times for 20 tokens", n)
	}
	rotated.Store(true)
	if id, err := f.Find(t.Context(), sign(t, jwt.SigningMethodRS256, second, claims(nil), "k2")); err != nil || id.Subject.ID != "u1" {
		t.Errorf("the new key: %v, %v", id, err)
	}
	if _, err := f.Find(t.Context(), old); !unauthorized(err) {
		t.Errorf("a key that was withdrawn: %v", err)
	}
	before := fetched.Load()
	for range 20 {
		if _, err := f.Find(t.Context(), sign(t, jwt.SigningMethodRS256, second, claims(nil), "unknown")); !unauthorized(err) {
			t.Error(err)
		}
	}
	if n := fetched.Load() - before; n > 1 {
		t.Errorf("fetched %d times for unknown keys", n)
	}
	if _, err := f.Find(t.Context(), sign(t, jwt.SigningMethodHS256, secret, claims(nil), "k2")); !unauthorized(err) {
		t.Error(err)
	}
}

// Whoever has gone does not go on waiting for a key server.
func TestALookUpEndsWithItsCaller(t *testing.T) {
	asked := make(chan struct{}, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		if len(asked) > 1 { // the first one, at the start, finds no keys
			<-r.Context().Done()
		}
		_ = json.NewEncoder(w).Encode(jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{}})
	}))
	defer srv.Close()
	s, err := identity.NewSessions(t.Context(), identity.SessionOptions{JWKS: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	text := sign(t, jwt.SigningMethodRS256, rsaKey(t), claims(nil), "unknown")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = identity.Finder{Sessions: s}.Find(ctx, text)
	if took := time.Since(begin); !errors.Is(err, identity.ErrUnavailable) || took > time.Second {
		t.Errorf("%v after %s", err, took)
	}
}
