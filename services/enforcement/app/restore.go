package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// RestoreConfig says where the stores are. ClickHouse's user need only read the view usage_events, Postgres's the quotas.
type RestoreConfig struct {
	RedisURL      string
	PostgresURL   string
	ClickHouseURL string                  // native DSN
	Lookback      time.Duration           // of the ledger; DefaultLookback if 0, at least a day
	Progress      func(done, total int64) // users, keys and orgs; never called by two at a time; may be nil

	now func() time.Time // for tests: overrides Redis's clock
}

// RestoreReport counts scopes: a user, a key, a group of models of either, an org's pool.
type RestoreReport struct {
	Scopes    int64 `json:"scopes"`     // with limits, of those who have used something
	Restored  int64 `json:"restored"`   // raised to what the ledger says
	LeftAlone int64 `json:"left_alone"` // the bucket had as much already
	Drained   int64 `json:"drained"`    // what was used has drained since
}

func (r RestoreReport) String() string {
	return fmt.Sprintf("%d scopes looked at: %d restored, %d had as much already, %d have drained", r.Scopes, r.Restored, r.LeftAlone, r.Drained)
}

// RestoreBuckets puts back what was consumed after Redis has lost it, from the ledger, so that nobody gets a second day's quota.
//
// For every user, key and org that has used something, all usage of the lookback is charged to an empty bucket in the order of time, by the limits that
// hold now. Where the bucket in Redis has less, it is raised, in one step for all scopes of a payer: what has as much stays, so it may run again,
// and while traffic flows; what is reserved at that moment comes on top, for its settlement will give it back. Slots are not touched.
//
// What it can't know: events that are not in the ledger yet. Run it when the consumer has no lag, and once more a little later if there was traffic in
// between: then nothing of what was used is left out. It is at most too strict: usage within a minute (an hour, if it is a day old) counts as used at
// its end, and a bucket that was never empty during the whole lookback counts as full at its beginning. Two ways in which it may give room: capacities
// that were raised meanwhile are taken to have drained as fast all along; and usage of a model counts for the groups it is in now.
//
// Errors: a store can't be asked. What was restored by then stays; run it again.
func RestoreBuckets(ctx context.Context, cfg RestoreConfig) (RestoreReport, error) {
	var report RestoreReport
	b, err := openLedgerBuckets(ctx, cfg)
	if err != nil {
		return report, fmt.Errorf("restore buckets: %w", err)
	}
	defer func() { _ = b.close() }()
	var mu sync.Mutex
	err = b.walk(ctx, func(ctx context.Context, batch []used) error {
		_, done, err := b.restore(ctx, batch, b.buckets, func(p payer, u used) (limit.RestoreRequest, bool) {
			r := b.bills(p, u, true)
			r.Open = true
			return r, true
		})
		mu.Lock()
		defer mu.Unlock()
		for _, d := range done {
			for _, s := range d.Scopes {
				report.count(s)
			}
		}
		return err
	})
	if err != nil {
		return report, fmt.Errorf("restore buckets: %w", err)
	}
	return report, nil
}

func (r *RestoreReport) count(s limit.RestoredScope) {
	r.Scopes++
	switch {
	case s.Raised:
		r.Restored++
	case billed(s):
		r.LeftAlone++
	default:
		r.Drained++
	}
}

func billed(s limit.RestoredScope) bool {
	for _, l := range s.Limits {
		if l.Billed > 0 {
			return true
		}
	}
	return false
}

// DefaultTolerance is by how much of its drain a bucket may have less than the ledger says: usage of a minute counts at its end, and a reservation, held
// for ten minutes at most unless its lease is renewed, drains by what is given back later.
const DefaultTolerance = time.Minute + limit.DefaultLease

// CompareConfig says what to compare, and how closely.
type CompareConfig struct {
	RestoreConfig
	Tolerance time.Duration // DefaultTolerance if 0
	Most      int           // differences to name; 100 if 0
}

// BucketDifference is a limit of a scope of which the bucket has less than the ledger says.
type BucketDifference struct {
	Scope     string `json:"scope"`  // key, user, model or org
	Name      string `json:"name"`   // user:u1
	Limit     string `json:"limit"`  // rpm, tpm, tpd …
	Bucket    int64  `json:"bucket"` // consumed by now, according to Redis
	Ledger    int64  `json:"ledger"` // according to the ledger
	Tolerance int64  `json:"tolerance"`
}

func (d BucketDifference) String() string {
	return fmt.Sprintf("%s %s, %s: bucket %d, ledger %d (%+d; %d are tolerated)", d.Scope, d.Name, d.Limit, d.Bucket, d.Ledger, d.Bucket-d.Ledger, d.Tolerance)
}

// CompareReport is what a comparison found.
type CompareReport struct {
	Scopes      int64              `json:"scopes"`      // compared
	Moved       int64              `json:"moved"`       // payers left out: what they have used may be on its way to another place
	Different   int64              `json:"different"`   // limits that differ
	Differences []BucketDifference `json:"differences"` // the first of them
}

// Agree tells whether no bucket has less than the ledger says.
func (r CompareReport) Agree() bool { return r.Different == 0 }

// CompareBuckets tells where Redis has forgotten what the ledger knows. It changes nothing. A bucket may have more: what is in flight, and what the
// ledger doesn't know yet. Limits per minute tell nothing: the tolerance is longer than their window.
func CompareBuckets(ctx context.Context, cfg CompareConfig) (CompareReport, error) {
	var report CompareReport
	if cfg.Tolerance == 0 {
		cfg.Tolerance = DefaultTolerance
	}
	if cfg.Most == 0 {
		cfg.Most = 100
	}
	if cfg.Tolerance < 0 || cfg.Most < 0 {
		return report, fmt.Errorf("compare buckets: tolerance and most: must not be negative, are %s and %d", cfg.Tolerance, cfg.Most)
	}
	b, err := openLedgerBuckets(ctx, cfg.RestoreConfig)
	if err != nil {
		return report, fmt.Errorf("compare buckets: %w", err)
	}
	defer func() { _ = b.close() }()
	var mu sync.Mutex
	err = b.walk(ctx, func(ctx context.Context, batch []used) error {
		moved := int64(0)
		asked, done, err := b.restore(ctx, batch, nil, func(p payer, u used) (limit.RestoreRequest, bool) {
			if p.moved {
				moved++
				return limit.RestoreRequest{}, false
			}
			r := b.bills(p, u, false)
			r.Look = true
			return r, true
		})
		mu.Lock()
		defer mu.Unlock()
		report.Moved += moved
		for i, d := range done {
			report.add(asked[i].Scopes, d.Scopes, cfg)
		}
		return err
	})
	if err != nil {
		return report, fmt.Errorf("compare buckets: %w", err)
	}
	return report, nil
}

func (r *CompareReport) add(scopes []limit.Scope, found []limit.RestoredScope, cfg CompareConfig) {
	for i, s := range scopes {
		r.Scopes++
		for j, l := range s.Limits {
			n, tolerated := found[i].Limits[j], tolerance(l, cfg.Tolerance)
			if n.Billed-n.Had <= tolerated {
				continue
			}
			r.Different++
			if len(r.Differences) < cfg.Most {
				r.Differences = append(r.Differences, BucketDifference{string(s.Kind), s.Name, l.Name(), n.Had, n.Billed, tolerated})
			}
		}
	}
}

// tolerance is what a limit drains of in so long, and one for what is rounded.
func tolerance(l limit.Limit, d time.Duration) int64 {
	full := limit.Bucket{Consumed: limit.MaxAmount}
	return limit.MaxAmount - full.Drain(l.Capacity, l.Window, d.Milliseconds()).Consumed + 1
}
