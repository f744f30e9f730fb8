package identity

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// SessionOptions say which JWTs are sessions. At least one of Secret, PublicKey and JWKS is given.
type SessionOptions struct {
	Secret    []byte         // of HS256
	PublicKey *rsa.PublicKey // of RS256
	JWKS      string         // URL of a JSON Web Key Set; keys that sign asymmetrically
	Issuer    string         // iss must be it; any if empty
	Audience  string         // aud must have it; any if empty
	UserClaim string         // the claim that is the user's id; sub if empty
	Leeway    time.Duration  // for clocks that differ
	Refresh   time.Duration  // of the JWKS; 10 min if 0
	Log       *slog.Logger
	Now       func() time.Time // time.Now if nil
}

// kind is one kind of key and what it may sign.
type kind struct {
	parser *jwt.Parser
	key    func(context.Context) jwt.Keyfunc
}

// Sessions verifies JWTs. It is safe for concurrent use.
type Sessions struct {
	kinds map[string][]kind // by algorithm
	claim string
}

// unknownKeyEvery bounds how often a JWKS is fetched because a token names a key that is not in it.
const unknownKeyEvery = 5 * time.Second

// unknownKeyWait bounds how long such a token waits: for its turn and for the fetch.
const unknownKeyWait = 2 * time.Second

// NewSessions makes a verifier. A JWKS is refreshed until ctx ends; one that is away at first is no error.
func NewSessions(ctx context.Context, o SessionOptions) (*Sessions, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Refresh == 0 {
		o.Refresh = 10 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sessions{kinds: map[string][]kind{}, claim: o.UserClaim}
	if s.claim == "" {
		s.claim = "sub"
	}
	add := func(key func(context.Context) jwt.Keyfunc, algs ...string) {
		opts := []jwt.ParserOption{jwt.WithExpirationRequired(), jwt.WithLeeway(o.Leeway), jwt.WithTimeFunc(o.Now), jwt.WithIssuedAt()}
		if o.Issuer != "" {
			opts = append(opts, jwt.WithIssuer(o.Issuer))
		}
		if o.Audience != "" {
			opts = append(opts, jwt.WithAudience(o.Audience))
		}
		for _, alg := range algs {
			s.kinds[alg] = append(s.kinds[alg], kind{jwt.NewParser(append(opts, jwt.WithValidMethods([]string{alg}))...), key})
		}
	}
	if len(o.Secret) > 0 {
		add(always(o.Secret), "HS256")
	}
	if o.PublicKey != nil {
		add(always(o.PublicKey), "RS256")
	}
	if o.JWKS != "" {
		k, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{o.JWKS}, keyfunc.Override{HTTPTimeout: 5 * time.Second, RefreshInterval: o.Refresh,
			RateLimitWaitMax: unknownKeyWait, RefreshUnknownKID: rate.NewLimiter(rate.Every(unknownKeyEvery), 1),
			RefreshErrorHandlerFunc: func(string) func(context.Context, error) {
				return func(ctx context.Context, err error) {
					o.Log.WarnContext(ctx, "the JWKS could not be fetched", "err", err)
				}
			}})
		if err != nil {
			return nil, fmt.Errorf("JWKS: %w", err)
		}
		add(k.KeyfuncCtx, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
	}
	return s, nil
}

func always(key any) func(context.Context) jwt.Keyfunc {
	return func(context.Context) jwt.Keyfunc { return func(*jwt.Token) (any, error) { return key, nil } }
}

func (s *Sessions) find(ctx context.Context, token string) (Identity, error) {
	var claims jwt.MapClaims
	unverified, _, err := jwt.NewParser().ParseUnverified(token, &jwt.RegisteredClaims{})
	if err != nil {
		return Identity{}, &Unauthorized{"The token is neither an API key nor a JWT."}
	}
	err = jwt.ErrTokenUnverifiable
	for _, k := range s.kinds[unverified.Method.Alg()] {
		claims = jwt.MapClaims{}
		if _, err = k.parser.ParseWithClaims(token, claims, k.key(ctx)); err == nil {
			break
		}
	}
	switch {
	case err != nil && ctx.Err() != nil: // the caller has gone while a key was fetched
		return Identity{}, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	case errors.Is(err, jwt.ErrTokenExpired):
		return Identity{}, &Unauthorized{"The session has expired."}
	case err != nil: // which check it failed helps forgers only
		return Identity{}, &Unauthorized{"The session token is not valid here."}
	}
	user, _ := claims[s.claim].(string)
	if err := subject.ValidateID(user); err != nil {
		return Identity{}, &Unauthorized{"The session token names no user: " + s.claim + " " + err.Error() + "."}
	}
	return Identity{Subject: subject.Subject{Kind: subject.User, ID: user}}, nil
}
