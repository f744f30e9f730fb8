package identity

import (
	"context"
	"errors"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Identity is who a request is of.
type Identity struct {
	Subject subject.Subject
	entry   *entry // of a key
}

// Unauthorized says why a credential is none. Its text is for the caller and holds nothing of the credential.
type Unauthorized struct{ Detail string }

func (e *Unauthorized) Error() string { return e.Detail }

// ErrUnavailable is inside the error of a look-up that could not be made: it may be repeated.
var ErrUnavailable = errors.New("the credential could not be looked up")

// Finder tells credentials apart. Sessions may be nil: then only keys are taken.
type Finder struct {
	Keys     *Keys
	Sessions *Sessions
}

// Find gives the identity that a credential, the token of an Authorization header, is of. Errors: *Unauthorized, or ErrUnavailable inside.
func (f Finder) Find(ctx context.Context, token string) (Identity, error) {
	switch {
	case token == "":
		return Identity{}, &Unauthorized{"Send an API key or a session token: Authorization: Bearer <token>."}
	case strings.HasPrefix(token, subject.SecretPrefix):
		return f.Keys.find(ctx, token)
	case f.Sessions == nil:
		return Identity{}, &Unauthorized{"The token is not an API key."}
	}
	return f.Sessions.find(ctx, token)
}

// Confirm holds an identity against a decision made for it by version of its quota. Errors as those of Find.
func (f Finder) Confirm(ctx context.Context, token string, id Identity, version int64) error {
	if id.entry == nil || version <= id.entry.version {
		return nil
	}
	return f.Keys.again(ctx, token, id.entry)
}
