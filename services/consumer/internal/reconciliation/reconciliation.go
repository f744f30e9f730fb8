// Package reconciliation watches EVENT and LEDGER agree, as a metric: the light variant of `tollgatectl reconcile` (pkg/reconcile), every minute.
//
// It compares the ledger's views with usage_events for today, and the group's offsets with the log's ends; it reads no message. What it can't see
// is an event that never reached the ledger although its offset was committed: that takes the whole log.
//
// Messages that retention took before they were consumed count from when they are found until this process ends.
//
// Nothing is written. When ClickHouse or Kafka is away a round fails, is logged, and the gauge of the last success falls behind; the next round
// tries again.
package reconciliation

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
)

const (
	window  = 2 * time.Hour   // the whole day of this long ago, and what came since, is compared: so that each day is looked at after its end, too
	timeout = 2 * time.Minute // of one round
	mostLog = 20              // differences that one round logs
)

// kinds of differences that can be found here.
var kinds = []string{reconcile.KindOffsets, reconcile.KindViews}

// Watch compares now and then.
type Watch struct {
	Ledger reconcile.Sums
	// Offsets names each partition whose offsets don't fit the log: the group has committed more than it holds, or retention took what was not consumed.
	Offsets func(ctx context.Context) (names []string, err error)
	Every   time.Duration
	Log     *slog.Logger
	Now     func() time.Time

	differences *prometheus.GaugeVec
	last        prometheus.Gauge
}

// Register makes the metrics. Every kind is there from the start, at 0.
func (w *Watch) Register(reg prometheus.Registerer) {
	w.differences = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tollgate_reconcile_differences",
		Help: "Figures on which the ledger's views of today disagree, and partitions whose committed offset lies beyond the log or that lost messages to retention before they were consumed, at the last comparison, by kind."}, []string{"kind"})
	w.last = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tollgate_reconcile_last_success_timestamp_seconds",
		Help: "When log and ledger were last compared, whatever was found. 0: not yet."})
	reg.MustRegister(w.differences, w.last)
	for _, k := range kinds {
		w.differences.WithLabelValues(k)
	}
}

// Run compares at once and then every so often, until ctx ends. Comparisons of a ledger so large that one takes long follow each other more
// slowly: at most a tenth of the time is spent on them.
func (w *Watch) Run(ctx context.Context) error {
	for {
		began := time.Now()
		if err := w.compare(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("log and ledger could not be compared", "err", err)
		}
		took := time.Since(began)
		select {
		case <-time.After(max(w.Every-took, 9*took)):
		case <-ctx.Done():
			return nil
		}
	}
}

// compare is one round. Gauges change only if all of it could be asked.
func (w *Watch) compare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	offsets, err := w.Offsets(ctx)
	if err != nil {
		return fmt.Errorf("ask for the log's offsets: %w", err)
	}
	views, _, err := reconcile.CompareViews(ctx, w.Ledger, w.Now().UTC().Add(-window).Truncate(24*time.Hour))
	if err != nil {
		return err
	}
	for _, name := range offsets {
		w.Log.Error("log and ledger differ", "kind", reconcile.KindOffsets, "difference", name)
	}
	for i, d := range views {
		if i == mostLog {
			w.Log.Error("log and ledger differ", "kind", d.Kind, "more", len(views)-i)
			break
		}
		w.Log.Error("log and ledger differ", "kind", d.Kind, "difference", d.String())
	}
	w.differences.WithLabelValues(reconcile.KindOffsets).Set(float64(len(offsets)))
	w.differences.WithLabelValues(reconcile.KindViews).Set(float64(len(views)))
	w.last.Set(float64(w.Now().UnixMilli()) / 1000)
	return nil
}
