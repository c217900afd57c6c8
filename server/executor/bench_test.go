package executor

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/driver/real"
)

// quick answers everything at once, so that what is measured is the executor.
type quick struct{ nothing }

func (quick) CuDevicePrimaryCtxRetain(c *cuda.CUcontext, _ cuda.CUdevice) cuda.CUresult {
	*c = 1
	return 0
}
func (quick) CuCtxSynchronize() cuda.CUresult { return 0 }
func (quick) CuEventCreate(e *cuda.CUevent, _ uint32) cuda.CUresult {
	*e = 7
	return 0
}
func (quick) CuEventRecord(cuda.CUevent, cuda.CUstream) cuda.CUresult { return 0 }
func (quick) CuEventQuery(cuda.CUevent) cuda.CUresult                 { return 0 }
func (quick) CuStreamQuery(cuda.CUstream) cuda.CUresult               { return 0 }
func (quick) CuStreamSynchronize(cuda.CUstream) cuda.CUresult         { return 0 }
func (quick) CuEventSynchronize(cuda.CUevent) cuda.CUresult           { return 0 }

func (quick) CuModuleLoadDataEx(
	m *cuda.CUmodule, _ unsafe.Pointer, _ uint32, _ *cuda.CUjit_option, _ unsafe.Pointer,
) cuda.CUresult {
	*m = 3
	return 0
}
func (quick) CuModuleGetFunction(f *cuda.CUfunction, _ cuda.CUmodule, _ unsafe.Pointer) cuda.CUresult {
	*f = 5
	return 0
}

const quickParams = 8 // of four bytes each

func (quick) CuFuncGetParamInfo(_ cuda.CUfunction, i uint64, offset, size *uint64) cuda.CUresult {
	if i >= quickParams {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*offset, *size = 4*i, 4
	return 0
}

// quickLaunches encodes n unanswered launches of a function with the grids that grid gives; the first parameter is the
// number of the launch.
func quickLaunches(c *client, n int, grid func(i int) uint32) (commands [][]byte) {
	f, _ := c.function(c.loadModule([]byte("an image of text\x00")), "f", ofModule)
	defer func(seq uint64) { c.seq = seq }(c.seq) // they are sent later
	for i := range n {
		p := wire.Launch{Func: f, Grid: [3]uint32{grid(i), 1, 1}, Block: [3]uint32{32, 1, 1}, ParamBytes: 4 * quickParams}
		params := make([]byte, 4*quickParams)
		params[0] = byte(i)
		commands = append(commands, c.command(0, wire.OpLaunch, 0, append(bytes.Clone(wire.Bytes(&p)), params...)))
	}
	return commands
}

func BenchmarkUnanswered(b *testing.B) {
	c := connect(b, func(cfg *Config) { cfg.GPU = quick{} })
	e := c.event()
	var commands [][]byte
	for range 1000 {
		commands = append(commands, c.command(0, cuda.OpCuEventRecord, 0, words(e, 0)))
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(commands) {
		c.write(c.again(commands...))
	}
	c.must(wire.OpPing, words(0))
}

func (quick) CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr, unsafe.Pointer, uint64, cuda.CUstream) cuda.CUresult {
	return 0
}
func (quick) CuMemcpyDtoHAsync_v2(unsafe.Pointer, cuda.CUdeviceptr, uint64, cuda.CUstream) cuda.CUresult {
	return 0
}

func (quick) CuMemHostAlloc(p unsafe.Pointer, bytes uint64, _ uint32) cuda.CUresult {
	mem, err := mapMemory(int(bytes))
	if err != nil {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	*(*unsafe.Pointer)(p) = pointerTo(mem)
	return 0
}

// BenchmarkSmallUpload is an upload that comes with its command and is not answered.
func BenchmarkSmallUpload(b *testing.B) {
	c := connect(b, func(cfg *Config) { cfg.GPU = quick{} })
	p := wire.CopyH2D{Dst: 1 << 32, Bytes: 8, Flags: flagSync}
	payload := append(bytes.Clone(wire.Bytes(&p)), words(1)...)
	var commands [][]byte
	for range 1000 {
		commands = append(commands, c.command(0, wire.OpCopyH2D, 0, payload))
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(commands) {
		c.write(c.again(commands...))
	}
	c.must(wire.OpPing, words(0))
}

// BenchmarkSmallDownload is a download that is waited for.
func BenchmarkSmallDownload(b *testing.B) {
	c := connect(b, func(cfg *Config) { cfg.GPU = quick{} })
	dst := make([]byte, 8)
	b.ReportAllocs()
	for b.Loop() {
		c.await(c.startDownload(0, dst, 1<<32, 0))
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	c := connect(b, func(cfg *Config) { cfg.GPU = quick{} })
	b.ReportAllocs()
	for b.Loop() {
		c.must(cuda.OpCuStreamSynchronize, words(0))
	}
}

func BenchmarkUpload(b *testing.B) {
	c := connect(b)
	const n = 64 << 20
	dst := c.alloc(n)
	data := bytes.Repeat([]byte{1}, n)
	b.SetBytes(n)
	for b.Loop() {
		c.upload(dst, data, 0, 0)
	}
	c.must(cuda.OpCuCtxSynchronize, nil)
}

// launching has the launches of a real driver library, which cost next to nothing.
type launching struct {
	quick
	real cuda.GPU
}

func (l launching) LaunchAll(list []cuda.Launch) { l.real.(cuda.Launcher).LaunchAll(list) }

// BenchmarkLaunch is what a launch costs the executor beside the driver's own time.
func BenchmarkLaunch(b *testing.B) {
	lib := filepath.Join(b.TempDir(), "liblaunches.so")
	gcc := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-o", lib, "testdata/launches.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		b.Fatalf("gcc: %v\n%s", err, out)
	}
	driver, err := real.Open(lib)
	if err != nil {
		b.Fatal(err)
	}
	c := connect(b, func(cfg *Config) { cfg.GPU = launching{real: driver} })
	commands := quickLaunches(c, 500, func(int) uint32 { return 1 })
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(commands) {
		c.write(c.again(commands...))
	}
	c.must(wire.OpPing, words(0))
}
