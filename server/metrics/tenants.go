package metrics

import "github.com/prometheus/client_golang/prometheus"

// TenantMemory offers what it gives: how many bytes of the GPUs' memory the sessions of each tenant have.
type TenantMemory func() map[string]uint64

var tenantMemoryDesc = prometheus.NewDesc("scuda_tenant_gpu_memory_bytes",
	"Bytes of the GPUs' memory that a tenant's sessions have, as far as a limit has them counted, by tenant.",
	[]string{"tenant"}, nil)

// Describe is of prometheus.Collector, as Collect is.
func (TenantMemory) Describe(ch chan<- *prometheus.Desc) { ch <- tenantMemoryDesc }

// Collect asks.
func (m TenantMemory) Collect(ch chan<- prometheus.Metric) {
	for tenant, bytes := range m() {
		ch <- prometheus.MustNewConstMetric(tenantMemoryDesc, prometheus.GaugeValue, float64(bytes), tenant)
	}
}

// Leases offers what it gives: how many leases hold, by tenant. A book of leases has bounds, and so has this.
type Leases func() map[string]int

var leasesDesc = prometheus.NewDesc("scuda_leases", "Leases that hold, by tenant.", []string{"tenant"}, nil)

// Describe is of prometheus.Collector, as Collect is.
func (Leases) Describe(ch chan<- *prometheus.Desc) { ch <- leasesDesc }

// Collect asks.
func (m Leases) Collect(ch chan<- prometheus.Metric) {
	for tenant, n := range m() {
		ch <- prometheus.MustNewConstMetric(leasesDesc, prometheus.GaugeValue, float64(n), tenant)
	}
}
