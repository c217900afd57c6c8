package executor

import (
	"cmp"
	"os"
	"unsafe"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/dispatch"
	"scuda.dev/scuda/transport"
)

// Explicit graph nodes. The client sends the parameters of a node of any type as a CUgraphNodeParams; here its handles become the driver's
// and its pointers point to what came with it.

const (
	nodeAdd     = 0 // wire.GraphNode.Verb
	nodeSet     = 1
	nodeSetExec = 2

	nodeGeneral  = 1 // wire.GraphNode.Flags
	nodeEdges    = 2
	nodeHostCopy = 4
	nodeReplace  = 8

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

// graphNode adds a node or changes its parameters.
func (s *Session) graphNode(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GraphNode](c)
	if err != nil {
		return 0, err
	}
	n := &node{p: p, params: (*cuda.CUgraphNodeParams)(unsafe.Pointer(&p.Params)), count: uint64(p.Deps)}
	edgeBytes := uint64(0)
	if p.Flags&nodeEdges != 0 {
		edgeBytes = 8 * n.count
	}
	if p.Verb > nodeSetExec || p.Verb != nodeAdd && n.count > 0 || uint64(len(rest)) < 8*n.count+edgeBytes+uint64(p.TailBytes) {
		return 0, protocolError("graph node with %d dependencies and %d bytes in %d bytes", n.count, p.TailBytes, len(rest))
	}
	n.tail = rest[8*n.count+edgeBytes:][:p.TailBytes]
	if r := s.findNode(n, rest, edgeBytes > 0); r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if p.Flags&nodeReplace != 0 && p.Verb == nodeSet {
		if r := s.replaces(n); r != cuda.CUDA_SUCCESS {
			return r, nil
		}
	}
	if p.Flags&nodeHostCopy != 0 {
		return s.hostCopy(c, n)
	}
	if r, err := s.nodeParams(n); r != cuda.CUDA_SUCCESS || err != nil {
		return r, err
	}
	return s.applyNode(c, n)
}

// findNode translates what the command is about, and the dependencies.
func (s *Session) findNode(n *node, rest []byte, edges bool) cuda.CUresult {
	if n.p.Verb != nodeAdd {
		self, ok := s.table.Real(cuda.KindGraphNode, n.p.Node)
		n.self = cuda.CUgraphNode(self)
		if ok && n.p.Verb == nodeSetExec {
			var exec uint64
			exec, ok = s.table.Real(cuda.KindGraphExec, n.p.Exec)
			n.exec = cuda.CUgraphExec(exec)
		}
		return found(ok)
	}
	graph, ok := s.table.Real(cuda.KindGraph, n.p.Graph)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	n.graph = cuda.CUgraph(graph)
	if n.count == 0 {
		return cuda.CUDA_SUCCESS
	}
	n.deps = (*cuda.CUgraphNode)(pointerTo(rest))
	for i, h := range codec.Words(pointerTo(rest), n.count) {
		real, ok := s.table.Real(cuda.KindGraphNode, h)
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

// nodeParams makes the client's parameters the driver's: what the description says of their words, and behind that the memory that they point to.
func (s *Session) nodeParams(n *node) (cuda.CUresult, error) {
	k := *member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params)
	if n.params.Type == cuda.CU_GRAPH_NODE_TYPE_KERNEL { // found by what is launched, a function or a kernel
		member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params).Func, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params).Kern = 0, 0
	}
	if r, err := dispatch.NodeParams(s.handles, n.params); err != nil {
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
		return s.kernelParams(n, cmp.Or(uint64(k.Func), uint64(k.Kern))), nil
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		n.end = s.runs(n.p.Host)
		*member[cuda.CUDA_HOST_NODE_PARAMS](n.params) = n.end.call
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		a := member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](n.params)
		if uint64(len(n.tail)) != a.AccessDescCount*uint64(unsafe.Sizeof(cuda.CUmemAccessDesc{})) {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil
		}
		if len(n.tail) > 0 {
			a.AccessDescs = uintptr(pointerTo(n.tail))
		}
		s.printf.usesPools = true
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

// addChildGraph: cuGraphAddChildGraphNode(*node, graph, dependencies[n], n, child). A graph is no child of its own: an H200's driver ends by SIGSEGV.
func (s *Session) addChildGraph(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	a.U64()
	graph := a.U64()
	a.Array(8)
	a.U64()
	if child := a.U64(); a.end() == nil && child == graph {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	return s.general(c)
}

// runs is a function of the client's for graphs; getters of its nodes find it again.
func (s *Session) runs(registration uint64) *hostEnd {
	return s.newHostEnd(transport.ForgetFunction, registration, func() {
		if err := s.side.run(registration, false, 0); err != nil {
			s.sideFailed("run a host function", err)
		}
	})
}

func (s *Session) kernelParams(n *node, h uint64) cuda.CUresult {
	f, r := s.modules.layoutOf(h)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	k := member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params)
	k.KernelParams = uintptr(s.kernelArguments(f, n.tail))
	if s.table.Kind(h) == cuda.KindKernel {
		k.Kern = cuda.CUkernel(f.real)
	} else {
		k.Func = cuda.CUfunction(f.real)
	}
	return cuda.CUDA_SUCCESS
}

// applyNode gives a node to the driver.
func (s *Session) applyNode(c *command, n *node) (cuda.CUresult, error) {
	if n.p.Verb != nodeAdd {
		before := s.hostEndOf(n)
		s.answerNode(c, n, 0)
		r := s.inThreadMode(func() cuda.CUresult { return s.changeNode(n) })
		s.settleEnd(n, before, r)
		return r, nil
	}
	out := alloc[cuda.CUgraphNode](&s.arena)
	r := s.inThreadMode(func() cuda.CUresult { return s.addNode(n, out) })
	s.settleEnd(n, nil, r)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if n.self != 0 {
		r = s.takePlace(n, out)
	} else if err := s.table.New(cuda.KindGraphNode, n.p.Node, uint64(*out), n.p.Graph); err != nil {
		return 0, err
	}
	graphs := uint32(0)
	if n.params.Type == cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL {
		graphs = member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](n.params).Size
	}
	s.answerNode(c, n, graphs)
	return r, nil
}

// hostEndOf finds what a host function's node of a graph, whose parameters are about to change, has.
func (s *Session) hostEndOf(n *node) *hostEnd {
	if n.end == nil || n.p.Verb != nodeSet {
		return nil
	}
	graph, known := s.table.Real(cuda.KindGraph, s.table.Parent(n.p.Node))
	now := alloc[cuda.CUDA_HOST_NODE_PARAMS](&s.arena)
	if !known || s.gpu.CuGraphHostNodeGetParams(n.self, now) != cuda.CUDA_SUCCESS {
		return nil
	}
	n.graph = cuda.CUgraph(graph)
	return s.hostEnds[now.UserData]
}

// settleEnd lets the graph of a node have its host function, in the place of the one before. That of a node of an executable graph stays to the
// session's end: there is nothing that it could belong to.
func (s *Session) settleEnd(n *node, before *hostEnd, r cuda.CUresult) {
	switch {
	case n.end == nil:
	case r != cuda.CUDA_SUCCESS:
		s.discard(n.end)
	case n.graph != 0:
		s.belongs(n.end, n.graph)
		s.replaced(before, n.graph)
	}
}

// answerNode tells the client what the driver chose for a node.
func (s *Session) answerNode(c *command, n *node, graphs uint32) {
	made := wire.GraphNodeMade{}
	switch n.params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		made.Address = uint64(member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](n.params).Dptr)
	case cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL:
		k := member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](n.params)
		if k.PhGraph_out == 0 || 8*uint64(graphs) > uint64(s.arena.room()) {
			break
		}
		made.Graphs = graphs
		list := codec.Words(pointerTo(answerWith(&s.arena, c, made, int(8*graphs))), uint64(graphs))
		for i, real := range driverWords(k.PhGraph_out, int(graphs)) {
			list[i] = s.table.Client(cuda.KindGraph, real, n.p.Node)
		}
		return
	}
	answerWith(&s.arena, c, made, 0)
}

func (s *Session) addNode(n *node, out *cuda.CUgraphNode) cuda.CUresult {
	switch {
	case n.edges != nil:
		return s.gpu.CuGraphAddNode_v2(out, n.graph, n.deps, n.edges, n.count, n.params)
	case n.p.Flags&nodeGeneral != 0:
		return s.gpu.CuGraphAddNode(out, n.graph, n.deps, n.count, n.params)
	}
	switch n.params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return s.gpu.CuGraphAddKernelNode_v2(out, n.graph, n.deps, n.count, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params))
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		return s.gpu.CuGraphAddHostNode(out, n.graph, n.deps, n.count, member[cuda.CUDA_HOST_NODE_PARAMS](n.params))
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return s.gpu.CuGraphAddMemAllocNode(out, n.graph, n.deps, n.count, member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](n.params))
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return s.gpu.CuGraphAddBatchMemOpNode(out, n.graph, n.deps, n.count, batchOf(n.params))
	case cuda.CU_GRAPH_NODE_TYPE_GRAPH:
		return s.gpu.CuGraphAddChildGraphNode(out, n.graph, n.deps, n.count, member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](n.params).Graph)
	}
	return s.gpu.CuGraphAddNode(out, n.graph, n.deps, n.count, n.params)
}

// batchOf: both versions of these parameters are laid out alike.
func batchOf(p *cuda.CUgraphNodeParams) *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS {
	return member[cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS](p)
}

func (s *Session) changeNode(n *node) cuda.CUresult {
	inGraph, general := n.p.Verb == nodeSet, n.p.Flags&nodeGeneral != 0
	switch t := n.params.Type; {
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_KERNEL && inGraph:
		return s.gpu.CuGraphKernelNodeSetParams_v2(n.self, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return s.gpu.CuGraphExecKernelNodeSetParams_v2(n.exec, n.self, member[cuda.CUDA_KERNEL_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_HOST && inGraph:
		return s.gpu.CuGraphHostNodeSetParams(n.self, member[cuda.CUDA_HOST_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_HOST:
		return s.gpu.CuGraphExecHostNodeSetParams(n.exec, n.self, member[cuda.CUDA_HOST_NODE_PARAMS](n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP && inGraph:
		return s.gpu.CuGraphBatchMemOpNodeSetParams(n.self, batchOf(n.params))
	case !general && t == cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return s.gpu.CuGraphExecBatchMemOpNodeSetParams(n.exec, n.self, batchOf(n.params))
	case inGraph:
		return s.gpu.CuGraphNodeSetParams(n.self, n.params)
	}
	return s.gpu.CuGraphExecNodeSetParams(n.exec, n.self, n.params)
}

// graphNodeGet reads the parameters of a node.
func (s *Session) graphNodeGet(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GraphNodeGet](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, protocolError("graph node query with %d bytes too many", len(rest))
	}
	h, ok := s.table.Real(cuda.KindGraphNode, p.Node)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	self, params := cuda.CUgraphNode(h), alloc[cuda.CUgraphNodeParams](&s.arena)
	params.Type = cuda.CUgraphNodeType(p.Type)
	var tail []byte
	r := noAddress
	switch params.Type {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		tail, r = s.getKernelParams(self, member[cuda.CUDA_KERNEL_NODE_PARAMS](params))
	case cuda.CU_GRAPH_NODE_TYPE_MEMCPY:
		r = s.getBox(self, &member[cuda.CUDA_MEMCPY_NODE_PARAMS](params).CopyParams)
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		h := member[cuda.CUDA_HOST_NODE_PARAMS](params)
		if r = s.gpu.CuGraphHostNodeGetParams(self, h); r == cuda.CUDA_SUCCESS {
			end := s.hostEnds[h.UserData]
			if end == nil || end.kind != transport.ForgetFunction { // what stands for a copy with the client's memory, where no client's handle leads to
				return noAddress, nil
			}
			params.U = [29]uint64{end.number}
		}
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		a := member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](params)
		r = s.gpu.CuGraphMemAllocNodeGetParams(self, a)
		if size := a.AccessDescCount * uint64(unsafe.Sizeof(cuda.CUmemAccessDesc{})); r == cuda.CUDA_SUCCESS && size <= codec.MaxPayload/4 {
			tail = driverBytes(a.AccessDescs, int(size))
		}
		a.AccessDescs = 0
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		b := batchOf(params)
		r = s.gpu.CuGraphBatchMemOpNodeGetParams(self, b)
		if size := uint64(b.Count) * uint64(unsafe.Sizeof(cuda.CUstreamBatchMemOpParams{})); r == cuda.CUDA_SUCCESS && size <= codec.MaxPayload/4 {
			tail = driverBytes(b.ParamArray, int(size))
		}
		b.ParamArray, b.Ctx = 0, cuda.CUcontext(s.clientHandle(cuda.KindContext, uint64(b.Ctx)))
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	answer := wire.GraphNodeParams{Params: *(*[32]uint64)(unsafe.Pointer(params)), TailBytes: uint32(len(tail))}
	copy(answerWith(&s.arena, c, answer, len(tail)), tail)
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
func (s *Session) getKernelParams(self cuda.CUgraphNode, k *cuda.CUDA_KERNEL_NODE_PARAMS) ([]byte, cuda.CUresult) {
	if r := s.gpu.CuGraphKernelNodeGetParams_v2(self, k); r != cuda.CUDA_SUCCESS {
		return nil, r
	}
	h := s.clientFunction(k.Func, k.Kern)
	if h == 0 {
		return nil, s.refuse(cuda.PartKernelNode)
	}
	f, r := s.modules.layoutOf(h)
	if r != cuda.CUDA_SUCCESS {
		return nil, r
	}
	if k.KernelParams == 0 && len(f.offsets) > 0 {
		return nil, s.refuse(cuda.PartKernelNode)
	}
	packed := s.arena.bytes(int(f.bytes))
	if len(f.offsets) > 0 {
		for i, p := range driverWords(k.KernelParams, len(f.offsets)) {
			copy(packed[f.offsets[i]:][:f.sizes[i]], driverBytes(uintptr(p), int(f.sizes[i])))
		}
	}
	k.Func, k.Kern, k.KernelParams, k.Extra = cuda.CUfunction(h), 0, 0, 0
	if s.table.Kind(h) == cuda.KindKernel {
		k.Func, k.Kern = 0, cuda.CUkernel(h)
	}
	k.Ctx = cuda.CUcontext(s.clientHandle(cuda.KindContext, uint64(k.Ctx)))
	return packed, cuda.CUDA_SUCCESS
}

func (b *base) clientHandle(kind cuda.Kind, real uint64) uint64 {
	h, _ := b.table.Find(kind, real)
	return h
}

// clientFunction finds the client's handle of a function or kernel, or of the kernel that the function is a form of; 0 where it has none.
func (s *Session) clientFunction(f cuda.CUfunction, k cuda.CUkernel) uint64 {
	if h := s.clientHandle(cuda.KindFunction, uint64(f)); h != 0 {
		return h
	}
	for _, real := range []uint64{uint64(k), uint64(f)} {
		if h := s.clientHandle(cuda.KindKernel, real); h != 0 {
			return h
		}
	}
	var h uint64
	form := alloc[cuda.CUfunction](&s.arena)
	s.table.Each(cuda.KindKernel, func(client, real uint64) {
		if h == 0 && s.gpu.CuKernelGetFunction(form, cuda.CUkernel(real)) == cuda.CUDA_SUCCESS && *form == f {
			h = client
		}
	})
	return h
}

// graphDot has the driver describe a graph in a file, which the client gets.
func (s *Session) graphDot(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GraphDot](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, protocolError("graph description with %d bytes too many", len(rest))
	}
	graph, ok := s.table.Real(cuda.KindGraph, p.Graph)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	f, err := os.CreateTemp("", "scuda-*.dot")
	if err != nil {
		s.log.Error("cannot describe a graph; set TMPDIR to a folder that can be written", "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM, nil
	}
	defer os.Remove(f.Name())
	f.Close()
	path := s.arena.bytes(len(f.Name()) + 1)
	copy(path, f.Name())
	if r := s.gpu.CuGraphDebugDotPrint(cuda.CUgraph(graph), pointerTo(path), p.Flags); r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	text, err := os.ReadFile(f.Name())
	if err != nil || len(text) > maxDot {
		s.log.Error("cannot read the description of a graph", "bytes", len(text), "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM, nil
	}
	c.reply = text
	return cuda.CUDA_SUCCESS, nil
}
