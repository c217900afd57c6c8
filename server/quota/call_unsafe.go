package quota

import (
	"math/bits"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/driver/invoke"
)

// Call calls a function by its number. What allocates nothing goes to the driver as it is.
func (g *GPU) Call(op uint16, a *cuda.Words) cuda.CUresult {
	switch op {
	case cuda.OpCuMemAlloc_v2:
		return g.CuMemAlloc_v2(at[cuda.CUdeviceptr](a[0]), a[1])
	case cuda.OpCuMemAllocPitch_v2:
		return g.allocPitch(a)
	case cuda.OpCuMemFree_v2:
		return g.CuMemFree_v2(cuda.CUdeviceptr(a[0]))
	case cuda.OpCuMemCreate:
		return g.CuMemCreate(at[cuda.CUmemGenericAllocationHandle](a[0]), a[1], at[cuda.CUmemAllocationProp](a[2]), a[3])
	case cuda.OpCuMemRelease:
		return g.CuMemRelease(cuda.CUmemGenericAllocationHandle(a[0]))
	case cuda.OpCuMemMap:
		return g.CuMemMap(cuda.CUdeviceptr(a[0]), a[1], a[2], cuda.CUmemGenericAllocationHandle(a[3]), a[4])
	case cuda.OpCuMemUnmap:
		return g.CuMemUnmap(cuda.CUdeviceptr(a[0]), a[1])
	case cuda.OpCuMemRetainAllocationHandle:
		return g.retain(a)
	case cuda.OpCuMemGetInfo_v2:
		return g.info(a)
	case cuda.OpCuMemAllocAsync, cuda.OpCuMemAllocFromPoolAsync:
		return g.allocAsync(op, a)
	case cuda.OpCuMemPoolCreate, cuda.OpCuMemPoolDestroy:
		return g.pool(op, a)
	case cuda.OpCuArrayCreate_v2, cuda.OpCuArray3DCreate_v2, cuda.OpCuMipmappedArrayCreate:
		return g.array(op, a)
	case cuda.OpCuArrayDestroy, cuda.OpCuMipmappedArrayDestroy:
		return g.destroyArray(op, a)
	case cuda.OpCuGraphLaunch, cuda.OpCuGraphUpload:
		return g.graph(op, a)
	}
	return invoke.CUDA(g.GPU, op, a)
}

// retain: cuMemRetainAllocationHandle(*handle, address).
func (g *GPU) retain(a *cuda.Words) cuda.CUresult {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := invoke.CUDA(g.GPU, cuda.OpCuMemRetainAllocationHandle, a)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	for start, m := range g.mapped {
		if uint64(start) <= a[1] && a[1]-uint64(start) < m.bytes {
			m.of.handles++
			m.of.refs++
			g.physical[*at[cuda.CUmemGenericAllocationHandle](a[0])] = m.of
		}
	}
	return r
}

// info: cuMemGetInfo_v2(*free, *total), as a GPU with less memory answers.
func (g *GPU) info(a *cuda.Words) cuda.CUresult {
	r := invoke.CUDA(g.GPU, cuda.OpCuMemGetInfo_v2, a)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	free, total := at[uint64](a[0]), at[uint64](a[1])
	own, all, used := g.own.bytes(), g.all.bytes(), g.Used()
	*total = min(*total, own, all)
	*free = min(*free, own-min(used, own), all-min(used+g.account.Others(), all))
	return r
}

// allocAsync: cuMemAllocAsync(*address, bytes, stream), cuMemAllocFromPoolAsync(*address, bytes, pool, stream). What
// pools have to spare costs nothing more. They may reserve more than was asked for, so there is a look afterwards, too.
func (g *GPU) allocAsync(op uint16, a *cuda.Words) cuda.CUresult {
	stream := a[2]
	if op == cuda.OpCuMemAllocFromPoolAsync {
		stream = a[3]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.usePools()
	bytes := roundUp(a[1])
	spare := g.ofPools(cuda.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) - g.ofPools(cuda.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
	if bytes > spare && !g.room(bytes-spare) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	r := invoke.CUDA(g.GPU, op, a)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	refused := g.book(g.total(), 0)
	if refused != nil {
		g.trim()
		refused = g.book(g.total(), 0)
	}
	if refused != nil {
		refused(bytes)
		_ = g.ask(cuda.OpCuMemFreeAsync, uint64(*at[cuda.CUdeviceptr](a[0])), stream)
		g.trim()
		g.tell()
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	return r
}

// pool: cuMemPoolCreate(*pool, properties), cuMemPoolDestroy(pool).
func (g *GPU) pool(op uint16, a *cuda.Words) cuda.CUresult {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.usePools()
	r := invoke.CUDA(g.GPU, op, a)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	if op == cuda.OpCuMemPoolDestroy {
		delete(g.pools, cuda.CUmemoryPool(a[0]))
		g.tell()
	} else {
		g.pools[*at[cuda.CUmemoryPool](a[0])] = struct{}{}
	}
	return r
}

// graph: cuGraphLaunch and cuGraphUpload. Memory that a graph allocates is there once it has run; a session that has
// too much by then runs no more of them.
func (g *GPU) graph(op uint16, a *cuda.Words) cuda.CUresult {
	g.mu.Lock()
	ok := !g.stretches || g.room(0)
	g.mu.Unlock()
	if !ok {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	return invoke.CUDA(g.GPU, op, a)
}

// array: cuArrayCreate_v2 and cuArray3DCreate_v2(*array, description), and cuMipmappedArrayCreate with levels behind.
func (g *GPU) array(op uint16, a *cuda.Words) cuda.CUresult {
	d := cuda.CUDA_ARRAY3D_DESCRIPTOR{}
	if op == cuda.OpCuArrayCreate_v2 {
		two := at[cuda.CUDA_ARRAY_DESCRIPTOR](a[1])
		d.Width, d.Height, d.Format, d.NumChannels = two.Width, two.Height, two.Format, two.NumChannels
	} else {
		d = *at[cuda.CUDA_ARRAY3D_DESCRIPTOR](a[1])
	}
	levels := uint32(1)
	if op == cuda.OpCuMipmappedArrayCreate {
		levels = uint32(a[2])
	}
	return g.allocate(arrayBytes(d, levels), func() cuda.CUresult { return invoke.CUDA(g.GPU, op, a) }, func(n uint64) {
		g.arrays[*at[uint64](a[0])] = block{n, g.current()}
	})
}

func (g *GPU) destroyArray(op uint16, a *cuda.Words) cuda.CUresult {
	array := a[0]
	r := invoke.CUDA(g.GPU, op, a)
	g.mu.Lock()
	defer g.mu.Unlock()
	if b, ok := g.arrays[array]; ok && r == cuda.CUDA_SUCCESS {
		g.used -= b.bytes
		delete(g.arrays, array)
		g.tell()
	}
	return r
}

// Flags of arrays whose memory comes from elsewhere.
const (
	sparse   = 0x40
	deferred = 0x80
)

// arrayBytes is what an array takes at least, all its levels together.
func arrayBytes(d cuda.CUDA_ARRAY3D_DESCRIPTOR, levels uint32) uint64 {
	if d.Flags&(sparse|deferred) != 0 {
		return 0
	}
	total := uint64(0)
	for level := range min(levels, 64) {
		n := uint64(elementBytes(d.Format)) * uint64(min(max(d.NumChannels, 1), 4))
		for _, size := range []uint64{d.Width, d.Height, d.Depth} {
			high, low := bits.Mul64(n, max(size>>level, 1))
			if high != 0 || low > 1<<60 {
				return 1 << 60
			}
			n = low
		}
		total += n
	}
	return total
}

func elementBytes(f cuda.CUarray_format) int {
	switch f {
	case cuda.CU_AD_FORMAT_UNSIGNED_INT16, cuda.CU_AD_FORMAT_SIGNED_INT16, cuda.CU_AD_FORMAT_HALF:
		return 2
	case cuda.CU_AD_FORMAT_UNSIGNED_INT32, cuda.CU_AD_FORMAT_SIGNED_INT32, cuda.CU_AD_FORMAT_FLOAT:
		return 4
	}
	return 1 // and what is packed, which has more than one byte a channel in few formats
}
