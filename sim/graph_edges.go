package sim

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// list answers a call that fills an array and its count: with no array it only counts, and what is left of a larger
// array becomes 0.
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

// listEdges is list for a node's edges. Their data, which are nothing but zeros here, stay what they are behind the
// last one.
func listEdges(nodes *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, count *uint64,
	have []cuda.CUgraphNode) cuda.CUresult {
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

func (g *GPU) CuGraphGetEdges_v2(h cuda.CUgraph, from, to *cuda.CUgraphNode, data *cuda.CUgraphEdgeData,
	count *uint64) cuda.CUresult {
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

func (g *GPU) CuGraphNodeGetDependencies_v2(h cuda.CUgraphNode, deps *cuda.CUgraphNode, data *cuda.CUgraphEdgeData,
	count *uint64) cuda.CUresult {
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

func (g *GPU) CuGraphNodeGetDependentNodes_v2(h cuda.CUgraphNode, nodes *cuda.CUgraphNode, data *cuda.CUgraphEdgeData,
	count *uint64) cuda.CUresult {
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

func (g *GPU) CuGraphAddDependencies_v2(h cuda.CUgraph, from, to *cuda.CUgraphNode, data *cuda.CUgraphEdgeData,
	n uint64) cuda.CUresult {
	if !noEdgeData(data, n) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuGraphAddDependencies(h, from, to, n)
}

func (g *GPU) CuGraphRemoveDependencies_v2(h cuda.CUgraph, from, to *cuda.CUgraphNode, data *cuda.CUgraphEdgeData,
	n uint64) cuda.CUresult {
	if !noEdgeData(data, n) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuGraphRemoveDependencies(h, from, to, n)
}

func (g *GPU) changeEdges(h cuda.CUgraph, from, to *cuda.CUgraphNode, n uint64,
	change func(a, b *node) bool) cuda.CUresult {
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
