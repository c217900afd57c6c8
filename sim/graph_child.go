package sim

import (
	"context"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// child is a graph inside a graph. Its steps are filled in when the outer graph is instantiated.
func (t *graphs) child(child *graph) op {
	return op{kind: cuda.CU_GRAPH_NODE_TYPE_GRAPH, params: child, run: func(ctx context.Context) error {
		t.work.mu.Lock()
		steps, r := child.stepsOf(false)
		t.work.mu.Unlock()
		if r != ok {
			return &deviceError{r, "child graph"}
		}
		return runSteps(ctx, steps)
	}}
}

// graphs are those inside a node: a child, or the bodies of a conditional one.
func (o *op) graphs() []*graph {
	switch p := o.params.(type) {
	case *graph:
		return []*graph{p}
	case *conditional:
		return p.bodies
	}
	return nil
}

func (g *GPU) CuGraphAddChildGraphNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	child cuda.CUgraph) cuda.CUresult {
	return g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		gr, found := lookup[*graph](g, child)
		if !found || child == h {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		if !gr.copyable() {
			return op{}, cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		c, _ := g.graphs.clone(gr)
		g.graphs.name(c)
		return g.graphs.child(c), ok
	})
}

func (g *GPU) CuGraphChildGraphNodeGetGraph(h cuda.CUgraphNode, ph *cuda.CUgraph) cuda.CUresult {
	return params(g, h, ph == nil, func(gr *graph) { g.graphs.name(gr); *ph = gr.handle })
}

func (g *GPU) CuGraphExecChildGraphNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode,
	child cuda.CUgraph) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_GRAPH, func() (op, cuda.CUresult) {
		gr, found := lookup[*graph](g, child)
		if !found {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		x, _ := lookup[*exec](g, hx)
		n := x.step(h).node
		if before, _ := n.op.params.(*graph); before == nil || !before.alike(gr) {
			return op{}, cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
		}
		steps, r := gr.stepsOf(false)
		if r != ok {
			return op{}, r
		}
		o := g.graphs.child(gr)
		o.run = func(ctx context.Context) error { return runSteps(ctx, steps) }
		g.graphs.releaseBehind(x.last, x.objects[n])
		var held references
		held.retainAll(gr)
		x.objects[n] = held
		return o, ok
	})
}

// alike says whether two graphs have the same kinds of nodes with as many dependencies, in the same order.
func (gr *graph) alike(o *graph) bool {
	return slices.EqualFunc(gr.nodes, o.nodes, func(a, b *node) bool {
		return a.op.kind == b.op.kind && len(a.deps) == len(b.deps)
	})
}
