package sim

import (
	"math"

	"scuda.dev/scuda/api/cuda"
)

// Batches of copies: they may run in any order, so also one after the other.

func validOrder(o cuda.CUmemcpySrcAccessOrder) bool {
	return o >= cuda.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && o <= cuda.CU_MEMCPY_SRC_ACCESS_ORDER_ANY
}

// batchStream: the legacy stream takes no batches.
func (g *GPU) batchStream(h cuda.CUstream) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if s.legacy() {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

// each makes n copies and says in failed, which may be nil, which of them could not be made.
func each(n uint64, failed *uint64, do func(i uint64) cuda.CUresult) cuda.CUresult {
	for i := range n {
		if r := do(i); r != ok {
			if failed != nil {
				*failed = i
			}
			return r
		}
	}
	return ok
}

func (g *GPU) CuMemcpyBatchAsync_v2(dsts, srcs *cuda.CUdeviceptr, sizes *uint64, count uint64,
	attrs *cuda.CUmemcpyAttributes, first *uint64, kinds uint64, s cuda.CUstream) cuda.CUresult {
	return g.CuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, first, kinds, nil, s)
}

func (g *GPU) CuMemcpyBatchAsync(dsts, srcs *cuda.CUdeviceptr, sizes *uint64, count uint64,
	attrs *cuda.CUmemcpyAttributes, first *uint64, kinds uint64, failed *uint64, s cuda.CUstream) cuda.CUresult {
	if failed != nil {
		*failed = math.MaxUint64
	}
	if r := g.batchStream(s); r != ok {
		return r
	}
	if dsts == nil || srcs == nil || sizes == nil || count == 0 || attrs == nil || first == nil || kinds == 0 ||
		kinds > count {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	starts := sliceOf(first, kinds)
	for i, a := range sliceOf(attrs, kinds) {
		if !validOrder(a.SrcAccessOrder) || a.Flags&^1 != 0 || starts[i] >= count || i == 0 && starts[0] != 0 ||
			i > 0 && starts[i] <= starts[i-1] {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	to, from, n := sliceOf(dsts, count), sliceOf(srcs, count), sliceOf(sizes, count)
	return each(count, failed, func(i uint64) cuda.CUresult {
		if to[i] == 0 || from[i] == 0 || n[i] == 0 {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		return g.copyAsync(line(g.anywhere(to[i]), g.anywhere(from[i]), n[i]), s)
	})
}

func (g *GPU) CuMemcpy3DBatchAsync_v2(count uint64, ops *cuda.CUDA_MEMCPY3D_BATCH_OP, flags uint64,
	s cuda.CUstream) cuda.CUresult {
	return g.CuMemcpy3DBatchAsync(count, ops, nil, flags, s)
}

func (g *GPU) CuMemcpy3DBatchAsync(count uint64, ops *cuda.CUDA_MEMCPY3D_BATCH_OP, failed *uint64, flags uint64,
	s cuda.CUstream) cuda.CUresult {
	if failed != nil {
		*failed = math.MaxUint64
	}
	if r := g.batchStream(s); r != ok {
		return r
	}
	if count == 0 || ops == nil || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	list := sliceOf(ops, count)
	return each(count, failed, func(i uint64) cuda.CUresult {
		b, r := g.copyFromBatch(&list[i])
		if r != ok {
			return r
		}
		return g.copyAsync(b, s)
	})
}

// pointerOperand and arrayOperand are what a CUmemcpy3DOperand holds.
type pointerOperand struct{ ptr, row, layer, _ uint64 } // the last a hint where it is best

type arrayOperand struct {
	array   cuda.CUarray
	x, y, z uint64
}

// copyFromBatch is a batched copy. Extents and row lengths are in elements: an array's, else bytes.
func (g *GPU) copyFromBatch(op *cuda.CUDA_MEMCPY3D_BATCH_OP) (*copy3D, cuda.CUresult) {
	const most = 1 << 47
	w, h, d := op.Extent.Width, op.Extent.Height, op.Extent.Depth
	if !validOrder(op.SrcAccessOrder) || op.Flags&^1 != 0 || w == 0 || h == 0 || d == 0 || w > most {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	operands := [...]*cuda.CUmemcpy3DOperand{&op.Dst, &op.Src}
	elem := uint64(0)
	for _, o := range operands {
		switch o.Type {
		case cuda.CU_MEMCPY_OPERAND_TYPE_POINTER:
		case cuda.CU_MEMCPY_OPERAND_TYPE_ARRAY:
			a, found := g.arrays.Load(reading[arrayOperand](&o.Op).array)
			if !found {
				return nil, cuda.CUDA_ERROR_INVALID_HANDLE
			}
			if size := a.(*array).elem; elem == 0 || elem == size {
				elem = size
				continue
			}
			fallthrough
		default:
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	elem = max(elem, 1)
	var ends [2]copyEnd
	for i, o := range operands {
		if o.Type == cuda.CU_MEMCPY_OPERAND_TYPE_ARRAY {
			a := reading[arrayOperand](&o.Op)
			if a.x > most {
				return nil, cuda.CUDA_ERROR_INVALID_VALUE
			}
			ends[i] = copyEnd{kind: cuda.CU_MEMORYTYPE_ARRAY, array: a.array, x: a.x * elem, y: a.y, z: a.z}
			continue
		}
		p := reading[pointerOperand](&o.Op)
		row, layer := p.row, p.layer
		if row == 0 {
			row = w
		}
		if layer == 0 {
			layer = h
		}
		if p.ptr == 0 || row < w || layer < h || row > most {
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
		ends[i] = copyEnd{kind: cuda.CU_MEMORYTYPE_UNIFIED, dev: cuda.CUdeviceptr(p.ptr), pitch: row * elem, height: layer}
	}
	return g.copyBetween(ends[0], ends[1], w*elem, h, d)
}
