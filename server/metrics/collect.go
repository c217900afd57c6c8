package metrics

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/clock"
)

// Pages are the pages of a server's workers, as a collector for Prometheus.
type Pages struct {
	mu    sync.Mutex
	live  map[*Shared]*Page // with what counts no more, as another supervisor has counted it; nil: nothing
	ended Page              // sums of those that are gone
}

// Add makes a page for a new worker; Remove has to follow.
func (p *Pages) Add() (*Shared, error) {
	s, err := NewPage()
	if err != nil {
		return nil, err
	}
	p.add(s, nil)
	return s, nil
}

func (p *Pages) add(s *Shared, before *Page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		p.live = make(map[*Shared]*Page)
	}
	p.live[s] = before
}

// Adopt takes the page of a worker that another supervisor has started, behind fd, which it takes over; Remove has to
// follow. What it has counted so far is in the sums of that supervisor, whose readers add up what comes on top of what
// they had: when counters begin anew they take the first figure as new. So it is not in these sums.
func (p *Pages) Adopt(fd int) (*Shared, error) {
	s, err := OpenPage(fd)
	if err != nil {
		return nil, err
	}
	p.add(s, s.counters())
	return s, nil
}

// Remove keeps what a worker that has ended counted, and closes its page.
func (p *Pages) Remove(s *Shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.live[s]
	delete(p.live, s)
	for g := firstGauge; int(g) < series; g++ {
		s.Set(g, 0)
	}
	p.ended.include(s, before)
	s.Close()
}

// Glance is what one worker's page says at a moment.
type Glance struct {
	Calls   uint64    // carried out so far
	Pending bool      // something waits to be done, or for the GPU
	Active  time.Time // when there was last something to do; zero: never

	ToDevice, ToHost uint64 // bytes that the client copied

	Lost, Until time.Time // it waits for its client, since and until then; zero: it does not
}

// Glance looks at a worker's page; when it has ended there is nothing to see.
func (p *Pages) Glance(s *Shared) (g Glance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, live := p.live[s]; !live {
		return g
	}
	g.Calls = s.Calls()
	g.Pending = s.Value(QueueBytes) > 0 || s.Value(PendingWaits) > 0 || s.Value(PendingDownloads) > 0
	g.ToDevice, g.ToHost = s.Value(CopiedToDevice), s.Value(CopiedToHost)
	if ns := s.active.Load(); ns > 0 {
		g.Active = clock.At(ns)
	}
	if ns := s.lost.Load(); ns > 0 {
		g.Lost, g.Until = clock.At(ns), clock.At(s.until.Load())
	}
	return g
}

// sum is what all workers have counted so far.
func (p *Pages) sum() *Page {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := &Page{}
	total.add(&p.ended)
	for s, before := range p.live {
		total.include(s, before)
	}
	return total
}

// include adds up what a worker has counted for this supervisor.
func (p *Page) include(s *Shared, before *Page) {
	if before == nil {
		p.add(s.Page)
	} else {
		p.addSince(before, s.Page)
	}
}

// descriptions of what pages hold.
var (
	callsDesc = prometheus.NewDesc(nameCalls, "Calls that workers carried out for clients, by class.", []string{"class"},
		nil)
	errorsDesc = prometheus.NewDesc(nameErrors, "Calls that failed, by CUresult.", []string{"result"}, nil)
	seriesDesc = func() (d [series]*prometheus.Desc) {
		for i, s := range table {
			d[i] = s.desc()
		}
		return d
	}()
	histogramDesc = func() (d [histograms]*prometheus.Desc) {
		for i := range d {
			d[i] = describeHistogram(Histogram(i)).desc()
		}
		return d
	}()
)

func (d described) desc() *prometheus.Desc {
	names, _ := d.split()
	return prometheus.NewDesc(d.name, d.help, names, nil)
}

func (d described) split() (names, values []string) {
	for i := 0; i+1 < len(d.labels); i += 2 {
		names, values = append(names, d.labels[i]), append(values, d.labels[i+1])
	}
	return names, values
}

// Describe is of prometheus.Collector.
func (p *Pages) Describe(ch chan<- *prometheus.Desc) {
	ch <- callsDesc
	ch <- errorsDesc
	for _, d := range seriesDesc {
		ch <- d
	}
	for _, d := range histogramDesc {
		ch <- d
	}
}

// Collect is of prometheus.Collector.
func (p *Pages) Collect(ch chan<- prometheus.Metric) {
	total := p.sum()
	for c := range total.calls {
		ch <- prometheus.MustNewConstMetric(callsDesc, prometheus.CounterValue, float64(total.calls[c].Load()),
			class.Class(c).String())
	}
	for i := range total.series {
		kind := prometheus.CounterValue
		if Series(i) >= firstGauge {
			kind = prometheus.GaugeValue
		}
		_, values := table[i].split()
		ch <- prometheus.MustNewConstMetric(seriesDesc[i], kind, float64(total.series[i].Load()), values...)
	}
	for r := range total.errors {
		if n := total.errors[r].Load(); n > 0 {
			ch <- prometheus.MustNewConstMetric(errorsDesc, prometheus.CounterValue, float64(n), errorName(r))
		}
	}
	for i := range total.histograms {
		names, values := describeHistogram(Histogram(i)).split()
		ch <- &constHistogram{histogramDesc[i], names, values, &total.histograms[i]}
	}
}

// errorName is the result's name, which is a small set also where a driver answers with a number that scuda does not
// know.
func errorName(r int) string {
	name := cuda.ResultName(cuda.CUresult(r))
	if name == "" || name[0] != 'C' || len(name) < 4 || name[:4] != "CUDA" {
		return strconv.Itoa(r)
	}
	return name
}

// constHistogram is a histogram's state in both forms. (The library makes constant histograms of either form, not of
// both.)
type constHistogram struct {
	desc          *prometheus.Desc
	names, values []string
	h             *histogram
}

func (c *constHistogram) Desc() *prometheus.Desc { return c.desc }

func (c *constHistogram) Write(m *dto.Metric) error {
	for i := range c.names {
		m.Label = append(m.Label, &dto.LabelPair{Name: &c.names[i], Value: &c.values[i]})
	}
	m.Histogram = c.h.proto()
	return nil
}

// proto gives the histogram as Prometheus's protocol has it.
func (h *histogram) proto() *dto.Histogram {
	sum := float64(h.sum.Load()) * 1e-9
	var count uint64
	out := &dto.Histogram{
		SampleSum: &sum, Schema: new(int32(schema)), ZeroThreshold: new(1e-12), ZeroCount: new(uint64(0)),
	}
	for i := range classicBuckets {
		count += h.classic[i].Load()
		out.Bucket = append(out.Bucket, &dto.Bucket{CumulativeCount: new(count), UpperBound: new(classicBound(i))})
	}
	count += h.classic[classicBuckets].Load()
	var before int64 // count of the native bucket before
	next := 0        // index that the last span ends before
	for i := range h.native {
		n := int64(h.native[i].Load())
		if n == 0 {
			continue
		}
		index := i + lowest
		if len(out.PositiveSpan) == 0 || index != next {
			out.PositiveSpan = append(out.PositiveSpan, &dto.BucketSpan{
				Offset: new(int32(index - next)), Length: new(uint32(0)),
			})
		}
		*out.PositiveSpan[len(out.PositiveSpan)-1].Length++
		out.PositiveDelta = append(out.PositiveDelta, n-before)
		before, next = n, index+1
	}
	if len(out.PositiveSpan) == 0 { // says that it is a native histogram, though an empty one
		out.PositiveSpan = []*dto.BucketSpan{{Offset: new(int32(0)), Length: new(uint32(0))}}
	}
	out.SampleCount = &count
	return out
}

// GPU is what NVML says of a GPU. Nil pointers: the GPU does not say.
type GPU struct {
	Index                    int
	UUID, PCI, Device, Model string
	MemoryUsed, MemoryTotal  *float64 // bytes
	Utilization, MemoryBusy  *float64 // 0 to 1
	PowerWatts, TemperatureC *float64
}

// GPUs is a collector of what read says about the GPUs.
type GPUs struct {
	Read func() ([]GPU, error)
}

var gpuLabels = []string{"gpu", "UUID"}

var (
	gpuInfoDesc = prometheus.NewDesc("scuda_gpu_info",
		"The GPUs that are served; UUID joins with dcgm-exporter's metrics.",
		[]string{"gpu", "UUID", "pci_bus_id", "device", "model_name"}, nil)
	gpuUpDesc = prometheus.NewDesc("scuda_gpu_readable", "Whether NVML answered for the GPUs (1) or not (0).", nil, nil)
)

var gpuSeries = []struct {
	desc *prometheus.Desc
	of   func(*GPU) *float64
}{
	{gpuDesc("scuda_gpu_memory_used_bytes", "Device memory in use, by everybody."), func(g *GPU) *float64 {
		return g.MemoryUsed
	}},
	{gpuDesc("scuda_gpu_memory_size_bytes", "Device memory there is."), func(g *GPU) *float64 { return g.MemoryTotal }},
	{gpuDesc("scuda_gpu_utilization_ratio", "Share of time in which some kernel was running."), func(g *GPU) *float64 {
		return g.Utilization
	}},
	{gpuDesc("scuda_gpu_memory_utilization_ratio", "Share of time in which device memory was read or written."),
		func(g *GPU) *float64 { return g.MemoryBusy }},
	{gpuDesc("scuda_gpu_power_watts", "Power drawn."), func(g *GPU) *float64 { return g.PowerWatts }},
	{gpuDesc("scuda_gpu_temperature_celsius", "Temperature of the GPU."), func(g *GPU) *float64 { return g.TemperatureC }},
}

func gpuDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, gpuLabels, nil)
}

// Describe is of prometheus.Collector.
func (g GPUs) Describe(ch chan<- *prometheus.Desc) {
	ch <- gpuInfoDesc
	ch <- gpuUpDesc
	for _, s := range gpuSeries {
		ch <- s.desc
	}
}

// Collect is of prometheus.Collector.
func (g GPUs) Collect(ch chan<- prometheus.Metric) {
	list, err := g.Read()
	up := 1.0
	if err != nil {
		up = 0
	}
	ch <- prometheus.MustNewConstMetric(gpuUpDesc, prometheus.GaugeValue, up)
	for i := range list {
		x := &list[i]
		gpu := strconv.Itoa(x.Index)
		ch <- prometheus.MustNewConstMetric(gpuInfoDesc, prometheus.GaugeValue, 1, gpu, x.UUID, x.PCI, x.Device, x.Model)
		for _, s := range gpuSeries {
			if v := s.of(x); v != nil {
				ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, *v, gpu, x.UUID)
			}
		}
	}
}
