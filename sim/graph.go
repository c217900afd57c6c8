package sim

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// graph is a CUgraph. nodes stand in the order of their creation, so every node comes after its dependencies until
// edges are added by hand.
type graph struct {
	handle  cuda.CUgraph // 0 until somebody may ask for it
	number  uint32       // by which records know it; 0 until somebody asks
	made    uint32       // nodes, those that are gone as well
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
	local  uint32 // its number in the graph
	op     op
	deps   []*node
	origin *node // the one that this is a clone of
}

// graphs makes graphs and nodes, and takes them apart. Its methods are called with the GPU's lock held.
type graphs struct {
	objects   *objects
	work      *scheduler
	free      func(*region)
	functions hostFunctions
	numbers   uint32 // the last that was given to a graph, or an executable one
}

func newGraph() *graph { return &graph{uses: 1} }

// name gives a graph a handle.
func (t *graphs) name(gr *graph) {
	if gr.handle == 0 {
		gr.handle = cuda.CUgraph(t.objects.add(gr))
	}
}

func (t *graphs) nextNumber() uint32 {
	t.numbers++
	return t.numbers
}

func (t *graphs) numberOf(gr *graph) uint32 {
	if gr.number == 0 {
		gr.number = t.nextNumber()
	}
	return gr.number
}

func (t *graphs) add(gr *graph, o op, deps []*node) *node {
	n := &node{graph: gr, local: gr.made, op: o, deps: slices.Clone(deps)}
	gr.made++
	n.handle = cuda.CUgraphNode(t.objects.add(n))
	gr.nodes = append(gr.nodes, n)
	return n
}

func (t *graphs) drop(gr *graph) {
	for _, n := range gr.nodes {
		t.dropNode(n)
	}
	if gr.handle != 0 {
		t.objects.drop(uint64(gr.handle))
	}
	t.release(gr.objects)
	gr.objects = nil
	t.leave(gr)
}

func (t *graphs) dropNode(n *node) {
	t.objects.drop(uint64(n.handle))
	switch p := n.op.params.(type) {
	case *graph:
		t.drop(p)
	case *conditional:
		for _, body := range p.bodies {
			t.drop(body)
		}
		_ = unmap(p.list.base, p.list.size) // a range of our own: the call cannot fail
	}
}

// copyable says whether a graph may be cloned or become a child.
func (gr *graph) copyable() bool {
	return len(gr.regions) == 0 && !slices.ContainsFunc(gr.nodes,
		func(n *node) bool { return n.op.kind == cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL })
}

// frees says whether the graph itself frees memory that it allocates.
func (gr *graph) frees(reg *region) bool {
	return slices.ContainsFunc(gr.nodes, func(n *node) bool {
		of, is := n.op.params.(*region)
		return is && of == reg && n.op.kind == cuda.CU_GRAPH_NODE_TYPE_MEM_FREE
	})
}

// leave ends one use of a graph: with the last one its memory goes.
func (t *graphs) leave(gr *graph) {
	if gr.uses--; gr.uses > 0 {
		return
	}
	for _, r := range gr.regions {
		t.free(r)
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

// ordered gives the nodes so that each comes after its dependencies, else in order of creation; false where they form a
// circle.
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

// nodesOf reads an array of nodes of gr, whose edges carry no data.
func (g *GPU) nodesOf(gr *graph, array *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, n uint64) ([]*node,
	cuda.CUresult) {
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

func (g *GPU) CuGraphCreate(ph *cuda.CUgraph, flags uint32) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	gr := newGraph()
	g.graphs.name(gr)
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
	g.graphs.drop(gr)
	return ok
}

// clone copies a graph; the copies of nodes are in the map.
func (t *graphs) clone(gr *graph) (*graph, map[*node]*node) {
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
			sub, _ := t.clone(child)
			o = t.child(sub)
		}
		of[n] = t.add(c, o, deps)
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
	c, _ := g.graphs.clone(gr)
	g.graphs.name(c)
	*ph = c.handle
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
	g.graphs.dropNode(n)
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
