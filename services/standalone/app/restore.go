package app

import (
	"context"
	"fmt"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	consumer "github.com/tollgate-dev/tollgate/services/consumer/app"
	enforcement "github.com/tollgate-dev/tollgate/services/enforcement/app"
)

// restoreBuckets puts back into the embedded Redis, which forgets at every stop, what the ledger knows of the days before, once the ledger knows
// all that the log holds. A Redis of the user's own is left alone: what it keeps is its own affair.
func (s *standalone) restoreBuckets(ctx context.Context, environ []string) error {
	if s.cfg.RedisURL != "" {
		return nil
	}
	done := s.out.Step("buckets")
	if err := awaitLedger(ctx, environ); err != nil {
		return fmt.Errorf("restore the buckets from the ledger: %w", err)
	}
	r, err := enforcement.RestoreBuckets(ctx, enforcement.RestoreConfig{RedisURL: s.stores.RedisURL, PostgresURL: s.stores.PostgresURL, ClickHouseURL: s.stores.ClickHouseURL})
	if err != nil {
		return err
	}
	what := "restored from the ledger: 1 scope"
	if r.Restored != 1 {
		what = fmt.Sprintf("restored from the ledger: %d scopes", r.Restored)
	}
	done(what)
	return nil
}

// awaitLedger waits until the consumer has stored what an earlier run left in the log.
func awaitLedger(ctx context.Context, environ []string) error {
	var c consumer.Config
	if err := config.Load(environ, &c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("the ledger lags behind the log for %s", readyWithin))
	defer cancel()
	tick := time.NewTicker(lookEvery / 4)
	defer tick.Stop()
	for {
		n, err := consumer.Behind(ctx, c)
		if err == nil && n <= 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("%d messages are missing", n)
			}
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}
