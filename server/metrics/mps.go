package metrics

import "github.com/prometheus/client_golang/prometheus"

// MPSDaemon is what is known of a tenant's MPS daemon.
type MPSDaemon struct {
	Tenant   string
	Runs     bool
	Wanted   bool // workers are its clients, or are to be
	Clients  int
	Restarts uint64 // times that it was started again after it had failed
	Lost     uint64 // MPS servers behind it that ended
}

// MPSDaemons offers what it gives: the daemons of tenants; none where the server runs none.
type MPSDaemons func() []MPSDaemon

var (
	mpsUpDesc = prometheus.NewDesc("scuda_mps_up",
		"Whether a tenant's MPS daemon runs (1), or is needed and does not (0), by tenant; none that nobody needs.",
		[]string{"tenant"}, nil)
	mpsClientsDesc = prometheus.NewDesc("scuda_mps_clients",
		"Workers that are clients of a tenant's MPS daemon, by tenant.", []string{"tenant"}, nil)
	mpsRestartsDesc = prometheus.NewDesc("scuda_mps_restarts_total",
		"Times that a tenant's MPS daemon was started again after it had failed, by tenant.", []string{"tenant"}, nil)
	mpsLostDesc = prometheus.NewDesc("scuda_mps_servers_lost_total",
		"MPS servers that ended while their daemon went on, which takes the work of their clients, by tenant.",
		[]string{"tenant"}, nil)
)

// Describe is of prometheus.Collector, as Collect is.
func (MPSDaemons) Describe(ch chan<- *prometheus.Desc) {
	ch <- mpsUpDesc
	ch <- mpsClientsDesc
	ch <- mpsRestartsDesc
	ch <- mpsLostDesc
}

// Collect asks.
func (m MPSDaemons) Collect(ch chan<- prometheus.Metric) {
	for _, d := range m() {
		if d.Runs || d.Wanted {
			up := 0.0
			if d.Runs {
				up = 1
			}
			ch <- prometheus.MustNewConstMetric(mpsUpDesc, prometheus.GaugeValue, up, d.Tenant)
			ch <- prometheus.MustNewConstMetric(mpsClientsDesc, prometheus.GaugeValue, float64(d.Clients), d.Tenant)
		}
		ch <- prometheus.MustNewConstMetric(mpsRestartsDesc, prometheus.CounterValue, float64(d.Restarts), d.Tenant)
		ch <- prometheus.MustNewConstMetric(mpsLostDesc, prometheus.CounterValue, float64(d.Lost), d.Tenant)
	}
}
