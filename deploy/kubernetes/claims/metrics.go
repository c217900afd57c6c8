package claims

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scuda.dev/scuda/deploy/kubernetes/fleet"
)

// Metrics are what a controller counts; nil counts nothing.
type Metrics struct {
	grants   *prometheus.CounterVec
	seconds  prometheus.Histogram
	releases prometheus.Counter
}

// NewMetrics makes the counters, and has the servers of a fleet counted when somebody asks.
func NewMetrics(to prometheus.Registerer, f *fleet.Fleet) *Metrics {
	m := &Metrics{
		grants: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scuda_dra_leases_asked_total",
			Help: "Leases that were asked for, by what came of it: made, failed (it is tried again) or refused."},
			[]string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scuda_dra_lease_seconds",
			Help: "Time that servers took to make a lease.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		releases: prometheus.NewCounter(prometheus.CounterOpts{Name: "scuda_dra_leases_given_back_total",
			Help: "Leases that were revoked because their claim was released or gone."}),
	}
	to.MustRegister(m.grants, m.seconds, m.releases, servers{f})
	return m
}

func (m *Metrics) granted(err error, took time.Duration) {
	if m == nil {
		return
	}
	m.seconds.Observe(took.Seconds())
	result := "made"
	if err != nil {
		result = "failed"
	}
	m.grants.WithLabelValues(result).Inc()
}

func (m *Metrics) refused() {
	if m != nil {
		m.grants.WithLabelValues("refused").Inc()
	}
}

func (m *Metrics) revoked() {
	if m != nil {
		m.releases.Inc()
	}
}

// servers is the collector of how the servers are.
type servers struct{ fleet *fleet.Fleet }

var serversDesc = prometheus.NewDesc("scuda_dra_servers", "Servers, by how they are: up, draining or gone.",
	[]string{"state"}, nil)

// Describe and Collect are prometheus.Collector's.
func (s servers) Describe(to chan<- *prometheus.Desc) { to <- serversDesc }

// Collect is described at Describe.
func (s servers) Collect(to chan<- prometheus.Metric) {
	up, draining, gone := s.fleet.Up()
	for state, n := range map[string]int{"up": up, "draining": draining, "gone": gone} {
		to <- prometheus.MustNewConstMetric(serversDesc, prometheus.GaugeValue, float64(n), state)
	}
}
