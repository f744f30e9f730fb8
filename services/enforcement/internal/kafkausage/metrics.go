package kafkausage

import "github.com/prometheus/client_golang/prometheus"

const (
	kindUsage     = "usage"
	kindRejection = "rejection"

	resultAcknowledged = "acknowledged"
	resultSpooled      = "spooled" // usage only, as the next
	resultQuarantined  = "quarantined"
	resultFailed       = "failed"
)

type metrics struct {
	events  *prometheus.CounterVec
	sampled prometheus.Counter
	seconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, e *Emitter) metrics {
	m := metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_events_total",
			Help: "Tries to make an event durable: acknowledged by Kafka, spooled, quarantined or failed."}, []string{"kind", "result"}),
		sampled: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_events_sampled_total",
			Help: "Rejection events that were dropped because too many were waiting. Usage is never dropped."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tollgate_event_seconds",
			Help: "Time until a usage event was durable, or until it was given up.", Buckets: []float64{.002, .003, .005, .01, .02, .05, .1, .25, 1, 5}}),
	}
	if reg != nil {
		reg.MustRegister(m.events, m.sampled, m.seconds,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tollgate_events_pending", Help: "Usage events that wait for Kafka."},
				func() float64 { return float64(e.pending.Load()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tollgate_rejections_queued", Help: "Rejection events that wait to be sent."},
				func() float64 { return float64(len(e.queue)) }))
	}
	return m
}

func resultOf(err error) string {
	if err != nil {
		return resultFailed
	}
	return resultAcknowledged
}
