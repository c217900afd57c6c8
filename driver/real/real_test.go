package real

import (
	"errors"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
)

// fake builds the stand-in library.
func fake(t *testing.T) string {
	t.Helper()
	lib := filepath.Join(t.TempDir(), "libfake.so")
	gcc := exec.Command("gcc", "-shared", "-fPIC", "-pthread", "-o", lib, "testdata/fakecuda.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return lib
}

func openFake(t *testing.T) *GPU {
	t.Helper()
	gpu, err := Open(fake(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	})
	return gpu.(*GPU)
}

// launches makes a list outside of Go's heap.
func launches(t *testing.T, n int) []cuda.Launch {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n*int(unsafe.Sizeof(cuda.Launch{})), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return unsafe.Slice((*cuda.Launch)(unsafe.Pointer(unsafe.SliceData(mem))), n)
}

// Each launch of a list has its own arguments and result; one that fails does not keep the others from being made.
func TestLaunchAll(t *testing.T) {
	g := openFake(t)
	list := launches(t, 3)
	for i := range list {
		list[i] = cuda.Launch{
			Function: 1, Stream: 9, Params: 10, Grid: [3]uint32{uint32(i) + 700, 3, 4}, Block: [3]uint32{5, 6, 7}, Shared: 8,
			Result: -1,
		}
	}
	g.LaunchAll(list)
	for i := range list {
		if want := cuda.CUresult(i + 700); list[i].Result != want {
			t.Errorf("launch %d: %d, want %d", i, list[i].Result, want)
		}
	}
	g.LaunchAll(nil)
}

// Launches of several threads are made at once, each stream's in their order and in the caller's context, unless
// something orders them.
func TestLaunchesAtOnce(t *testing.T) {
	// Each case makes `jobs` lists of n launches, the i-th on a stream by a thread of the program; the first of each
	// stream waits until `together` streams have begun.
	for _, c := range []struct {
		name           string
		lanes, n, jobs int
		together       uint32
		stream, thread func(i int) int
		alone          bool // all made by one thread
	}{
		{name: "two threads", lanes: 2, n: 32, jobs: 50, together: 2, stream: func(i int) int { return 10 + i%2 },
			thread: func(i int) int { return i % 2 }},
		{name: "four threads", lanes: 4, n: 32, jobs: 50, together: 4, stream: func(i int) int { return 10 + i%4 },
			thread: func(i int) int { return i % 4 }},
		{name: "more threads than lanes", lanes: 4, n: 32, jobs: 50, stream: func(i int) int { return 10 + i%7 },
			thread: func(i int) int { return i % 7 }},
		{name: "two streams a thread", lanes: 4, n: 32, jobs: 50, stream: func(i int) int { return 10 + i%8 },
			thread: func(i int) int { return i % 4 }},
		{name: "one thread", lanes: 4, n: 32, jobs: 5, stream: func(i int) int {
			return 10 + i%4
		}, thread: func(int) int { return 1 }, alone: true},
		{name: "a stream of two threads", lanes: 4, n: 32, jobs: 5, stream: func(i int) int { return 10 + i%3 },
			thread: func(i int) int { return i % 4 }, alone: true},
		{name: "the default stream", lanes: 4, n: 32, jobs: 5, stream: func(i int) int { return i % 4 },
			thread: func(i int) int { return i % 4 }, alone: true},
		{name: "few launches", lanes: 4, n: 7, jobs: 5, stream: func(i int) int {
			return 10 + i%4
		}, thread: func(i int) int { return i % 4 }, alone: true},
		{name: "few processors", lanes: 1, n: 32, jobs: 5, stream: func(i int) int { return 10 + i%4 },
			thread: func(i int) int { return i % 4 }, alone: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			g := openFake(t)
			g.lanes = c.lanes
			if r := g.CuCtxSetCurrent(77); r != cuda.CUDA_SUCCESS {
				t.Fatal(r)
			}
			list, made := launches(t, c.n), map[int]uint32{}
			for range c.jobs {
				for i := range list {
					s := c.stream(i)
					list[i] = cuda.Launch{
						Function: 2, Stream: cuda.CUstream(s), Grid: [3]uint32{made[s], c.together}, Thread: uint32(c.thread(i)),
						Result: -1,
					}
					made[s]++
				}
				g.LaunchAll(list)
				for i := range list {
					if list[i].Result != cuda.CUDA_SUCCESS {
						t.Fatalf("launch %d: %v", i, list[i].Result)
					}
				}
			}
			if n := call(g.lib.symbol("fakeThreads"), &words{}); c.alone && n != 1 || n > 4 {
				t.Errorf("made by %d threads", n)
			}
		})
	}
}

func TestMostLanes(t *testing.T) {
	for processors, want := range map[int]int{1: 1, 4: 1, 8: 2, 12: 3, 16: 4, 128: 4} {
		if got := mostLanes(processors); got != want {
			t.Errorf("%d processors: %d threads, want %d", processors, got, want)
		}
	}
}

func TestArguments(t *testing.T) {
	g := openFake(t)
	if r := g.CuInit(7); r != cuda.CUDA_SUCCESS {
		t.Error("cuInit:", r)
	}
	var p cuda.CUdeviceptr
	if r := g.CuMemAlloc_v2(&p, 21); r != cuda.CUDA_SUCCESS || p != 42 {
		t.Errorf("cuMemAlloc_v2: %v, %d", r, p)
	}
	limit := int32(-3)
	if r := g.Call(cuda.OpCuCtxSetLimit, &cuda.Words{uint64(uint32(limit)), 1 << 40}); r != cuda.CUDA_SUCCESS {
		t.Error("negative enum and 64-bit value:", r)
	}
	h := &cuda.CUipcMemHandle_v1{}
	h.Reserved[0], h.Reserved[63] = 3, 4
	r := g.Call(cuda.OpCuIpcOpenMemHandle_v2, &cuda.Words{address(&p), address(h), 5})
	if r != cuda.CUDA_SUCCESS || p != 3+4*256+5*65536 {
		t.Errorf("64-byte structure by value: %v, %#x", r, p)
	}
	location := small(cuda.CUmemLocation_v1{Type: 4, Id: -5})
	if r := g.Call(cuda.OpCuMemAdvise_v2, &cuda.Words{1, 2, 3, location}); r != cuda.CUDA_SUCCESS {
		t.Error("8-byte structure by value:", r)
	}
	float := func(v float32) uint64 { return uint64(math.Float32bits(v)) }
	if r := g.Call(cuda.OpCuTexRefSetMipmapLevelClamp, &cuda.Words{8, float(1.5), float(-2.25)}); r != cuda.CUDA_SUCCESS {
		t.Error("floats:", r)
	}
	if r := g.Call(cuda.OpCuTexRefSetMipmapLevelBias, &cuda.Words{9, float(0.5)}); r != cuda.CUDA_SUCCESS {
		t.Error("one float:", r)
	}
	// consecutive ones cannot all be aligned by chance to 128 when the first is moved by 8
	maps := make([]cuda.CUtensorMap, 3)
	raw := unsafe.Slice((*uint64)(unsafe.Pointer(&maps[0])), 48)
	for _, at := range []int{0, 1, 8} {
		dim, strides, extent, steps := [2]cuda.Cuuint64{0, 11}, [1]cuda.Cuuint64{12}, [2]cuda.Cuuint32{13},
			[2]cuda.Cuuint32{0, 14}
		r := g.Call(cuda.OpCuTensorMapEncodeTiled, &cuda.Words{address(&raw[at]), 1, 2, 0x1000, address(&dim[0]),
			address(&strides[0]), address(&extent[0]), address(&steps[0]), 5, 6, 7, 8})
		if r != cuda.CUDA_SUCCESS || raw[at] != 0xabababababababab || raw[at+15] != 0xabababababababab {
			t.Errorf("tensor map at word %d: %v, %#x", at, r, raw[at])
		}
	}
	for _, op := range []uint16{0, cuda.OpCuCtxSetFlags, cuda.Ops, 60000} {
		if r := g.Call(op, &cuda.Words{}); r != cuda.CUDA_ERROR_NOT_SUPPORTED {
			t.Errorf("operation %d, which is not there: %v", op, r)
		}
	}
	if r := g.CuCtxSynchronize(); r != cuda.CUDA_ERROR_NOT_SUPPORTED {
		t.Error("missing function:", r)
	}
}

func TestPrivateTables(t *testing.T) {
	g := openFake(t)
	if ctx, r := g.PrimaryContext(3); r != cuda.CUDA_SUCCESS || ctx != 0x4003 {
		t.Errorf("%v, %#x", r, uint64(ctx))
	}
	if _, _, r := g.TPCMap(); r != cuda.CUDA_ERROR_NOT_SUPPORTED {
		t.Error("a table that the driver does not have:", r)
	}
}

func TestHostFunc(t *testing.T) {
	g := openFake(t)
	ran := make(chan int, 4)
	if r := g.HostFunc(1, func() { ran <- 1 }); r != cuda.CUDA_SUCCESS || <-ran != 1 {
		t.Error("host function:", r)
	}
	if r := g.HostFunc(99, func() { ran <- 2 }); r != cuda.CUDA_ERROR_INVALID_HANDLE {
		t.Error("refused host function:", r)
	}
	// The stand-in captures on stream 5 from the first call on it.
	g.HostFunc(5, func() { ran <- 0 })
	<-ran
	if r := g.HostFunc(5, func() { ran <- 3 }); r != cuda.CUDA_SUCCESS || <-ran != 3 {
		t.Error("captured host function:", r)
	}
	for range 2 {
		if r := g.Call(cuda.OpCuGraphLaunch, &cuda.Words{1, 1}); r != cuda.CUDA_SUCCESS || <-ran != 3 {
			t.Error("replayed host function:", r)
		}
	}
	if len(g.kept) != 1 {
		t.Errorf("%d host functions are kept", len(g.kept))
	}
}

func TestHostNode(t *testing.T) {
	g := openFake(t)
	ran := 0
	p := g.HostNode(func() { ran++ })
	if p.Fn == 0 || p.Fn != hostEntry() || len(g.kept) != 1 {
		t.Fatalf("%+v, %d host functions are kept", p, len(g.kept))
	}
	for range 2 { // as often as its graph is launched
		scudaRealHostFunc(*(*unsafe.Pointer)(unsafe.Pointer(&p.UserData)))
	}
	if ran != 2 {
		t.Errorf("ran %d times", ran)
	}
	for range 2 {
		if g.DropNode(p); len(g.kept) != 0 {
			t.Errorf("%d host functions are kept", len(g.kept))
		}
	}
}

func TestNVML(t *testing.T) {
	n, err := OpenNVML(fake(t))
	if err != nil {
		t.Fatal(err)
	}
	name := make([]byte, 8)
	if r := n.NvmlDeviceGetName(77, unsafe.Pointer(&name[0]), 8); r != nvml.NVML_SUCCESS || string(name[:4]) != "fake" {
		t.Errorf("%v %q", r, name)
	}
	clear(name)
	if r := n.Call(nvml.OpNvmlDeviceGetName, &nvml.Words{77, address(&name[0]), 8}); r != nvml.NVML_SUCCESS ||
		string(name[:4]) != "fake" {
		t.Errorf("by words: %v %q", r, name)
	}
	for _, op := range []uint16{0, nvml.Ops, 60000} {
		if r := n.Call(op, &nvml.Words{}); r != nvml.NVML_ERROR_FUNCTION_NOT_FOUND {
			t.Errorf("operation %d, which is not there: %v", op, r)
		}
	}
	if p := n.NvmlErrorString(3); p == nil || *(*[5]byte)(p) != [5]byte([]byte("three")) {
		t.Error("string result")
	}
	if r := n.NvmlShutdown(); r != nvml.NVML_ERROR_FUNCTION_NOT_FOUND {
		t.Error("missing function:", r)
	}
	if n.ExportTableSize([16]byte{}) != 0 {
		t.Error("size of a table that is not there")
	}
}

func TestOpenErrors(t *testing.T) {
	_, err := Open("/nonexistent/libcuda.so.1")
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "--gpu sim") {
		t.Error(err)
	}
	if _, err = OpenNVML("/nonexistent/libnvidia-ml.so.1"); !errors.Is(err, ErrNoLibrary) {
		t.Error(err)
	}
	if _, err = Open("libc.so.6"); !errors.Is(err, ErrNoLibrary) {
		t.Error("a library that is no driver:", err)
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	g := openFake(t)
	p := new(cuda.CUdeviceptr)
	if n := testing.AllocsPerRun(100, func() { g.CuMemAlloc_v2(p, 1) }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
	var byWords cuda.Caller = g
	args := &cuda.Words{address(p), 1}
	if n := testing.AllocsPerRun(100, func() { byWords.Call(cuda.OpCuMemAlloc_v2, args) }); n != 0 {
		t.Errorf("%v allocations a call by words", n)
	}
}

func BenchmarkCall(b *testing.B) {
	lib := filepath.Join(b.TempDir(), "libfake.so")
	gcc := exec.Command("gcc", "-shared", "-fPIC", "-pthread", "-o", lib, "testdata/fakecuda.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		b.Fatalf("gcc: %v\n%s", err, out)
	}
	g, err := Open(lib)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("method", func(b *testing.B) {
		for b.Loop() {
			g.CuInit(7)
		}
	})
	b.Run("words", func(b *testing.B) {
		byWords, args := g.(cuda.Caller), &cuda.Words{7}
		for b.Loop() {
			byWords.Call(cuda.OpCuInit, args)
		}
	})
}
