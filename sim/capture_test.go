package sim

import (
	"runtime"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

const relaxed = cuda.CU_STREAM_CAPTURE_MODE_RELAXED

func (m *machine) begin(s cuda.CUstream, mode cuda.CUstreamCaptureMode) {
	m.t.Helper()
	m.must(m.CuStreamBeginCapture_v2(s, mode))
}

func (m *machine) end(s cuda.CUstream) cuda.CUgraph {
	m.t.Helper()
	var g cuda.CUgraph
	m.must(m.CuStreamEndCapture(s, &g))
	return g
}

func (m *machine) instantiate(g cuda.CUgraph) cuda.CUgraphExec {
	m.t.Helper()
	var x cuda.CUgraphExec
	m.must(m.CuGraphInstantiateWithFlags(&x, g, 0))
	return x
}

func (m *machine) nodes(g cuda.CUgraph) []cuda.CUgraphNode {
	m.t.Helper()
	var n uint64
	m.must(m.CuGraphGetNodes(g, nil, &n))
	nodes := make([]cuda.CUgraphNode, n+1)
	n++ // more room than nodes
	m.must(m.CuGraphGetNodes(g, &nodes[0], &n))
	return nodes[:n]
}

// TestCaptureForkJoin captures work on two streams and replays it.
func TestCaptureForkJoin(t *testing.T) {
	m := open(t, Config{})
	mod := m.module()
	a, b := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	fork, join := m.event(0), m.event(0)
	const n = 256
	x, y, z := m.alloc(4*n), m.alloc(4*n), m.alloc(4*n)
	host := m.pinned(4 * n)
	var l trace

	m.begin(a, cuda.CU_STREAM_CAPTURE_MODE_GLOBAL)
	m.must(m.CuMemcpyHtoDAsync_v2(x, pointerTo(host), 4*n, a))
	m.must(m.CuEventRecord(fork, a))
	m.must(m.CuStreamWaitEvent(b, fork, 0))
	m.must(m.CuMemsetD32Async(y, 0, n, b))
	m.must(m.HostFunc(b, func() { l.add("h") }))
	m.must(m.CuEventRecord(join, b))
	m.must(m.CuStreamWaitEvent(a, join, 0))
	m.must(m.launchOn(a, m.kernel(mod, "vector_add"), 1, n, 0, x, y, z, int32(n)))

	var status cuda.CUstreamCaptureStatus
	m.must(m.CuStreamIsCapturing(b, &status))
	if status != cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		t.Errorf("the forked stream has status %d", status)
	}
	var id, idB cuda.Cuuint64
	var graphNow cuda.CUgraph
	out := m.pageable(16)
	var count uint64
	m.must(m.CuStreamGetCaptureInfo_v3(a, &status, &id, &graphNow, pointerTo(out), pointerTo(out[8:]), &count))
	m.must(m.CuStreamGetCaptureInfo(b, &status, &idB))
	last := cuda.CUgraphNode(as[uint64](bytesAt(as[uint64](out)[0], 8*count))[0])
	gr := m.end(a)
	if count != 1 || id != idB || id == 0 || graphNow != gr {
		t.Errorf("capture info: id %d and %d, graph %#x, %d dependencies", id, idB, graphNow, count)
	}
	m.must(m.CuStreamIsCapturing(b, &status))
	if status != cuda.CU_STREAM_CAPTURE_STATUS_NONE {
		t.Errorf("status %d after the capture", status)
	}
	if l.String() != "" {
		t.Error("captured work ran")
	}
	nodes := m.nodes(gr)
	var kinds []cuda.CUgraphNodeType
	for _, n := range nodes {
		var k cuda.CUgraphNodeType
		m.must(m.CuGraphNodeGetType(n, &k))
		kinds = append(kinds, k)
	}
	want := []cuda.CUgraphNodeType{cuda.CU_GRAPH_NODE_TYPE_MEMCPY, cuda.CU_GRAPH_NODE_TYPE_MEMSET,
		cuda.CU_GRAPH_NODE_TYPE_HOST, cuda.CU_GRAPH_NODE_TYPE_KERNEL}
	if len(kinds) != len(want) {
		t.Fatalf("nodes %v, want %v", kinds, want)
	}
	for i := range want {
		if kinds[i] != want[i] {
			t.Errorf("node %d is of type %d, want %d", i, kinds[i], want[i])
		}
	}
	m.must(m.CuGraphNodeGetDependencies(nodes[3], nil, &count))
	if count != 2 {
		t.Errorf("the kernel has %d dependencies, want the copy and the host function", count)
	}

	if last != nodes[3] {
		t.Errorf("the capture stood behind %#x, want the kernel", last)
	}
	exec := m.instantiate(gr)
	m.must(m.CuGraphDestroy(gr))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphDestroy(gr))
	for round := range 3 {
		for i := range n {
			as[float32](host)[i] = float32(i + round)
		}
		m.must(m.CuGraphLaunch(exec, a))
		m.must(m.CuStreamSynchronize(a))
		if got := as[float32](m.download(z, 4*n)); got[10] != float32(10+round) {
			t.Errorf("round %d: %g", round, got[10])
		}
	}
	if l.String() != "hhh" {
		t.Errorf("host functions: %q", l.String())
	}
	m.must(m.CuGraphExecDestroy(exec))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphLaunch(exec, a))
}

// TestCaptureErrors: what the driver refuses while something is captured, and how the capture ends.
func TestCaptureErrors(t *testing.T) {
	const (
		unsupported = cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		invalidated = cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		isolation   = cuda.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
		implicit    = cuda.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	)
	global, threadLocal := cuda.CU_STREAM_CAPTURE_MODE_GLOBAL, cuda.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
	type env struct {
		*machine
		s, other cuda.CUstream
		e        cuda.CUevent
		p        cuda.CUdeviceptr
	}
	for _, c := range []struct {
		name  string
		mode  cuda.CUstreamCaptureMode
		flags cuda.CUstream_flags
		do    func(e env) cuda.CUresult
		want  cuda.CUresult
		end   cuda.CUresult
	}{
		{"nothing", global, 0, func(env) cuda.CUresult { return ok }, ok, ok},
		{"synchronise", global, 0, func(e env) cuda.CUresult { return e.CuStreamSynchronize(e.s) }, unsupported, invalidated},
		{"query", relaxed, 0, func(e env) cuda.CUresult { return e.CuStreamQuery(e.s) }, unsupported, invalidated},
		{"synchronise context", relaxed, 0, func(e env) cuda.CUresult { return e.CuCtxSynchronize() }, unsupported,
			invalidated},
		{"alloc", global, 0, func(e env) cuda.CUresult { var p cuda.CUdeviceptr; return e.CuMemAlloc_v2(&p, 1) }, unsupported,
			invalidated},
		{"alloc thread local", threadLocal, 0, func(e env) cuda.CUresult {
			var p cuda.CUdeviceptr
			return e.CuMemAlloc_v2(&p,
				1)
		}, unsupported, invalidated},
		{"alloc relaxed", relaxed, 0, func(e env) cuda.CUresult { var p cuda.CUdeviceptr; return e.CuMemAlloc_v2(&p, 1) }, ok,
			ok},
		{"alloc by a relaxed thread", global, 0, func(e env) cuda.CUresult {
			mode := relaxed
			e.must(e.CuThreadExchangeStreamCaptureMode(&mode))
			var p cuda.CUdeviceptr
			r := e.CuMemAlloc_v2(&p, 1)
			e.must(e.CuThreadExchangeStreamCaptureMode(&mode))
			return r
		}, ok, ok},
		{"free", global, 0, func(e env) cuda.CUresult { return e.CuMemFree_v2(e.p) }, unsupported, invalidated},
		{"synchronous copy", global, cuda.CU_STREAM_NON_BLOCKING,
			func(e env) cuda.CUresult { return e.CuMemcpyDtoD_v2(e.p, e.p+64, 8) }, ok, ok},
		{"synchronise another stream", global, 0, func(e env) cuda.CUresult { return e.CuStreamSynchronize(e.other) },
			unsupported, invalidated},
		{"query of an event of outside", global, 0, func(e env) cuda.CUresult { return e.CuEventQuery(e.e) }, unsupported,
			invalidated},
		{"synchronise another stream, relaxed", relaxed, 0,
			func(e env) cuda.CUresult { return e.CuStreamSynchronize(e.other) }, ok, ok},
		{"event that was never recorded", global, 0, func(e env) cuda.CUresult { return e.CuStreamWaitEvent(e.s, e.e, 0) },
			ok, ok},
		{"legacy stream", relaxed, 0, func(e env) cuda.CUresult { return e.CuMemsetD8Async(e.p, 0, 1, 0) }, implicit,
			invalidated},
		{"legacy stream beside a free one", relaxed, cuda.CU_STREAM_NON_BLOCKING,
			func(e env) cuda.CUresult { return e.CuMemsetD8Async(e.p, 0, 1, 0) }, ok, ok},
		{"event of outside", global, 0, func(e env) cuda.CUresult {
			e.must(e.CuEventRecord(e.e, e.other))
			return e.CuStreamWaitEvent(e.s, e.e, 0)
		}, isolation, invalidated},
		{"query of a captured event", global, 0, func(e env) cuda.CUresult {
			e.must(e.CuEventRecord(e.e, e.s))
			return e.CuEventQuery(e.e)
		}, cuda.CUDA_ERROR_CAPTURED_EVENT, invalidated},
		{"legacy waits for captured event", global, cuda.CU_STREAM_NON_BLOCKING, func(e env) cuda.CUresult {
			e.must(e.CuEventRecord(e.e, e.s))
			return e.CuStreamWaitEvent(0, e.e, 0)
		}, implicit, invalidated},
		{"unjoined", global, 0, func(e env) cuda.CUresult {
			e.must(e.CuEventRecord(e.e, e.s))
			e.must(e.CuStreamWaitEvent(e.other, e.e, 0))
			return e.CuMemsetD8Async(e.p, 0, 1, e.other)
		}, ok, cuda.CUDA_ERROR_STREAM_CAPTURE_UNJOINED},
		{"end by the forked stream", global, 0, func(e env) cuda.CUresult {
			e.must(e.CuEventRecord(e.e, e.s))
			e.must(e.CuStreamWaitEvent(e.other, e.e, 0))
			var g cuda.CUgraph
			return e.CuStreamEndCapture(e.other, &g)
		}, cuda.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, invalidated},
		{"begin twice", global, 0, func(e env) cuda.CUresult { return e.CuStreamBeginCapture_v2(e.s, global) },
			cuda.CUDA_ERROR_ILLEGAL_STATE, ok},
		{"work after invalidation", relaxed, 0, func(e env) cuda.CUresult {
			e.want(unsupported, e.CuStreamQuery(e.s))
			return e.CuMemsetD8Async(e.p, 0, 1, e.s)
		}, invalidated, invalidated},
	} {
		m := open(t, Config{})
		e := env{m, m.stream(c.flags), m.stream(cuda.CU_STREAM_NON_BLOCKING), m.event(0), m.alloc(128)}
		m.begin(e.s, c.mode)
		if r := c.do(e); r != c.want {
			t.Errorf("%s: %v, want %v", c.name, r, c.want)
		}
		var gr cuda.CUgraph
		if r := m.CuStreamEndCapture(e.s, &gr); r != c.end {
			t.Errorf("%s: the capture ended with %v, want %v", c.name, r, c.end)
		}
		if (gr != 0) != (c.end == ok) {
			t.Errorf("%s: graph %#x", c.name, gr)
		}
		// The streams are good for work again.
		m.must(m.CuMemsetD8Async(e.p, 0, 1, e.s))
		m.must(m.CuMemsetD8Async(e.p, 0, 1, e.other))
		m.must(m.CuCtxSynchronize())
	}
}

func TestCaptureThreads(t *testing.T) {
	m := open(t, Config{})
	s := m.stream(0)
	var gr cuda.CUgraph
	m.want(cuda.CUDA_ERROR_ILLEGAL_STATE, m.CuStreamEndCapture(s, &gr))
	m.want(cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, m.CuStreamBeginCapture_v2(0, relaxed))
	m.begin(s, cuda.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		m.ThreadInit()
		if r := m.CuCtxSetCurrent(m.ctx); r != ok {
			t.Error(r)
		}
		var p cuda.CUdeviceptr
		if r := m.CuMemAlloc_v2(&p, 1); r != ok {
			t.Errorf("another thread may allocate: %v", r)
		}
		var g cuda.CUgraph
		if r := m.CuStreamEndCapture(s, &g); r != cuda.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD {
			t.Errorf("another thread ended the capture: %v", r)
		}
	}()
	<-done
	m.want(cuda.CUDA_ERROR_ILLEGAL_STATE, m.CuStreamEndCapture(s, &gr)) // and ended it is
	m.begin(s, cuda.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
	m.must(m.CuGraphDestroy(m.end(s)))
}

// TestCaptureDependencies sets what the next captured node stands behind.
func TestCaptureDependencies(t *testing.T) {
	m := open(t, Config{})
	s, p := m.stream(0), m.alloc(64)
	m.begin(s, relaxed)
	m.must(m.CuMemsetD8Async(p, 1, 1, s))
	m.must(m.CuStreamUpdateCaptureDependencies(s, nil, 0, uint32(cuda.CU_STREAM_SET_CAPTURE_DEPENDENCIES)))
	m.must(m.CuMemsetD8Async(p, 2, 1, s))
	gr := m.end(s)
	var n uint64
	m.must(m.CuGraphGetRootNodes(gr, nil, &n))
	if n != 2 {
		t.Errorf("%d root nodes, want 2", n)
	}
	m.want(cuda.CUDA_ERROR_ILLEGAL_STATE, m.CuStreamUpdateCaptureDependencies(s, nil, 0, 0))
}
