package sim

import (
	"unsafe"

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

func (g *GPU) CuGraphAddKernelNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_KERNEL_NODE_PARAMS_v1) cuda.CUresult {
	return g.CuGraphAddKernelNode_v2(ph, h, deps, n, kernelParamsV2(p))
}

func (g *GPU) CuGraphAddKernelNode_v2(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, g.kernelOp(p))
}

func (g *GPU) CuGraphKernelNodeSetParams_v2(h cuda.CUgraphNode, p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_KERNEL, g.kernelOp(p))
}

func (g *GPU) CuGraphExecKernelNodeSetParams_v2(hx cuda.CUgraphExec, h cuda.CUgraphNode, p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_KERNEL, g.kernelOp(p))
}

// CuGraphKernelNodeGetParams_v2 points KernelParams to memory that lives until the node gets other parameters or goes.
func (g *GPU) CuGraphKernelNodeGetParams_v2(h cuda.CUgraphNode, p *cuda.CUDA_KERNEL_NODE_PARAMS) cuda.CUresult {
	return params(g, h, p == nil, func(l *launch) {
		*p = cuda.CUDA_KERNEL_NODE_PARAMS{
			Func: l.fn.handle, GridDimX: l.grid[0], GridDimY: l.grid[1], GridDimZ: l.grid[2],
			BlockDimX: l.block[0], BlockDimY: l.block[1], BlockDimZ: l.block[2], SharedMemBytes: l.shared, Ctx: l.fn.mod.ctx.handle,
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
		l.array = make([]unsafe.Pointer, len(params))
		for i, p := range params {
			l.array[i] = unsafe.Pointer(&l.params[p.Offset])
		}
	}
	return uintptr(unsafe.Pointer(&l.array[0]))
}

func (g *GPU) CuGraphInstantiate_v2(ph *cuda.CUgraphExec, h cuda.CUgraph, errNode *cuda.CUgraphNode, log unsafe.Pointer, size uint64) cuda.CUresult {
	if errNode != nil {
		*errNode = 0
	}
	if log != nil && size > 0 {
		*(*byte)(log) = 0
	}
	return g.CuGraphInstantiateWithFlags(ph, h, 0)
}

func (g *GPU) CuGraphInstantiate(ph *cuda.CUgraphExec, h cuda.CUgraph, errNode *cuda.CUgraphNode, log unsafe.Pointer, size uint64) cuda.CUresult {
	return g.CuGraphInstantiate_v2(ph, h, errNode, log, size)
}
