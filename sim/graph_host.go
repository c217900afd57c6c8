package sim

import (
	"context"

	"scuda.dev/scuda/api/cuda"
)

// hostNodeEntry stands for the C function of host nodes: they come from [GPU.HostNode], there are no others.
const hostNodeEntry = 0x5c0d

// hostFunctions are what host nodes may call and what ends user objects, by the number that takes the place of their
// argument in C.
type hostFunctions struct {
	of   map[uintptr]func()
	last uintptr
}

func (h *hostFunctions) add(f func()) cuda.CUDA_HOST_NODE_PARAMS {
	if h.of == nil {
		h.of = make(map[uintptr]func())
	}
	h.last++
	h.of[h.last] = f
	return cuda.CUDA_HOST_NODE_PARAMS{Fn: hostNodeEntry, UserData: h.last}
}

// find gives nil for what add has not given.
func (h *hostFunctions) find(entry, number uintptr) func() {
	if entry != hostNodeEntry {
		return nil
	}
	return h.of[number]
}

// HostNode keeps f for graph nodes.
func (g *GPU) HostNode(f func()) cuda.CUDA_HOST_NODE_PARAMS {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.graphs.functions.add(f)
}

// DropNode forgets what HostNode gave.
func (g *GPU) DropNode(p cuda.CUDA_HOST_NODE_PARAMS) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.graphs.functions.of, p.UserData)
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
		if p == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		f := g.graphs.functions.find(p.Fn, p.UserData)
		if f == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_HOST, params: *p, run: func(context.Context) error { f(); return nil }}, ok
	}
}

func (g *GPU) CuGraphAddHostNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, g.hostNodeOp(p))
}

func (g *GPU) CuGraphHostNodeSetParams(h cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_HOST, g.hostNodeOp(p))
}

func (g *GPU) CuGraphExecHostNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode,
	p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
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
