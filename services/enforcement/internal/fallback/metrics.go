package fallback

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

type metrics struct {
	decisions           *prometheus.CounterVec
	failures, overflows prometheus.Counter
	unanswered          prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, l *Limiter) metrics {
	m := metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_limiter_local_decisions_total",
			Help: "Checks decided without the store, by the tier's policy (local, open, closed) and result (allowed, refused, error)."}, []string{"policy", "result"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_limiter_store_failures_total",
			Help: "Calls that the limiter's store did not answer, or not in time."}),
		overflows: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_limiter_overflows_total",
			Help: "Calls that were refused, or not taken note of, because too much waits for the limiter's store."}),
		unanswered: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_limiter_unanswered_questions_total",
			Help: "Questions about a request that another instance may have granted without the store, and that it did not answer in time."}),
	}
	if reg != nil {
		gauge := func(name, help string, value func() float64) prometheus.GaugeFunc {
			return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
		}
		reg.MustRegister(m.decisions, m.failures, m.overflows, m.unanswered,
			gauge("tollgate_limiter_degraded", "1 while the limiter's store is away and decisions are made in this process, else 0.", func() float64 {
				if l.degraded.Load() {
					return 1
				}
				return 0
			}),
			gauge("tollgate_limiter_instances", "Live instances, this one included, as last counted.", func() float64 { return float64(l.live.Load()) }),
			gauge("tollgate_limiter_pending_applications", "Requests of which the limiter's store has still to be told.", func() float64 {
				l.mu.Lock()
				defer l.mu.Unlock()
				return float64(l.book.pending())
			}),
			gauge("tollgate_limiter_local_reservations", "Open requests that were granted in this process.", func() float64 {
				l.mu.Lock()
				defer l.mu.Unlock()
				return float64(l.book.held)
			}))
	}
	return m
}

func (m metrics) decided(policy limit.Away, allowed bool, err error) {
	result := "refused"
	switch {
	case err != nil:
		result = "error"
	case allowed:
		result = "allowed"
	}
	switch policy {
	case limit.AwayOpen, limit.AwayClosed:
	default:
		policy = limit.AwayLocal
	}
	m.decisions.WithLabelValues(string(policy), result).Inc()
}
