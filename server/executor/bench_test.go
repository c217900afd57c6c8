package executor

import (
	"bytes"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
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
