package executor

import (
	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// capture is a capture sequence that a client thread began.
type capture struct {
	thread uint32
	mode   cuda.CUstreamCaptureMode
	given  bool // the graph is the program's
}

func (s *Session) captureMode(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.CaptureMode](c)
	if err != nil {
		return 0, err
	}
	s.thread().mode = cuda.CUstreamCaptureMode(p.Mode)
	return cuda.CUDA_SUCCESS, nil
}

// beginning comes before a capture: work for the legacy stream is forbidden while others capture, and so would be the barrier's mark.
func (s *Session) beginning() {
	if s.barrier.src != nil && s.barrier.recorded != s.barrier.gen {
		s.launchAll()
		s.markBarrier()
	}
}

// began notes a capture that the driver has begun.
func (s *Session) began(st *stream, mode cuda.CUstreamCaptureMode, given bool) {
	s.captures[st.real] = capture{s.cmd.Thread, mode, given}
}

// beginCapture: cuStreamBeginCapture (global mode) and cuStreamBeginCapture_v2.
func (s *Session) beginCapture(c *command) (cuda.CUresult, error) {
	return s.begin(c, cuda.CU_STREAM_CAPTURE_MODE_GLOBAL, func(st *stream, _ *args, _ cuda.CUstreamCaptureMode) cuda.CUresult {
		return s.gpu.CuStreamBeginCapture(st.real)
	})
}

func (s *Session) beginCaptureV2(c *command) (cuda.CUresult, error) {
	return s.begin(c, -1, func(st *stream, _ *args, mode cuda.CUstreamCaptureMode) cuda.CUresult {
		return s.gpu.CuStreamBeginCapture_v2(st.real, mode)
	})
}

// begin reads the stream, then the mode unless the function has a fixed one, and calls the driver.
func (s *Session) begin(c *command, mode cuda.CUstreamCaptureMode, call func(*stream, *args, cuda.CUstreamCaptureMode) cuda.CUresult) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if mode < 0 {
		mode = cuda.CUstreamCaptureMode(a.U64())
	}
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := s.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	s.beginning()
	if r = call(st, a, mode); r == cuda.CUDA_SUCCESS {
		s.began(st, mode, false)
	}
	return r, nil
}

func (s *Session) beginCaptureToGraph(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h, graph := a.U64(), a.U64()
	deps, n := a.In(8)
	edges, ne := a.In(8)
	count, mode := a.U64(), cuda.CUstreamCaptureMode(a.U64())
	a.Need(n, count)
	a.Need(ne, count)
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := s.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	g, ok := s.table.Real(cuda.KindGraph, graph)
	if !ok || count > 0 && deps == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	nodes := codec.Words(deps, n)
	for i, h := range nodes {
		if nodes[i], ok = s.table.Real(cuda.KindGraphNode, h); !ok {
			return cuda.CUDA_ERROR_INVALID_HANDLE, nil
		}
	}
	s.beginning()
	r = s.gpu.CuStreamBeginCaptureToGraph(st.real, cuda.CUgraph(g), (*cuda.CUgraphNode)(deps), (*cuda.CUgraphEdgeData)(edges), count, mode)
	if r == cuda.CUDA_SUCCESS {
		s.began(st, mode, true)
	}
	return r, nil
}

// endCapture: cuStreamEndCapture(hStream, *phGraph).
func (s *Session) endCapture(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h, capacity := a.U64(), a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := s.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	k, known := s.captures[st.real]
	graph := alloc[cuda.CUgraph](&s.arena)
	r = s.gpu.CuStreamEndCapture(st.real, graph)
	if known && r == cuda.CUDA_SUCCESS && k.thread != s.cmd.Thread && k.mode != cuda.CU_STREAM_CAPTURE_MODE_RELAXED {
		// For the driver all threads are this one. Natively such a call ends the capture, too, and gives no graph.
		if r = cuda.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; !k.given {
			s.gpu.CuGraphDestroy(*graph)
		}
	}
	if !s.isCapturing(st) {
		delete(s.captures, st.real)
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if capacity == 0 { // the program does not want the graph
		c.reply = s.arena.bytes(8)
		clear(c.reply)
		return r, nil
	}
	c.reply = s.handleReply(cuda.KindGraph, uint64(*graph), 0)
	return r, nil
}
