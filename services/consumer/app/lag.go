package app

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkasource"
)

// watchLag shows how far the group is behind, by partition, until ctx ends. It asks Kafka, so that the figure grows even while this
// process reads nothing.
func watchLag(ctx context.Context, source *kafkasource.Source, reg prometheus.Registerer, log *slog.Logger) error {
	lag := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tollgate_consumer_lag_messages",
		Help: "Messages of the log that the group has not committed, by partition. Below 0: the topic was made anew under an old group."}, []string{"partition"})
	lost := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tollgate_consumer_lost_messages_total",
		Help: "Messages of the log that retention removed before the group had committed them, found since the start of this process. Every member counts them."},
		func() float64 { return float64(source.Lost()) })
	reg.MustRegister(lag, lost)
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		byPartition, err := source.Lag(ask)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kafkasource.ErrBeyondEnd):
			log.Error("records are passed over: reset the group's offsets", "err", err)
		case err != nil:
			log.Debug("lag unknown", "err", err)
		}
		for partition, n := range byPartition {
			lag.WithLabelValues(strconv.Itoa(partition)).Set(float64(n))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
