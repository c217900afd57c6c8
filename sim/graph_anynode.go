package sim

import (
	"scuda.dev/scuda/api/cuda"
)

// member gives the parameters of one type.
func member[T any](p *cuda.CUgraphNodeParams) *T { return reading[T](&p.U) }

func (g *GPU) CuGraphAddNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUgraphNodeParams) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	switch p.Type {
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return g.CuGraphAddMemAllocNode(ph, h, deps, n, member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_MEM_FREE:
		return g.CuGraphAddMemFreeNode(ph, h, deps, n, member[cuda.CUDA_MEM_FREE_NODE_PARAMS](p).Dptr)
	case cuda.CU_GRAPH_NODE_TYPE_GRAPH:
		if c := member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](p); c.Ownership == cuda.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE {
			return g.CuGraphAddChildGraphNode(ph, h, deps, n, c.Graph)
		}
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	case cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return g.addConditional(ph, h, deps, n, member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_EMPTY:
		return g.CuGraphAddEmptyNode(ph, h, deps, n)
	}
	build := g.generalOp(p)
	if build == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.add(ph, h, deps, n, build)
}

func (g *GPU) CuGraphAddNode_v2(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode,
	data *cuda.CUgraphEdgeData, n uint64, p *cuda.CUgraphNodeParams) cuda.CUresult {
	if !noEdgeData(data, n) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuGraphAddNode(ph, h, deps, n, p)
}

// generalOp makes the operation of a node whose parameters can be changed; nil for other types.
func (g *GPU) generalOp(p *cuda.CUgraphNodeParams) func() (op, cuda.CUresult) {
	switch p.Type {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return g.kernelOp(member[cuda.CUDA_KERNEL_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_MEMCPY:
		m := member[cuda.CUDA_MEMCPY_NODE_PARAMS](p)
		return g.memcpyOp(&m.CopyParams, m.CopyCtx)
	case cuda.CU_GRAPH_NODE_TYPE_MEMSET:
		m := member[cuda.CUDA_MEMSET_NODE_PARAMS_v2](p)
		return g.memsetOp(reading[cuda.CUDA_MEMSET_NODE_PARAMS](m), m.Ctx)
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		return g.hostNodeOp(member[cuda.CUDA_HOST_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return g.batchOp(member[cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return g.eventOp(member[cuda.CUDA_EVENT_RECORD_NODE_PARAMS](p).Event, g.recordOp)
	case cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return g.eventOp(member[cuda.CUDA_EVENT_WAIT_NODE_PARAMS](p).Event, g.waitOp)
	}
	return nil
}

func (g *GPU) CuGraphNodeSetParams(h cuda.CUgraphNode, p *cuda.CUgraphNodeParams) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	build := g.generalOp(p)
	if build == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.change(h, p.Type, build)
}

func (g *GPU) CuGraphExecNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode,
	p *cuda.CUgraphNodeParams) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if p.Type == cuda.CU_GRAPH_NODE_TYPE_GRAPH {
		return g.CuGraphExecChildGraphNodeSetParams(hx, h, member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](p).Graph)
	}
	build := g.generalOp(p)
	if build == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.changeExec(hx, h, p.Type, build)
}
