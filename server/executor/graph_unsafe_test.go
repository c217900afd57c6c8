package executor

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

func (c *client) graph() uint64 {
	h := c.newHandle()
	c.must(cuda.OpCuGraphCreate, words(h, 0))
	return h
}

// node encodes a command about a node whose parameters are p.
func nodeOf[T any](g wire.GraphNode, kind cuda.CUgraphNodeType, p T, rest ...[]byte) []byte {
	np := cuda.CUgraphNodeParams{Type: kind}
	*(*T)(unsafe.Pointer(&np.U)) = p
	g.Params = *(*[32]uint64)(unsafe.Pointer(&np))
	b := wire.Bytes(&g)
	for _, r := range rest {
		b = append(b, r...)
	}
	return b
}

func (c *client) addNode(graph uint64, kind cuda.CUgraphNodeType, deps ...uint64) uint64 {
	c.t.Helper()
	h := c.newHandle()
	c.must(wire.OpGraphNode, nodeOf(wire.GraphNode{Graph: graph, Node: h, Flags: nodeGeneral, Deps: uint32(len(deps))},
		kind, uint64(0), words(deps...)))
	return h
}

func TestKernelNode(t *testing.T) {
	c := connect(t)
	f, offsets := c.function(c.loadModule(kernels(t)), "vector_add", ofModule)
	const n = 500
	a, sum := c.alloc(4*n), c.alloc(4*n)
	var data []byte
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i)))
	}
	c.upload(a, data, 0, 0)
	params := make([]byte, (offsets[3]+4+7)&^7)
	for i, v := range []uint64{a, a, sum} {
		binary.LittleEndian.PutUint64(params[offsets[i]:], v)
	}
	binary.LittleEndian.PutUint32(params[offsets[3]:], n)
	graph, h := c.graph(), c.newHandle()
	k := cuda.CUDA_KERNEL_NODE_PARAMS{
		Func: cuda.CUfunction(f), GridDimX: 2, GridDimY: 1, GridDimZ: 1, BlockDimX: 256, BlockDimY: 1, BlockDimZ: 1,
	}
	add := wire.GraphNode{Graph: graph, Node: h, TailBytes: offsets[3] + 4}
	c.must(wire.OpGraphNode, nodeOf(add, cuda.CU_GRAPH_NODE_TYPE_KERNEL, k, params))

	add.Node = c.newHandle()
	k.Func = 0x1234
	c.expect(cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpGraphNode, nodeOf(add, cuda.CU_GRAPH_NODE_TYPE_KERNEL, k, params))

	got, tail, _ := wire.View[wire.GraphNodeParams](c.must(wire.OpGraphNodeGet, wire.Bytes(&wire.GraphNodeGet{Node: h})))
	back := (*cuda.CUDA_KERNEL_NODE_PARAMS)(unsafe.Pointer(&got.Params[2]))
	if uint64(back.Func) != f || back.GridDimX != 2 || back.KernelParams != 0 {
		t.Errorf("parameters %+v", back)
	}
	same(t, tail[:offsets[3]+4], params[:offsets[3]+4])

	exec := c.newHandle()
	c.must(cuda.OpCuGraphInstantiateWithFlags, words(exec, graph, 0))
	c.must(cuda.OpCuGraphLaunch, words(exec, 0))
	out := c.download(sum, 4*n, 0)
	for i := range n {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])); v != float32(2*i) {
			t.Fatalf("element %d is %g", i, v)
		}
	}
	text := string(c.must(wire.OpGraphDot, wire.Bytes(&wire.GraphDot{Graph: graph})))
	if !strings.HasPrefix(text, "digraph") || !strings.Contains(text, "KERNEL") {
		t.Errorf("description %q", text)
	}
}

// What the driver must not be given, or does not have, is refused.
func TestRefusedNodes(t *testing.T) {
	c := connect(t)
	graph := c.graph()
	empty := c.addNode(graph, cuda.CU_GRAPH_NODE_TYPE_EMPTY)
	c.addNode(graph, cuda.CU_GRAPH_NODE_TYPE_EMPTY, empty)
	host := cuda.CUDA_MEMCPY_NODE_PARAMS{CopyParams: cuda.CUDA_MEMCPY3D{
		SrcMemoryType: cuda.CU_MEMORYTYPE_HOST, SrcHost: 0x1000, DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE,
		DstDevice:    cuda.CUdeviceptr(c.alloc(64)),
		WidthInBytes: 64, Height: 1, Depth: 1,
	}}
	huge := host
	huge.CopyParams.WidthInBytes = math.MaxUint64
	for name, x := range map[string]struct {
		want cuda.CUresult
		op   uint16
		b    []byte
	}{
		"a 3-D copy without end": {cuda.CUDA_ERROR_INVALID_VALUE, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Graph: graph, Node: c.newHandle(), Flags: nodeHostCopy}, cuda.CU_GRAPH_NODE_TYPE_MEMCPY,
				huge)},
		"external semaphores": {cuda.CUDA_ERROR_NOT_SUPPORTED, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Graph: graph, Node: c.newHandle(), Flags: nodeGeneral}, cuda.CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT,
				uint64(0))},
		"event of nobody": {cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Graph: graph, Node: c.newHandle(), Flags: nodeGeneral}, cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
				uint64(77))},
		"graph of nobody": {cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Graph: 77, Node: c.newHandle(), Flags: nodeGeneral}, cuda.CU_GRAPH_NODE_TYPE_EMPTY,
				uint64(0))},
		"dependency of nobody": {cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Graph: graph, Node: c.newHandle(), Flags: nodeGeneral, Deps: 1}, cuda.CU_GRAPH_NODE_TYPE_EMPTY,
				uint64(0), words(77))},
		"node of nobody": {cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Node: 77, Verb: nodeSet}, cuda.CU_GRAPH_NODE_TYPE_KERNEL, uint64(0))},
		"access list of another length": {cuda.CUDA_ERROR_INVALID_VALUE, wire.OpGraphNode,
			nodeOf(wire.GraphNode{Graph: graph, Node: c.newHandle()}, cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC,
				cuda.CUDA_MEM_ALLOC_NODE_PARAMS{AccessDescCount: 1 << 60})},
		"kernel parameters of an empty node": {cuda.CUDA_ERROR_INVALID_VALUE, wire.OpGraphNodeGet,
			wire.Bytes(&wire.GraphNodeGet{Node: empty})},
		"parameters of a type without any": {cuda.CUDA_ERROR_NOT_SUPPORTED, wire.OpGraphNodeGet,
			wire.Bytes(&wire.GraphNodeGet{Node: empty, Type: 5})},
		"description of nobody": {cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpGraphDot, wire.Bytes(&wire.GraphDot{Graph: 77})},
	} {
		t.Run(name, func(t *testing.T) {
			if r, _ := c.call(x.op, x.b); r != x.want {
				t.Errorf("%v, want %v", r, x.want)
			}
		})
	}
}

func TestExtent(t *testing.T) {
	for _, x := range []struct {
		width, height, depth, pitch, slice uint64
		want                               uint64
		ok                                 bool
	}{
		{10, 1, 1, 0, 0, 10, true},
		{10, 3, 1, 16, 0, 42, true},
		{10, 3, 2, 16, 4, 4*16 + 2*16 + 10, true},
		{10, 1, 2, 16, 1, 26, true},
		{0, 1, 1, 0, 0, 0, false},
		{10, 2, 1, 9, 0, 0, false},
		{10, 3, 2, 16, 2, 0, false},
		{1, 1 << 40, 1, 1 << 40, 0, 0, false},
		{1, 1, 1 << 63, 1, 4, 0, false},
		{maxNodeBytes + 1, 1, 1, 0, 0, 0, false},
		{math.MaxUint64, 2, 1, math.MaxUint64, 0, 0, false},
	} {
		if got, ok := extent(x.width, x.height, x.depth, x.pitch, x.slice); ok != x.ok || ok && got != x.want {
			t.Errorf("%+v: %d, %v", x, got, ok)
		}
	}
}
