// Package exporter gives what the probes of package ebpf measure to Prometheus: the same histograms, with bounds in
// seconds at powers of two of nanoseconds. Functions appear once they have been called, so that the number of series
// follows use.
package exporter

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"scuda.dev/scuda/ebpf"
)

// Reader is what is exported: *ebpf.Probes.
type Reader interface {
	Read() (*ebpf.Snapshot, error)
	Libraries() map[string]int
	Floors() []ebpf.Floor
}

// The bounds of exported histograms: shorter calls than 2^first ns are the probes' floor, longer ones than 2^last ns
// (69 s) are one bucket.
const (
	first = 7
	last  = 36
)

var (
	function = []string{"library", "function"}
	duration = prometheus.NewDesc("scuda_probe_call_duration_seconds", "Length of calls of the driver libraries.",
		function, nil)
	bytes  = prometheus.NewDesc("scuda_probe_copied_bytes_total", "Bytes that copies were asked to move.", function, nil)
	flight = prometheus.NewDesc("scuda_probe_calls_in_flight", "Calls that have begun and not ended.", function, nil)
	offCPU = prometheus.NewDesc("scuda_probe_off_cpu_seconds_total", "Time within calls in which the caller had no CPU.",
		function, nil)
	system = prometheus.NewDesc("scuda_probe_system_calls_total", "System calls of processes that use a driver library.",
		[]string{"call", "descriptor"}, nil)
	systemS = prometheus.NewDesc("scuda_probe_system_call_seconds_total", "Time within system calls of these processes.",
		[]string{"call", "descriptor"}, nil)
	lost = prometheus.NewDesc("scuda_probe_lost_total", "Calls that could not be measured.", []string{"reason"}, nil)
	cost = prometheus.NewDesc("scuda_probe_cost_seconds",
		"What a probed call takes longer, measured with an empty function.", []string{"entry"}, nil)
	probed = prometheus.NewDesc("scuda_probe_functions", "Functions that have probes.", []string{"library"}, nil)
)

// Collector reads probes at each scrape.
type Collector struct{ probes Reader }

// New gives a collector of attached probes.
func New(probes Reader) *Collector { return &Collector{probes} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{duration, bytes, flight, offCPU, system, systemS, lost, cost, probed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s, err := c.probes.Read()
	if err != nil {
		out <- prometheus.NewInvalidMetric(duration, fmt.Errorf("reading the probes: %w", err))
		return
	}
	value := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for i := range s.Functions {
		f := &s.Functions[i]
		out <- prometheus.MustNewConstHistogram(duration, f.Count(), f.Sum.Seconds(), buckets(&f.Histogram), f.Library,
			f.Name)
		value(flight, prometheus.GaugeValue, float64(f.InFlight), f.Library, f.Name)
		value(offCPU, prometheus.CounterValue, f.OffCPU.Seconds(), f.Library, f.Name)
		if f.Bytes > 0 {
			value(bytes, prometheus.CounterValue, float64(f.Bytes), f.Library, f.Name)
		}
	}
	for _, x := range s.SystemCalls {
		value(system, prometheus.CounterValue, float64(x.Calls), x.Name, x.Class)
		value(systemS, prometheus.CounterValue, x.Sum.Seconds(), x.Name, x.Class)
	}
	for reason, n := range map[string]uint64{"threads": s.Lost.Threads, "nested": s.Lost.Nested, "returns": s.Lost.Returns,
		"stalls": s.Lost.Stalls} {
		value(lost, prometheus.CounterValue, float64(n), reason)
	}
	for _, f := range c.probes.Floors() {
		value(cost, prometheus.GaugeValue, f.Cost.Seconds(), f.Kind)
	}
	for library, n := range c.probes.Libraries() {
		value(probed, prometheus.GaugeValue, float64(n), library)
	}
}

// buckets gives the cumulative counts by upper bounds in seconds.
func buckets(h *ebpf.Histogram) map[float64]uint64 {
	out := map[float64]uint64{}
	var sum uint64
	for i, n := range h {
		sum += n
		if i >= first-1 && i < last {
			out[ebpf.Upper(i)/1e9] = sum
		}
	}
	return out
}
