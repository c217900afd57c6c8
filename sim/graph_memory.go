package sim

import (
	"scuda.dev/scuda/api/cuda"
)

// CuDeviceGetGraphMemAttribute counts the memory that graphs have allocated. None of it is given back before its graph
// goes, so what is used and what is reserved are the same.
func (g *GPU) CuDeviceGetGraphMemAttribute(dev cuda.CUdevice, attr cuda.CUgraphMem_attribute,
	value pointer) cuda.CUresult {
	bad := value == nil || attr < 0 || attr > cuda.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH
	return g.readDevice(dev, bad, func(d *device) {
		n := d.graphUsed
		if attr == cuda.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == cuda.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH {
			n = d.graphHigh
		}
		*view[uint64](value) = n
	})
}

// CuDeviceSetGraphMemAttribute starts a watermark anew.
func (g *GPU) CuDeviceSetGraphMemAttribute(dev cuda.CUdevice, attr cuda.CUgraphMem_attribute,
	value pointer) cuda.CUresult {
	high := attr == cuda.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == cuda.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH
	bad := value == nil || !high || *view[uint64](value) != 0
	return g.readDevice(dev, bad, func(d *device) { d.graphHigh = d.graphUsed })
}

// CuDeviceGraphMemTrim has nothing to do: graphs keep no memory in reserve.
func (g *GPU) CuDeviceGraphMemTrim(dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, false, func(*device) {})
}

// allocation is what a graph's allocation node was made with.
type allocation struct {
	cuda.CUDA_MEM_ALLOC_NODE_PARAMS
	region *region
}

// CuGraphAddMemAllocNode takes the memory at once: its address stays its own for as long as the graph can be launched.
func (g *GPU) CuGraphAddMemAllocNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_MEM_ALLOC_NODE_PARAMS) cuda.CUresult {
	var reg *region
	r := g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		if p == nil || p.Bytesize == 0 || p.PoolProps.AllocType != cuda.CU_MEM_ALLOCATION_TYPE_PINNED ||
			p.PoolProps.Location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE || p.PoolProps.HandleTypes != 0 {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		c, r := g.graphContext(0)
		if r != ok {
			return op{}, r
		}
		if int(p.PoolProps.Location.Id) != c.dev.ordinal || p.AccessDescCount != 0 {
			return op{}, cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		if reg, r = g.allocateOrWait(c, regionPool, p.Bytesize); r != ok {
			return op{}, r
		}
		p.Dptr = cuda.CUdeviceptr(reg.base)
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC, params: &allocation{*p, reg}}, ok
	})
	if r != ok {
		return r
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if gr, found := lookup[*graph](g, h); found {
		g.ownRegion(gr, reg)
	}
	return ok
}

// ownRegion makes memory part of a graph.
func (g *GPU) ownRegion(gr *graph, reg *region) {
	reg.graph = gr
	reg.dev.graphUsed += reg.size
	reg.dev.graphHigh = max(reg.dev.graphHigh, reg.dev.graphUsed)
	gr.regions = append(gr.regions, reg)
}

func (g *GPU) CuGraphMemAllocNodeGetParams(h cuda.CUgraphNode, out *cuda.CUDA_MEM_ALLOC_NODE_PARAMS) cuda.CUresult {
	return params(g, h, out == nil, func(a *allocation) { *out = a.CUDA_MEM_ALLOC_NODE_PARAMS })
}

func (g *GPU) CuGraphAddMemFreeNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	dptr cuda.CUdeviceptr) cuda.CUresult {
	return g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		reg := g.mem.find(uint64(dptr))
		if reg == nil || reg.base != uint64(dptr) || reg.graph == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_MEM_FREE, params: reg}, ok
	})
}

func (g *GPU) CuGraphMemFreeNodeGetParams(h cuda.CUgraphNode, out *cuda.CUdeviceptr) cuda.CUresult {
	return params(g, h, out == nil, func(r *region) { *out = cuda.CUdeviceptr(r.base) })
}
