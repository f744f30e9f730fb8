package proxy

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// How requests end, in metrics. The first three are those of usage records.
const (
	outcomeCompleted    = "completed"
	outcomeCancelled    = "cancelled"
	outcomeFailed       = "failed"
	outcomeRefused      = "refused"
	outcomeInvalid      = "invalid"
	outcomeUnauthorized = "unauthorized"
	outcomeUnavailable  = "unavailable"
)

type metrics struct {
	models    []string
	requests  *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	firstByte *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	unsettled prometheus.Counter
	malformed prometheus.Counter
	cutShort  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, models []string) *metrics {
	m := &metrics{models: models,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_gateway_requests_total",
			Help: "Requests by the model that was asked for and how they ended."}, []string{"model", "outcome"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_gateway_tokens_total",
			Help: "Tokens that were settled, by kind (input, output) and source (upstream, counted)."}, []string{"model", "kind", "source"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tollgate_gateway_first_byte_seconds",
			Help: "From the request's arrival to the answer's first byte.", Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}, []string{"model"}),
		inFlight:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "tollgate_gateway_in_flight", Help: "Requests that are granted and not settled."}),
		unsettled: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_gateway_settle_failures_total", Help: "Settlements that were given up; what was reserved is billed when the lease ends."}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_gateway_malformed_events_total", Help: "Events of streams that are no JSON. They were handed on."}),
		cutShort:  prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_gateway_quota_ended_streams_total", Help: "Streams that were ended because the quota was used up."}),
	}
	reg.MustRegister(m.requests, m.tokens, m.firstByte, m.inFlight, m.unsettled, m.malformed, m.cutShort)
	return m
}

// label is a model's name if it is known: what clients send must not become a series.
func (m *metrics) label(model string) string {
	if slices.Contains(m.models, model) {
		return model
	}
	return "other"
}
