package httpapi

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// metrics count decisions and settlements. Every label's values are a closed set: what a client or an admin names becomes "other".
type metrics struct {
	models  []string
	checks  *prometheus.CounterVec
	records *prometheus.CounterVec
	draws   *prometheus.CounterVec
	smaller *prometheus.CounterVec
	adjusts *prometheus.CounterVec
	seconds prometheus.Histogram
}

const (
	other   = "other"
	allowed = "allowed"
	failed  = "error"
)

var (
	knownTiers = []string{tier.Free, tier.Plus, tier.API, tier.Enterprise}
	// knownReasons are those of DESIGN §4 and the limits that may be added by configuration.
	knownReasons = []string{"rpm", "tpm", "tpd", "rph", "rpd", "tph", "itpm", "itph", "itpd", "otpm", "otph", "otpd", limit.ReasonConcurrent, limit.ReasonRequestTooLarge,
		decide.ReasonModelNotAllowed, decide.ReasonContextTooLong, decide.ReasonSuspended, shed.Reason,
		decide.ReasonReservationEnded, decide.ReasonReservationUnknown}
)

func newMetrics(reg prometheus.Registerer, models []string) *metrics {
	m := &metrics{
		models: models,
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_checks_total",
			Help: "Checks by tier, model and result: allowed, the reason of a refusal, or error."}, []string{"tier", "model", "result"}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_records_total",
			Help: "Records by outcome and by what the settlement met: settled, already_settled, unknown, or error."}, []string{"outcome", "status"}),
		draws: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_consumes_total",
			Help: "Draws of streams by result: allowed, why the stream may not go on, or error."}, []string{"result"}),
		adjusts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_adjustments_total",
			Help: "Corrections of earlier events, by result: durable or error."}, []string{"result"}),
		smaller: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_fallbacks_total",
			Help: "Allowed checks that were given another model than they asked for, by tier and both models."}, []string{"tier", "requested", "served"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tollgate_check_seconds",
			Help: "Time to decide.", Buckets: []float64{.0002, .0005, .001, .002, .003, .005, .01, .02, .05, .1, .5, 2}}),
	}
	reg.MustRegister(m.checks, m.records, m.draws, m.adjusts, m.smaller, m.seconds)
	return m
}

func known(set []string, v string) string {
	if slices.Contains(set, v) {
		return v
	}
	return other
}

func (m *metrics) check(a decide.Answer, model string, err error, d time.Duration) {
	result := allowed
	switch {
	case err != nil:
		result = failed
	case !a.Allowed:
		result = known(knownReasons, a.Reason)
	}
	m.checks.WithLabelValues(known(knownTiers, a.Tier), known(m.models, model), result).Inc()
	if a.Allowed && a.Model != model {
		m.smaller.WithLabelValues(known(knownTiers, a.Tier), known(m.models, model), known(m.models, a.Model)).Inc()
	}
	m.seconds.Observe(d.Seconds())
}

func (m *metrics) consume(d decide.Drawn, err error) {
	result := allowed
	switch {
	case err != nil:
		result = failed
	case !d.Allowed:
		result = known(knownReasons, d.Reason)
	}
	m.draws.WithLabelValues(result).Inc()
}

func (m *metrics) adjust(err error) {
	result := "durable"
	if err != nil {
		result = failed
	}
	m.adjusts.WithLabelValues(result).Inc()
}

func (m *metrics) record(o usage.Outcome, status limit.SettleStatus, err error) {
	result := string(status)
	if err != nil {
		result = failed
	}
	m.records.WithLabelValues(string(o), result).Inc()
}
