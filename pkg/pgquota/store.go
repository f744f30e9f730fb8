package pgquota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// ErrTierMissing says that a tier that should be in the catalogue is not.
var ErrTierMissing = errors.New("tier is not in the catalogue")

// Options of Open. Zero values choose the defaults.
type Options struct {
	Application    string        // shown by pg_stat_activity
	MaxConns       int32         // 8
	ConnectTimeout time.Duration // 3 s
}

// Store reads and changes quotas. It is safe for concurrent use.
type Store struct{ pool *pgxpool.Pool }

// Open makes a Store on a pool of its own. It does not connect: a Postgres that is away shows at the first use, and at Ping.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres url: %w", err) // pgx leaves the password out of its parse errors
	}
	cfg.MaxConns = 8
	if o.MaxConns > 0 {
		cfg.MaxConns = o.MaxConns
	}
	cfg.ConnConfig.ConnectTimeout = 3 * time.Second
	if o.ConnectTimeout > 0 {
		cfg.ConnConfig.ConnectTimeout = o.ConnectTimeout
	}
	if o.Application != "" && cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = o.Application
	}
	cfg.HealthCheckPeriod = 5 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("postgres pool: %w", err)
	}
	return &Store{pool}, nil
}

// New makes a Store on a pool that the caller closes.
func New(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Pool is the pool below, for migrations and metrics.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Close closes the pool and waits for what is in use.
func (s *Store) Close() { s.pool.Close() }

// Ping asks Postgres for a sign of life.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// Entry is one subject's quota with what is its own: Own are the limits that don't come from the tier. CreatedAt is zero for a subject
// without a quota of its own (version 0). The quota of a key that a user owns has no tier: it only narrows its user's.
type Entry struct {
	tier.Quota
	Own       tier.Overrides
	CreatedAt time.Time
	Key       *Key // of an API key that somebody has made, else nil
}

// DefaultTier is the tier of a subject that has no quota of its own.
func DefaultTier(k subject.Kind) string {
	if k == subject.APIKey {
		return tier.API
	}
	return tier.Free
}

// Quota reads what a subject may use now, in one query. An unknown user has the free tier's limits and an unknown key the api tier's,
// version 0. Error: ErrTierMissing, or Postgres could not be asked.
func (s *Store) Quota(ctx context.Context, sub subject.Subject) (tier.Quota, error) {
	e, err := s.Entry(ctx, sub)
	return e.Quota, err
}

// Entry is Quota with the subject's own limits apart.
func (s *Store) Entry(ctx context.Context, sub subject.Subject) (Entry, error) {
	var e Entry
	err := s.read(ctx, func() error {
		c, err := current(ctx, s.pool, sub)
		e = c.entry(sub)
		return err
	})
	if err != nil {
		return Entry{}, fmt.Errorf("read quota of %s: %w", sub, err)
	}
	return e, nil
}

// Tier reads one tier. Error: ErrTierMissing, or Postgres could not be asked.
func (s *Store) Tier(ctx context.Context, name string) (tier.Tier, error) {
	var t tier.Tier
	err := s.read(ctx, func() (err error) {
		t, err = selectTier(ctx, s.pool, name)
		return err
	})
	if err != nil {
		return tier.Tier{}, fmt.Errorf("read tier %s: %w", name, err)
	}
	return t, nil
}

// Tiers reads the whole catalogue, the lowest priority first.
func (s *Store) Tiers(ctx context.Context) ([]tier.Tier, error) {
	var ts []tier.Tier
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListTiers)
		if err != nil {
			return err
		}
		ts, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (tier.Tier, error) {
			var c tierColumns
			err := r.Scan(c.targets()...)
			return c.tier(), err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read tiers: %w", err)
	}
	return ts, nil
}

// Filter chooses quotas to list: of an org, on a tier, of users or of keys only. After is the last subject of the page before.
type Filter struct {
	OrgID, Tier, After string
	Kind               subject.Kind // "": both
	Limit              int
}

// Entries lists quotas in the order of their subjects' names. Only subjects with a quota of their own are listed.
func (s *Store) Entries(ctx context.Context, f Filter) ([]Entry, error) {
	var es []Entry
	after, end := f.After, ""
	if f.Kind != "" { // names of a kind lie between "kind:" and "kind;"
		after, end = max(after, string(f.Kind)+":"), string(f.Kind)+";"
	}
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlListQuotas, f.OrgID, f.Tier, after, f.Limit, end)
		if err != nil {
			return err
		}
		es, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (Entry, error) {
			var name string
			var c currentQuota
			if err := r.Scan(append([]any{&name}, c.targets()...)...); err != nil {
				return Entry{}, err
			}
			sub, err := subject.Parse(name)
			return c.entry(sub), err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list quotas: %w", err)
	}
	return es, nil
}

// read runs a read, and once more if its connection turned out to be dead, as after a restart of Postgres.
func (s *Store) read(ctx context.Context, f func() error) error {
	err := f()
	if err != nil && ctx.Err() == nil && connectionLost(err) {
		err = f()
	}
	return err
}

// connectionLost tells a dead connection from an answer of Postgres. Class 57P is an administrator's or a crash's shutdown.
func connectionLost(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return len(pe.Code) == 5 && pe.Code[:3] == "57P"
	}
	var ce *pgconn.ConnectError
	return !errors.Is(err, pgx.ErrNoRows) && !errors.Is(err, ErrTierMissing) && !errors.Is(err, ErrUnknownThen) && !errors.As(err, &ce)
}

// Unavailable tells whether an error means that Postgres can't serve now, so that the call may be repeated: it is away, starting,
// stopping, out of connections, or too slow. Any other error of this package is a fault or an answer.
func Unavailable(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch {
		case len(pe.Code) != 5:
			return false
		case pe.Code[:3] == "57P", pe.Code[:2] == "08", pe.Code[:2] == "53", pe.Code == "57014", pe.Code == "55P03", pe.Code == "25P03":
			return true
		}
		return false
	}
	return err != nil && !errors.Is(err, pgx.ErrNoRows) && !errors.Is(err, ErrTierMissing) && !errors.Is(err, ErrVersionMismatch) &&
		!errors.Is(err, ErrKeyMissing) && !errors.Is(err, ErrKeyRevoked) && !errors.Is(err, ErrOutside) && !errors.Is(err, ErrUnknownThen) && !errors.As(err, new(*Beyond)) &&
		!errors.Is(err, ErrTokenMissing) && !errors.Is(err, ErrTokenNameTaken) && !errors.Is(err, ErrOnceOtherRequest) && !errors.As(err, new(*Replay))
}
