package sim

import (
	"maps"

	"scuda.dev/scuda/api/cuda"
)

func (g *GPU) kernelOp(p *cuda.CUDA_KERNEL_NODE_PARAMS) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if p == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		c, r := g.graphContext(p.Ctx)
		if r != ok {
			return op{}, r
		}
		h := p.Func
		if h == 0 {
			h = cuda.CUfunction(p.Kern)
		}
		l := &launch{
			grid:   [3]uint32{p.GridDimX, p.GridDimY, p.GridDimZ},
			block:  [3]uint32{p.BlockDimX, p.BlockDimY, p.BlockDimZ},
			shared: p.SharedMemBytes,
		}
		if r := g.prepare(c, h, l, at(uint64(p.KernelParams)), at(uint64(p.Extra))); r != ok {
			return op{}, r
		}
		return g.launchOp(l), ok
	}
}

func kernelParamsV2(p *cuda.CUDA_KERNEL_NODE_PARAMS_v1) *cuda.CUDA_KERNEL_NODE_PARAMS {
	if p == nil {
		return nil
	}
	return &cuda.CUDA_KERNEL_NODE_PARAMS{
		Func: p.Func, GridDimX: p.GridDimX, GridDimY: p.GridDimY, GridDimZ: p.GridDimZ,
		BlockDimX: p.BlockDimX, BlockDimY: p.BlockDimY, BlockDimZ: p.BlockDimZ,
		SharedMemBytes: p.SharedMemBytes, KernelParams: p.KernelParams, Extra: p.Extra,
	}
}

func (g *GPU) CuGraphAddKernelNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_KERNEL_NODE_PARAMS_v1) cuda.CUresult {
	return g.CuGraphAddKernelNode_v2(ph, h, deps, n, kernelParamsV2(p))
}

func (g *GPU) CuGraphAddKernelNode_v2(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, g.kernelOp(p))
}

func (g *GPU) CuGraphKernelNodeSetParams_v2(h cuda.CUgraphNode, p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_KERNEL, g.kernelOp(p))
}

func (g *GPU) CuGraphExecKernelNodeSetParams_v2(hx cuda.CUgraphExec, h cuda.CUgraphNode,
	p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_KERNEL, g.kernelOp(p))
}

// CuGraphKernelNodeGetParams_v2 points KernelParams to memory that lives until the node gets other parameters or goes.
func (g *GPU) CuGraphKernelNodeGetParams_v2(h cuda.CUgraphNode, p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return params(g, h, p == nil, func(l *launch) {
		*p = cuda.CUDA_KERNEL_NODE_PARAMS{
			Func: l.fn.handle, GridDimX: l.grid[0], GridDimY: l.grid[1], GridDimZ: l.grid[2],
			BlockDimX: l.block[0], BlockDimY: l.block[1], BlockDimZ: l.block[2], SharedMemBytes: l.shared,
			Ctx: l.fn.mod.ctx.handle,
		}
		p.KernelParams = l.pointers()
	})
}

// pointers gives the address of an array of pointers to the arguments, as cuLaunchKernel takes it.
func (l *launch) pointers() uintptr {
	params := l.fn.entry.Params
	if len(params) == 0 {
		return 0
	}
	if l.array == nil {
		l.array = make([]pointer, len(params))
		for i, p := range params {
			l.array[i] = rawOf(&l.params[p.Offset])
		}
	}
	return uintptr(rawOf(&l.array[0]))
}

func (g *GPU) CuGraphKernelNodeGetAttribute(h cuda.CUgraphNode, id cuda.CUkernelNodeAttrID,
	out *cuda.CUkernelNodeAttrValue) cuda.CUresult {
	return params(g, h, out == nil || !kernelAttrs[id], func(l *launch) {
		*out = l.attrs[id]
		if id == cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE && l.cooperative {
			*reading[int32](out) = 1
		}
		if id == cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION {
			*reading[[3]uint32](out) = l.cluster
		}
	})
}

// kernelAttrs are the attributes that a kernel node may have: cooperation, clusters, and hints about scheduling and
// caches.
var kernelAttrs = map[cuda.CUkernelNodeAttrID]bool{
	cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:                          true,
	cuda.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:                 true,
	cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:                    true,
	cuda.CU_LAUNCH_ATTRIBUTE_PRIORITY:                             true,
	cuda.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:                      true,
	cuda.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:                  true,
	cuda.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:     true,
	cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: true,
}

func (g *GPU) CuGraphKernelNodeSetAttribute(h cuda.CUgraphNode, id cuda.CUkernelNodeAttrID,
	value *cuda.CUkernelNodeAttrValue) cuda.CUresult {
	return g.changeLaunch(h, func(l *launch) cuda.CUresult {
		if value == nil || !kernelAttrs[id] {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if id == cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
			l.cooperative = *reading[int32](value) != 0
		}
		if id == cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION {
			l.cluster = *reading[[3]uint32](value)
		}
		l.attrs = maps.Clone(l.attrs)
		if l.attrs == nil {
			l.attrs = map[cuda.CUkernelNodeAttrID]cuda.CUkernelNodeAttrValue{}
		}
		l.attrs[id] = *value
		return l.check()
	})
}

func (g *GPU) CuGraphKernelNodeCopyAttributes(dst, src cuda.CUgraphNode) cuda.CUresult {
	var from launch
	if r := params(g, src, false, func(l *launch) { from = *l }); r != ok {
		return r
	}
	return g.changeLaunch(dst, func(l *launch) cuda.CUresult {
		l.attrs, l.cooperative, l.cluster = maps.Clone(from.attrs), from.cooperative, from.cluster
		return l.check()
	})
}

// changeLaunch gives a kernel node a changed copy of its launch; executable graphs keep the one they were made with.
func (g *GPU) changeLaunch(h cuda.CUgraphNode, change func(*launch) cuda.CUresult) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	old, isKernel := n.op.params.(*launch)
	if !isKernel {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	l := *old
	l.array = nil
	if r := change(&l); r != ok {
		return r
	}
	n.op = g.launchOp(&l)
	return ok
}
