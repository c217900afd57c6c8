package sim

import (
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// attr gives the memory that holds an attribute of p: 4 bytes for switches, 8 for sizes.
func (p *pool) attr(a cuda.CUmemPool_attribute) (word *uint64, flag *int32) {
	switch a {
	case cuda.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		return nil, &p.reuse[0]
	case cuda.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		return nil, &p.reuse[1]
	case cuda.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		return nil, &p.reuse[2]
	case cuda.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &p.threshold, nil
	case cuda.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, cuda.CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &p.used, nil
	case cuda.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, cuda.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &p.usedHigh, nil
	}
	return nil, nil
}

func (g *GPU) withPoolAttr(h cuda.CUmemoryPool, a cuda.CUmemPool_attribute, value unsafe.Pointer, use func(p *pool, word *uint64, flag *int32) cuda.CUresult) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok {
		return r
	}
	word, flag := p.attr(a)
	if value == nil || word == nil && flag == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return use(p, word, flag)
}

func (g *GPU) CuMemPoolGetAttribute(h cuda.CUmemoryPool, a cuda.CUmemPool_attribute, value unsafe.Pointer) cuda.CUresult {
	return g.withPoolAttr(h, a, value, func(_ *pool, word *uint64, flag *int32) cuda.CUresult {
		if word != nil {
			*(*uint64)(value) = *word
		} else {
			*(*int32)(value) = *flag
		}
		return ok
	})
}

func (g *GPU) CuMemPoolSetAttribute(h cuda.CUmemoryPool, a cuda.CUmemPool_attribute, value unsafe.Pointer) cuda.CUresult {
	return g.withPoolAttr(h, a, value, func(p *pool, word *uint64, flag *int32) cuda.CUresult {
		switch {
		case flag != nil:
			*flag = *(*int32)(value)
		case word == &p.threshold:
			*word = *(*uint64)(value)
		case word == &p.usedHigh && *(*uint64)(value) == 0: // starts the watermark anew
			*word = p.used
		default:
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		return ok
	})
}
