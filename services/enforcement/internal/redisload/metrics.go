package redisload

import (
	"github.com/prometheus/client_golang/prometheus"
)

// gauges tell what this instance sheds by. The groups are those of configuration, and "*" for all.
type gauges struct {
	l           *Loads
	load, level *prometheus.Desc
}

func newGauges(l *Loads) gauges {
	labels := []string{"group"}
	return gauges{l,
		prometheus.NewDesc("tollgate_load_reported_ratio", "Load as it was reported last, by group of models; absent once its time to live is over.", labels, nil),
		prometheus.NewDesc("tollgate_load_level_ratio", "Level by which requests are shed, by group of models: the load with its hysteresis.", labels, nil)}
}

func (g gauges) Describe(out chan<- *prometheus.Desc) { out <- g.load; out <- g.level }

func (g gauges) Collect(out chan<- prometheus.Metric) {
	for _, group := range g.l.Now() {
		name := field(group.Name)
		out <- prometheus.MustNewConstMetric(g.load, prometheus.GaugeValue, group.Load, name)
		out <- prometheus.MustNewConstMetric(g.level, prometheus.GaugeValue, group.Level, name)
	}
}
