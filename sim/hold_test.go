package sim

import (
	"runtime"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// TestHold: a call that is held up ends when the context's work is over, and nobody else is let into the driver before;
// other calls are not held up.
func TestHold(t *testing.T) {
	for _, test := range []struct {
		hold       string
		frees, up  bool // whether cuMemFree and cuMemAlloc are held up
		sets, asks bool // cuMemsetD8Async, cuStreamQuery
	}{
		{hold: "cuMemFree", frees: true}, {hold: "cuMemFree_v2+cuMemAlloc", frees: true, up: true},
		{hold: "cuMemsetD8Async+cuStreamQuery", sets: true, asks: true},
		{hold: HoldMeasured, frees: true}, {hold: HoldAll, frees: true, up: true}, {hold: HoldFirst},
	} {
		t.Run(test.hold, func(t *testing.T) {
			m := open(t, Config{Hold: test.hold})
			s := m.stream(cuda.CU_STREAM_NON_BLOCKING)
			var p, q cuda.CUdeviceptr
			m.must(m.CuMemAlloc_v2(&p, 64))
			m.must(m.CuMemAlloc_v2(&q, 64))
			for _, call := range []struct {
				name string
				held bool
				make func() cuda.CUresult
			}{
				{"cuMemFree", test.frees, func() cuda.CUresult { return m.CuMemFree_v2(p) }},
				{"cuMemAlloc", test.up, func() cuda.CUresult { return m.CuMemAlloc_v2(&p, 64) }},
				{"cuMemsetD8Async", test.sets, func() cuda.CUresult { return m.CuMemsetD8Async(q, 1, 64, s) }},
				{"cuStreamQuery", test.asks, func() cuda.CUresult { m.CuStreamQuery(s); return ok }},
			} {
				if !call.held && call.name == "cuMemFree" {
					continue // the simulation waits there in any case
				}
				openIt := m.gate(s)
				over, other := make(chan cuda.CUresult), make(chan cuda.CUresult)
				onThread := func(f func() cuda.CUresult, result chan cuda.CUresult) {
					runtime.LockOSThread() // never unlocked: the thread's state ends with it
					m.ThreadInit()
					m.CuCtxSetCurrent(m.ctx)
					result <- f()
				}
				go onThread(call.make, over)
				if !call.held {
					m.must(<-over)
					openIt()
					m.must(m.CuStreamSynchronize(s))
					continue
				}
				for held := false; !held; runtime.Gosched() {
					m.mu.Lock()
					held = m.GPU.gate.holder != 0
					m.mu.Unlock()
				}
				go onThread(func() cuda.CUresult { return m.CuCtxGetDevice(new(cuda.CUdevice)) }, other)
				select {
				case <-over:
					t.Errorf("%s is not held up", call.name)
				case <-other:
					t.Errorf("another call passes while %s is held up", call.name)
				default:
				}
				openIt()
				m.must(<-over)
				m.must(<-other)
			}
		})
	}
}

// TestHoldFirst: of a kernel's launches the first is held up.
func TestHoldFirst(t *testing.T) {
	m := open(t, Config{Hold: HoldFirst})
	s := m.stream(cuda.CU_STREAM_NON_BLOCKING)
	f, args := m.kernel(m.module(), "spin"), m.arguments(int64(1))
	launch := func() cuda.CUresult { return m.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args, nil) }
	openIt := m.gate(s)
	over := make(chan cuda.CUresult)
	go func() {
		runtime.LockOSThread()
		m.ThreadInit()
		m.CuCtxSetCurrent(m.ctx)
		over <- launch()
	}()
	for held := false; !held; runtime.Gosched() {
		m.mu.Lock()
		held = m.GPU.gate.holder != 0
		m.mu.Unlock()
	}
	openIt()
	m.must(<-over)
	openIt = m.gate(s)
	m.must(launch()) // comes back, or the test hangs
	openIt()
	m.must(m.CuStreamSynchronize(s))
}
