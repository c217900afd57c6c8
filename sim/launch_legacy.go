package sim

import (
	"encoding/binary"
	"math"
	"runtime"

	"scuda.dev/scuda/api/cuda"
)

// Launches in the manner of CUDA 3: a function keeps its block, its shared memory and its parameters until it is
// launched.

// configuration is what such calls have set of a function.
type configuration struct {
	block  [3]uint32
	shared uint32
	params []byte
	size   uint32 // of the parameters, as cuParamSetSize has it
}

const maxParamBytes = 4096 // of kernels of that time

func (g *GPU) configure(h cuda.CUfunction, set func(*configuration) cuda.CUresult) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if f.legacy == nil {
			f.legacy = &configuration{block: [3]uint32{1, 1, 1}}
		}
		return set(f.legacy)
	})
}

func (g *GPU) CuFuncSetBlockShape(h cuda.CUfunction, x, y, z int32) cuda.CUresult {
	if x <= 0 || y <= 0 || z <= 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.configure(h, func(c *configuration) cuda.CUresult {
		c.block = [3]uint32{uint32(x), uint32(y), uint32(z)}
		return ok
	})
}

func (g *GPU) CuFuncSetSharedSize(h cuda.CUfunction, n uint32) cuda.CUresult {
	return g.configure(h, func(c *configuration) cuda.CUresult {
		c.shared = n
		return ok
	})
}

func (g *GPU) CuParamSetSize(h cuda.CUfunction, n uint32) cuda.CUresult {
	if n > maxParamBytes {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.configure(h, func(c *configuration) cuda.CUresult {
		c.size = n
		return ok
	})
}

func (g *GPU) setParam(h cuda.CUfunction, offset int32, value []byte) cuda.CUresult {
	if offset < 0 || int(offset)+len(value) > maxParamBytes {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.configure(h, func(c *configuration) cuda.CUresult {
		if end := int(offset) + len(value); end > len(c.params) {
			c.params = append(c.params, make([]byte, end-len(c.params))...)
		}
		copy(c.params[offset:], value)
		return ok
	})
}

func (g *GPU) CuParamSetv(h cuda.CUfunction, offset int32, p pointer, n uint32) cuda.CUresult {
	if p == nil || n > maxParamBytes {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	defer runtime.KeepAlive(p)
	return g.setParam(h, offset, bytesOf(p, uint64(n)))
}

func (g *GPU) CuParamSeti(h cuda.CUfunction, offset int32, value uint32) cuda.CUresult {
	return g.setParam(h, offset, binary.LittleEndian.AppendUint32(nil, value))
}

func (g *GPU) CuParamSetf(h cuda.CUfunction, offset int32, value float32) cuda.CUresult {
	return g.CuParamSeti(h, offset, math.Float32bits(value))
}

func (g *GPU) CuLaunch(h cuda.CUfunction) cuda.CUresult { return g.CuLaunchGrid(h, 1, 1) }

func (g *GPU) CuLaunchGrid(h cuda.CUfunction, width, height int32) cuda.CUresult {
	return g.CuLaunchGridAsync(h, width, height, 0)
}

func (g *GPU) CuLaunchGridAsync(h cuda.CUfunction, width, height int32, hs cuda.CUstream) cuda.CUresult {
	if width <= 0 || height <= 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	f, r := g.function(s.ctx, h)
	if r != ok {
		return r
	}
	c := f.legacy
	if c == nil {
		c = &configuration{block: [3]uint32{1, 1, 1}}
	}
	l := &launch{fn: f, grid: [3]uint32{uint32(width), uint32(height), 1}, block: c.block, shared: c.shared}
	if r := l.check(); r != ok {
		return r
	}
	if int(c.size) < f.entry.ParamSize {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	l.params = make([]byte, f.entry.ParamSize)
	copy(l.params, c.params)
	_, r = g.submit(s, g.launchOp(l))
	return r
}
