package sim

import (
	"context"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// graph is a CUgraph. nodes stand in the order of their creation, so every node comes after its dependencies until edges are added by hand.
type graph struct {
	handle  cuda.CUgraph // 0 until somebody may ask for it
	nodes   []*node
	regions []*region  // memory that its allocation nodes stand for
	parent  *node      // the child graph node that it belongs to
	objects references // its own; graphs inside it have theirs
	uses    int        // 1 for the graph, 1 for each executable; the last one frees the regions
}

// node is a CUgraphNode.
type node struct {
	graph  *graph
	handle cuda.CUgraphNode
	op     op
	deps   []*node
	origin *node // the one that this is a clone of
}

// exec is a CUgraphExec: a copy of a graph, in an order that keeps its dependencies.
type exec struct {
	handle  cuda.CUgraphExec
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

func newGraph() *graph { return &graph{uses: 1} }

func (g *GPU) nameGraph(gr *graph) {
	if gr.handle == 0 {
		gr.handle = cuda.CUgraph(g.objects.add(gr))
	}
}

func (g *GPU) addNode(gr *graph, o op, deps []*node) *node {
	n := &node{graph: gr, op: o, deps: slices.Clone(deps)}
	n.handle = cuda.CUgraphNode(g.objects.add(n))
	gr.nodes = append(gr.nodes, n)
	return n
}

func (g *GPU) dropGraph(gr *graph) {
	for _, n := range gr.nodes {
		g.dropNode(n)
	}
	if gr.handle != 0 {
		g.objects.drop(uint64(gr.handle))
	}
	g.release(gr.objects)
	gr.objects = nil
	g.releaseGraph(gr)
}

func (g *GPU) dropNode(n *node) {
	g.objects.drop(uint64(n.handle))
	switch p := n.op.params.(type) {
	case *graph:
		g.dropGraph(p)
	case *conditional:
		for _, body := range p.bodies {
			g.dropGraph(body)
		}
		_ = unmap(p.list.base, p.list.size) // a range of our own: the call cannot fail
	}
}

// copyable says whether a graph may be cloned or become a child.
func (gr *graph) copyable() bool {
	return len(gr.regions) == 0 && !slices.ContainsFunc(gr.nodes, func(n *node) bool { return n.op.kind == cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL })
}

// frees says whether the graph itself frees memory that it allocates.
func (gr *graph) frees(reg *region) bool {
	return slices.ContainsFunc(gr.nodes, func(n *node) bool {
		of, is := n.op.params.(*region)
		return is && of == reg && n.op.kind == cuda.CU_GRAPH_NODE_TYPE_MEM_FREE
	})
}

func (g *GPU) releaseGraph(gr *graph) {
	if gr.uses--; gr.uses > 0 {
		return
	}
	for _, r := range gr.regions {
		if err := g.freeRegion(r); err != nil {
			g.log.Error("sim: free", "error", err)
		}
	}
}

// union appends what is new in b to a.
func union(a, b []*node) []*node {
	a = slices.Clone(a)
	for _, n := range b {
		if !slices.Contains(a, n) {
			a = append(a, n)
		}
	}
	return a
}

// ordered gives the nodes so that each comes after its dependencies, else in order of creation; false where they form a circle.
func (gr *graph) ordered() ([]*node, bool) {
	const (
		visiting = 1
		done     = 2
	)
	state := map[*node]int{}
	var out []*node
	var visit func(*node) bool
	visit = func(n *node) bool {
		switch state[n] {
		case visiting:
			return false
		case done:
			return true
		}
		state[n] = visiting
		for _, d := range n.deps {
			if !visit(d) {
				return false
			}
		}
		state[n] = done
		out = append(out, n)
		return true
	}
	for _, n := range gr.nodes {
		if !visit(n) {
			return nil, false
		}
	}
	return out, true
}

// runSteps does the work of a graph, one node after the other.
func runSteps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if s.off || s.op.run == nil {
			continue
		}
		if err := s.op.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// nodesOf reads an array of nodes of gr, whose edges carry no data.
func (g *GPU) nodesOf(gr *graph, array *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, n uint64) ([]*node, cuda.CUresult) {
	if n == 0 {
		return nil, ok
	}
	if array == nil || n > 1<<24 {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if !noEdgeData(data, n) {
		return nil, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	nodes := make([]*node, 0, n)
	for _, h := range sliceOf(array, n) {
		nd, found := lookup[*node](g, h)
		if !found || gr != nil && nd.graph != gr || slices.Contains(nodes, nd) {
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
		nodes = append(nodes, nd)
	}
	return nodes, ok
}

// enterGraph is ready for calls about a graph.
func (g *GPU) enterGraph(h cuda.CUgraph) (*graph, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	gr, found := lookup[*graph](g, h)
	if !found {
		g.mu.Unlock()
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return gr, ok
}

func (g *GPU) enterNode(h cuda.CUgraphNode) (*node, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	n, found := lookup[*node](g, h)
	if !found {
		g.mu.Unlock()
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return n, ok
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

func (g *GPU) CuGraphCreate(ph *cuda.CUgraph, flags uint32) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	gr := newGraph()
	g.nameGraph(gr)
	*ph = gr.handle
	return ok
}

func (g *GPU) CuGraphDestroy(h cuda.CUgraph) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if gr.parent != nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	g.dropGraph(gr)
	return ok
}

// clone copies a graph; the copies of nodes are in the map.
func (g *GPU) clone(gr *graph) (*graph, map[*node]*node) {
	c := newGraph()
	c.objects.retain(gr.objects)
	of := map[*node]*node{}
	nodes, _ := gr.ordered()
	for _, n := range nodes {
		deps := make([]*node, len(n.deps))
		for i, d := range n.deps {
			deps[i] = of[d]
		}
		o := n.op
		if child, isChild := o.params.(*graph); isChild {
			sub, _ := g.clone(child)
			o = g.childOp(sub)
		}
		of[n] = g.addNode(c, o, deps)
		of[n].origin = n
		if child, isChild := o.params.(*graph); isChild {
			child.parent = of[n]
		}
	}
	return c, of
}

func (g *GPU) CuGraphClone(ph *cuda.CUgraph, h cuda.CUgraph) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if !gr.copyable() {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	c, _ := g.clone(gr)
	g.nameGraph(c)
	*ph = c.handle
	return ok
}

// list answers a call that fills an array and its count: with no array it only counts, and what is left of a larger array becomes 0.
func list[T any](out *T, count *uint64, have []T) cuda.CUresult {
	if count == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if out == nil {
		*count = uint64(len(have))
		return ok
	}
	if *count == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	array := sliceOf(out, *count)
	n := copy(array, have)
	clear(array[n:])
	*count = uint64(n)
	return ok
}

// listEdges is list for a node's edges. Their data, which are nothing but zeros here, stay what they are behind the last one.
func listEdges(nodes *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, count *uint64, have []cuda.CUgraphNode) cuda.CUresult {
	if nodes == nil && data != nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	r := list(nodes, count, have)
	if r == ok && data != nil {
		clear(sliceOf(data, *count))
	}
	return r
}

func handles(nodes []*node) []cuda.CUgraphNode {
	hs := make([]cuda.CUgraphNode, len(nodes))
	for i, n := range nodes {
		hs[i] = n.handle
	}
	return hs
}

func (g *GPU) CuGraphGetNodes(h cuda.CUgraph, nodes *cuda.CUgraphNode, count *uint64) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return list(nodes, count, handles(gr.nodes))
}

func (g *GPU) CuGraphGetRootNodes(h cuda.CUgraph, nodes *cuda.CUgraphNode, count *uint64) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	var roots []*node
	for _, n := range gr.nodes {
		if len(n.deps) == 0 {
			roots = append(roots, n)
		}
	}
	slices.Reverse(roots) // as a driver gives them
	return list(nodes, count, handles(roots))
}

func (g *GPU) CuGraphGetEdges(h cuda.CUgraph, from, to *cuda.CUgraphNode, count *uint64) cuda.CUresult {
	return g.CuGraphGetEdges_v2(h, from, to, nil, count)
}

func (g *GPU) CuGraphGetEdges_v2(h cuda.CUgraph, from, to *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, count *uint64) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if (from == nil) != (to == nil) || from == nil && data != nil || count == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	var a, b []*node
	for _, n := range gr.nodes {
		for _, d := range n.deps {
			a, b = append(a, d), append(b, n)
		}
	}
	if from != nil && data != nil {
		clear(sliceOf(data, *count))
	}
	n := *count
	if r := list(from, &n, handles(a)); r != ok {
		return r
	}
	return list(to, count, handles(b))
}

func (g *GPU) CuGraphNodeGetDependencies(h cuda.CUgraphNode, deps *cuda.CUgraphNode, count *uint64) cuda.CUresult {
	return g.CuGraphNodeGetDependencies_v2(h, deps, nil, count)
}

func (g *GPU) CuGraphNodeGetDependencies_v2(h cuda.CUgraphNode, deps *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, count *uint64) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return listEdges(deps, data, count, handles(n.deps))
}

func (g *GPU) CuGraphNodeGetDependentNodes(h cuda.CUgraphNode, nodes *cuda.CUgraphNode, count *uint64) cuda.CUresult {
	return g.CuGraphNodeGetDependentNodes_v2(h, nodes, nil, count)
}

func (g *GPU) CuGraphNodeGetDependentNodes_v2(h cuda.CUgraphNode, nodes *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, count *uint64) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	var users []*node
	for _, x := range n.graph.nodes {
		if slices.Contains(x.deps, n) {
			users = append(users, x)
		}
	}
	return listEdges(nodes, data, count, handles(users))
}

func (g *GPU) CuGraphAddDependencies(h cuda.CUgraph, from, to *cuda.CUgraphNode, n uint64) cuda.CUresult {
	return g.changeEdges(h, from, to, n, func(a, b *node) bool {
		if slices.Contains(b.deps, a) {
			return false
		}
		b.deps = append(b.deps, a)
		return true
	})
}

func (g *GPU) CuGraphRemoveDependencies(h cuda.CUgraph, from, to *cuda.CUgraphNode, n uint64) cuda.CUresult {
	return g.changeEdges(h, from, to, n, func(a, b *node) bool {
		i := slices.Index(b.deps, a)
		if i < 0 {
			return false
		}
		b.deps = slices.Delete(b.deps, i, i+1)
		return true
	})
}

// noEdgeData says whether the edges are plain ones, which are all there are here.
func noEdgeData(data *cuda.CUgraphEdgeData, n uint64) bool {
	if data == nil || n > 1<<24 {
		return true
	}
	for _, d := range sliceOf(data, n) {
		if d != (cuda.CUgraphEdgeData{}) {
			return false
		}
	}
	return true
}

func (g *GPU) CuGraphAddDependencies_v2(h cuda.CUgraph, from, to *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, n uint64) cuda.CUresult {
	if !noEdgeData(data, n) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuGraphAddDependencies(h, from, to, n)
}

func (g *GPU) CuGraphRemoveDependencies_v2(h cuda.CUgraph, from, to *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, n uint64) cuda.CUresult {
	if !noEdgeData(data, n) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuGraphRemoveDependencies(h, from, to, n)
}

func (g *GPU) changeEdges(h cuda.CUgraph, from, to *cuda.CUgraphNode, n uint64, change func(a, b *node) bool) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if n > 1<<24 || n > 0 && (from == nil || to == nil) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	as, bs := sliceOf(from, n), sliceOf(to, n)
	for i := range as {
		a, foundA := lookup[*node](g, as[i])
		b, foundB := lookup[*node](g, bs[i])
		if !foundA || !foundB || a == b || a.graph != gr || b.graph != gr || !change(a, b) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	return ok
}

func (g *GPU) CuGraphDestroyNode(h cuda.CUgraphNode) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if len(n.graph.regions) > 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	same := func(x *node) bool { return x == n }
	n.graph.nodes = slices.DeleteFunc(n.graph.nodes, same)
	for _, x := range n.graph.nodes {
		x.deps = slices.DeleteFunc(x.deps, same)
	}
	g.dropNode(n)
	return ok
}

func (g *GPU) CuGraphNodeGetType(h cuda.CUgraphNode, kind *cuda.CUgraphNodeType) cuda.CUresult {
	n, r := g.enterNode(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if kind == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*kind = n.op.kind
	return ok
}

// stepsOf copies a graph for execution. In the body of a conditional node a driver calls no function of the host.
func (g *GPU) stepsOf(gr *graph, body bool) ([]step, cuda.CUresult) {
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
			sub, r := g.stepsOf(inner, body || n.op.kind == cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL)
			if r != ok {
				return nil, r
			}
			steps[i].op.run = func(ctx context.Context) error { return runSteps(ctx, sub) }
		}
	}
	return steps, ok
}

const instantiateFlags = uint64(cuda.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | cuda.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
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
	steps, r := g.stepsOf(gr, false)
	if r != ok {
		return r
	}
	x := &exec{graph: gr, steps: steps, flags: flags, objects: gr.held()}
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

func (g *GPU) CuGraphInstantiateWithParams(ph *cuda.CUgraphExec, h cuda.CUgraph, params *cuda.CUDA_GRAPH_INSTANTIATE_PARAMS) cuda.CUresult {
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
		g.wait([]*task{x.last})
	}
	for _, held := range x.objects {
		g.releaseBehind(x.last, held)
	}
	g.releaseGraph(x.graph)
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
	run := func(ctx context.Context) error { return runSteps(ctx, steps) }
	if s.capture != nil {
		child, _ := g.clone(x.graph)
		child.objects.retain(x.objects[nil])
		n, r := s.capture.add(s, g.childOp(child))
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
	x.last = g.push(s, run, x.last)
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
func (g *GPU) CuGraphExecUpdate_v2(h cuda.CUgraphExec, hg cuda.CUgraph, info *cuda.CUgraphExecUpdateResultInfo) cuda.CUresult {
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
	steps, r := g.stepsOf(gr, false)
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
		g.releaseBehind(x.last, old)
	}
	x.steps, x.objects = steps, held
	return ok
}

func (g *GPU) CuGraphExecUpdate(h cuda.CUgraphExec, hg cuda.CUgraph, errNode *cuda.CUgraphNode, result *cuda.CUgraphExecUpdateResult) cuda.CUresult {
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
