package executor

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/dispatch"
	"scuda.dev/scuda/transport"
)

// Explicit graph nodes. The client sends the parameters of a node of any type as a CUgraphNodeParams; here its
// handles become the driver's and its pointers point to what came with it.

// graphs is the engine of graphs: nodes that the client adds and changes, captures, executable graphs, user objects,
// and what copies with the client's memory take up for as long as a graph has them.
//
// Locks: endedMu guards ended, to which threads of the driver add, and no call of the driver is made while it is
// held. destructors counts goroutines. fetchSource, sendRowsOf and the functions of nodes run on threads of the
// driver's; they use callback and clientFailed only, which have their own locks. Everything else belongs to the
// executor's thread.
type graphs struct {
	*base
	loop     graphsLoop
	callback *callbackConn
	out      *output

	deviceGraphs map[uint64]uint64    // executable graphs that kernels may launch: the driver's handles
	hostEnds     map[uintptr]*hostEnd // user data of a host function in graphs: what it belongs to
	destructors  atomic.Int32         // of user objects, running
	endedMu      sync.Mutex
	ended        []*hostEnd // that no graph has any more
}

// graphsLoop is what it asks of the loop.
type graphsLoop interface {
	general(*command) (cuda.CUresult, error)
	napAfter(quiet time.Duration) error // lets a moment pass; the error says that the session is over
	layoutOf(function uint64) (*layout, cuda.CUresult)
	kernelArguments(f *layout, packed []byte) unsafe.Pointer
	isIdle() bool                        // no context has any work
	notePools()                          // memory pools are in use from now on
	clientFailed(what string, err error) // ends the session; from any thread
}

func newGraphs(s *Session) graphs {
	return graphs{
		base: &s.base, loop: s, callback: s.callback, out: &s.out,
		deviceGraphs: make(map[uint64]uint64), hostEnds: make(map[uintptr]*hostEnd),
	}
}

const (
	nodeAdd     = wire.GraphVerbAdd // wire.GraphNode.Verb
	nodeSet     = wire.GraphVerbSet
	nodeSetExec = wire.GraphVerbSetExec

	nodeGeneral  = wire.GraphNodeGeneral // wire.GraphNode.Flags
	nodeEdges    = wire.GraphNodeEdges
	nodeHostCopy = wire.GraphNodeHostCopy
	nodeReplace  = wire.GraphNodeReplace

	maxDot = 32 << 20
)

// node is a graph node that a command adds or changes, in the driver's terms.
type node struct {
	p      *wire.GraphNode
	params *cuda.CUgraphNodeParams
	tail   []byte
	graph  cuda.CUgraph
	exec   cuda.CUgraphExec
	self   cuda.CUgraphNode
	deps   *cuda.CUgraphNode
	edges  *cuda.CUgraphEdgeData
	count  uint64
	end    *hostEnd // of a host function
}

// member gives the parameters of one type.
func member[T any](p *cuda.CUgraphNodeParams) *T { return (*T)(unsafe.Pointer(&p.U)) }

// putNode adds a node or changes its parameters.
func (g *graphs) putNode(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GraphNode](c)
	if err != nil {
		return 0, err
	}
	n := &node{p: p, params: (*cuda.CUgraphNodeParams)(unsafe.Pointer(&p.Params)), count: uint64(p.Deps)}
	edgeBytes := uint64(0)
	if p.Flags&nodeEdges != 0 {
		edgeBytes = 8 * n.count
	}
	if p.Verb > nodeSetExec || p.Verb != nodeAdd && n.count > 0 ||
		uint64(len(rest)) < 8*n.count+edgeBytes+uint64(p.TailBytes) {
		return 0, protocolError("graph node with %d dependencies and %d bytes in %d bytes", n.count, p.TailBytes, len(rest))
	}
	n.tail = rest[8*n.count+edgeBytes:][:p.TailBytes]
	if r := g.findNode(n, rest, edgeBytes > 0); r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if p.Flags&nodeReplace != 0 && p.Verb == nodeSet {
		if r := g.prepareReplacement(n); r != cuda.CUDA_SUCCESS {
			return r, nil
		}
	}
	if p.Flags&nodeHostCopy != 0 {
		return g.hostCopy(c, n)
	}
	if r, err := g.nodeParams(n); r != cuda.CUDA_SUCCESS || err != nil {
		return r, err
	}
	return g.applyNode(c, n)
}

// findNode translates what the command is about, and the dependencies.
func (g *graphs) findNode(n *node, rest []byte, edges bool) cuda.CUresult {
	if n.p.Verb != nodeAdd {
		self, ok := g.table.Real(cuda.KindGraphNode, n.p.Node)
		n.self = cuda.CUgraphNode(self)
		if ok && n.p.Verb == nodeSetExec {
			var exec uint64
			exec, ok = g.table.Real(cuda.KindGraphExec, n.p.Exec)
			n.exec = cuda.CUgraphExec(exec)
		}
		return found(ok)
	}
	graph, ok := g.table.Real(cuda.KindGraph, n.p.Graph)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	n.graph = cuda.CUgraph(graph)
	if n.count == 0 {
		return cuda.CUDA_SUCCESS
	}
	n.deps = (*cuda.CUgraphNode)(pointerTo(rest))
	for i, h := range codec.Words(pointerTo(rest), n.count) {
		real, ok := g.table.Real(cuda.KindGraphNode, h)
		if !ok {
			return cuda.CUDA_ERROR_INVALID_HANDLE
		}
		codec.Words(pointerTo(rest), n.count)[i] = real
	}
	if edges {
		n.edges = (*cuda.CUgraphEdgeData)(pointerTo(rest[8*n.count:]))
	}
	return cuda.CUDA_SUCCESS
}

func found(ok bool) cuda.CUresult {
	if ok {
		return cuda.CUDA_SUCCESS
	}
	return cuda.CUDA_ERROR_INVALID_HANDLE
}

// nodeParams makes the client's parameters the driver's: what the description says of their words, and behind that
// the memory that they point to.
func (g *graphs) nodeParams(n *node) (cuda.CUresult, error) {
	k := *member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params)
	if n.params.Type == cuda.CU_GRAPH_NODE_TYPE_KERNEL { // found by what is launched, a function or a kernel
		member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params).Func, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params).Kern = 0, 0
	}
	if r, err := dispatch.NodeParams(g.handles, n.params); err != nil {
		return 0, protocolError("a graph node with %v", err)
	} else if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	switch n.params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_GRAPH:
		if n.p.Verb == nodeAdd && member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](n.params).Graph == n.graph {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil // see addChildGraph
		}
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return g.kernelParams(n, cmp.Or(uint64(k.Func), uint64(k.Kern))), nil
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		n.end = g.functionEnd(n.p.Host)
		*member[cuda.CUDA_HOST_NODE_PARAMS](n.params) = n.end.call
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		a := member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](n.params)
		if uint64(len(n.tail)) != a.AccessDescCount*uint64(unsafe.Sizeof(cuda.CUmemAccessDesc{})) {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil
		}
		if len(n.tail) > 0 {
			a.AccessDescs = uintptr(pointerTo(n.tail))
		}
		g.loop.notePools()
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		b := member[cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS_v2](n.params)
		if uint64(len(n.tail)) != uint64(b.Count)*uint64(unsafe.Sizeof(cuda.CUstreamBatchMemOpParams{})) {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil
		}
		if len(n.tail) > 0 {
			b.ParamArray = uintptr(pointerTo(n.tail))
		}
	}
	return cuda.CUDA_SUCCESS, nil
}

// addChildGraph: cuGraphAddChildGraphNode(*node, graph, dependencies[n], n, child). A graph is no child of its own:
// an H200's driver ends by SIGSEGV.
func (g *graphs) addChildGraph(c *command) (cuda.CUresult, error) {
	a := g.args(c)
	a.U64()
	graph := a.U64()
	a.Array(8)
	a.U64()
	if child := a.U64(); a.end() == nil && child == graph {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	return g.loop.general(c)
}

// functionEnd is a function of the client's for graphs; getters of its nodes find it again.
func (g *graphs) functionEnd(registration uint64) *hostEnd {
	return g.newHostEnd(transport.ForgetFunction, registration, func() {
		if err := g.callback.run(registration, false, 0); err != nil {
			g.loop.clientFailed("run a host function", err)
		}
	})
}

func (g *graphs) kernelParams(n *node, h uint64) cuda.CUresult {
	f, r := g.loop.layoutOf(h)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	k := member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params)
	k.KernelParams = uintptr(g.loop.kernelArguments(f, n.tail))
	if g.table.Kind(h) == cuda.KindKernel {
		k.Kern = cuda.CUkernel(f.real)
	} else {
		k.Func = cuda.CUfunction(f.real)
	}
	return cuda.CUDA_SUCCESS
}

// applyNode gives a node to the driver.
func (g *graphs) applyNode(c *command, n *node) (cuda.CUresult, error) {
	if n.p.Verb != nodeAdd {
		before := g.hostEndOf(n)
		g.answerNode(c, n, 0)
		r := g.inThreadMode(func() cuda.CUresult { return g.changeNode(n) })
		g.attachNodeEnd(n, before, r)
		return r, nil
	}
	out := alloc[cuda.CUgraphNode](&g.arena)
	r := g.inThreadMode(func() cuda.CUresult { return g.addNode(n, out) })
	g.attachNodeEnd(n, nil, r)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if n.self != 0 {
		r = g.replaceNode(n, out)
	} else if err := g.table.New(cuda.KindGraphNode, n.p.Node, uint64(*out), n.p.Graph); err != nil {
		return 0, err
	}
	graphs := uint32(0)
	if n.params.Type == cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL {
		graphs = member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](n.params).Size
	}
	g.answerNode(c, n, graphs)
	return r, nil
}

// hostEndOf finds what a host function's node of a graph, whose parameters are about to change, has.
func (g *graphs) hostEndOf(n *node) *hostEnd {
	if n.end == nil || n.p.Verb != nodeSet {
		return nil
	}
	graph, known := g.table.Real(cuda.KindGraph, g.table.Parent(n.p.Node))
	now := alloc[cuda.CUDA_HOST_NODE_PARAMS](&g.arena)
	if !known || g.gpu.CuGraphHostNodeGetParams(n.self, now) != cuda.CUDA_SUCCESS {
		return nil
	}
	n.graph = cuda.CUgraph(graph)
	return g.hostEnds[now.UserData]
}

// attachNodeEnd lets the graph of a node have its host function, in the place of the one before. That of a node of an
// executable graph stays to the session's end: there is nothing that it could belong to.
func (g *graphs) attachNodeEnd(n *node, before *hostEnd, r cuda.CUresult) {
	switch {
	case n.end == nil:
	case r != cuda.CUDA_SUCCESS:
		g.freeEnd(n.end)
	case n.graph != 0:
		g.attachEnd(n.end, n.graph)
		g.releaseEnd(before, n.graph)
	}
}

// answerNode tells the client what the driver chose for a node.
func (g *graphs) answerNode(c *command, n *node, graphs uint32) {
	made := wire.GraphNodeMade{}
	switch n.params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		made.Address = uint64(member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](n.params).Dptr)
	case cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL:
		k := member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](n.params)
		if k.PhGraph_out == 0 || 8*uint64(graphs) > uint64(g.arena.room()) {
			break
		}
		made.Graphs = graphs
		list := codec.Words(pointerTo(answerWith(&g.arena, c, made, int(8*graphs))), uint64(graphs))
		for i, real := range driverWords(k.PhGraph_out, int(graphs)) {
			list[i] = g.table.Client(cuda.KindGraph, real, n.p.Node)
		}
		return
	}
	answerWith(&g.arena, c, made, 0)
}

func (g *graphs) addNode(n *node, out *cuda.CUgraphNode) cuda.CUresult {
	switch {
	case n.edges != nil:
		return g.gpu.CuGraphAddNode_v2(out, n.graph, n.deps, n.edges, n.count, n.params)
	case n.p.Flags&nodeGeneral != 0:
		return g.gpu.CuGraphAddNode(out, n.graph, n.deps, n.count, n.params)
	}
	switch n.params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return g.gpu.CuGraphAddKernelNode_v2(out, n.graph, n.deps, n.count, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params))
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		return g.gpu.CuGraphAddHostNode(out, n.graph, n.deps, n.count, member[cuda.CUDA_HOST_NODE_PARAMS](n.params))
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return g.gpu.CuGraphAddMemAllocNode(out, n.graph, n.deps, n.count, member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](n.params))
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return g.gpu.CuGraphAddBatchMemOpNode(out, n.graph, n.deps, n.count, batchOf(n.params))
	case cuda.CU_GRAPH_NODE_TYPE_GRAPH:
		child := member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](n.params).Graph
		return g.gpu.CuGraphAddChildGraphNode(out, n.graph, n.deps, n.count, child)
	}
	return g.gpu.CuGraphAddNode(out, n.graph, n.deps, n.count, n.params)
}

// batchOf: both versions of these parameters are laid out alike.
func batchOf(p *cuda.CUgraphNodeParams) *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS {
	return member[cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS](p)
}

func (g *graphs) changeNode(n *node) cuda.CUresult {
	inGraph, general := n.p.Verb == nodeSet, n.p.Flags&nodeGeneral != 0
	switch t := n.params.Type; {
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_KERNEL && inGraph:
		return g.gpu.CuGraphKernelNodeSetParams_v2(n.self, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return g.gpu.CuGraphExecKernelNodeSetParams_v2(n.exec, n.self, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_HOST && inGraph:
		return g.gpu.CuGraphHostNodeSetParams(n.self, member[cuda.CUDA_HOST_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_HOST:
		return g.gpu.CuGraphExecHostNodeSetParams(n.exec, n.self, member[cuda.CUDA_HOST_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP && inGraph:
		return g.gpu.CuGraphBatchMemOpNodeSetParams(n.self, batchOf(n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return g.gpu.CuGraphExecBatchMemOpNodeSetParams(n.exec, n.self, batchOf(n.params))
	case inGraph:
		return g.gpu.CuGraphNodeSetParams(n.self, n.params)
	}
	return g.gpu.CuGraphExecNodeSetParams(n.exec, n.self, n.params)
}

// getNode reads the parameters of a node.
func (g *graphs) getNode(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GraphNodeGet](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, protocolError("graph node query with %d bytes too many", len(rest))
	}
	h, ok := g.table.Real(cuda.KindGraphNode, p.Node)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	self, params := cuda.CUgraphNode(h), alloc[cuda.CUgraphNodeParams](&g.arena)
	params.Type = cuda.CUgraphNodeType(p.Type)
	var tail []byte
	r := noAddress
	switch params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		tail, r = g.getKernelParams(self, member[cuda.CUDA_KERNEL_NODE_PARAMS](params))
	case cuda.CU_GRAPH_NODE_TYPE_MEMCPY:
		r = g.getCopy3D(self, &member[cuda.CUDA_MEMCPY_NODE_PARAMS](params).CopyParams)
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		h := member[cuda.CUDA_HOST_NODE_PARAMS](params)
		if r = g.gpu.CuGraphHostNodeGetParams(self, h); r == cuda.CUDA_SUCCESS {
			end := g.hostEnds[h.UserData]
			if end == nil || end.kind != transport.ForgetFunction {
				// It stands for a copy with the client's memory. No handle of the client's leads there.
				return noAddress, nil
			}
			params.U = [29]uint64{end.number}
		}
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		a := member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](params)
		r = g.gpu.CuGraphMemAllocNodeGetParams(self, a)
		size := a.AccessDescCount * uint64(unsafe.Sizeof(cuda.CUmemAccessDesc{}))
		if r == cuda.CUDA_SUCCESS && size <= codec.MaxPayload/4 {
			tail = driverBytes(a.AccessDescs, int(size))
		}
		a.AccessDescs = 0
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		b := batchOf(params)
		r = g.gpu.CuGraphBatchMemOpNodeGetParams(self, b)
		size := uint64(b.Count) * uint64(unsafe.Sizeof(cuda.CUstreamBatchMemOpParams{}))
		if r == cuda.CUDA_SUCCESS && size <= codec.MaxPayload/4 {
			tail = driverBytes(b.ParamArray, int(size))
		}
		b.ParamArray, b.Ctx = 0, cuda.CUcontext(g.clientHandle(cuda.KindContext, uint64(b.Ctx)))
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	answer := wire.GraphNodeParams{Params: *(*[32]uint64)(unsafe.Pointer(params)), TailBytes: uint32(len(tail))}
	copy(answerWith(&g.arena, c, answer, len(tail)), tail)
	return r, nil
}

// driverBytes looks at n bytes at an address of the driver's.
func driverBytes(address uintptr, n int) []byte {
	if address == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), n)
}

// getKernelParams reads a kernel node and packs its arguments.
func (g *graphs) getKernelParams(self cuda.CUgraphNode, k *cuda.CUDA_KERNEL_NODE_PARAMS) ([]byte, cuda.CUresult) {
	if r := g.gpu.CuGraphKernelNodeGetParams_v2(self, k); r != cuda.CUDA_SUCCESS {
		return nil, r
	}
	h := g.clientFunction(k.Func, k.Kern)
	if h == 0 {
		return nil, g.refuse(cuda.PartKernelNode)
	}
	f, r := g.loop.layoutOf(h)
	if r != cuda.CUDA_SUCCESS {
		return nil, r
	}
	if k.KernelParams == 0 && len(f.offsets) > 0 {
		return nil, g.refuse(cuda.PartKernelNode)
	}
	packed := g.arena.bytes(int(f.bytes))
	if len(f.offsets) > 0 {
		for i, p := range driverWords(k.KernelParams, len(f.offsets)) {
			copy(packed[f.offsets[i]:][:f.sizes[i]], driverBytes(uintptr(p), int(f.sizes[i])))
		}
	}
	k.Func, k.Kern, k.KernelParams, k.Extra = cuda.CUfunction(h), 0, 0, 0
	if g.table.Kind(h) == cuda.KindKernel {
		k.Func, k.Kern = 0, cuda.CUkernel(h)
	}
	k.Ctx = cuda.CUcontext(g.clientHandle(cuda.KindContext, uint64(k.Ctx)))
	return packed, cuda.CUDA_SUCCESS
}

// clientFunction finds the client's handle of a function or kernel, or of the kernel that the function is a form of;
// 0 where it has none.
func (g *graphs) clientFunction(f cuda.CUfunction, k cuda.CUkernel) uint64 {
	if h := g.clientHandle(cuda.KindFunction, uint64(f)); h != 0 {
		return h
	}
	for _, real := range []uint64{uint64(k), uint64(f)} {
		if h := g.clientHandle(cuda.KindKernel, real); h != 0 {
			return h
		}
	}
	var h uint64
	form := alloc[cuda.CUfunction](&g.arena)
	g.table.Each(cuda.KindKernel, func(client, real uint64) {
		if h == 0 && g.gpu.CuKernelGetFunction(form, cuda.CUkernel(real)) == cuda.CUDA_SUCCESS && *form == f {
			h = client
		}
	})
	return h
}

// printDot has the driver describe a graph in a file, which the client gets.
func (g *graphs) printDot(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GraphDot](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, protocolError("graph description with %d bytes too many", len(rest))
	}
	graph, ok := g.table.Real(cuda.KindGraph, p.Graph)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	// A file in memory: a worker has no folder to write to.
	fd, err := unix.MemfdCreate("scuda-dot", unix.MFD_CLOEXEC)
	if err != nil {
		g.log.Error("cannot describe a graph", "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM, nil
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	defer f.Close()
	path := g.arena.bytes(len(f.Name()) + 1)
	copy(path, f.Name())
	if r := g.gpu.CuGraphDebugDotPrint(cuda.CUgraph(graph), pointerTo(path), p.Flags); r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	text, err := os.ReadFile(f.Name())
	if err != nil || len(text) > maxDot {
		g.log.Error("cannot read the description of a graph", "bytes", len(text), "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM, nil
	}
	c.reply = text
	return cuda.CUDA_SUCCESS, nil
}
