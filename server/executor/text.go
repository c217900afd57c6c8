package executor

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/stdio"
	"scuda.dev/scuda/transport"
)

// What kernels print is kept by the driver until a call that waits, which then writes it to the worker's standard output. The executor does
// not wait in the driver but polls, so after a wait it makes the driver's waiting call, which by then returns at once, and sends what that
// printed to the client before the answer. It does so only once a kernel of a module that uses printf was launched, or memory pools
// are in use: the driver gives their free memory back in waiting calls as well. Where kernels assert, the waiting call for the very stream or event is
// made too, and its result counts.

// Text is what the driver printed in the worker: [stdio.Capture].
type Text interface {
	Take(stream, limit int) []byte
}

// launched notes that a kernel of p's image may run from now on.
func (s *Session) launched(p *scan) {
	if p != nil && !p.noted {
		p.noted = true
		s.suspects = append(s.suspects, p)
	}
}

// judge looks at what is known by now of the images of which kernels were launched.
func (s *Session) judge() {
	if len(s.suspects) == 0 {
		return
	}
	s.suspects = slices.DeleteFunc(s.suspects, func(p *scan) bool {
		if !p.ended() {
			return false
		}
		s.prints = s.prints || p.prints && s.text != nil
		s.asserts = s.asserts || p.asserts
		return true
	})
}

// mayPrint says whether a kernel may have printed something.
func (s *Session) mayPrint() bool {
	s.judge()
	return s.prints || len(s.suspects) > 0 && s.text != nil
}

// mayAssert says whether a kernel with assertions was launched.
func (s *Session) mayAssert() bool {
	s.judge()
	return s.asserts
}

// settles says whether the driver has something to do in its waiting calls when everything is over.
func (s *Session) settles() bool { return s.mayPrint() || s.pooled }

// settleEvent lets the driver do it for what lies before an event that has fired. It tells of assertions that failed, too.
func (s *Session) settleEvent(e cuda.CUevent) cuda.CUresult {
	if s.settles() || s.mayAssert() {
		return s.gpu.CuEventSynchronize(e)
	}
	return cuda.CUDA_SUCCESS
}

// settleChunk is settleEvent for a chunk that has come down. Programs fetch numbers one by one, so where no kernel was launched since it was done last
// there is nothing to be told.
func (s *Session) settleChunk(st *stream, c *chunk) cuda.CUresult {
	if s.settles() || !s.mayAssert() {
		return s.settleEvent(c.event)
	}
	if len(s.deviceGraphs) == 0 && st.ctx.judged() {
		return cuda.CUDA_SUCCESS
	}
	r := s.settleEvent(c.event)
	if r == cuda.CUDA_SUCCESS {
		st.judged = max(st.judged, c.kernels)
	}
	return r
}

// judged says whether all kernels of the context have been seen to end without a failed assertion.
func (ctx *context) judged() bool {
	return ctx.legacy.kernels == ctx.legacy.judged && !slices.ContainsFunc(ctx.streams, func(st *stream) bool { return st.kernels != st.judged })
}

// settleStream does for a stream that is idle.
func (s *Session) settleStream(st *stream) cuda.CUresult {
	if (s.settles() || s.mayAssert()) && len(s.captures) == 0 {
		return s.gpu.CuStreamSynchronize(st.real)
	}
	return cuda.CUDA_SUCCESS
}

// settleIdle does for everything where the whole context is idle.
func (s *Session) settleIdle(ctx *context) {
	if ctx == nil || !s.settles() || len(s.captures) > 0 {
		return
	}
	s.within(ctx, func() cuda.CUresult {
		for i := -1; i < len(ctx.streams); i++ {
			st := &ctx.legacy
			if i >= 0 {
				st = ctx.streams[i]
			}
			if st.used && s.gpu.CuStreamQuery(st.real) != cuda.CUDA_SUCCESS {
				return cuda.CUDA_SUCCESS
			}
		}
		return s.gpu.CuCtxSynchronize()
	})
}

// sendText sends what was printed so far; the answer with result r follows it. A failed assertion ends the context and prints as well.
func (s *Session) sendText(r cuda.CUresult) {
	if s.text == nil || r != cuda.CUDA_ERROR_ASSERT && !s.mayPrint() {
		return
	}
	streams := []int{stdio.Output}
	if r == cuda.CUDA_ERROR_ASSERT {
		s.gpu.CuCtxSynchronize()
		streams = append(streams, stdio.Error)
	}
	if f, ok := s.gpu.(cuda.TextFlusher); ok {
		f.FlushText()
	}
	for _, stream := range streams {
		for b := s.text.Take(stream, transport.MaxText); len(b) > 0; b = s.text.Take(stream, transport.MaxText) {
			s.out.message(transport.MessageHeader{Type: transport.MsgText, ID: uint32(stream)}, b, nil)
		}
	}
}
