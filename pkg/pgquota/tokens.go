package pgquota

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// ErrTokenMissing says that there is no such admin token, or none that is good any more. ErrTokenNameTaken says that a token of that name
// was made before; a name is an actor in histories, so it never stands for another token.
var (
	ErrTokenMissing   = errors.New("there is no such admin token")
	ErrTokenNameTaken = errors.New("there was an admin token of that name before")
)

// ReservedTokenNames are those of the tokens that come from a service's environment.
var ReservedTokenNames = []string{"admin", "viewer", "service", "tollgate"}

// AdminToken is a token of the admin API, without what is secret about it. OrgID is an org-admin's org, else "".
type AdminToken struct {
	Name      string
	Role      auth.Role
	OrgID     string
	CreatedBy string
	CreatedAt time.Time
	ExpiresAt *time.Time // nil: never
	RevokedBy string
	RevokedAt *time.Time // nil: not
}

// NewToken states a token. auth.NewAdminToken makes one; Hash is auth.Hash of it.
type NewToken struct {
	Name      string
	Role      auth.Role
	OrgID     string
	ExpiresAt *time.Time
	Hash      [sha256.Size]byte
	Actor     string
	Once      *Once[AdminToken] // nil: a repeat is refused by its name
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (n NewToken) Validate(now time.Time) error {
	errs := []error{checkNote("actor", n.Actor, 1, MaxActor)}
	bad := func(field, detail string) {
		errs = append(errs, &tier.FieldError{Field: field, Err: errors.New(detail)})
	}
	if err := subject.ValidateID(n.Name); err != nil {
		errs = append(errs, &tier.FieldError{Field: "name", Err: err})
	} else if slices.Contains(ReservedTokenNames, n.Name) {
		bad("name", fmt.Sprintf("%q stands for a token of the service's environment", n.Name))
	}
	switch n.Role {
	case auth.Viewer, auth.Admin:
		if n.OrgID != "" {
			bad("org_id", "has no place here: only an org-admin has one")
		}
	case auth.OrgAdmin:
		if err := subject.ValidateID(n.OrgID); err != nil {
			errs = append(errs, &tier.FieldError{Field: "org_id", Err: fmt.Errorf("an org-admin has one: %w", err)})
		}
	default:
		bad("role", "must be viewer, admin or org-admin")
	}
	if n.ExpiresAt != nil && !n.ExpiresAt.After(now) {
		bad("expires_at", "must lie in the future")
	}
	return errors.Join(errs...)
}

// CreateToken keeps a token's hash. Errors: *tier.FieldError (joined), ErrTokenNameTaken, those of Once, or Postgres could not be asked.
func (s *Store) CreateToken(ctx context.Context, n NewToken) (AdminToken, error) {
	if err := n.Validate(time.Now()); err != nil {
		return AdminToken{}, err
	}
	if n.ExpiresAt != nil {
		at := n.ExpiresAt.UTC().Truncate(time.Millisecond)
		n.ExpiresAt = &at
	}
	t := AdminToken{Name: n.Name, Role: n.Role, OrgID: n.OrgID, CreatedBy: n.Actor, ExpiresAt: n.ExpiresAt}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := n.Once.begin(ctx, tx); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, sqlInsertAdminToken, n.Name, string(n.Role), n.OrgID, n.Hash[:], n.Actor, n.ExpiresAt).Scan(&t.CreatedAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrTokenNameTaken
		}
		if err != nil {
			return err
		}
		t.CreatedAt = t.CreatedAt.UTC()
		return n.Once.end(ctx, tx, t)
	})
	if err != nil {
		return AdminToken{}, fmt.Errorf("create admin token %s: %w", n.Name, err)
	}
	return t, nil
}

// RevokeToken refuses a token from the next call on. One that is revoked stays as it is. Errors: ErrTokenMissing, or Postgres could not be
// asked.
func (s *Store) RevokeToken(ctx context.Context, name, actor string) (AdminToken, error) {
	if err := checkNote("actor", actor, 1, MaxActor); err != nil {
		return AdminToken{}, err
	}
	if _, err := s.pool.Exec(ctx, sqlRevokeAdminToken, name, actor); err != nil {
		return AdminToken{}, fmt.Errorf("revoke admin token %s: %w", name, err)
	}
	return s.Token(ctx, name)
}

// Token reads a token, a revoked one included. Error: ErrTokenMissing, or Postgres could not be asked.
func (s *Store) Token(ctx context.Context, name string) (AdminToken, error) {
	ts, err := s.tokens(ctx, name, "", 1)
	if err == nil && (name == "" || len(ts) == 0) {
		err = ErrTokenMissing
	}
	if err != nil {
		return AdminToken{}, err
	}
	return ts[0], nil
}

// AdminTokens lists tokens in the order of their names, those after the given one, expired and revoked ones included.
func (s *Store) AdminTokens(ctx context.Context, after string, limit int) ([]AdminToken, error) {
	return s.tokens(ctx, "", after, limit)
}

func (s *Store) tokens(ctx context.Context, name, after string, limit int) ([]AdminToken, error) {
	var ts []AdminToken
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListAdminTokens, name, after, limit)
		if err != nil {
			return err
		}
		ts, err = pgx.CollectRows(rows, scanToken)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read admin tokens: %w", err)
	}
	return ts, nil
}

// TokenOf gives the good token that is token: neither expired, by the database's clock, nor revoked. It is looked up by its hash, so how
// long that takes tells nothing of other tokens. Error: ErrTokenMissing, or Postgres could not be asked.
func (s *Store) TokenOf(ctx context.Context, token string) (AdminToken, error) {
	hash := auth.Hash(token)
	var t AdminToken
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlSelectAdminToken, hash[:])
		if err != nil {
			return err
		}
		t, err = pgx.CollectExactlyOneRow(rows, scanToken)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return AdminToken{}, ErrTokenMissing
	}
	if err != nil {
		return AdminToken{}, fmt.Errorf("look up an admin token: %w", err)
	}
	return t, nil
}

func scanToken(r pgx.CollectableRow) (AdminToken, error) {
	var t AdminToken
	err := r.Scan(&t.Name, &t.Role, &t.OrgID, &t.CreatedBy, &t.CreatedAt, &t.ExpiresAt, &t.RevokedBy, &t.RevokedAt)
	t.CreatedAt, t.ExpiresAt, t.RevokedAt = t.CreatedAt.UTC(), utc(t.ExpiresAt), utc(t.RevokedAt)
	return t, err
}
