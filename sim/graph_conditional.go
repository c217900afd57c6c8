package sim

import (
	"golang.org/x/sys/unix"
	"scuda.dev/scuda/api/cuda"
)

// condition is what a conditional handle stands for. Kernels cannot change its value here: PTX that calls the device
// runtime is refused.
type condition struct {
	graph *graph
	value uint32
}

const (
	assignDefault = 1 // CU_GRAPH_COND_ASSIGN_DEFAULT, a macro in C
	maxBodies     = 512
)

func (g *GPU) CuGraphConditionalHandleCreate(out *cuda.CUgraphConditionalHandle, h cuda.CUgraph, ctx cuda.CUcontext,
	value, flags uint32) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if out == nil || flags&^assignDefault != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if _, r := g.graphContext(ctx); r != ok {
		return r
	}
	if flags&assignDefault == 0 {
		value = 0
	}
	*out = cuda.CUgraphConditionalHandle(g.objects.add(&condition{gr, value}))
	return ok
}

// conditional is what a conditional node does: one of its bodies or none.
type conditional struct {
	bodies []*graph
	choice int  // -1: none
	list   span // the bodies' handles, for the caller
}

func (g *GPU) addConditional(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_CONDITIONAL_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		c, found := lookup[*condition](g, p.Handle)
		if !found || p.Size == 0 || p.Size > maxBodies {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		k := &conditional{choice: -1}
		switch {
		case p.Type == cuda.CU_GRAPH_COND_TYPE_IF && p.Size <= 2:
			if c.value != 0 {
				k.choice = 0
			} else if p.Size == 2 {
				k.choice = 1
			}
		case p.Type == cuda.CU_GRAPH_COND_TYPE_SWITCH:
			if c.value < p.Size {
				k.choice = int(c.value)
			}
		case p.Type == cuda.CU_GRAPH_COND_TYPE_WHILE:
			return op{}, cuda.CUDA_ERROR_NOT_SUPPORTED // nothing could end the loop
		default:
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		size := roundUp(8*uint64(p.Size), 4096)
		base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return op{}, cuda.CUDA_ERROR_OUT_OF_MEMORY
		}
		k.list = span{base, size}
		list := sliceOf(view[cuda.CUgraph](at(base)), uint64(p.Size))
		for i := range list {
			body := newGraph()
			g.graphs.name(body)
			k.bodies, list[i] = append(k.bodies, body), body.handle
		}
		p.PhGraph_out = uintptr(base)
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL, params: k}, ok
	})
}
