package pgquota

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// ErrKeyMissing says that there is no such API key. ErrKeyRevoked says that a revoked one can't be changed any more.
var (
	ErrKeyMissing = errors.New("there is no such api key")
	ErrKeyRevoked = errors.New("the api key is revoked")
)

// MaxKeyName is the longest name of a key, in characters.
const MaxKeyName = 256

// Key is an API key. Its secret is known to its bearer only. Exactly one of UserID and OrgID, its owner, is given; it never changes.
type Key struct {
	ID        string
	UserID    string
	OrgID     string
	Name      string // for people
	Prefix    string // the visible beginning of the secret
	Rotations int64
	CreatedAt time.Time
	RotatedAt *time.Time
	RevokedAt *time.Time
}

// Owner is the owner's name: "user:u1" or "org:o1".
func (k Key) Owner() string {
	if k.UserID != "" {
		return subject.Subject{Kind: subject.User, ID: k.UserID}.String()
	}
	return tier.OrgName(k.OrgID)
}

// Subject is who is limited by the key.
func (k Key) Subject() subject.Subject { return subject.Subject{Kind: subject.APIKey, ID: k.ID} }

// Secret is what is stored of a key's secret: its hash and its visible beginning.
type Secret struct {
	Hash   [sha256.Size]byte
	Prefix string
}

// VisibleLen is how much of a secret people may see: "tg-" and six characters, to tell keys apart.
const VisibleLen = 9

// SecretOf takes the hash of a secret.
func SecretOf(secret string) Secret {
	return Secret{sha256.Sum256([]byte(secret)), secret[:min(VisibleLen, len(secret)/2)]}
}

// NewKey states a new key and its quota. Tier is for keys of orgs only; nil is DefaultTier.
type NewKey struct {
	ID        string
	UserID    string // or OrgID
	OrgID     string
	Name      string
	Secret    Secret
	Tier      *string
	Suspended bool
	Own       tier.Overrides
	Within    Within
	Actor     string
	Reason    string
	Once      *Once[QuotaResult] // nil: a repeat makes another key
}

func (n NewKey) change() Change {
	c := Change{Subject: subject.Subject{Kind: subject.APIKey, ID: n.ID}, Tier: n.Tier, Suspended: &n.Suspended, Own: n.Own, Within: n.Within, Actor: n.Actor, Reason: n.Reason}
	if n.OrgID != "" {
		c.OrgID = &n.OrgID
	}
	return c
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (n NewKey) Validate() error {
	errs := []error{n.change().Validate(), checkNote("name", n.Name, 0, MaxKeyName)}
	bad := func(field, detail string) {
		errs = append(errs, &tier.FieldError{Field: field, Err: errors.New(detail)})
	}
	switch {
	case n.UserID != "" && n.OrgID != "":
		bad("user_id", "give either user_id or org_id, not both")
		bad("org_id", "give either user_id or org_id, not both")
	case n.UserID == "" && n.OrgID == "":
		bad("user_id", "give either user_id or org_id: a key has an owner")
	case n.UserID != "":
		if err := subject.ValidateID(n.UserID); err != nil {
			errs = append(errs, &tier.FieldError{Field: "user_id", Err: err})
		}
		errs = append(errs, ownedByUser(n.Tier))
	}
	return errors.Join(append(errs, ownedKey(n.Own))...)
}

// ownedByUser refuses a tier of a key that a user owns.
func ownedByUser(tierName *string) error {
	if tierName != nil {
		return &tier.FieldError{Field: "tier", Err: errors.New("has no place here: the tier of a key that a user owns is its user's")}
	}
	return nil
}

// ownedKey refuses what a key with an owner can't have of its own.
func ownedKey(o tier.Overrides) error {
	if o.Shards != nil {
		return &tier.FieldError{Field: "shards", Err: errors.New("has no place here: a key's counters lie where its owner's do")}
	}
	return nil
}

// CreateKey makes a key with a quota, in one transaction. Errors as those of PutQuota; a key of that id, or with that secret, is a
// VersionMismatch.
func (s *Store) CreateKey(ctx context.Context, n NewKey) (QuotaResult, error) {
	if err := n.Validate(); err != nil {
		return QuotaResult{}, err
	}
	c, key := n.change(), &Key{ID: n.ID, UserID: n.UserID, OrgID: n.OrgID, Name: n.Name, Prefix: n.Secret.Prefix}
	c.If.Absent = true
	var res QuotaResult
	err := s.changeKey(ctx, key, n.Within, n.Once, func(tx pgx.Tx, at placed) error {
		cur, err := current(ctx, tx, c.Subject)
		if err != nil {
			return err
		}
		if cur.ownColumns.version != nil || cur.key.id != nil {
			return &VersionMismatch{Name: c.Subject.String(), Current: cur.entry(c.Subject).Version}
		}
		// Until now it was an unknown key, decided by itself.
		at.shards = union(at.shards, []int{subject.Shard("", c.Subject)})
		after := State{OrgID: n.OrgID, Suspended: n.Suspended, Overrides: normal(n.Own), Owner: key.Owner(), Name: n.Name}
		if n.OrgID != "" {
			if after.Tier = DefaultTier(subject.APIKey); n.Tier != nil {
				after.Tier = *n.Tier
			}
			if err := mayMake(ctx, tx, n); err != nil {
				return err
			}
		}
		res, err = writeQuota(ctx, tx, quotaWrite{change: c, after: after, key: key, at: at, along: func(_ *State, now time.Time, b *pgx.Batch) {
			key.CreatedAt = now
			b.Queue(sqlInsertKey, n.ID, n.UserID, n.OrgID, n.Name, n.Secret.Hash[:], n.Secret.Prefix, now)
		}})
		if err != nil {
			return err
		}
		return n.Once.end(ctx, tx, res)
	})
	if err != nil {
		return QuotaResult{}, fmt.Errorf("create api key %s: %w", n.ID, err)
	}
	return res, nil
}

// mayMake refuses a key of an org that goes beyond what its own admins may make.
func mayMake(ctx context.Context, tx pgx.Tx, n NewKey) error {
	t, err := selectTier(ctx, tx, DefaultTier(subject.APIKey))
	if err != nil {
		return err
	}
	c := n.change()
	return n.Within.allows(c, Entry{Quota: tier.Effective(c.Subject, n.OrgID, t, tier.Overrides{}, false, 0, t.UpdatedAt)}, t, true)
}

// KeyChange is a rotation or a revocation.
type KeyChange struct {
	ID     string
	If     Precondition
	Within Within
	Actor  string
	Reason string
	Once   *Once[QuotaResult] // of a rotation; nil: a repeat rotates again
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (c KeyChange) Validate() error {
	return errors.Join(checkNote("reason", c.Reason, 0, MaxReason), checkNote("actor", c.Actor, 1, MaxActor))
}

// RotateKey gives a key another secret. Nothing that is counted changes. Errors: ErrKeyMissing, ErrKeyRevoked, or as those of PutQuota.
func (s *Store) RotateKey(ctx context.Context, c KeyChange, secret Secret) (QuotaResult, error) {
	res, err := s.putKey(ctx, c, func(key *Key, st *State, at time.Time, b *pgx.Batch) {
		st.Rotations++
		key.Rotations, key.Prefix, key.RotatedAt = st.Rotations, secret.Prefix, &at
		b.Queue(sqlRotateKey, key.ID, secret.Hash[:], secret.Prefix, at)
	})
	if err != nil {
		return QuotaResult{}, fmt.Errorf("rotate api key %s: %w", c.ID, err)
	}
	return res, nil
}

// RevokeKey refuses a key for good. One that is revoked stays as it is. Errors: ErrKeyMissing, or as those of PutQuota.
func (s *Store) RevokeKey(ctx context.Context, c KeyChange) (QuotaResult, error) {
	res, err := s.putKey(ctx, c, func(key *Key, st *State, at time.Time, b *pgx.Batch) {
		st.Revoked, key.RevokedAt = true, &at
		b.Queue(sqlRevokeKey, key.ID, at)
	})
	if errors.Is(err, ErrKeyRevoked) {
		return res, nil
	}
	if err != nil {
		return QuotaResult{}, fmt.Errorf("revoke api key %s: %w", c.ID, err)
	}
	return res, nil
}

// putKey changes a key itself. ErrKeyRevoked comes with the key as it is.
func (s *Store) putKey(ctx context.Context, kc KeyChange, edit func(*Key, *State, time.Time, *pgx.Batch)) (QuotaResult, error) {
	if err := kc.Validate(); err != nil {
		return QuotaResult{}, err
	}
	key, err := s.Key(ctx, kc.ID)
	if err != nil {
		return QuotaResult{}, err
	}
	var res QuotaResult
	err = s.changeKey(ctx, &key, kc.Within, kc.Once, func(tx pgx.Tx, at placed) error {
		sub := key.Subject()
		cur, err := current(ctx, tx, sub)
		if err != nil {
			return err
		}
		old, before := cur.entry(sub), cur.state()
		if err := kc.If.check(sub.String(), old.Version); err != nil {
			return err
		}
		if before.Revoked {
			res = QuotaResult{Entry: old}
			if res.Fences, err = fencesOf(ctx, tx, sub.String(), at.names...); err != nil {
				return err
			}
			return ErrKeyRevoked
		}
		now, after := *old.Key, *before
		res, err = writeQuota(ctx, tx, quotaWrite{change: Change{Subject: sub, Actor: kc.Actor, Reason: kc.Reason}, before: before, after: after, old: old,
			key: &now, at: at, along: func(st *State, when time.Time, b *pgx.Batch) { edit(&now, st, when, b) }})
		if err != nil {
			return err
		}
		return kc.Once.end(ctx, tx, res)
	})
	return res, err
}

// Key reads a key. Error: ErrKeyMissing, or Postgres could not be asked.
func (s *Store) Key(ctx context.Context, id string) (Key, error) {
	e, err := s.Entry(ctx, subject.Subject{Kind: subject.APIKey, ID: id})
	if err != nil {
		return Key{}, err
	}
	if e.Key == nil {
		return Key{}, ErrKeyMissing
	}
	return *e.Key, nil
}

// KeyOf gives the key that a secret is of, revoked ones included, as of one moment: a decision by a later version of the key than this one may
// come after a rotation or a revocation. Error: ErrKeyMissing, or Postgres could not be asked.
func (s *Store) KeyOf(ctx context.Context, secret string) (ListedKey, error) {
	var k ListedKey
	hash := sha256.Sum256([]byte(secret))
	err := s.read(ctx, func() (err error) {
		k, err = scanListed(s.pool.QueryRow(ctx, sqlSelectKeyByHash, hash[:]))
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return ListedKey{}, ErrKeyMissing
	}
	if err != nil {
		return ListedKey{}, fmt.Errorf("look up an api key: %w", err)
	}
	return k, nil
}

func scanListed(r pgx.Row) (ListedKey, error) {
	var c keyColumns
	var k ListedKey
	if err := r.Scan(append(c.targets(), &k.Suspended, &k.Version, &k.UpdatedAt)...); err != nil {
		return ListedKey{}, err
	}
	k.Key, k.UpdatedAt = *c.key(), k.UpdatedAt.UTC()
	k.Suspended = k.Suspended || k.RevokedAt != nil
	return k, nil
}

// KeyFilter chooses keys to list: of a user, owned by an org, and (Within) owned by an org or by a user who is in it. After is the last id of
// the page before.
type KeyFilter struct {
	UserID, OrgID, Within, After string
	Limit                        int
}

// ListedKey is a key with what its quota says of it.
type ListedKey struct {
	Key
	Suspended bool
	Version   int64
	UpdatedAt time.Time
}

// Keys lists keys in the order of their ids, revoked ones included.
func (s *Store) Keys(ctx context.Context, f KeyFilter) ([]ListedKey, error) {
	var ks []ListedKey
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListKeys, f.UserID, f.OrgID, f.After, f.Limit, f.Within)
		if err != nil {
			return err
		}
		ks, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (ListedKey, error) { return scanListed(r) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list api keys: %w", err)
	}
	return ks, nil
}
