package cupti

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// standIn builds a library that stands in for CUPTI.
func standIn(t *testing.T, more ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libcupti.so.12")
	args := append([]string{"-shared", "-fPIC", "-O1", "-o", path, "testdata/standin.c"}, more...)
	if out, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// Work is told under the id that its call had here, work of nobody's calls is not; recording ends and begins again.
func TestSource(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := New(standIn(t))
	var told []cuda.Work
	sink := func(w *cuda.Work) { told = append(told, *w) }
	for round := range 3 { // the second tells of graphs as a whole, by what is in them
		told = nil
		s.Flush() // nothing is open
		if err := s.Record(sink, round == 1); err != nil {
			t.Fatal(err)
		}
		s.Correlate(7)
		s.Flush()
		s.Correlate(8)
		s.Flush()
		s.Correlate(0)
		s.Flush()
		if err := s.Record(nil, false); err != nil {
			t.Fatal(err)
		}
		s.Flush()
		if round == 1 {
			want := cuda.Work{Kind: cuda.WorkGraph, Correlation: 7, Start: 1000, End: 2000, Context: 1, Stream: 13, Graph: 8}
			if len(told) != 4 || told[0] != want {
				t.Fatalf("graphs: %d told: %+v\nwant %+v", len(told), told, want)
			}
			continue
		}
		if len(told) != 4 {
			t.Fatalf("%d told: %+v", len(told), told)
		}
		want := cuda.Work{Kind: cuda.WorkKernel, Correlation: 7, Start: 1000, End: 2000, Context: 1, Stream: 13,
			Graph: 8, Node: 9, Name: "a_kernel", Grid: [3]uint32{4, 5, 6}, Block: [3]uint32{32, 2, 1}, Registers: 17,
			Static: 48, Dynamic: 64}
		if told[0] != want {
			t.Errorf("kernel: %+v\nwant    %+v", told[0], want)
		}
		want = cuda.Work{Kind: cuda.WorkCopy, Correlation: 7, Start: 3000, End: 4000, Context: 1, Stream: 13, Bytes: 4096,
			Source: cuda.MemoryPinned, Target: cuda.MemoryDevice}
		if told[1] != want {
			t.Errorf("copy: %+v\nwant  %+v", told[1], want)
		}
		if told[2].Correlation != 8 || told[3].Correlation != 8 {
			t.Errorf("of the second call: %+v", told[2:])
		}
	}
}

// Numbers of graphs and nodes are CUPTI's, whether or not something is recorded.
func TestNumbers(t *testing.T) {
	if err := New("/nonexistent/libcupti.so").Numbers(); !errors.Is(err, ErrNone) {
		t.Errorf("no library: %v", err)
	}
	s := New(standIn(t))
	if err := s.Numbers(); err != nil {
		t.Fatal(err)
	}
	if n, r := s.GraphNumber(7); n != 8 || r != 0 {
		t.Errorf("graph %d, result %d", n, r)
	}
	if n, r := s.ExecNumber(7); n != 9 || r != 0 {
		t.Errorf("executable graph %d, result %d", n, r)
	}
	if n, r := s.NodeNumber(7); n != 7<<32|3 || r != 0 {
		t.Errorf("node %#x, result %d", n, r)
	}
	if _, r := s.GraphNumber(66); r != cuda.CUDA_ERROR_INVALID_VALUE {
		t.Errorf("what is no graph: result %d", r)
	}
}

// A machine without CUPTI, and one that does not let it work, say so.
func TestSourceRefused(t *testing.T) {
	err := New("/nonexistent/libcupti.so").Record(func(*cuda.Work) {}, false)
	if !errors.Is(err, ErrNone) {
		t.Errorf("no library: %v", err)
	}
	own := standIn(t)
	if err := os.WriteFile(filepath.Join(filepath.Dir(own), "libscuda-core.so"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err = New(own).Record(func(*cuda.Work) {}, false)
	if !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "scuda's own") {
		t.Errorf("scuda's own: %v", err)
	}
	err = New(standIn(t, "-DFAILING")).Record(func(*cuda.Work) {}, false)
	const want = "cuptiActivityEnable of 10: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("privileges: %v", err)
	}
}
