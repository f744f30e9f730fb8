package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/clickhouseusage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/redisbucket"
)

// DefaultLookback is how far back the ledger is read. A bucket depends on usage before a window ago for as long as it has not been empty since.
const DefaultLookback = 7 * 24 * time.Hour

const (
	batchPayers  = 200    // whose plans are read in one round trip
	batchUsages  = 50_000 // rows of the ledger that wait in a batch
	batchWorkers = 4
	staleTries   = 5 // changes in a row that may be published between reading a plan and using it
)

// ledgerBuckets has the ledger, the plans and the buckets at hand, and walks through everybody's.
type ledgerBuckets struct {
	ledger  *clickhouseusage.Ledger
	quotas  *pgquota.Store
	rdb     redis.UniversalClient
	buckets *redisbucket.Limiter
	tiers   map[string]time.Time // when each was changed last
	span    clickhouseusage.Span

	mu          sync.Mutex
	progress    func(done, total int64)
	done, total int64
}

func openLedgerBuckets(ctx context.Context, cfg RestoreConfig) (b *ledgerBuckets, err error) {
	if cfg.Lookback == 0 {
		cfg.Lookback = DefaultLookback
	}
	if cfg.Lookback < limit.MaxWindow {
		return nil, fmt.Errorf("lookback: must be at least %s, the longest window, is %s", limit.MaxWindow, cfg.Lookback)
	}
	b = &ledgerBuckets{progress: cfg.Progress, tiers: map[string]time.Time{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.rdb, err = openRedis(cfg.RedisURL); err != nil {
		return b, err
	}
	b.buckets = redisbucket.New(b.rdb, redisbucket.Options{Now: cfg.now})
	if b.quotas, err = pgquota.Open(ctx, cfg.PostgresURL, pgquota.Options{Application: "tollgate-buckets"}); err != nil {
		return b, err
	}
	if b.ledger, err = clickhouseusage.Open(cfg.ClickHouseURL); err != nil {
		return b, err
	}
	tiers, err := b.quotas.Tiers(ctx)
	if err != nil {
		return b, err
	}
	for _, t := range tiers {
		b.tiers[t.Name] = t.UpdatedAt
	}
	now, err := b.rdb.Time(ctx).Result()
	if err != nil {
		return b, fmt.Errorf("ask Redis for the time: %w", err)
	}
	if cfg.now != nil {
		now = cfg.now()
	}
	b.span = clickhouseusage.Span{From: now.Add(-cfg.Lookback), Now: now}
	return b, nil
}

func (b *ledgerBuckets) close() error {
	var errs []error
	if b.ledger != nil {
		errs = append(errs, b.ledger.Close())
	}
	if b.quotas != nil {
		b.quotas.Close()
	}
	if b.rdb != nil {
		errs = append(errs, b.rdb.Close())
	}
	return errors.Join(errs...)
}

// used is all that one payer has used.
type used struct {
	by     clickhouseusage.By
	id     string
	usages []clickhouseusage.Usage
}

// payer is one whose plan is known. lowered: a capacity may have been lowered since the usage began.
type payer struct {
	decide.Payer
	lowered bool
	moved   bool
}

// walk reads the usage of everybody and calls each with batches of it, several at a time.
func (b *ledgerBuckets) walk(ctx context.Context, each func(ctx context.Context, batch []used) error) error {
	users, keys, orgs, err := b.ledger.Payers(ctx, b.span)
	if err != nil {
		return err
	}
	b.total = users + keys + orgs
	b.report(0)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan []used)
	var wg sync.WaitGroup
	for range batchWorkers {
		wg.Go(func() {
			for batch := range batches {
				if err := each(ctx, batch); err != nil {
					cancel(err) // whoever reads stops
					continue
				}
				b.report(int64(len(batch)))
			}
		})
	}
	for _, by := range []clickhouseusage.By{clickhouseusage.User, clickhouseusage.Key, clickhouseusage.Org} {
		if err = b.batches(ctx, by, batches); err != nil {
			break
		}
	}
	close(batches)
	wg.Wait()
	if failed := context.Cause(ctx); failed != nil {
		return failed
	}
	return err
}

// batches cuts the usage of one kind of payers into batches, each payer's together.
func (b *ledgerBuckets) batches(ctx context.Context, by clickhouseusage.By, to chan<- []used) error {
	var batch []used
	rows := 0
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		select {
		case to <- batch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		batch, rows = nil, 0
		return nil
	}
	err := b.ledger.Each(ctx, by, b.span, func(u clickhouseusage.Usage) error {
		if n := len(batch); n == 0 || batch[n-1].id != u.ID {
			if n >= batchPayers || rows >= batchUsages {
				if err := send(); err != nil {
					return err
				}
			}
			batch = append(batch, used{by: by, id: u.ID})
		}
		last := &batch[len(batch)-1]
		last.usages = append(last.usages, u)
		rows++
		return nil
	})
	if err != nil {
		return err
	}
	return send()
}

func (b *ledgerBuckets) report(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	if b.progress != nil {
		b.progress(b.done, max(b.total, b.done)) // some may have used something since they were counted
	}
}

// payers reads the plans of a batch. With a carrier their moves are made first, as by every load of a plan: what is restored must lie where the
// next decision looks, and no move may then put an older state in its place.
func (b *ledgerBuckets) payers(ctx context.Context, batch []used, carrier limit.Carrier) ([]payer, error) {
	out := make([]payer, len(batch))
	if batch[0].by == clickhouseusage.Org {
		ids := make([]string, len(batch))
		for i, u := range batch {
			ids[i] = u.id
		}
		pools, err := b.quotas.Orgs(ctx, ids)
		for i, p := range pools {
			out[i] = payer{Payer: decide.PoolPayer(p), lowered: p.UpdatedAt.After(b.span.From)}
		}
		return out, err
	}
	subs := make([]subject.Subject, len(batch))
	for i, u := range batch {
		subs[i] = subject.Subject{Kind: subject.User, ID: u.id}
		if u.by == clickhouseusage.Key {
			subs[i].Kind = subject.APIKey
		}
	}
	plans, err := b.quotas.Plans(ctx, subs)
	if err != nil {
		return nil, err
	}
	for i, p := range plans {
		if carrier != nil {
			if err := decide.Carry(ctx, p, carrier); err != nil {
				return nil, err
			}
		}
		out[i] = payer{Payer: decide.PayerOf(p), lowered: b.lowered(p.Own()), moved: len(p.Moves) > 0}
	}
	return out, nil
}

func (b *ledgerBuckets) lowered(q tier.Quota) bool {
	return q.UpdatedAt.After(b.span.From) || b.tiers[q.Tier].After(b.span.From)
}

// bills replays what a payer has used. full: what isn't known was used up.
func (b *ledgerBuckets) bills(p payer, u used, full bool) limit.RestoreRequest {
	r := limit.RestoreRequest{Shard: p.Shard, Spread: p.Spread, Scopes: p.Scopes, Fences: p.Fences, Bills: make([]limit.Bill, len(p.Scopes))}
	for i, s := range p.Scopes {
		replay := limit.NewReplay(s.Limits, b.span.From, full)
		for _, one := range u.usages {
			if p.Charged(i, one.Served, one.Asked) {
				amounts := limit.Usage(one.Input, one.Output)
				amounts[limit.Requests] = one.Requests
				replay.Charge(one.At, amounts)
			}
		}
		r.Bills[i] = replay.Bill(p.lowered)
	}
	return r
}

// restore sends the requests that prepare makes of a batch, and those once more whose plan turns out to be old. It returns them with what became
// of them.
func (b *ledgerBuckets) restore(ctx context.Context, batch []used, carrier limit.Carrier, prepare func(payer, used) (limit.RestoreRequest, bool)) (
	asked []limit.RestoreRequest, done []limit.Restored, err error) {
	for range staleTries {
		payers, err := b.payers(ctx, batch, carrier)
		if err != nil {
			return nil, nil, err
		}
		var rs []limit.RestoreRequest
		var of []used
		for i, p := range payers {
			if len(p.Scopes) == 0 {
				continue
			}
			if r, wanted := prepare(p, batch[i]); wanted {
				rs, of = append(rs, r), append(of, batch[i])
			}
		}
		answers, err := limit.RestoreSpread(ctx, b.buckets, rs)
		if err != nil {
			return nil, nil, err
		}
		batch = nil
		for i, a := range answers {
			if a.Stale != nil {
				batch = append(batch, of[i])
				continue
			}
			asked, done = append(asked, rs[i]), append(done, a)
		}
		if len(batch) == 0 {
			return asked, done, nil
		}
	}
	return nil, nil, fmt.Errorf("the quota of %s %s changes faster than it can be read; try again", batch[0].by, batch[0].id)
}
