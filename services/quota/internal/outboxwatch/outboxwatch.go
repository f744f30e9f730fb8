// Package outboxwatch shows what waits in the outbox and drops what has long been published, and answers to repeated calls that are kept no longer. When Postgres fails it keeps the last
// figures and tries again.
package outboxwatch

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
)

const (
	every = 5 * time.Second
	keep  = 24 * time.Hour
)

// Outbox is what the watch needs of the store.
type Outbox interface {
	Backlog(ctx context.Context) (pgquota.Backlog, error)
	Prune(ctx context.Context, age time.Duration) (int64, error)
	PruneAnswers(ctx context.Context) (int64, error)
}

var _ Outbox = (*pgquota.Store)(nil)

// Watch counts and prunes.
type Watch struct {
	outbox       Outbox
	log          *slog.Logger
	waiting, age *prometheus.GaugeVec
}

// New makes a watch. Metrics: tollgate_quota_outbox_waiting and tollgate_quota_outbox_age_seconds, by target (redis, kafka).
func New(o Outbox, log *slog.Logger, reg prometheus.Registerer) *Watch {
	w := &Watch{outbox: o, log: log,
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tollgate_quota_outbox_waiting", Help: "Changes not yet published."}, []string{"target"}),
		age: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tollgate_quota_outbox_age_seconds",
			Help: "Age of the oldest change not yet published; 0 if none waits."}, []string{"target"})}
	reg.MustRegister(w.waiting, w.age)
	return w
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		if b, err := w.outbox.Backlog(ctx); err == nil {
			w.waiting.WithLabelValues("redis").Set(float64(b.Redis))
			w.waiting.WithLabelValues("kafka").Set(float64(b.Kafka))
			w.age.WithLabelValues("redis").Set(b.RedisAge.Seconds())
			w.age.WithLabelValues("kafka").Set(b.KafkaAge.Seconds())
		}
		if n%720 == 0 { // once an hour
			if rows, err := w.outbox.Prune(ctx, keep); err != nil && ctx.Err() == nil {
				w.log.WarnContext(ctx, "the outbox was not pruned", "err", err)
			} else if rows > 0 {
				w.log.DebugContext(ctx, "pruned the outbox", "rows", rows)
			}
			if _, err := w.outbox.PruneAnswers(ctx); err != nil && ctx.Err() == nil {
				w.log.WarnContext(ctx, "old answers were not pruned", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
