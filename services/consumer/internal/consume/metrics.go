package consume

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the loop's figures: in, out, put aside by reason, time.
type Metrics struct {
	fetched     prometheus.Counter
	records     *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	failures    *prometheus.CounterVec
	batchSize   prometheus.Histogram
	flush       prometheus.Histogram
	lastCommit  atomic.Int64 // Unix nanoseconds
}

// NewMetrics registers the loop's metrics. Counters exist from the start, at 0, for every value of their labels.
func NewMetrics(reg prometheus.Registerer, now func() time.Time) *Metrics {
	m := &Metrics{
		fetched: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_consumer_fetched_total",
			Help: "Messages taken from the log into a batch."}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_consumer_records_total",
			Help: "Messages done with, by result: stored in the ledger or put aside. A redelivered one is counted again."}, []string{"result"}),
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_consumer_dead_letters_total",
			Help: "Messages put aside in the dead letters' topic, by reason."}, []string{"reason"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_consumer_failures_total",
			Help: "Failed tries, by step. All but a commit are tried again until they succeed."}, []string{"step"}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tollgate_consumer_batch_messages",
			Help: "Messages in a batch.", Buckets: []float64{1, 10, 100, 500, 1000, 2000, 5000, 10000, 50000}}),
		flush: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tollgate_consumer_insert_seconds",
			Help: "Time to store a batch, retries included.", Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 5, 30, 120}}),
	}
	m.lastCommit.Store(now().UnixNano())
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tollgate_consumer_seconds_since_commit",
		Help: "Time since offsets were last committed, or since the start. Grows when there is nothing to read, too: look at the lag beside it."},
		func() float64 { return now().Sub(time.Unix(0, m.lastCommit.Load())).Seconds() })
	reg.MustRegister(m.fetched, m.records, m.deadLetters, m.failures, m.batchSize, m.flush, age)
	for _, result := range []string{"stored", "dead_letter"} {
		m.records.WithLabelValues(result)
	}
	for _, reason := range Reasons {
		m.deadLetters.WithLabelValues(reason)
	}
	for _, step := range []string{"fetch", "insert", "dead_letter", "commit"} {
		m.failures.WithLabelValues(step)
	}
	return m
}

func (m *Metrics) stored(b *batch, refused int, letters []DeadLetter, d time.Duration) {
	m.records.WithLabelValues("stored").Add(float64(len(b.rows) - refused))
	m.records.WithLabelValues("dead_letter").Add(float64(len(letters)))
	for _, l := range letters {
		m.deadLetters.WithLabelValues(l.Reason).Inc()
	}
	m.batchSize.Observe(float64(b.count))
	m.flush.Observe(d.Seconds())
}

func (m *Metrics) failure(step string)    { m.failures.WithLabelValues(step).Inc() }
func (m *Metrics) committed(at time.Time) { m.lastCommit.Store(at.UnixNano()) }
