package sim

import (
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// TestGraphByHand builds a graph, changes it, and changes its executable form.
func TestGraphByHand(t *testing.T) {
	m := open(t, Config{})
	const n = 64
	p, q := m.alloc(n), m.alloc(n)
	var gr cuda.CUgraph
	m.must(m.CuGraphCreate(&gr, 0))
	fill := cuda.CUDA_MEMSET_NODE_PARAMS{Dst: p, Value: 1, ElementSize: 1, Width: n, Height: 1}
	var set, cp, empty cuda.CUgraphNode
	m.must(m.CuGraphAddMemsetNode(&set, gr, nil, 0, &fill, m.ctx))
	copyParams := cuda.CUDA_MEMCPY3D{
		SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, SrcDevice: p, DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstDevice: q,
		WidthInBytes: n, Height: 1, Depth: 1,
	}
	m.must(m.CuGraphAddMemcpyNode(&cp, gr, &set, 1, &copyParams, m.ctx))
	m.must(m.CuGraphAddEmptyNode(&empty, gr, nil, 0))
	m.must(m.CuGraphAddDependencies(gr, &cp, &empty, 1))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphAddDependencies(gr, &cp, &empty, 1))
	var edges uint64
	m.must(m.CuGraphGetEdges(gr, nil, nil, &edges))
	if edges != 2 {
		t.Errorf("%d edges", edges)
	}

	x := m.instantiate(gr)
	run := func(x cuda.CUgraphExec, want byte) {
		t.Helper()
		m.must(m.CuMemsetD8_v2(q, 0, n))
		m.must(m.CuGraphLaunch(x, 0))
		if got := m.download(q, n); got[0] != want || got[n-1] != want {
			t.Errorf("got %d, want %d", got[0], want)
		}
	}
	run(x, 1)
	fill.Value = 2
	m.must(m.CuGraphExecMemsetNodeSetParams(x, set, &fill, m.ctx))
	run(x, 2)
	m.must(m.CuGraphNodeSetEnabled(x, cp, 0))
	run(x, 0)
	m.must(m.CuGraphNodeSetEnabled(x, cp, 1))
	var got cuda.CUDA_MEMSET_NODE_PARAMS
	m.must(m.CuGraphMemsetNodeGetParams(set, &got))
	if got.Value != 1 || got.Dst != p {
		t.Errorf("the graph itself changed: %+v", got)
	}
	m.must(m.CuGraphMemsetNodeSetParams(set, &cuda.CUDA_MEMSET_NODE_PARAMS{Dst: p, Value: 5, ElementSize: 1, Width: n,
		Height: 1}))
	run(x, 2)
	var info cuda.CUgraphExecUpdateResultInfo
	m.must(m.CuGraphExecUpdate_v2(x, gr, &info))
	run(x, 5)

	// As a child of another graph, and as a clone, it does the same.
	var outer, clone cuda.CUgraph
	var child, more cuda.CUgraphNode
	m.must(m.CuGraphCreate(&outer, 0))
	m.must(m.CuGraphAddChildGraphNode(&child, outer, nil, 0, gr))
	run(m.instantiate(outer), 5)
	m.must(m.CuGraphClone(&clone, gr))
	run(m.instantiate(clone), 5)

	m.must(m.CuGraphAddEmptyNode(&more, gr, nil, 0))
	m.want(cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, m.CuGraphExecUpdate_v2(x, gr, &info))
	if info.Result != cuda.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED {
		t.Errorf("update result %d", info.Result)
	}
	m.must(m.CuGraphDestroyNode(more))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphDestroyNode(more))
	// A circle cannot be instantiated.
	m.must(m.CuGraphAddDependencies(gr, &empty, &set, 1))
	var bad cuda.CUgraphExec
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphInstantiateWithFlags(&bad, gr, 0))
}

func TestKernelNode(t *testing.T) {
	m := open(t, Config{})
	f := m.kernel(m.module(), "fault")
	p, q := m.alloc(4), m.alloc(4)
	args := m.arguments(p)
	kp := cuda.CUDA_KERNEL_NODE_PARAMS{
		Func: f, GridDimX: 1, GridDimY: 1, GridDimZ: 1, BlockDimX: 1, BlockDimY: 1, BlockDimZ: 1, KernelParams: uintptr(args),
	}
	var gr cuda.CUgraph
	var node cuda.CUgraphNode
	m.must(m.CuGraphCreate(&gr, 0))
	m.must(m.CuGraphAddKernelNode_v2(&node, gr, nil, 0, &kp))
	x := m.instantiate(gr)
	m.must(m.CuMemsetD8_v2(p, 0, 4))
	m.must(m.CuMemsetD8_v2(q, 0, 4))
	m.must(m.CuGraphLaunch(x, 0))
	if m.download(p, 4)[0] != 1 {
		t.Error("the kernel of the graph did not run")
	}
	kp.KernelParams = uintptr(m.arguments(q))
	m.must(m.CuGraphExecKernelNodeSetParams_v2(x, node, &kp))
	m.must(m.CuGraphLaunch(x, 0))
	if m.download(q, 4)[0] != 1 {
		t.Error("the kernel did not get its new argument")
	}
	var got cuda.CUDA_KERNEL_NODE_PARAMS
	m.must(m.CuGraphKernelNodeGetParams_v2(node, &got))
	if got.Func != f || got.BlockDimX != 1 || got.KernelParams == 0 {
		t.Errorf("parameters %+v", got)
	}
	var coop, back cuda.CUkernelNodeAttrValue
	coop[0] = 1
	m.must(m.CuGraphKernelNodeSetAttribute(node, cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &coop))
	m.must(m.CuGraphKernelNodeGetAttribute(node, cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &back))
	if back != coop {
		t.Errorf("cooperative %v", back)
	}
	m.want(cuda.CUDA_ERROR_INVALID_CLUSTER_SIZE, m.CuGraphKernelNodeSetAttribute(node,
		cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &coop))
	kp.GridDimX = 0
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphKernelNodeSetParams_v2(node, &kp))
}

// TestGraphLaunchOrder: launches of one executable graph do not overlap, even in different streams.
func TestGraphLaunchOrder(t *testing.T) {
	m := open(t, Config{})
	a, b := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	var l trace
	gate := make(chan struct{})
	started := make(chan struct{}, 2)
	m.begin(a, relaxed)
	m.must(m.HostFunc(a, func() { l.add("("); started <- struct{}{}; <-gate; l.add(")") }))
	x := m.instantiate(m.end(a))
	m.must(m.CuGraphLaunch(x, a))
	m.must(m.CuGraphLaunch(x, b))
	<-started
	close(gate)
	m.must(m.CuStreamSynchronize(a))
	m.must(m.CuStreamSynchronize(b))
	if l.String() != "()()" {
		t.Errorf("order %q", l.String())
	}
}

// TestGraphMemory: memory allocated in a capture belongs to the graph.
func TestGraphMemory(t *testing.T) {
	m := open(t, Config{})
	s, out := m.stream(0), m.pinned(8)
	m.begin(s, relaxed)
	var p cuda.CUdeviceptr
	m.must(m.CuMemAllocAsync(&p, 4096, s))
	m.must(m.CuMemsetD8Async(p, 9, 8, s))
	m.must(m.CuMemcpyDtoHAsync_v2(pointerTo(out), p, 8, s))
	m.must(m.CuMemFreeAsync(p, s))
	gr := m.end(s)
	x := m.instantiate(gr)
	m.must(m.CuGraphDestroy(gr))
	for range 2 {
		clear(out)
		m.must(m.CuGraphLaunch(x, s))
		m.must(m.CuStreamSynchronize(s))
		if out[0] != 9 {
			t.Errorf("got %v", out)
		}
	}
	held := m.pageable(8)
	m.must(m.CuDeviceGetGraphMemAttribute(0, cuda.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, pointerTo(held)))
	if as[uint64](held)[0] != 4096 {
		t.Errorf("graphs hold %d bytes", as[uint64](held)[0])
	}
	m.must(m.CuGraphExecDestroy(x))
	var free uint64
	m.must(m.CuMemGetInfo_v2(&free, nil))
	if free != testMemory {
		t.Errorf("%d bytes free after the graph has gone", free)
	}
}
