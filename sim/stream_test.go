package sim

import (
	"runtime"
	"sync"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// trace notes the order in which host functions run.
type trace struct {
	mu  sync.Mutex
	got string
}

func (l *trace) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got += s
}

func (l *trace) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got
}

// gate blocks a stream until it is opened.
func (m *machine) gate(s cuda.CUstream) (openIt func()) {
	m.t.Helper()
	c := make(chan struct{})
	var once sync.Once
	openIt = func() { once.Do(func() { close(c) }) }
	m.t.Cleanup(openIt)
	m.must(m.HostFunc(s, func() { <-c }))
	return openIt
}

func TestStreamOrder(t *testing.T) {
	m := open(t, Config{})
	s := m.stream(cuda.CU_STREAM_NON_BLOCKING)
	openIt := m.gate(s)
	var l trace
	for _, c := range []string{"a", "b", "c"} {
		m.must(m.HostFunc(s, func() { l.add(c) }))
	}
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(s))
	if l.String() != "" {
		t.Error("work ran before what stands in front of it")
	}
	openIt()
	m.must(m.CuStreamSynchronize(s))
	m.must(m.CuStreamQuery(s))
	if l.String() != "abc" {
		t.Errorf("order %q", l.String())
	}
}

func TestLegacyStream(t *testing.T) {
	m := open(t, Config{})
	blocking, free := m.stream(0), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	openIt := m.gate(blocking)
	var l trace
	m.must(m.HostFunc(0, func() { l.add("legacy ") }))
	m.must(m.HostFunc(free, func() { l.add("free ") }))
	m.must(m.CuStreamSynchronize(free)) // does not wait for the others
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(0))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(streamLegacy))
	other := m.stream(0)
	m.must(m.HostFunc(other, func() { l.add("other") }))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(other))
	openIt()
	m.must(m.CuStreamSynchronize(other))
	if l.String() != "free legacy other" {
		t.Errorf("order %q", l.String())
	}
	// The per-thread stream is a blocking one.
	openIt = m.gate(streamPerThread)
	m.must(m.HostFunc(0, func() {}))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(0))
	openIt()
	m.must(m.CuStreamSynchronize(0))
}

func TestStreamDestroyedAtWork(t *testing.T) {
	m := open(t, Config{})
	s := m.stream(0)
	openIt := m.gate(s)
	var l trace
	m.must(m.HostFunc(s, func() { l.add("done") }))
	m.must(m.CuStreamDestroy_v2(s))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuStreamSynchronize(s))
	openIt()
	m.must(m.CuCtxSynchronize())
	if l.String() != "done" {
		t.Error("the work of the destroyed stream was dropped")
	}
	for _, h := range []cuda.CUstream{0, streamLegacy, streamPerThread} {
		m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuStreamDestroy_v2(h))
	}
}

func TestStreamProperties(t *testing.T) {
	m := open(t, Config{})
	var s cuda.CUstream
	m.must(m.CuStreamCreateWithPriority(&s, uint32(cuda.CU_STREAM_NON_BLOCKING), -100))
	var priority int32
	var flags uint32
	var ctx cuda.CUcontext
	m.must(m.CuStreamGetPriority(s, &priority))
	m.must(m.CuStreamGetFlags(s, &flags))
	m.must(m.CuStreamGetCtx(s, &ctx))
	if priority != greatestPriority || flags != 1 || ctx != m.ctx {
		t.Errorf("priority %d flags %d context %#x", priority, flags, ctx)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuStreamCreate(&s, 2))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuStreamCreate(nil, 0))
}

func TestEvents(t *testing.T) {
	m := open(t, Config{})
	a, b := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	e, f := m.event(0), m.event(0)
	m.must(m.CuEventQuery(e)) // never recorded
	m.must(m.CuEventSynchronize(e))
	m.must(m.CuStreamWaitEvent(b, e, 0))

	openIt := m.gate(a)
	m.must(m.CuEventRecord(e, a))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuEventQuery(e))
	var l trace
	m.must(m.CuStreamWaitEvent(b, e, 0))
	m.must(m.HostFunc(b, func() { l.add("b") }))
	m.must(m.CuEventRecord(f, b))
	var ms float32
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuEventElapsedTime_v2(&ms, e, f))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(b))
	l.add("opened ")
	openIt()
	m.must(m.CuEventSynchronize(f))
	m.must(m.CuEventQuery(e))
	if l.String() != "opened b" {
		t.Errorf("order %q", l.String())
	}
	m.must(m.CuEventElapsedTime_v2(&ms, e, f))
	if ms < 0 {
		t.Errorf("%g ms", ms)
	}

	quiet, never := m.event(cuda.CU_EVENT_DISABLE_TIMING), m.event(0)
	m.must(m.CuEventRecord(quiet, a))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuEventElapsedTime_v2(&ms, e, quiet))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuEventElapsedTime_v2(&ms, e, never))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuEventCreate(&e, 1<<30))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuStreamWaitEvent(a, 77, 0))
	m.must(m.CuEventDestroy_v2(f))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuEventRecord(f, a))
}

// TestPinnedSource: an asynchronous copy from pinned memory reads it when its turn comes.
func TestPinnedSource(t *testing.T) {
	m := open(t, Config{})
	s := m.stream(0)
	p, src := m.alloc(4), m.pinned(4)
	openIt := m.gate(s)
	m.must(m.CuMemcpyHtoDAsync_v2(p, pointerTo(src), 4, s))
	copy(src, "late")
	openIt()
	if got := m.download(p, 4); string(got) != "late" {
		t.Errorf("got %q", got)
	}
	m.must(m.CuMemFreeHost(pointerTo(src)))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemFreeHost(pointerTo(src)))
}

func TestRegisteredMemory(t *testing.T) {
	m := open(t, Config{})
	b := m.pageable(8192)
	m.want(cuda.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, m.CuMemHostUnregister(pointerTo(b)))
	m.must(m.CuMemHostRegister_v2(pointerTo(b), 8192, 0))
	m.want(cuda.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, m.CuMemHostRegister_v2(pointerTo(b), 8192, 0))
	var p cuda.CUdeviceptr
	m.must(m.CuMemHostGetDevicePointer_v2(&p, pointerTo(b), 0))
	var kind uint32
	out := m.pageable(8)
	m.must(m.CuPointerGetAttribute(pointerTo(out), cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p))
	if kind = as[uint32](out)[0]; kind != uint32(cuda.CU_MEMORYTYPE_HOST) {
		t.Errorf("memory type %d", kind)
	}
	m.must(m.CuMemHostUnregister(pointerTo(b)))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuPointerGetAttribute(pointerTo(out), cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		p))
}

func TestMemOps(t *testing.T) {
	m := open(t, Config{})
	a, b := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	p := m.alloc(64)
	m.must(m.CuMemsetD8_v2(p, 0, 64))
	m.must(m.CuStreamSynchronize(0))
	var l trace
	m.must(m.CuStreamWaitValue32_v2(a, p, 5, uint32(cuda.CU_STREAM_WAIT_VALUE_GEQ)))
	m.must(m.HostFunc(a, func() { l.add("a") }))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(a))
	m.must(m.HostFunc(b, func() { l.add("b") }))
	m.must(m.CuStreamWriteValue32_v2(b, p, 7, 0))
	m.must(m.CuStreamSynchronize(a))
	if l.String() != "ba" {
		t.Errorf("order %q", l.String())
	}
	batch := []cuda.CUstreamBatchMemOpParams{
		{uint64(cuda.CU_STREAM_MEM_OP_WRITE_VALUE_64), uint64(p) + 8, 1 << 40},
		{uint64(cuda.CU_STREAM_MEM_OP_WAIT_VALUE_64), uint64(p) + 8, 1 << 40, uint64(cuda.CU_STREAM_WAIT_VALUE_EQ)},
		{uint64(cuda.CU_STREAM_MEM_OP_WRITE_VALUE_32), uint64(p) + 16, 9},
	}
	m.must(m.CuStreamBatchMemOp_v2(a, 3, &batch[0], 0))
	m.must(m.CuStreamSynchronize(a))
	if got := as[uint64](m.download(p, 24)); got[1] != 1<<40 || got[2] != 9 {
		t.Errorf("got %x", got)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuStreamWriteValue32_v2(a, p+1, 0, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuStreamWaitValue32_v2(a, 64, 0, 0))
}

func TestMemOpConditions(t *testing.T) {
	for _, c := range []struct {
		flags       cuda.CUstreamWaitValue_flags
		bytes       uint64
		have, value uint64
		want        bool
	}{
		{cuda.CU_STREAM_WAIT_VALUE_GEQ, 4, 5, 5, true},
		{cuda.CU_STREAM_WAIT_VALUE_GEQ, 4, 4, 5, false},
		{cuda.CU_STREAM_WAIT_VALUE_GEQ, 4, 1, 0xffffffff, true}, // cyclic
		{cuda.CU_STREAM_WAIT_VALUE_GEQ, 8, 1, 0xffffffff, false},
		{cuda.CU_STREAM_WAIT_VALUE_EQ, 8, 5, 5, true},
		{cuda.CU_STREAM_WAIT_VALUE_EQ, 8, 6, 5, false},
		{cuda.CU_STREAM_WAIT_VALUE_AND, 4, 6, 2, true},
		{cuda.CU_STREAM_WAIT_VALUE_AND, 4, 4, 2, false},
		{cuda.CU_STREAM_WAIT_VALUE_NOR, 4, 0xffffffff, 0, false},
		{cuda.CU_STREAM_WAIT_VALUE_NOR, 4, 0xfffffffe, 0, true},
		{cuda.CU_STREAM_WAIT_VALUE_NOR, 8, 0xffffffff, 0, true},
	} {
		o := memOp{value: c.value, bytes: c.bytes, flags: uint32(c.flags)}
		if got := o.satisfied(c.have); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestContextEvents: an event stands behind all streams of its context, and all that comes later waits for one.
func TestContextEvents(t *testing.T) {
	m := open(t, Config{})
	a, b := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	var behind, gate cuda.CUevent
	m.must(m.CuEventCreate(&behind, 0))
	m.must(m.CuEventCreate(&gate, 0))

	openA, openB := m.gate(a), m.gate(b)
	m.must(m.CuCtxRecordEvent(m.ctx, behind))
	openB()
	m.must(m.CuStreamSynchronize(b))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuEventQuery(behind))

	m.must(m.CuEventRecord(gate, a))
	m.must(m.CuCtxWaitEvent(m.ctx, gate))
	var l trace
	m.must(m.HostFunc(b, func() { l.add("b") }))
	late := m.stream(cuda.CU_STREAM_NON_BLOCKING)
	m.must(m.HostFunc(late, func() { l.add("c") }))
	var other cuda.CUcontext // whose work waits for nothing, and gives the others' time
	m.must(m.CuCtxCreate_v2(&other, 0, 0))
	for range 100 {
		m.must(m.HostFunc(0, runtime.Gosched))
		m.must(m.CuStreamSynchronize(0))
	}
	m.must(m.CuCtxDestroy_v2(other))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(b))
	m.want(cuda.CUDA_ERROR_NOT_READY, m.CuStreamQuery(late))
	if l.String() != "" {
		t.Errorf("%q ran before the event", l.String())
	}
	openA()
	m.must(m.CuEventSynchronize(behind))
	m.must(m.CuCtxSynchronize())
	if len(l.String()) != 2 {
		t.Errorf("%q ran behind the event", l.String())
	}

	m.must(m.CuStreamBeginCapture_v2(a, cuda.CU_STREAM_CAPTURE_MODE_RELAXED))
	m.want(cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, m.CuCtxRecordEvent(m.ctx, behind))
	var gr cuda.CUgraph
	m.want(cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, m.CuStreamEndCapture(a, &gr))
}
