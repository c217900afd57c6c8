package sim

import (
	"scuda.dev/scuda/api/cuda"
)

// pointerAttr writes an attribute of the memory at ptr to data. reg is nil for memory that the driver does not know.
func (g *GPU) pointerAttr(data pointer, attr cuda.CUpointer_attribute, ptr uint64, reg *region) cuda.CUresult {
	put32 := func(v uint32) cuda.CUresult { *view[uint32](data) = v; return ok }
	put64 := func(v uint64) cuda.CUresult { *view[uint64](data) = v; return ok }
	putBool := func(v bool) cuda.CUresult {
		*view[bool](data) = v
		return ok
	}
	if reg == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	host := reg.kind.host()
	switch attr {
	case cuda.CU_POINTER_ATTRIBUTE_CONTEXT:
		if reg.kind == regionMapped || reg.kind == regionPool {
			return put64(0)
		}
		return put64(uint64(reg.ctx.handle))
	case cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		if host {
			return put32(uint32(cuda.CU_MEMORYTYPE_HOST))
		}
		return put32(uint32(cuda.CU_MEMORYTYPE_DEVICE))
	case cuda.CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return put64(ptr)
	case cuda.CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if !host && reg.managed == nil {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		return put64(ptr)
	case cuda.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return putBool(reg.syncOps)
	case cuda.CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return put64(reg.id)
	case cuda.CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return putBool(reg.managed != nil)
	case cuda.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		cuda.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, cuda.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return putBool(false)
	case cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return put32(uint32(reg.dev.ordinal))
	case cuda.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, cuda.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return put64(reg.base)
	case cuda.CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return put64(reg.asked)
	case cuda.CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return put64(reg.size)
	case cuda.CU_POINTER_ATTRIBUTE_MAPPED:
		return putBool(true)
	case cuda.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return put64(0)
	case cuda.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		flags := cuda.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
		if reg.readOnly {
			flags = cuda.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
		}
		return put32(uint32(flags))
	case cuda.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		if reg.pool == nil {
			return put64(0)
		}
		return put64(uint64(reg.pool.handle))
	case cuda.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return put64(reg.id)
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}

// pointerAttrSize is the size of an attribute's value.
func pointerAttrSize(attr cuda.CUpointer_attribute) uint64 {
	switch attr {
	case cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		cuda.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return 4
	case cuda.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, cuda.CU_POINTER_ATTRIBUTE_IS_MANAGED, cuda.CU_POINTER_ATTRIBUTE_MAPPED,
		cuda.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, cuda.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
		cuda.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return 1
	case cuda.CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		return 16
	}
	return 8
}

func (g *GPU) CuPointerGetAttribute(data pointer, attr cuda.CUpointer_attribute, ptr cuda.CUdeviceptr) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if _, r := g.currentOf(g.thread()); r != ok {
		return r
	}
	if data == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.pointerAttr(data, attr, uint64(ptr), g.mem.find(uint64(ptr)))
}

// CuPointerGetAttributes, unlike CuPointerGetAttribute, answers for any memory: what it has no value for becomes zero.
func (g *GPU) CuPointerGetAttributes(n uint32, attrs *cuda.CUpointer_attribute, data pointer,
	ptr cuda.CUdeviceptr) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if n == 0 || n > 64 || attrs == nil || data == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	reg := g.mem.find(uint64(ptr))
	out := sliceOf(view[pointer](data), uint64(n))
	for i, a := range sliceOf(attrs, uint64(n)) {
		if a <= 0 || a > cuda.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE || out[i] == nil {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if g.pointerAttr(out[i], a, uint64(ptr), reg) == ok {
			continue
		}
		clear(bytesOf(out[i], pointerAttrSize(a)))
		if a == cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL {
			*(*int32)(out[i]) = -2 // CU_DEVICE_INVALID
		}
	}
	return ok
}

func (g *GPU) CuPointerSetAttribute(value pointer, attr cuda.CUpointer_attribute, ptr cuda.CUdeviceptr) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(uint64(ptr))
	if value == nil || reg == nil || attr != cuda.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	reg.syncOps = *view[bool](value)
	return ok
}
