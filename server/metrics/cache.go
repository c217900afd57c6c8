package metrics

import "github.com/prometheus/client_golang/prometheus"

// CacheFigures are those of the module cache.
type CacheFigures struct {
	Images                   int
	Bytes                    int64
	Stored, Evicted, Refused uint64           // images, since the start
	Tenants                  map[string]int64 // what the images of each tenant count as, in bytes
}

// ModuleCache offers the figures that it gives.
type ModuleCache func() CacheFigures

var (
	cacheImagesDesc = prometheus.NewDesc("scuda_module_cache_images", "Module images that the module cache holds.", nil,
		nil)
	cacheBytesDesc = prometheus.NewDesc("scuda_module_cache_bytes", "Bytes of the images that the module cache holds.",
		nil, nil)
	cacheStoredDesc  = prometheus.NewDesc("scuda_module_cache_stored_total", "Module images that were stored.", nil, nil)
	cacheEvictedDesc = prometheus.NewDesc("scuda_module_cache_evicted_total",
		"Module images that were removed to make room for others.", nil, nil)
	cacheRefusedDesc = prometheus.NewDesc("scuda_module_cache_refused_total",
		"Module images that were not stored: the disk is full or cannot be written, or they are too large.", nil, nil)
	cacheTenantDesc = prometheus.NewDesc("scuda_tenant_module_cache_bytes",
		"What a tenant's images count as in the module cache, by tenant.", []string{"tenant"}, nil)
)

// Describe is of prometheus.Collector, as Collect is.
func (ModuleCache) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		cacheImagesDesc, cacheBytesDesc, cacheStoredDesc, cacheEvictedDesc, cacheRefusedDesc, cacheTenantDesc,
	} {
		ch <- d
	}
}

// Collect asks.
func (m ModuleCache) Collect(ch chan<- prometheus.Metric) {
	f := m()
	ch <- prometheus.MustNewConstMetric(cacheImagesDesc, prometheus.GaugeValue, float64(f.Images))
	ch <- prometheus.MustNewConstMetric(cacheBytesDesc, prometheus.GaugeValue, float64(f.Bytes))
	ch <- prometheus.MustNewConstMetric(cacheStoredDesc, prometheus.CounterValue, float64(f.Stored))
	ch <- prometheus.MustNewConstMetric(cacheEvictedDesc, prometheus.CounterValue, float64(f.Evicted))
	ch <- prometheus.MustNewConstMetric(cacheRefusedDesc, prometheus.CounterValue, float64(f.Refused))
	for tenant, bytes := range f.Tenants {
		ch <- prometheus.MustNewConstMetric(cacheTenantDesc, prometheus.GaugeValue, float64(bytes), tenant)
	}
}
