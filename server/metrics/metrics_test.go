package metrics

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"scuda.dev/scuda/api/class"
)

func sample() *Server {
	return NewServer(Build{"v1", "abc"}, func() ([]GPU, error) {
		v := 0.5
		return []GPU{
			{Index: 0, UUID: "GPU-1", PCI: "0000:01:00.0", Device: "nvidia0", Model: "H", MemoryUsed: &v, MemoryTotal: &v,
				Utilization: &v, MemoryBusy: &v, PowerWatts: &v, TemperatureC: &v},
		}, nil
	})
}

func TestModuleCache(t *testing.T) {
	s := sample()
	s.ModuleCache(func() CacheFigures {
		return CacheFigures{Images: 3, Bytes: 4096, Stored: 5, Evicted: 2, Refused: 1, Tenants: map[string]int64{"a": 4096}}
	})
	want := `# HELP scuda_module_cache_bytes Bytes of the images that the module cache holds.
# TYPE scuda_module_cache_bytes gauge
scuda_module_cache_bytes 4096
# HELP scuda_module_cache_evicted_total Module images that were removed to make room for others.
# TYPE scuda_module_cache_evicted_total counter
scuda_module_cache_evicted_total 2
# HELP scuda_module_cache_images Module images that the module cache holds.
# TYPE scuda_module_cache_images gauge
scuda_module_cache_images 3
# HELP scuda_tenant_module_cache_bytes What a tenant's images count as in the module cache, by tenant.
# TYPE scuda_tenant_module_cache_bytes gauge
scuda_tenant_module_cache_bytes{tenant="a"} 4096
`
	names := []string{"scuda_module_cache_bytes", "scuda_module_cache_images", "scuda_module_cache_evicted_total",
		"scuda_tenant_module_cache_bytes"}
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// Everything that is offered obeys Prometheus's conventions.
func TestConventions(t *testing.T) {
	s := sample()
	s.ModuleCache(func() CacheFigures { return CacheFigures{Tenants: map[string]int64{"a": 1}} })
	s.Refused.WithLabelValues("token").Inc()
	s.Driver("580.1", 13000, "real")
	page, err := s.Pages.Add()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Pages.Remove(page)
	page.Error(2)
	problems, err := testutil.GatherAndLint(s.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "scuda_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// Both forms of the histogram are what the library makes of the same values.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var own histogram
		library := prometheus.NewHistogram(
			prometheus.HistogramOpts{Name: "x", Buckets: prometheus.ExponentialBuckets(1e-6, 2, classicBuckets),
				NativeHistogramBucketFactor: math.Exp2(1.0 / perOctave), NativeHistogramZeroThreshold: 1e-12})
		for _, ns := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) int64 {
			v := rapid.Int64Range(1, 400_000_000_000).Draw(t, "ns")
			return max(v>>rapid.IntRange(0, 38).Draw(t, "shift"), 1)
		}), 1, 200).Draw(t, "values") {
			own.observe(ns)
			library.Observe(float64(ns) / 1e9) // 1 µs is 1e-6 then, which lies on a bound
		}
		var m dto.Metric
		if err := library.Write(&m); err != nil {
			t.Fatal(err)
		}
		got := own.proto()
		if d := cmp.Diff(expand(m.Histogram), expand(got)); d != "" {
			t.Errorf("native buckets (-library +own):\n%s", d)
		}
		if d := cmp.Diff(m.Histogram.Bucket, got.Bucket, protocmp.Transform(),
			cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-12*a })); d != "" {
			t.Errorf("classic buckets (-library +own):\n%s", d)
		}
		if *got.SampleCount != *m.Histogram.SampleCount ||
			math.Abs(*got.SampleSum-*m.Histogram.SampleSum) > 1e-9**got.SampleSum {
			t.Errorf("count %d, sum %v, want %d, %v", *got.SampleCount, *got.SampleSum, *m.Histogram.SampleCount,
				*m.Histogram.SampleSum)
		}
	})
}

// expand gives the counts of a native histogram by index.
func expand(h *dto.Histogram) map[int]int64 {
	counts := map[int]int64{}
	index, k, n := 0, 0, int64(0)
	for _, s := range h.PositiveSpan {
		index += int(*s.Offset)
		for range *s.Length {
			n += h.PositiveDelta[k]
			if k++; n != 0 {
				counts[index] = n
			}
			index++
		}
	}
	return counts
}

// A page is one to both processes; what a worker counted outlives it, its gauges do not.
func TestPages(t *testing.T) {
	s := sample()
	mine, err := s.Pages.Add()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(mine.FD)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := OpenPage(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	theirs.Call(class.Launch)
	theirs.Add(ReceivedTCP, 10)
	theirs.Set(QueueBytes, 7)
	theirs.Error(700)
	theirs.Error(-1)
	theirs.Observe(QueueWait, 1500)
	check := func(queue string) {
		t.Helper()
		err := testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP scuda_errors_total Calls that failed, by CUresult.
# TYPE scuda_errors_total counter
scuda_errors_total{result="CUDA_ERROR_ILLEGAL_ADDRESS"} 1
scuda_errors_total{result="CUDA_ERROR_UNKNOWN"} 1
# HELP scuda_queue_bytes Bytes of received commands that workers have not carried out yet.
# TYPE scuda_queue_bytes gauge
scuda_queue_bytes `+queue+`
`), nameErrors, "scuda_queue_bytes")
		if err != nil {
			t.Error(err)
		}
		sum := s.Pages.sum()
		if sum.Calls() != 1 || sum.series[ReceivedTCP].Load() != 10 || sum.histograms[QueueWait].sum.Load() != 1500 {
			t.Errorf("calls %d, bytes %d", sum.Calls(), sum.series[ReceivedTCP].Load())
		}
	}
	check("7")
	s.Pages.Remove(mine)
	check("0")
}

func TestOpenPageRefusesOtherMemory(t *testing.T) {
	fd, err := unix.MemfdCreate("other", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPage(fd); err == nil {
		t.Error("a page of no bytes was opened")
	}
}

func TestHandler(t *testing.T) {
	var notReady error
	for _, c := range []struct {
		path     string
		ready    error
		profiles bool
		code     int
		body     string
	}{
		{"/metrics", nil, false, 200, `scuda_gpu_memory_used_bytes{UUID="GPU-1",gpu="0"} 0.5`},
		{"/healthz", errors.New("no"), false, 200, "ok"},
		{"/readyz", nil, false, 200, "ok"},
		{"/readyz", errors.New("draining"), false, 503, "draining"},
		{"/debug/pprof/", nil, false, 404, ""},
		{"/debug/pprof/", nil, true, 200, "goroutine"},
		{"/", nil, false, 200, "/metrics"},
		{"/other", nil, false, 404, ""},
	} {
		notReady = c.ready
		w := httptest.NewRecorder()
		sample().Handler(func() error { return notReady }, c.profiles).ServeHTTP(
			w, httptest.NewRequest(http.MethodGet, c.path, nil))
		body, _ := io.ReadAll(w.Result().Body)
		if w.Code != c.code || !strings.Contains(string(body), c.body) {
			t.Errorf("%s: %d %.200s", c.path, w.Code, body)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	var p Page
	v := rand.Int64N(1e6)
	for b.Loop() {
		p.Observe(QueueWait, v)
	}
}

func BenchmarkCall(b *testing.B) {
	var p Page
	for b.Loop() {
		p.Call(class.Launch)
	}
}

// Of a worker that another supervisor has started counts what it does from then on, while it runs and afterwards, and
// its gauges as they are.
func TestAdoptedPages(t *testing.T) {
	before, after := sample(), sample()
	first, err := before.Pages.Add()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(first.FD)
	if err != nil {
		t.Fatal(err)
	}
	count := func() {
		first.Call(class.Launch)
		first.Add(ReceivedTCP, 10)
		first.Error(700)
		first.Observe(QueueWait, 1500)
	}
	count()
	first.Set(QueueBytes, 7)
	second, err := after.Pages.Adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	check := func(times, gauge uint64) {
		t.Helper()
		sum := after.Pages.sum()
		if sum.Calls() != times || sum.Value(ReceivedTCP) != 10*times || sum.errors[700].Load() != times ||
			sum.histograms[QueueWait].sum.Load() != 1500*times || sum.Value(QueueBytes) != gauge {
			t.Errorf("%d calls, %d bytes, a gauge of %d; want %d times", sum.Calls(), sum.Value(ReceivedTCP),
				sum.Value(QueueBytes), times)
		}
	}
	check(0, 7)
	count()
	first.Set(QueueBytes, 3)
	check(1, 3)
	if calls := after.Pages.Glance(second).Calls; calls != 2 {
		t.Errorf("the session has made %d calls", calls)
	}
	count()
	after.Pages.Remove(second)
	check(2, 0)
	before.Pages.Remove(first)
}

// Moments in a page are compared with the supervisor's own whatever the clock was set to in between: they are not times
// of day alone.
func TestMomentsOfPages(t *testing.T) {
	pages := &sample().Pages
	s, err := pages.Add()
	if err != nil {
		t.Fatal(err)
	}
	active := time.Now().Add(-time.Minute)
	lost, until := active.Add(time.Second), active.Add(time.Hour)
	s.Active(active)
	s.Lost(lost, until)
	g := pages.Glance(s)
	for _, c := range []struct{ got, want time.Time }{{g.Active, active}, {g.Lost, lost}, {g.Until, until}} {
		if !c.got.Equal(c.want) || !strings.Contains(c.got.String(), " m=") {
			t.Errorf("%v was read, %v was written", c.got, c.want)
		}
	}
}
