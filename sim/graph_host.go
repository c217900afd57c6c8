package sim

import (
	"context"

	"scuda.dev/scuda/api/cuda"
)

// hostNodeEntry stands for the C function of host nodes: they come from [GPU.HostNode], there are no others.
const hostNodeEntry = 0x5c0d

// HostNode keeps f for graph nodes.
func (g *GPU) HostNode(f func()) cuda.CUDA_HOST_NODE_PARAMS {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hostNodes == nil {
		g.hostNodes = make(map[uintptr]func())
	}
	g.lastNode++
	g.hostNodes[g.lastNode] = f
	return cuda.CUDA_HOST_NODE_PARAMS{Fn: hostNodeEntry, UserData: g.lastNode}
}

// DropNode forgets what HostNode gave.
func (g *GPU) DropNode(p cuda.CUDA_HOST_NODE_PARAMS) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.hostNodes, p.UserData)
}

// LaunchNode puts a function that HostNode keeps into a stream.
func (g *GPU) LaunchNode(h cuda.CUstream, p cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	o, r := g.hostNodeOp(&p)()
	if r == ok {
		_, r = g.submit(s, o)
	}
	return r
}

func (g *GPU) hostNodeOp(p *cuda.CUDA_HOST_NODE_PARAMS) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if p == nil || p.Fn != hostNodeEntry || g.hostNodes[p.UserData] == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		f := g.hostNodes[p.UserData]
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_HOST, params: *p, run: func(context.Context) error { f(); return nil }}, ok
	}
}

func (g *GPU) CuGraphAddHostNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, g.hostNodeOp(p))
}

func (g *GPU) CuGraphHostNodeSetParams(h cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_HOST, g.hostNodeOp(p))
}

func (g *GPU) CuGraphExecHostNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_HOST, g.hostNodeOp(p))
}

func (g *GPU) CuGraphHostNodeGetParams(h cuda.CUgraphNode, out *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return params(g, h, out == nil, func(p cuda.CUDA_HOST_NODE_PARAMS) { *out = p })
}

// HostFunc puts a host function into a stream; f may block.
func (g *GPU) HostFunc(h cuda.CUstream, f func()) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	_, r = g.submit(s, op{kind: cuda.CU_GRAPH_NODE_TYPE_HOST, run: func(context.Context) error { f(); return nil }})
	return r
}
