package sim

import (
	"scuda.dev/scuda/api/cuda"
)

// add is the common part of the cuGraphAdd…Node calls: build makes the operation with the lock held.
func (g *GPU) add(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	build func() (op, cuda.CUresult)) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	nodes, r := g.nodesOf(gr, deps, nil, n)
	if r != ok {
		return r
	}
	o, r := build()
	if r != ok {
		return r
	}
	nd := g.graphs.add(gr, o, nodes)
	if child, isChild := o.params.(*graph); isChild {
		child.parent = nd
	}
	*ph = nd.handle
	return ok
}

// change gives a node of that kind another operation.
func (g *GPU) change(h cuda.CUgraphNode, kind cuda.CUgraphNodeType, build func() (op, cuda.CUresult)) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if n.op.kind != kind {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	o, r := build()
	if r == ok {
		n.op = o
	}
	return r
}

// params reads the parameters of a node of that kind.
func params[T any](g *GPU, h cuda.CUgraphNode, null bool, give func(T)) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, right := n.op.params.(T)
	if !right || null {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	give(p)
	return ok
}

// graphContext is the context of a node: the one named, or the current one.
func (g *GPU) graphContext(h cuda.CUcontext) (*cudaContext, cuda.CUresult) {
	var c *cudaContext
	var r cuda.CUresult
	if h == 0 {
		c, r = g.currentOf(g.thread())
	} else {
		c, r = g.contextOf(h)
	}
	if r != ok {
		return nil, r
	}
	return c, c.usable()
}

func (g *GPU) CuGraphAddEmptyNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode,
	n uint64) cuda.CUresult {
	return g.add(ph, h, deps, n, func() (op, cuda.CUresult) { return op{kind: cuda.CU_GRAPH_NODE_TYPE_EMPTY}, ok })
}

func (g *GPU) CuGraphAddEventRecordNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	e cuda.CUevent) cuda.CUresult {
	return g.add(ph, h, deps, n, g.eventOp(e, g.recordOp))
}

func (g *GPU) CuGraphAddEventWaitNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	e cuda.CUevent) cuda.CUresult {
	return g.add(ph, h, deps, n, g.eventOp(e, g.waitOp))
}

func (g *GPU) eventOp(h cuda.CUevent, make func(*event) op) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if h == 0 {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		e, r := find[*event](g, h)
		if r != ok {
			return op{}, r
		}
		return make(e), ok
	}
}

func (g *GPU) memsetOp(p *cuda.CUDA_MEMSET_NODE_PARAMS, ctx cuda.CUcontext) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if _, r := g.graphContext(ctx); r != ok {
			return op{}, r
		}
		if p == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		f := &fill{dst: uint64(p.Dst), pitch: p.Pitch, value: p.Value, elem: p.ElementSize, width: p.Width, height: p.Height}
		if r := g.checkFill(f); r != ok {
			return op{}, r
		}
		return g.fillOp(f), ok
	}
}

func (g *GPU) CuGraphAddMemsetNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_MEMSET_NODE_PARAMS, ctx cuda.CUcontext) cuda.CUresult {
	return g.add(ph, h, deps, n, g.memsetOp(p, ctx))
}

func (g *GPU) CuGraphMemsetNodeSetParams(h cuda.CUgraphNode, p *cuda.CUDA_MEMSET_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_MEMSET, g.memsetOp(p, 0))
}

func (g *GPU) CuGraphExecMemsetNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode, p *cuda.CUDA_MEMSET_NODE_PARAMS,
	ctx cuda.CUcontext) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_MEMSET, g.memsetOp(p, ctx))
}

func (g *GPU) CuGraphMemsetNodeGetParams(h cuda.CUgraphNode, p *cuda.CUDA_MEMSET_NODE_PARAMS) cuda.CUresult {
	return params(g, h, p == nil, func(f *fill) {
		*p = cuda.CUDA_MEMSET_NODE_PARAMS{Dst: cuda.CUdeviceptr(f.dst), Pitch: f.pitch, Value: f.value, ElementSize: f.elem,
			Width: f.width, Height: f.height}
	})
}

func (g *GPU) memcpyOp(p *cuda.CUDA_MEMCPY3D, ctx cuda.CUcontext) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if _, r := g.graphContext(ctx); r != ok {
			return op{}, r
		}
		b, r := g.copyFrom3D(p)
		if r == ok {
			r = g.check(b)
		}
		if r != ok {
			return op{}, r
		}
		return g.copyOp(b), ok
	}
}

func (g *GPU) CuGraphAddMemcpyNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_MEMCPY3D, ctx cuda.CUcontext) cuda.CUresult {
	return g.add(ph, h, deps, n, g.memcpyOp(p, ctx))
}

func (g *GPU) CuGraphMemcpyNodeSetParams(h cuda.CUgraphNode, p *cuda.CUDA_MEMCPY3D) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_MEMCPY, g.memcpyOp(p, 0))
}

func (g *GPU) CuGraphExecMemcpyNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode, p *cuda.CUDA_MEMCPY3D,
	ctx cuda.CUcontext) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_MEMCPY, g.memcpyOp(p, ctx))
}

// CuGraphMemcpyNodeGetParams describes the copy by what it does: offsets are part of the addresses.
func (g *GPU) CuGraphMemcpyNodeGetParams(h cuda.CUgraphNode, p *cuda.CUDA_MEMCPY3D) cuda.CUresult {
	return params(g, h, p == nil, func(b *copy3D) {
		*p = cuda.CUDA_MEMCPY3D{
			SrcPitch: b.src.pitch, SrcHeight: b.src.height, DstPitch: b.dst.pitch, DstHeight: b.dst.height,
			WidthInBytes: b.width, Height: b.height, Depth: b.depth,
		}
		p.SrcMemoryType, p.SrcHost, p.SrcDevice = b.src.describe()
		p.DstMemoryType, p.DstHost, p.DstDevice = b.dst.describe()
	})
}

func (p place) describe() (cuda.CUmemorytype, uintptr, cuda.CUdeviceptr) {
	if p.device {
		return cuda.CU_MEMORYTYPE_DEVICE, 0, cuda.CUdeviceptr(p.addr)
	}
	return cuda.CU_MEMORYTYPE_HOST, uintptr(p.addr), 0
}

func (g *GPU) CuGraphNodeGetEnabled(hx cuda.CUgraphExec, h cuda.CUgraphNode, enabled *uint32) cuda.CUresult {
	return g.withStep(hx, h, enabled == nil, func(s *step) {
		*enabled = 1
		if s.off {
			*enabled = 0
		}
	})
}

func (g *GPU) CuGraphNodeSetEnabled(hx cuda.CUgraphExec, h cuda.CUgraphNode, enabled uint32) cuda.CUresult {
	return g.withStep(hx, h, false, func(s *step) { s.off = enabled == 0 })
}

func (g *GPU) withStep(hx cuda.CUgraphExec, h cuda.CUgraphNode, bad bool, use func(*step)) cuda.CUresult {
	x, r := g.enterExec(hx)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	s := x.step(h)
	if s == nil || bad {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	switch s.op.kind {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL, cuda.CU_GRAPH_NODE_TYPE_MEMCPY, cuda.CU_GRAPH_NODE_TYPE_MEMSET:
		use(s)
		return ok
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}

func (g *GPU) CuGraphEventRecordNodeGetEvent(h cuda.CUgraphNode, out *cuda.CUevent) cuda.CUresult {
	return params(g, h, out == nil, func(e *event) { *out = e.handle })
}

func (g *GPU) CuGraphEventWaitNodeGetEvent(h cuda.CUgraphNode, out *cuda.CUevent) cuda.CUresult {
	return g.CuGraphEventRecordNodeGetEvent(h, out)
}

func (g *GPU) CuGraphEventRecordNodeSetEvent(h cuda.CUgraphNode, e cuda.CUevent) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD, g.eventOp(e, g.recordOp))
}

func (g *GPU) CuGraphEventWaitNodeSetEvent(h cuda.CUgraphNode, e cuda.CUevent) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT, g.eventOp(e, g.waitOp))
}

func (g *GPU) CuGraphExecEventRecordNodeSetEvent(hx cuda.CUgraphExec, h cuda.CUgraphNode,
	e cuda.CUevent) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD, g.eventOp(e, g.recordOp))
}

func (g *GPU) CuGraphExecEventWaitNodeSetEvent(hx cuda.CUgraphExec, h cuda.CUgraphNode, e cuda.CUevent) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT, g.eventOp(e, g.waitOp))
}

func (g *GPU) CuGraphNodeFindInClone(out *cuda.CUgraphNode, h cuda.CUgraphNode, hc cuda.CUgraph) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	c, found := lookup[*graph](g, hc)
	if !found || out == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for _, x := range c.nodes {
		if x.origin == n {
			*out = x.handle
			return ok
		}
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}
