package sim

import (
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a GPU on whose primary context the test's thread works.
type machine struct {
	*GPU
	t   *testing.T
	ctx cuda.CUcontext
}

const testMemory = 64 << 20

func openBare(t *testing.T, cfg Config) *GPU {
	t.Helper()
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = testMemory
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	g, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	t.Cleanup(func() {
		runtime.UnlockOSThread()
		if err := g.Close(); err != nil {
			t.Error("Close:", err)
		}
	})
	g.ThreadInit()
	return g
}

func open(t *testing.T, cfg Config) *machine {
	t.Helper()
	m := &machine{GPU: openBare(t, cfg), t: t}
	m.must(m.CuInit(0))
	m.must(m.CuDevicePrimaryCtxRetain(&m.ctx, 0))
	m.must(m.CuCtxSetCurrent(m.ctx))
	return m
}

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func (m *machine) must(r cuda.CUresult) {
	m.t.Helper()
	if r != ok {
		m.t.Fatalf("got %v", r)
	}
}

func (m *machine) want(want, got cuda.CUresult) {
	m.t.Helper()
	if got != want {
		m.t.Errorf("got %v, want %v", got, want)
	}
}

// pageable is host memory outside the Go heap that the device does not know.
func (m *machine) pageable(n int) []byte {
	m.t.Helper()
	size := roundUp(uint64(max(n, 1)), 4096)
	base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := unmap(base, size); err != nil {
			m.t.Error(err)
		}
	})
	return bytesAt(base, uint64(n))
}

// pinned is host memory that the device knows.
func (m *machine) pinned(n int) []byte {
	m.t.Helper()
	p := (*unsafe.Pointer)(unsafe.Pointer(&m.pageable(8)[0]))
	m.must(m.CuMemHostAlloc(unsafe.Pointer(p), uint64(n), 0))
	return bytesOf(*p, uint64(n))
}

func pointerTo(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func addressOfBytes(b []byte) uint64 { return addressOf(pointerTo(b)) }

func as[T any](b []byte) []T {
	var zero T
	return unsafe.Slice((*T)(pointerTo(b)), len(b)/int(unsafe.Sizeof(zero)))
}

func (m *machine) alloc(n uint64) cuda.CUdeviceptr {
	m.t.Helper()
	var p cuda.CUdeviceptr
	m.must(m.CuMemAlloc_v2(&p, n))
	return p
}

func (m *machine) upload(dst cuda.CUdeviceptr, data []byte) {
	m.t.Helper()
	buf := m.pageable(len(data))
	copy(buf, data)
	m.must(m.CuMemcpyHtoD_v2(dst, pointerTo(buf), uint64(len(data))))
}

func (m *machine) download(src cuda.CUdeviceptr, n int) []byte {
	m.t.Helper()
	buf := m.pageable(n)
	m.must(m.CuMemcpyDtoH_v2(pointerTo(buf), src, uint64(n)))
	return append([]byte(nil), buf...)
}

func floats(f func(i int) float32, n int) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		*(*uint32)(unsafe.Pointer(&b[4*i])) = math.Float32bits(f(i))
	}
	return b
}

func (m *machine) stream(flags cuda.CUstream_flags) cuda.CUstream {
	m.t.Helper()
	var s cuda.CUstream
	m.must(m.CuStreamCreate(&s, uint32(flags)))
	return s
}

func (m *machine) event(flags cuda.CUevent_flags) cuda.CUevent {
	m.t.Helper()
	var e cuda.CUevent
	m.must(m.CuEventCreate(&e, uint32(flags)))
	return e
}

func kernelFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "kernels", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// image puts bytes where module images come from: memory outside the Go heap, followed by a NUL.
func (m *machine) image(b []byte) unsafe.Pointer {
	buf := m.pageable(len(b) + 1)
	copy(buf, b)
	return pointerTo(buf)
}

func (m *machine) name(s string) unsafe.Pointer { return m.image([]byte(s)) }

func (m *machine) module() cuda.CUmodule {
	m.t.Helper()
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image(kernelFile(m.t, "kernels.ptx"))))
	return mod
}

func (m *machine) kernel(mod cuda.CUmodule, name string) cuda.CUfunction {
	m.t.Helper()
	var f cuda.CUfunction
	m.must(m.CuModuleGetFunction(&f, mod, m.name(name)))
	return f
}

// arguments makes the pointer array of a launch; each argument is 4 or 8 bytes, or a byte slice.
func (m *machine) arguments(args ...any) unsafe.Pointer {
	m.t.Helper()
	table := as[uint64](m.pageable(8 * max(len(args), 1)))
	for i, a := range args {
		var b []byte
		switch v := a.(type) {
		case cuda.CUdeviceptr:
			b = m.pageable(8)
			as[uint64](b)[0] = uint64(v)
		case int32:
			b = m.pageable(4)
			as[int32](b)[0] = v
		case int64:
			b = m.pageable(8)
			as[int64](b)[0] = v
		case float32:
			b = m.pageable(4)
			as[float32](b)[0] = v
		case []byte:
			b = m.pageable(len(v))
			copy(b, v)
		default:
			m.t.Fatalf("argument of type %T", a)
		}
		table[i] = addressOfBytes(b)
	}
	return unsafe.Pointer(&table[0])
}

func (m *machine) launchOn(s cuda.CUstream, f cuda.CUfunction, grid, block uint32, shared uint32,
	args ...any) cuda.CUresult {
	m.t.Helper()
	return m.CuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, s, m.arguments(args...), nil)
}

func pointerOf[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
