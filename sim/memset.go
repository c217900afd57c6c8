package sim

import (
	"context"

	"scuda.dev/scuda/api/cuda"
)

// fill is a memset: height rows of width elements.
type fill struct {
	dst, pitch    uint64
	value         uint32
	elem          uint32 // bytes of an element: 1, 2 or 4
	width, height uint64 // width in elements
}

func (f *fill) empty() bool { return f.width == 0 || f.height == 0 }

func (f *fill) extent() uint64 { return (f.height-1)*f.pitch + f.width*uint64(f.elem) }

func (g *GPU) checkFill(f *fill) cuda.CUresult {
	if r := f.check(); r != ok || f.empty() || g.mem.covers(f.dst, f.extent()) {
		return r
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}

// check looks at all but where it goes.
func (f *fill) check() cuda.CUresult {
	if f.elem != 1 && f.elem != 2 && f.elem != 4 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if f.empty() {
		return ok
	}
	const limit = 1 << 44
	if f.height == 1 {
		f.pitch = f.width * uint64(f.elem)
	}
	if f.width > limit || f.height > limit || f.pitch < f.width*uint64(f.elem) || f.pitch > limit/f.height ||
		f.dst%uint64(f.elem) != 0 || f.height > 1 && f.pitch%uint64(f.elem) != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

func (g *GPU) runFill(ctx context.Context, f *fill) error {
	if f.empty() {
		return nil
	}
	if !g.mem.covers(f.dst, f.extent()) {
		return &deviceError{cuda.CUDA_ERROR_ILLEGAL_ADDRESS, "memset of memory that was freed"}
	}
	defer g.moving(f.dst)()
	defer telling(ctx, f.describe(&g.mem))()
	n := f.width * uint64(f.elem)
	for y := range f.height {
		row := bytesAt(f.dst+y*f.pitch, n)
		for i := range f.elem {
			row[i] = byte(f.value >> (8 * i))
		}
		for done := uint64(f.elem); done < n; done *= 2 {
			copy(row[done:], row[:done])
		}
	}
	return nil
}

func (g *GPU) fillOp(f *fill) op {
	return op{kind: cuda.CU_GRAPH_NODE_TYPE_MEMSET, params: f,
		run: func(ctx context.Context) error { return g.runFill(ctx, f) }}
}

func (g *GPU) fillSync(f *fill) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.checkFill(f); r != ok {
		return r
	}
	if !f.empty() && !c.reaches(&g.mem, f.dst) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	s := g.implied(c)
	// Like the driver's, it waits only for memory of the program itself.
	if reg := g.mem.find(f.dst); !f.empty() && reg != nil && reg.kind.host() {
		if s.capture != nil {
			return g.syncInCapture(s)
		}
		if r := g.implicitInCapture(s); r != ok {
			return r
		}
		g.work.wait([]*task{g.work.push(s, func(ctx context.Context) error { return g.runFill(ctx, f) })})
		return c.failed()
	}
	_, r = g.submit(s, g.fillOp(f))
	return r
}

func (g *GPU) fillAsync(f *fill, hs cuda.CUstream) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	check := g.checkFill
	if s.capture != nil { // where it goes shows when the graph runs
		check = (*fill).check
	}
	if r := check(f); r != ok {
		return r
	}
	if s.capture == nil && !f.empty() && !s.ctx.reaches(&g.mem, f.dst) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	_, r = g.submit(s, g.fillOp(f))
	return r
}

// reaches says whether sets and memory operations of a context may touch memory. That of another GPU they may only
// where its context has been made a peer. (So an H200 says of cuMemAlloc's memory. Copies need no peers.)
func (c *cudaContext) reaches(mem *memory, addr uint64) bool {
	reg := mem.find(addr)
	return reg == nil || reg.kind != regionDevice || reg.dev == c.dev || c.peers[reg.ctx]
}

func flat(dst cuda.CUdeviceptr, value uint32, elem uint32, n uint64) *fill {
	return &fill{dst: uint64(dst), value: value, elem: elem, width: n, height: 1}
}

func rows(dst cuda.CUdeviceptr, pitch uint64, value uint32, elem uint32, width, height uint64) *fill {
	return &fill{dst: uint64(dst), pitch: pitch, value: value, elem: elem, width: width, height: height}
}

func (g *GPU) CuMemsetD8_v2(dst cuda.CUdeviceptr, v uint8, n uint64) cuda.CUresult {
	return g.fillSync(flat(dst, uint32(v), 1, n))
}

func (g *GPU) CuMemsetD16_v2(dst cuda.CUdeviceptr, v uint16, n uint64) cuda.CUresult {
	return g.fillSync(flat(dst, uint32(v), 2, n))
}

func (g *GPU) CuMemsetD32_v2(dst cuda.CUdeviceptr, v uint32, n uint64) cuda.CUresult {
	return g.fillSync(flat(dst, v, 4, n))
}

func (g *GPU) CuMemsetD8Async(dst cuda.CUdeviceptr, v uint8, n uint64, s cuda.CUstream) cuda.CUresult {
	return g.fillAsync(flat(dst, uint32(v), 1, n), s)
}

func (g *GPU) CuMemsetD16Async(dst cuda.CUdeviceptr, v uint16, n uint64, s cuda.CUstream) cuda.CUresult {
	return g.fillAsync(flat(dst, uint32(v), 2, n), s)
}

func (g *GPU) CuMemsetD32Async(dst cuda.CUdeviceptr, v uint32, n uint64, s cuda.CUstream) cuda.CUresult {
	return g.fillAsync(flat(dst, v, 4, n), s)
}

func (g *GPU) CuMemsetD2D8_v2(dst cuda.CUdeviceptr, pitch uint64, v uint8, w, h uint64) cuda.CUresult {
	return g.fillSync(rows(dst, pitch, uint32(v), 1, w, h))
}

func (g *GPU) CuMemsetD2D16_v2(dst cuda.CUdeviceptr, pitch uint64, v uint16, w, h uint64) cuda.CUresult {
	return g.fillSync(rows(dst, pitch, uint32(v), 2, w, h))
}

func (g *GPU) CuMemsetD2D32_v2(dst cuda.CUdeviceptr, pitch uint64, v uint32, w, h uint64) cuda.CUresult {
	return g.fillSync(rows(dst, pitch, v, 4, w, h))
}

func (g *GPU) CuMemsetD2D8Async(dst cuda.CUdeviceptr, pitch uint64, v uint8, w, h uint64,
	s cuda.CUstream) cuda.CUresult {
	return g.fillAsync(rows(dst, pitch, uint32(v), 1, w, h), s)
}

func (g *GPU) CuMemsetD2D16Async(dst cuda.CUdeviceptr, pitch uint64, v uint16, w, h uint64,
	s cuda.CUstream) cuda.CUresult {
	return g.fillAsync(rows(dst, pitch, uint32(v), 2, w, h), s)
}

func (g *GPU) CuMemsetD2D32Async(dst cuda.CUdeviceptr, pitch uint64, v uint32, w, h uint64,
	s cuda.CUstream) cuda.CUresult {
	return g.fillAsync(rows(dst, pitch, v, 4, w, h), s)
}
