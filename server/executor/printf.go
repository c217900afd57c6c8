package executor

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/stdio"
	"scuda.dev/scuda/transport"
)

// What kernels print is kept by the driver until a call that waits, which then writes it to the worker's standard
// output. The executor does not wait in the driver but polls, so after a wait it makes the driver's waiting call,
// which by then returns at once, and sends what that printed to the client before the answer. It does so only once a
// kernel of a module that uses printf was launched, or memory pools are in use: the driver gives their free memory
// back in waiting calls as well. Where kernels assert, the waiting call for the very stream or event is made too, and
// its result counts.

// printf is the engine of what the driver has to say or do when work is over: what kernels printed, assertions that
// failed, and memory that pools give back.
//
// No locks: it belongs to the executor's thread alone. What it reads of a [scan] is behind the scan's channel.
type printf struct {
	*base
	loop printfLoop
	out  *output
	text Text // nil: nobody collects what the driver prints

	suspects  []*scan // images of kernels that were launched, of which it is not known yet whether they print or assert
	prints    bool    // kernels were launched that may print
	asserts   bool    // kernels were launched that assert
	usesPools bool    // memory pools are in use
}

// printfLoop is what it asks of the loop.
type printfLoop interface {
	kernelsLaunchGraphs() bool // there are graphs that kernels may launch, unseen by the executor
}

// Text is what the driver printed in the worker: [stdio.Capture].
type Text interface {
	Take(stream, limit int) []byte
}

// noteLaunch notes that a kernel of p's image may run from now on.
func (pf *printf) noteLaunch(p *scan) {
	if p != nil && !p.noted {
		p.noted = true
		pf.suspects = append(pf.suspects, p)
	}
}

// readScans looks at what is known by now of the images of which kernels were launched.
func (pf *printf) readScans() {
	if len(pf.suspects) == 0 {
		return
	}
	pf.suspects = slices.DeleteFunc(pf.suspects, func(p *scan) bool {
		if !p.ended() {
			return false
		}
		pf.prints = pf.prints || p.prints && pf.text != nil
		pf.asserts = pf.asserts || p.asserts
		return true
	})
}

// mayPrint says whether a kernel may have printed something.
func (pf *printf) mayPrint() bool {
	pf.readScans()
	return pf.prints || len(pf.suspects) > 0 && pf.text != nil
}

// mayAssert says whether a kernel with assertions was launched.
func (pf *printf) mayAssert() bool {
	pf.readScans()
	return pf.asserts
}

// needsWaitCall says whether the driver has something to do in its waiting calls when everything is over.
func (pf *printf) needsWaitCall() bool { return pf.mayPrint() || pf.usesPools }

// syncFiredEvent lets the driver do it for what lies before an event that has fired. It tells of assertions that
// failed, too.
func (pf *printf) syncFiredEvent(e cuda.CUevent) cuda.CUresult {
	if pf.needsWaitCall() || pf.mayAssert() {
		return pf.gpu.CuEventSynchronize(e)
	}
	return cuda.CUDA_SUCCESS
}

// syncChunk is syncFiredEvent for a chunk that has come down. Programs fetch numbers one by one, so where no kernel
// was launched since it was done last there is nothing to be told.
func (pf *printf) syncChunk(st *stream, c *chunk) cuda.CUresult {
	if pf.needsWaitCall() || !pf.mayAssert() {
		return pf.syncFiredEvent(c.event)
	}
	if !pf.loop.kernelsLaunchGraphs() && st.ctx.judged() {
		return cuda.CUDA_SUCCESS
	}
	r := pf.syncFiredEvent(c.event)
	if r == cuda.CUDA_SUCCESS {
		st.judged = max(st.judged, c.kernels)
	}
	return r
}

// judged says whether all kernels of the context have been seen to end without a failed assertion.
func (ctx *context) judged() bool {
	return ctx.legacy.kernels == ctx.legacy.judged &&
		!slices.ContainsFunc(ctx.streams, func(st *stream) bool { return st.kernels != st.judged })
}

// syncIdleStream does it for a stream that is idle.
func (pf *printf) syncIdleStream(st *stream) cuda.CUresult {
	if (pf.needsWaitCall() || pf.mayAssert()) && len(pf.captures) == 0 {
		return pf.gpu.CuStreamSynchronize(st.real)
	}
	return cuda.CUDA_SUCCESS
}

// syncIdleContext does it for everything where the whole context is idle.
func (pf *printf) syncIdleContext(ctx *context) {
	if ctx == nil || !pf.needsWaitCall() || len(pf.captures) > 0 {
		return
	}
	pf.within(ctx, func() cuda.CUresult {
		for i := -1; i < len(ctx.streams); i++ {
			st := &ctx.legacy
			if i >= 0 {
				st = ctx.streams[i]
			}
			if st.used && pf.gpu.CuStreamQuery(st.real) != cuda.CUDA_SUCCESS {
				return cuda.CUDA_SUCCESS
			}
		}
		return pf.gpu.CuCtxSynchronize()
	})
}

// sendText sends what was printed so far; the answer with result r follows it. A failed assertion ends the context
// and prints as well.
func (pf *printf) sendText(r cuda.CUresult) {
	if pf.text == nil || r != cuda.CUDA_ERROR_ASSERT && !pf.mayPrint() {
		return
	}
	streams := []int{stdio.Output}
	if r == cuda.CUDA_ERROR_ASSERT {
		pf.gpu.CuCtxSynchronize()
		streams = append(streams, stdio.Error)
	}
	if f, ok := pf.gpu.(cuda.TextFlusher); ok {
		f.FlushText()
	}
	for _, stream := range streams {
		for b := pf.text.Take(stream, transport.MaxText); len(b) > 0; b = pf.text.Take(stream, transport.MaxText) {
			pf.out.message(transport.MessageHeader{Type: transport.MsgText, ID: uint32(stream)}, b, nil)
		}
	}
}
