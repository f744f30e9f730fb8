// Package redisrelay makes committed changes known to Redis, so that the next DECISION knows them: at once for a PUT that waits for it,
// and later for whatever that could not reach.
//
// Every instance relays. That is safe without a leader: a version in Redis only rises, so repeats and races change nothing.
//
// When Redis fails: Publish returns an error within Wait and the change stays in the outbox; Run tries again, at most a second after
// Redis is back. When Postgres fails after a publication, the row is not marked and is published once more. A crash at any point leaves
// the row in the outbox.
package redisrelay

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
)

// Wait is how long a PUT waits for Redis.
const Wait = time.Second

const (
	poll  = 500 * time.Millisecond
	batch = 200
)

// Outbox is what the relay needs of the store.
type Outbox interface {
	PendingFences(ctx context.Context, limit int) ([]pgquota.Fence, error)
	MarkFenced(ctx context.Context, ids []int64) error
}

var _ Outbox = (*pgquota.Store)(nil)

// Relay publishes to Redis.
type Relay struct {
	outbox    Outbox
	client    redis.UniversalClient
	log       *slog.Logger
	published *prometheus.CounterVec
}

// New makes a relay. Metrics: tollgate_quota_fence_total by result.
func New(o Outbox, c redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Relay {
	m := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_quota_fence_total",
		Help: "Publications of a changed version to Redis, by result."}, []string{"result"})
	reg.MustRegister(m)
	m.WithLabelValues("ok")
	m.WithLabelValues("error")
	return &Relay{outbox: o, client: c, log: log, published: m}
}

// Publish makes the changes known and marks them, within Wait. It goes on when ctx is cancelled: the client may hang up, the change
// stands. nil: no check that starts from now on passes with an older version.
func (r *Relay) Publish(ctx context.Context, fences []pgquota.Fence) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Wait)
	defer cancel()
	done, err := r.publish(ctx, fences)
	if markErr := r.mark(ctx, done); markErr != nil {
		r.log.WarnContext(ctx, "published to redis, but not marked; it will be published again", "err", markErr)
	}
	return err
}

// Run publishes what is pending until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	failing := false
	for {
		err := r.drain(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			r.log.WarnContext(ctx, "changes wait for redis", "err", err)
		case err == nil && failing:
			r.log.InfoContext(ctx, "changes reach redis again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// drain publishes all that is pending, or as much as it can.
func (r *Relay) drain(ctx context.Context) error {
	for {
		fences, err := r.outbox.PendingFences(ctx, batch)
		if err != nil || len(fences) == 0 {
			return err
		}
		attempt, cancel := context.WithTimeout(ctx, 10*Wait)
		done, err := r.publish(attempt, fences)
		cancel()
		if markErr := r.mark(ctx, done); markErr != nil {
			return markErr
		}
		if err != nil {
			return err
		}
	}
}

func (r *Relay) publish(ctx context.Context, fences []pgquota.Fence) (done []int64, err error) {
	for _, f := range fences {
		if err := redisfence.Publish(ctx, r.client, f.Shards, redisfence.Change{Name: f.Name, Version: f.Version}); err != nil {
			r.published.WithLabelValues("error").Inc()
			return done, err
		}
		r.published.WithLabelValues("ok").Inc()
		done = append(done, f.ID)
	}
	return done, nil
}

func (r *Relay) mark(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if err := r.outbox.MarkFenced(ctx, ids); err != nil {
		return fmt.Errorf("redis relay: %w", err)
	}
	return nil
}
