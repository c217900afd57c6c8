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

// TenantWaiting offers what it gives: how many programs of each tenant wait for a place. A queue has bounds, and so
// has this.
type TenantWaiting func() map[string]int

var tenantWaitingDesc = prometheus.NewDesc("scuda_tenant_admission_waiting",
	"Programs that wait for a CUDA session's place, by tenant.", []string{"tenant"}, nil)

// Describe is of prometheus.Collector, as Collect is.
func (TenantWaiting) Describe(ch chan<- *prometheus.Desc) { ch <- tenantWaitingDesc }

// Collect asks.
func (m TenantWaiting) Collect(ch chan<- prometheus.Metric) {
	for tenant, n := range m() {
		ch <- prometheus.MustNewConstMetric(tenantWaitingDesc, prometheus.GaugeValue, float64(n), tenant)
	}
}

// Usage is what a tenant's sessions have used since the server was started.
type Usage struct {
	GPUSeconds, MemoryByteSeconds float64
	ToDevice, ToHost              uint64  // bytes copied
	TurnSeconds, TurnWait         float64 // of GPUs while turns were taken, and until they got it
}

// TenantUsage offers what it gives: what each tenant has used.
type TenantUsage func() map[string]Usage

var (
	gpuSecondsDesc = prometheus.NewDesc("scuda_tenant_gpu_seconds_total",
		"Seconds that a tenant's sessions had work for GPUs, which is a guess at the GPU time they used, by tenant.",
		[]string{"tenant"}, nil)
	memorySecondsDesc = prometheus.NewDesc("scuda_tenant_gpu_memory_byte_seconds_total",
		"Bytes of the GPUs' memory that a tenant's sessions had, times seconds, by tenant.", []string{"tenant"}, nil)
	tenantTurnDesc = prometheus.NewDesc("scuda_tenant_turn_seconds_total",
		"Seconds of GPUs that a tenant's sessions got while sessions took turns, by tenant.", []string{"tenant"}, nil)
	tenantTurnWaitDesc = prometheus.NewDesc("scuda_tenant_turn_wait_seconds_total",
		"Seconds that a tenant's sessions waited for their turn on a GPU with work to hand over, by tenant.",
		[]string{"tenant"}, nil)
	tenantCopiedDesc = prometheus.NewDesc("scuda_tenant_copied_bytes_total",
		"Bytes that a tenant's programs copied between their memory and the GPUs', by tenant.",
		[]string{"tenant", "direction"}, nil)
)

// Describe is of prometheus.Collector, as Collect is.
func (TenantUsage) Describe(ch chan<- *prometheus.Desc) {
	ch <- gpuSecondsDesc
	ch <- memorySecondsDesc
	ch <- tenantTurnDesc
	ch <- tenantTurnWaitDesc
	ch <- tenantCopiedDesc
}

// Collect asks.
func (u TenantUsage) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
	}
	for tenant, of := range u() {
		counter(gpuSecondsDesc, of.GPUSeconds, tenant)
		counter(memorySecondsDesc, of.MemoryByteSeconds, tenant)
		counter(tenantTurnDesc, of.TurnSeconds, tenant)
		counter(tenantTurnWaitDesc, of.TurnWait, tenant)
		counter(tenantCopiedDesc, float64(of.ToDevice), tenant, "to_device")
		counter(tenantCopiedDesc, float64(of.ToHost), tenant, "to_host")
	}
}
