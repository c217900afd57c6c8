package exporter

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scuda.dev/scuda/ebpf"
)

type fake struct {
	snapshot ebpf.Snapshot
	err      error
}

func (f *fake) Read() (*ebpf.Snapshot, error) { return &f.snapshot, f.err }
func (f *fake) Libraries() map[string]int     { return map[string]int{"libcuda.so.1": 700} }
func (f *fake) Floors() []ebpf.Floor {
	return []ebpf.Floor{{Entry: ebpf.Emulated, Kind: "emulated", Cost: 300 * time.Nanosecond, Seen: 150 * time.Nanosecond}}
}

func example() *fake {
	f := ebpf.Function{Library: "libcuda.so.1", Name: "cuMemcpyHtoD_v2", Figures: ebpf.Figures{
		Calls: 6, InFlight: 1, Sum: 3 * time.Millisecond, Max: 2 * time.Millisecond, OffCPU: time.Millisecond, Bytes: 4096,
	}}
	f.Histogram[3], f.Histogram[7], f.Histogram[20], f.Histogram[39] = 1, 2, 2, 1
	return &fake{snapshot: ebpf.Snapshot{
		Functions: []ebpf.Function{f},
		SystemCalls: []ebpf.SystemCall{
			{Name: "read", Class: "network", Calls: 5, Sum: time.Second}, {Name: "futex", Calls: 2},
		},
		Lost: ebpf.Lost{Returns: 3},
	}}
}

func TestCollect(t *testing.T) {
	c := New(example())
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %+v", err, problems)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "scuda_probe_call_duration_seconds" {
			continue
		}
		h := f.Metric[0].Histogram
		if h.GetSampleCount() != 6 || h.GetSampleSum() != 0.003 {
			t.Errorf("%d calls, %v s", h.GetSampleCount(), h.GetSampleSum())
		}
		want := map[float64]uint64{128e-9: 1, 256e-9: 3, 1.048576e-3: 3, 2.097152e-3: 5}
		for _, b := range h.Bucket {
			if n, asked := want[b.GetUpperBound()]; asked && n != b.GetCumulativeCount() {
				t.Errorf("up to %v s: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), n)
			}
			delete(want, b.GetUpperBound())
		}
		if len(want) > 0 {
			t.Errorf("no buckets for %v", want)
		}
	}
	for name, n := range map[string]int{
		"scuda_probe_system_calls_total": 2, "scuda_probe_lost_total": 4, "scuda_probe_cost_seconds": 1,
		"scuda_probe_functions":          1,
		"scuda_probe_copied_bytes_total": 1, "scuda_probe_calls_in_flight": 1, "scuda_probe_off_cpu_seconds_total": 1,
	} {
		if got := testutil.CollectAndCount(c, name); got != n {
			t.Errorf("%s: %d series, want %d", name, got, n)
		}
	}
}

func TestUnreadable(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(&fake{err: errors.New("gone")}))
	if _, err := registry.Gather(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("got %v", err)
	}
}
