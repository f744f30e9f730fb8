package api

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
)

// A POST with an Idempotency-Key is made once: the same call again, within pgquota.KeepAnswers, gets the answer of the first. That answer may hold
// a secret which is stored nowhere else, so it is kept encrypted under a key that follows from the caller's token and the Idempotency-Key:
// neither is stored, and who reads the table, or guesses the Idempotency-Key, reads no secret.

const (
	idempotencyKey = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	maxIdempotency = 255
	saltLen        = 16
)

// once is one call's Idempotency-Key. nil: it has none.
type once struct {
	lookup, request [sha256.Size]byte
	token, key      string
}

// kept is the answer to keep. Propagation is told anew with each repeat.
type kept struct {
	Status   int             `json:"status"`
	ETag     string          `json:"etag,omitempty"`
	Location string          `json:"location,omitempty"`
	Names    []string        `json:"names,omitempty"` // whose changes must be published
	Body     json.RawMessage `json:"body"`
}

// readOnce reads the Idempotency-Key and, if there is one, the body, which stays to be read.
func readOnce(c echo.Context) (*once, []problem.FieldError, error) {
	r := c.Request()
	keys := r.Header.Values(idempotencyKey)
	if len(keys) == 0 {
		return nil, nil, nil
	}
	bad := func(detail string) (*once, []problem.FieldError, error) {
		return nil, []problem.FieldError{{Field: idempotencyKey, Detail: detail}}, nil
	}
	if len(keys) > 1 {
		return bad("is given twice")
	}
	key := keys[0]
	if len(key) < 1 || len(key) > maxIdempotency {
		return bad(fmt.Sprintf("must have from 1 to %d characters", maxIdempotency))
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return bad("may hold only printable ASCII characters")
		}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, strictjson.MaxBody+1))
	if err != nil {
		return nil, nil, problem.New(http.StatusBadRequest, problem.CodeMalformedJSON, "The body could not be read.").Because(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	token := auth.Bearer(r)
	path := r.URL.EscapedPath()
	return &once{token: token, key: key, lookup: digest(token, r.Method, path, key), request: digest(path, r.Header.Get("If-Match"), string(body))}, nil, nil
}

// digest hashes parts so that none can run into the next.
func digest(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(p), p) // a hash takes everything
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// askOnce has a change kept once; view gives the status, the headers and the body of its answer.
func askOnce[T any](o *once, view func(T) (kept, any)) *pgquota.Once[T] {
	if o == nil {
		return nil
	}
	return &pgquota.Once[T]{Key: o.lookup, Request: o.request, Seal: func(result T) ([]byte, error) {
		k, body := view(result)
		var err error
		if k.Body, err = json.Marshal(body); err != nil {
			return nil, err
		}
		plain, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		return o.seal(plain)
	}}
}

// gcm is the cipher of one answer.
func (o *once) gcm(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, []byte(o.token), salt, "tollgate idempotent answer v1\x00"+o.key, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func (o *once) seal(plain []byte) ([]byte, error) {
	salt := make([]byte, saltLen)
	rand.Read(salt) // never fails (crypto/rand)
	aead, err := o.gcm(salt)
	if err != nil {
		return nil, err
	}
	return aead.Seal(salt, nil, plain, o.request[:]), nil
}

func (o *once) open(sealed []byte) (kept, error) {
	if len(sealed) < saltLen {
		return kept{}, errors.New("a kept answer is too short")
	}
	aead, err := o.gcm(sealed[:saltLen])
	if err != nil {
		return kept{}, err
	}
	plain, err := aead.Open(nil, nil, sealed[saltLen:], o.request[:])
	if err != nil {
		return kept{}, fmt.Errorf("a kept answer: %w", err)
	}
	var k kept
	if err := json.Unmarshal(plain, &k); err != nil {
		return kept{}, fmt.Errorf("a kept answer: %w", err)
	}
	return k, nil
}

// replay answers a call that was made before; err is what the store said. false: it was not.
func (s *server) replay(c echo.Context, o *once, kind string, err error) (bool, error) {
	var r *pgquota.Replay
	if !errors.As(err, &r) {
		return false, err
	}
	k, err := o.open(r.Sealed)
	if err != nil {
		return true, err
	}
	body := []byte(k.Body)
	if len(k.Names) > 0 { // propagation comes last in every answer that has it
		how, err := s.settleNames(c.Request().Context(), kind, k.Names)
		if err != nil {
			return true, err
		}
		body = append(body[:len(body)-1], `,"propagation":"`+how+`"}`...)
	}
	h := c.Response().Header()
	for name, v := range map[string]string{"ETag": k.ETag, "Location": k.Location} {
		if v != "" {
			h.Set(name, v)
		}
	}
	h.Set(replayedHeader, "true")
	return true, c.JSONBlob(k.Status, append(body, '\n'))
}

// settleNames publishes what waits of the names.
func (s *server) settleNames(ctx context.Context, kind string, names []string) (string, error) {
	fences, err := s.Store.Fences(ctx, names)
	if err != nil {
		return "", err
	}
	return s.settle(ctx, kind, false, fences), nil
}
