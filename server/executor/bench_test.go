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
func (quick) CuStreamCreate(s *cuda.CUstream, _ uint32) cuda.CUresult {
	*s = 9
	return 0
}
func (quick) CuEventRecord(cuda.CUevent, cuda.CUstream) cuda.CUresult { return 0 }
func (quick) CuStreamQuery(cuda.CUstream) cuda.CUresult               { return 0 }

func BenchmarkUnanswered(b *testing.B) {
	c := connect(b, func(cfg *Config) { cfg.GPU = quick{} })
	e := c.event()
	var commands [][]byte
	for range 1000 {
		commands = append(commands, c.command(0, cuda.OpCuEventRecord, 0, words(e, 0)))
	}
	f := frame(commands...)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(commands) {
		c.write(f)
	}
	c.must(wire.OpPing, words(0))
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

func (l launching) CuLaunchKernel(f cuda.CUfunction, gx, gy, gz, bx, by, bz, shared uint32, s cuda.CUstream, params, extra unsafe.Pointer) cuda.CUresult {
	return l.real.CuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s, params, extra)
}

// BenchmarkLaunch is what a launch costs the executor beside the driver's own time.
func BenchmarkLaunch(b *testing.B) {
	lib := filepath.Join(b.TempDir(), "liblaunches.so")
	if out, err := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-o", lib, "testdata/launches.c").CombinedOutput(); err != nil {
		b.Fatalf("gcc: %v\n%s", err, out)
	}
	driver, err := real.Open(lib)
	if err != nil {
		b.Fatal(err)
	}
	c := connect(b, func(cfg *Config) { cfg.GPU = launching{real: driver} })
	f, s := c.newHandle(), c.newHandle()
	if err := c.session.table.New(cuda.KindFunction, f, 5, 0); err != nil {
		b.Fatal(err)
	}
	c.session.layouts[f] = &layout{real: 5, offsets: []uint32{0, 8, 12, 16}, sizes: []uint32{8, 4, 4, 4}, bytes: 20}
	c.must(cuda.OpCuStreamCreate, words(s, 1))
	launch := append(wire.Bytes(&wire.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, ParamBytes: 20}), make([]byte, 24)...)
	var commands [][]byte
	for range 500 {
		commands = append(commands, c.command(0, wire.OpLaunch, 0, launch))
	}
	batch := frame(commands...)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(commands) {
		c.write(batch)
	}
	c.must(wire.OpPing, words(0))
}
