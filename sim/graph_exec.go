package sim

import (
	"context"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// exec is a CUgraphExec: a copy of a graph, in an order that keeps its dependencies.
type exec struct {
	handle  cuda.CUgraphExec
	number  uint32 // by which records know it
	graph   *graph
	objects map[*node]references // of the graph (nil), and of what its nodes hold
	steps   []step
	flags   uint64
	last    *task // launches of one executable graph do not overlap
}

type step struct {
	node *node // of the graph it was made from
	op   op
	off  bool
}

// runSteps does the work of a graph, one node after the other.
func runSteps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if s.off || s.op.run == nil {
			continue
		}
		if err := s.op.run(inNode(ctx, s.node)); err != nil {
			return err
		}
	}
	return nil
}

func (g *GPU) enterExec(h cuda.CUgraphExec) (*exec, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	x, found := lookup[*exec](g, h)
	if !found {
		g.mu.Unlock()
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return x, ok
}

// stepsOf copies a graph for execution. In the body of a conditional node a driver calls no function of the host.
func (gr *graph) stepsOf(body bool) ([]step, cuda.CUresult) {
	nodes, acyclic := gr.ordered()
	if !acyclic {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	steps := make([]step, len(nodes))
	for i, n := range nodes {
		steps[i] = step{node: n, op: n.op}
		if body && n.op.kind == cuda.CU_GRAPH_NODE_TYPE_HOST {
			return nil, cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		inner, isChild := n.op.params.(*graph)
		if k, isConditional := n.op.params.(*conditional); isConditional && k.choice >= 0 {
			inner, isChild = k.bodies[k.choice], true
		}
		if isChild {
			sub, r := inner.stepsOf(body || n.op.kind == cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL)
			if r != ok {
				return nil, r
			}
			steps[i].op.run = func(ctx context.Context) error { return runSteps(ctx, sub) }
		}
	}
	return steps, ok
}

const instantiateFlags = uint64(cuda.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
	cuda.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
	cuda.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

const deviceLaunch = uint64(cuda.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)

func (g *GPU) CuGraphInstantiateWithFlags(ph *cuda.CUgraphExec, h cuda.CUgraph, flags uint64) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	switch {
	case ph == nil:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case flags&^(instantiateFlags|deviceLaunch) != 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case flags&deviceLaunch != 0:
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	case gr.capturing(g):
		return cuda.CUDA_ERROR_ILLEGAL_STATE
	case len(gr.regions) > 0 && gr.uses > 1:
		return cuda.CUDA_ERROR_NOT_SUPPORTED // its memory is one executable graph's
	case len(gr.regions) > 0: // those of other graphs have not been tried on a GPU
		if r := g.unsafeInCapture(); r != ok {
			return r
		}
	}
	steps, r := gr.stepsOf(false)
	if r != ok {
		return r
	}
	x := &exec{graph: gr, number: g.graphs.nextNumber(), steps: steps, flags: flags, objects: gr.held()}
	gr.uses++
	x.handle = cuda.CUgraphExec(g.objects.add(x))
	*ph = x.handle
	return ok
}

func (gr *graph) capturing(g *GPU) bool {
	for cap := range g.captures {
		if cap.graph == gr {
			return true
		}
	}
	return false
}

func (g *GPU) CuGraphInstantiateWithParams(ph *cuda.CUgraphExec, h cuda.CUgraph,
	params *cuda.CUDA_GRAPH_INSTANTIATE_PARAMS) cuda.CUresult {
	if params == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	r := g.CuGraphInstantiateWithFlags(ph, h, uint64(params.Flags))
	params.HErrNode_out = 0
	params.Result_out = cuda.CUDA_GRAPH_INSTANTIATE_SUCCESS
	if r != ok {
		params.Result_out = cuda.CUDA_GRAPH_INSTANTIATE_ERROR
	}
	return r
}

func (g *GPU) CuGraphExecDestroy(h cuda.CUgraphExec) cuda.CUresult {
	x, r := g.enterExec(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	g.objects.drop(uint64(h))
	if x.last != nil && len(x.graph.regions) > 0 {
		g.work.wait([]*task{x.last})
	}
	for _, held := range x.objects {
		g.graphs.releaseBehind(x.last, held)
	}
	g.graphs.leave(x.graph)
	return ok
}

func (g *GPU) CuGraphExecGetFlags(h cuda.CUgraphExec, flags *cuda.Cuuint64) cuda.CUresult {
	x, r := g.enterExec(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if flags == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*flags = cuda.Cuuint64(x.flags)
	return ok
}

func (g *GPU) CuGraphLaunch(h cuda.CUgraphExec, hs cuda.CUstream) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	x, found := lookup[*exec](g, h)
	if !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	steps := slices.Clone(x.steps)
	run := func(ctx context.Context) error {
		ctx = inExec(ctx, x)
		defer tellingGraph(ctx)()
		return runSteps(ctx, steps)
	}
	if s.capture != nil {
		child, _ := g.graphs.clone(x.graph)
		child.objects.retain(x.objects[nil])
		n, r := s.capture.add(s, g.graphs.child(child))
		if r == ok {
			child.parent = n
		}
		return r
	}
	if r := g.implicitInCapture(s); r != ok {
		return r
	}
	for _, reg := range x.graph.regions {
		reg.out = !x.graph.frees(reg)
	}
	x.last = g.work.push(s, run, x.last)
	return ok
}

func (g *GPU) CuGraphUpload(h cuda.CUgraphExec, hs cuda.CUstream) cuda.CUresult {
	_, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if _, found := lookup[*exec](g, h); !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

// CuGraphExecUpdate_v2 gives an executable graph the parameters of a graph of the same shape.
func (g *GPU) CuGraphExecUpdate_v2(h cuda.CUgraphExec, hg cuda.CUgraph,
	info *cuda.CUgraphExecUpdateResultInfo) cuda.CUresult {
	x, r := g.enterExec(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	gr, found := lookup[*graph](g, hg)
	if !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if info == nil {
		info = new(cuda.CUgraphExecUpdateResultInfo)
	}
	*info = cuda.CUgraphExecUpdateResultInfo{Result: cuda.CU_GRAPH_EXEC_UPDATE_SUCCESS}
	steps, r := gr.stepsOf(false)
	if r != ok {
		return r
	}
	if len(steps) != len(x.steps) {
		info.Result = cuda.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
		return cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
	}
	nodes := make([]*node, len(steps))
	for i := range steps {
		nodes[i] = steps[i].node
		if steps[i].op.kind != x.steps[i].op.kind {
			info.Result, info.ErrorNode = cuda.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, steps[i].node.handle
			return cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
		}
		if len(steps[i].node.deps) != len(x.steps[i].node.deps) {
			info.Result, info.ErrorNode = cuda.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, steps[i].node.handle
			return cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
		}
		if !mayBecome(x.steps[i].op.params, steps[i].op.params) {
			info.Result, info.ErrorNode = cuda.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, steps[i].node.handle
			return cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
		}
		steps[i].node, steps[i].off = x.steps[i].node, x.steps[i].off
	}
	held := gr.held()
	for i := range steps { // the nodes of x stay those that it was made of
		if was, found := held[nodes[i]]; found {
			delete(held, nodes[i])
			held[steps[i].node] = was
		}
	}
	for _, old := range x.objects {
		g.graphs.releaseBehind(x.last, old)
	}
	x.steps, x.objects = steps, held
	return ok
}

func (g *GPU) CuGraphExecUpdate(h cuda.CUgraphExec, hg cuda.CUgraph, errNode *cuda.CUgraphNode,
	result *cuda.CUgraphExecUpdateResult) cuda.CUresult {
	var info cuda.CUgraphExecUpdateResultInfo
	r := g.CuGraphExecUpdate_v2(h, hg, &info)
	if errNode != nil {
		*errNode = info.ErrorNode
	}
	if result != nil {
		*result = info.Result
	}
	return r
}

func (g *GPU) CuGraphInstantiate_v2(ph *cuda.CUgraphExec, h cuda.CUgraph, errNode *cuda.CUgraphNode, log pointer,
	size uint64) cuda.CUresult {
	if errNode != nil {
		*errNode = 0
	}
	if log != nil && size > 0 {
		*view[byte](log) = 0
	}
	return g.CuGraphInstantiateWithFlags(ph, h, 0)
}

func (g *GPU) CuGraphInstantiate(ph *cuda.CUgraphExec, h cuda.CUgraph, errNode *cuda.CUgraphNode, log pointer,
	size uint64) cuda.CUresult {
	return g.CuGraphInstantiate_v2(ph, h, errNode, log, size)
}

// changeExec is change for the copy of a node in an executable graph.
func (g *GPU) changeExec(hx cuda.CUgraphExec, h cuda.CUgraphNode, kind cuda.CUgraphNodeType,
	build func() (op, cuda.CUresult)) cuda.CUresult {
	x, r := g.enterExec(hx)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	s := x.step(h)
	if s == nil || s.op.kind != kind {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	o, r := build()
	if r != ok {
		return r
	}
	if !mayBecome(s.op.params, o.params) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	s.op = o
	return ok
}

// mayBecome says whether a node of an executable graph takes new parameters. What one row copies or sets may change,
// but for the kinds of memory that a copy is between. Of several rows, a copy stays as it is, and what is set keeps its
// shape; they do not become one row, nor one row several (measured: 17 and 15 changes of three and four nodes).
func mayBecome(before, now any) bool {
	switch b := before.(type) {
	case *copy3D:
		n := now.(*copy3D)
		return n.src.device == b.src.device && n.dst.device == b.dst.device && (!b.rows() && !n.rows() || *b == *n)
	case *fill:
		n := now.(*fill)
		same := b.elem == n.elem && b.width == n.width && b.height == n.height && b.pitch == n.pitch
		return same || b.height == 1 && n.height == 1
	}
	return true
}

func (x *exec) step(h cuda.CUgraphNode) *step {
	for i := range x.steps {
		if x.steps[i].node.handle == h {
			return &x.steps[i]
		}
	}
	return nil
}
