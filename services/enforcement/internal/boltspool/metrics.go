package boltspool

import "github.com/prometheus/client_golang/prometheus"

const (
	refusedFull  = "full"
	refusedWrite = "write"
)

type metrics struct {
	spooled, drained, quarantined, commits prometheus.Counter
	refused                                *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, s *Spool) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_spool_" + name, Help: help})
	}
	m := metrics{
		spooled:     counter("spooled_total", "Usage events that were kept in the spool because Kafka didn't have them in time."),
		drained:     counter("drained_total", "Spooled events that Kafka has acknowledged."),
		quarantined: counter("quarantined_total", "Usage events that were set aside because Kafka refuses them for good."),
		commits:     counter("commits_total", "Commits of the spool, each of which serves all events that waited."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_spool_refused_total",
			Help: "Usage events that the spool didn't take: it is full, or can't be written."}, []string{"reason"}),
	}
	for _, reason := range []string{refusedFull, refusedWrite} {
		m.refused.WithLabelValues(reason)
	}
	if reg == nil {
		return m
	}
	gauge := func(name, help string, get func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tollgate_spool_" + name, Help: help}, get)
	}
	locked := func(v *int64) func() float64 {
		return func() float64 { s.mu.Lock(); defer s.mu.Unlock(); return float64(*v) }
	}
	reg.MustRegister(m.spooled, m.drained, m.quarantined, m.commits, m.refused,
		gauge("events", "Usage events in the spool that wait for Kafka.", locked(&s.queued)),
		gauge("bytes", "Bytes of events in the spool, quarantine included; TOLLGATE_SPOOL_MAX_BYTES bounds them.", locked(&s.bytes)),
		gauge("quarantine_events", "Usage events in quarantine.", locked(&s.aside)),
		gauge("oldest_seconds", "Age of the oldest event that waits in the spool; 0 if none does.", func() float64 {
			at := s.oldest()
			if at.IsZero() {
				return 0
			}
			return max(0, s.o.Now().Sub(at).Seconds())
		}))
	return m
}
