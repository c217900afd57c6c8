package executor

import (
	"math/bits"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// A copy with host memory at one end, added to a graph or captured, is a small graph in the driver's graph: a host
// function that fetches the bytes before the copy from page-locked memory, or one that sends them behind the copy to
// it. That memory lives as long as a graph has the node (hostEnd). Copies of the node (clones) have the same host
// function, by which they are known.

// maxNodeBytes bounds the page-locked memory of one copy node.
const maxNodeBytes = 16 << 30

// maxWidth is how long a row of a 3-D copy may be; captured copies of more stay two nodes.
const maxWidth = 1 << 30

// extent says how far height×depth rows of width bytes reach in linear memory.
func extent(width, height, depth, pitch, rowsOfSlice uint64) (uint64, bool) {
	if width == 0 || height == 0 || depth == 0 ||
		(height > 1 || depth > 1) && pitch < width || depth > 1 && rowsOfSlice < height {
		return 0, false
	}
	over, rows := bits.Mul64(depth-1, rowsOfSlice)
	if depth == 1 {
		over, rows = 0, 0
	}
	rows, carry := bits.Add64(rows, height-1, 0)
	more, bytes := bits.Mul64(rows, pitch)
	if rows == 0 {
		more, bytes = 0, 0
	}
	bytes, last := bits.Add64(bytes, width, 0)
	return bytes, over|carry|more|last == 0 && bytes <= maxNodeBytes
}

// hostCopy adds or changes a copy node with host memory at one end.
func (g *graphs) hostCopy(c *command, n *node) (cuda.CUresult, error) {
	if n.params.Type != cuda.CU_GRAPH_NODE_TYPE_MEMCPY {
		return 0, protocolError("node of type %d with host memory", n.params.Type)
	}
	m := member[cuda.CUDA_MEMCPY_NODE_PARAMS](n.params)
	b := &m.CopyParams
	up := b.SrcMemoryType == cuda.CU_MEMORYTYPE_HOST
	if up == (b.DstMemoryType == cuda.CU_MEMORYTYPE_HOST) || g.entered == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	ctx := g.entered.real
	if m.CopyCtx != 0 {
		real, ok := g.table.Real(cuda.KindContext, uint64(m.CopyCtx))
		if !ok {
			return cuda.CUDA_ERROR_INVALID_HANDLE, nil
		}
		ctx = cuda.CUcontext(real)
	}
	m.CopyCtx, b.Reserved0, b.Reserved1 = ctx, 0, 0
	if r, err := g.copy3DEnds(asPeerCopy(b), !up); r != cuda.CUDA_SUCCESS || err != nil {
		return r, err
	}
	pitch, slice := b.DstPitch, b.DstHeight
	if up {
		pitch, slice = b.SrcPitch, b.SrcHeight
	}
	bytes, ok := extent(b.WidthInBytes, b.Height, b.Depth, pitch, slice)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	mem, r := g.nodeBuffer(g.entered, int(bytes))
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	var end *hostEnd
	if up {
		b.SrcHost = uintptr(addressOf(mem))
		end = g.uploadEnd(g.entered, uint32(n.p.Host), mem)
	} else {
		b.DstHost = uintptr(addressOf(mem))
		end = g.downloadEnd(g.entered, uint32(n.p.Host), mem, rows{b.WidthInBytes, b.Height, b.Depth, pitch, slice})
	}
	if n.p.Verb == nodeSet {
		g.answerNode(c, n, 0)
		return g.changeCopy(n, b, end), nil
	}
	graph, r := g.copyGraph(m, end)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	defer g.gpu.CuGraphDestroy(graph) // the node has a copy of it
	if n.p.Verb == nodeSetExec {
		g.answerNode(c, n, 0)
		return g.gpu.CuGraphExecChildGraphNodeSetParams(n.exec, n.self, graph), nil
	}
	n.params.Type = cuda.CU_GRAPH_NODE_TYPE_GRAPH
	n.params.U = [29]uint64{}
	member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](n.params).Graph = graph
	return g.applyNode(c, n)
}

// prepareReplacement makes n, whose parameters the driver cannot give to the node that is there, a node to add in its
// place.
func (g *graphs) prepareReplacement(n *node) cuda.CUresult {
	graph, ok := g.table.Real(cuda.KindGraph, g.table.Parent(n.p.Node))
	if !ok { // whoever has a handle of a node had one of its graph
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	count := alloc[uint64](&g.arena)
	if r := g.gpu.CuGraphNodeGetDependencies(n.self, nil, count); r != cuda.CUDA_SUCCESS {
		return r
	}
	n.p.Verb, n.graph, n.count = nodeAdd, cuda.CUgraph(graph), *count
	if n.params.Type == cuda.CU_GRAPH_NODE_TYPE_MEMCPY && n.p.Flags&nodeHostCopy == 0 && g.entered != nil {
		member[cuda.CUDA_MEMCPY_NODE_PARAMS](n.params).CopyCtx = cuda.CUcontext(g.entered.handle)
	}
	if *count == 0 {
		return cuda.CUDA_SUCCESS
	}
	if 8**count > uint64(g.arena.room())/4 {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	n.deps = &allocN[cuda.CUgraphNode](&g.arena, int(*count))[0]
	return g.gpu.CuGraphNodeGetDependencies(n.self, n.deps, count)
}

// replaceNode lets a new node stand where n.self stood.
func (g *graphs) replaceNode(n *node, added *cuda.CUgraphNode) cuda.CUresult {
	count := alloc[uint64](&g.arena)
	r := g.gpu.CuGraphNodeGetDependentNodes(n.self, nil, count)
	if r == cuda.CUDA_SUCCESS && 8**count > uint64(g.arena.room())/4 {
		r = cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	if r == cuda.CUDA_SUCCESS && *count > 0 {
		from, to := allocN[cuda.CUgraphNode](&g.arena, int(*count)), allocN[cuda.CUgraphNode](&g.arena, int(*count))
		for i := range from {
			from[i] = *added
		}
		if r = g.gpu.CuGraphNodeGetDependentNodes(n.self, &to[0], count); r == cuda.CUDA_SUCCESS {
			r = g.gpu.CuGraphAddDependencies(n.graph, &from[0], &to[0], *count)
		}
	}
	if r == cuda.CUDA_SUCCESS {
		r = g.gpu.CuGraphDestroyNode(n.self)
	}
	if r != cuda.CUDA_SUCCESS {
		g.gpu.CuGraphDestroyNode(*added)
		return r
	}
	g.table.Rebind(n.p.Node, uint64(*added))
	return r
}

// copyGraph makes the graph that stands for a copy. On a failure nothing is left of its host end.
func (g *graphs) copyGraph(m *cuda.CUDA_MEMCPY_NODE_PARAMS, end *hostEnd) (cuda.CUgraph, cuda.CUresult) {
	graph := alloc[cuda.CUgraph](&g.arena)
	first, second := alloc[cuda.CUgraphNode](&g.arena), alloc[cuda.CUgraphNode](&g.arena)
	function := alloc[cuda.CUDA_HOST_NODE_PARAMS](&g.arena)
	*function = end.call
	r := g.gpu.CuGraphCreate(graph, 0)
	if r != cuda.CUDA_SUCCESS {
		g.freeEnd(end)
		return 0, r
	}
	if end.up() {
		r = g.gpu.CuGraphAddHostNode(first, *graph, nil, 0, function)
	} else {
		r = g.gpu.CuGraphAddMemcpyNode(first, *graph, nil, 0, &m.CopyParams, m.CopyCtx)
	}
	switch {
	case r != cuda.CUDA_SUCCESS:
	case end.up():
		r = g.gpu.CuGraphAddMemcpyNode(second, *graph, first, 1, &m.CopyParams, m.CopyCtx)
	default:
		r = g.gpu.CuGraphAddHostNode(second, *graph, first, 1, function)
	}
	if r != cuda.CUDA_SUCCESS {
		g.gpu.CuGraphDestroy(*graph)
		g.freeEnd(end)
		return 0, r
	}
	g.attachEnd(end, *graph)
	return *graph, r
}

// uploadEnd is the host end that fetches the bytes of an upload.
func (g *graphs) uploadEnd(ctx *context, id uint32, mem []byte) *hostEnd {
	h := g.newHostEnd(transport.ForgetSource, uint64(id), func() { g.fetchSource(id, mem, false) })
	h.ctx, h.mem = ctx, mem
	return h
}

// downloadEnd is the host end that sends the bytes of a download.
func (g *graphs) downloadEnd(ctx *context, id uint32, mem []byte, b rows) *hostEnd {
	h := g.newHostEnd(transport.ForgetTransfer, uint64(id), func() { g.sendRowsOf(id, mem, b) })
	h.ctx, h.mem = ctx, mem
	return h
}

// inside is the graph that stands for a copy.
type inside struct {
	graph        cuda.CUgraph
	moves, calls cuda.CUgraphNode
	end          *hostEnd
}

// insideCopy finds it; CUDA_ERROR_INVALID_VALUE where node is something else.
func (g *graphs) insideCopy(node cuda.CUgraphNode) (c inside, r cuda.CUresult) {
	graph, count, kind := alloc[cuda.CUgraph](&g.arena), alloc[uint64](&g.arena), alloc[cuda.CUgraphNodeType](&g.arena)
	if r = g.gpu.CuGraphNodeGetType(node, kind); r != cuda.CUDA_SUCCESS {
		return c, r
	}
	if *kind != cuda.CU_GRAPH_NODE_TYPE_GRAPH {
		return c, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r = g.gpu.CuGraphChildGraphNodeGetGraph(node, graph); r == cuda.CUDA_SUCCESS {
		r = g.gpu.CuGraphGetNodes(*graph, nil, count)
	}
	if r != cuda.CUDA_SUCCESS {
		return c, r
	}
	nodes := allocN[cuda.CUgraphNode](&g.arena, 2)
	if *count != 2 {
		return c, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r = g.gpu.CuGraphGetNodes(*graph, &nodes[0], count); r != cuda.CUDA_SUCCESS {
		return c, r
	}
	c.graph = *graph
	for _, inner := range nodes {
		if r = g.gpu.CuGraphNodeGetType(inner, kind); r != cuda.CUDA_SUCCESS {
			return c, r
		}
		switch *kind {
		case cuda.CU_GRAPH_NODE_TYPE_MEMCPY:
			c.moves = inner
		case cuda.CU_GRAPH_NODE_TYPE_HOST:
			c.calls = inner
			function := alloc[cuda.CUDA_HOST_NODE_PARAMS](&g.arena)
			if r = g.gpu.CuGraphHostNodeGetParams(inner, function); r != cuda.CUDA_SUCCESS {
				return c, r
			}
			c.end = g.hostEnds[function.UserData]
		}
	}
	if c.moves == 0 || c.end == nil || c.end.kind == transport.ForgetFunction {
		r = cuda.CUDA_ERROR_INVALID_VALUE
	}
	return c, r
}

// changeCopy changes the two nodes of the graph that stands for a copy.
func (g *graphs) changeCopy(n *node, b *cuda.CUDA_MEMCPY3D, end *hostEnd) cuda.CUresult {
	c, r := g.insideCopy(n.self)
	if r == cuda.CUDA_SUCCESS {
		r = g.gpu.CuGraphMemcpyNodeSetParams(c.moves, b)
	}
	if r != cuda.CUDA_SUCCESS {
		g.freeEnd(end)
		return r
	}
	g.attachEnd(end, c.graph)
	function := alloc[cuda.CUDA_HOST_NODE_PARAMS](&g.arena)
	*function = end.call
	r = g.gpu.CuGraphHostNodeSetParams(c.calls, function)
	g.releaseEnd(c.end, c.graph)
	return r
}

// getCopy3D reads a copy node; where the client's memory is, its number stands for the address.
func (g *graphs) getCopy3D(self cuda.CUgraphNode, b *cuda.CUDA_MEMCPY3D) cuda.CUresult {
	c, r := g.insideCopy(self)
	copies := r == cuda.CUDA_SUCCESS
	if !copies {
		c.moves = self
	}
	if r = g.gpu.CuGraphMemcpyNodeGetParams(c.moves, b); r != cuda.CUDA_SUCCESS {
		return r
	}
	b.SrcHost, b.DstHost = 0, 0
	switch {
	case copies && c.end.up():
		b.SrcMemoryType, b.SrcHost, b.SrcDevice = cuda.CU_MEMORYTYPE_HOST, uintptr(c.end.number), 0
	case copies:
		b.DstMemoryType, b.DstHost, b.DstDevice = cuda.CU_MEMORYTYPE_HOST, uintptr(c.end.number), 0
	}
	b.SrcArray = cuda.CUarray(g.clientHandle(cuda.KindArray, uint64(b.SrcArray)))
	b.DstArray = cuda.CUarray(g.clientHandle(cuda.KindArray, uint64(b.DstArray)))
	return cuda.CUDA_SUCCESS
}

// captureAsOneNode captures a copy with the client's memory as one node, as natively. It says whether it could: what
// goes before in the capture may be known in another form only (edges with data).
func (g *graphs) captureAsOneNode(st *stream, b *cuda.CUDA_MEMCPY3D, end *hostEnd) (cuda.CUresult, bool) {
	status := alloc[cuda.CUstreamCaptureStatus](&g.arena)
	graph, count := alloc[cuda.CUgraph](&g.arena), alloc[uint64](&g.arena)
	deps := alloc[*cuda.CUgraphNode](&g.arena) // points to the driver's own list
	r := g.gpu.CuStreamGetCaptureInfo_v2(st.real, status, nil, graph, pointerOf(deps), count)
	if r != cuda.CUDA_SUCCESS || *status != cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		return r, false
	}
	child, r := g.copyGraph(&cuda.CUDA_MEMCPY_NODE_PARAMS{CopyCtx: st.ctx.real, CopyParams: *b}, end)
	if r != cuda.CUDA_SUCCESS {
		return r, true
	}
	node := alloc[cuda.CUgraphNode](&g.arena)
	r = g.gpu.CuGraphAddChildGraphNode(node, *graph, *deps, *count, child)
	g.gpu.CuGraphDestroy(child) // the node has a copy of it
	if r == cuda.CUDA_SUCCESS {
		r = g.gpu.CuStreamUpdateCaptureDependencies(st.real, node, 1, uint32(cuda.CU_STREAM_SET_CAPTURE_DEPENDENCIES))
	}
	return r, true
}

// captureHostCopy captures a copy as one node where that can be, else as two. The description is nil of a copy that is
// too long for one.
func (g *graphs) captureHostCopy(
	st *stream, end *hostEnd, b *cuda.CUDA_MEMCPY3D, enqueue func() cuda.CUresult,
) cuda.CUresult {
	if b != nil {
		if r, done := g.captureAsOneNode(st, b, end); done {
			return r
		}
	}
	if r := g.attachToCapture(st, end); r != cuda.CUDA_SUCCESS {
		return r
	}
	if !end.up() {
		if r := enqueue(); r != cuda.CUDA_SUCCESS {
			return r
		}
		return g.gpu.LaunchNode(st.real, end.call)
	}
	if r := g.gpu.LaunchNode(st.real, end.call); r != cuda.CUDA_SUCCESS {
		return r
	}
	return enqueue()
}

// attachToCapture lets the graph that a stream captures hold a host end, where it cannot be one node. The capture may
// be over already.
func (g *graphs) attachToCapture(st *stream, end *hostEnd) cuda.CUresult {
	status, graph := alloc[cuda.CUstreamCaptureStatus](&g.arena), alloc[cuda.CUgraph](&g.arena)
	r := g.gpu.CuStreamGetCaptureInfo_v3(st.real, status, nil, graph, nil, nil, nil)
	if r == cuda.CUDA_ERROR_NOT_SUPPORTED {
		r = g.gpu.CuStreamGetCaptureInfo_v2(st.real, status, nil, graph, nil, nil)
	}
	if r == cuda.CUDA_SUCCESS && *status != cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		r = cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	}
	if r != cuda.CUDA_SUCCESS {
		g.freeEnd(end)
		return r
	}
	g.attachEnd(end, *graph)
	return r
}

// fetchSource fills the memory of an upload from the client, which needs the source no more if this is its last use.
func (g *graphs) fetchSource(source uint32, mem []byte, last bool) {
	for off := 0; off < len(mem); off += pullMost {
		end := min(off+pullMost, len(mem))
		if err := g.callback.pull(source, uint64(off), mem[off:end], last && end == len(mem)); err != nil {
			g.loop.clientFailed("fetch the source of a copy", err)
			return
		}
	}
}

// rows are where the rows of a 3-D copy lie in linear memory.
type rows struct{ width, height, depth, pitch, slice uint64 }

// sendRowsOf sends what a download has copied to the client: its rows, not what lies between them.
func (g *graphs) sendRowsOf(transfer uint32, mem []byte, b rows) {
	if b.pitch == b.width && (b.depth == 1 || b.slice == b.height) {
		b = rows{uint64(len(mem)), 1, 1, 0, 0}
	}
	for z := range b.depth {
		for y := range b.height {
			start := (z*b.slice + y) * b.pitch
			for off := start; off < start+b.width; off += transport.MaxPush {
				if err := g.callback.push(transfer, off, mem[off:min(off+transport.MaxPush, start+b.width)]); err != nil {
					g.loop.clientFailed("send a copy in a graph", err)
					return
				}
			}
		}
	}
}
