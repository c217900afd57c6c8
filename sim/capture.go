package sim

import (
	"golang.org/x/sys/unix"
	"scuda.dev/scuda/api/cuda"
)

// capture is a stream capture under way: what is submitted to its streams becomes nodes of a graph.
type capture struct {
	id      uint64
	graph   *graph
	given   bool // the graph is the caller's
	mode    cuda.CUstreamCaptureMode
	thread  int
	origin  *stream
	streams map[*stream]struct{}
	invalid bool
	deps    dependencyList // what CuStreamGetCaptureInfo pointed the caller to
}

func (cap *capture) invalidate() { cap.invalid = true }

// add makes o a node behind what s has captured so far.
func (cap *capture) add(s *stream, o op) (*node, cuda.CUresult) {
	if cap.invalid {
		return nil, cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	}
	n := s.ctx.gpu.graphs.add(cap.graph, o, s.capDeps)
	s.capDeps = []*node{n}
	return n, ok
}

// join makes s wait for the captured event e, and takes it into the capture.
func (cap *capture) join(s *stream, e *event) cuda.CUresult {
	switch {
	case cap.invalid:
		return cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	case e.stale:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case e.capture == nil && e.recorded == nil:
		return ok // there is nothing to wait for
	case e.capture == nil:
		cap.invalidate()
		return cuda.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
	case e.capture != cap:
		cap.invalidate()
		e.capture.invalidate()
		return cuda.CUDA_ERROR_STREAM_CAPTURE_MERGE
	}
	s.capture = cap
	cap.streams[s] = struct{}{}
	s.capDeps = union(s.capDeps, e.capDeps)
	return ok
}

func (cap *capture) leave(s *stream) {
	delete(cap.streams, s)
	s.capture, s.capDeps = nil, nil
}

// end takes the capture apart.
func (g *GPU) endCapture(cap *capture) {
	for s := range cap.streams {
		cap.leave(s)
	}
	for _, o := range g.objects.live {
		if e, isEvent := o.(*event); isEvent && e.capture == cap {
			e.capture, e.capDeps, e.stale = nil, nil, true
		}
	}
	cap.deps.free()
	delete(g.captures, cap)
}

// unsafeInCapture answers a call that must not be made while something is captured. g.mu is held.
func (g *GPU) unsafeInCapture() cuda.CUresult {
	if len(g.captures) == 0 {
		return ok
	}
	t := g.thread()
	if t.captureMode == cuda.CU_STREAM_CAPTURE_MODE_RELAXED {
		return ok
	}
	r := ok
	for cap := range g.captures {
		own := cap.thread == t.id && cap.mode != cuda.CU_STREAM_CAPTURE_MODE_RELAXED
		global := cap.mode == cuda.CU_STREAM_CAPTURE_MODE_GLOBAL && t.captureMode == cuda.CU_STREAM_CAPTURE_MODE_GLOBAL
		if own || global {
			cap.invalidate()
			r = cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
	}
	return r
}

// implicitInCapture answers work for a stream that is not captured: work for the legacy stream would have to wait for
// captured streams.
func (g *GPU) implicitInCapture(s *stream) cuda.CUresult {
	r := ok
	for cap := range g.captures {
		if cap.blocks(s) {
			cap.invalidate()
			r = cuda.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
		}
	}
	return r
}

// blocks says whether work for s would have to wait for a captured stream.
func (cap *capture) blocks(s *stream) bool {
	if !s.legacy() {
		return false
	}
	for other := range cap.streams {
		if other.ctx == s.ctx && other.blocking() {
			return true
		}
	}
	return false
}

// askedInCapture answers a question that ends the capture of its stream. g.mu is held.
func (s *stream) askedInCapture() cuda.CUresult {
	if s.capture == nil {
		return ok
	}
	s.capture.invalidate()
	return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
}

// syncInCapture answers a query of, or a wait for, a stream.
func (g *GPU) syncInCapture(s *stream) cuda.CUresult {
	if r := s.askedInCapture(); r != ok {
		return r
	}
	if r := g.implicitInCapture(s); r != ok {
		return r
	}
	return g.unsafeInCapture()
}

func (g *GPU) CuThreadExchangeStreamCaptureMode(mode *cuda.CUstreamCaptureMode) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if mode == nil { // the driver takes every value
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	t := g.thread()
	t.captureMode, *mode = *mode, t.captureMode
	return ok
}

func (g *GPU) CuStreamBeginCapture_v2(h cuda.CUstream, mode cuda.CUstreamCaptureMode) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return g.beginCapture(s, mode, nil, nil)
}

func (g *GPU) CuStreamBeginCaptureToGraph(h cuda.CUstream, hg cuda.CUgraph, deps *cuda.CUgraphNode,
	data *cuda.CUgraphEdgeData, n uint64, mode cuda.CUstreamCaptureMode) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	gr, r := find[*graph](g, hg)
	if r != ok {
		return r
	}
	nodes, r := g.nodesOf(gr, deps, data, n)
	if r != ok {
		return r
	}
	return g.beginCapture(s, mode, gr, nodes)
}

func (g *GPU) beginCapture(s *stream, mode cuda.CUstreamCaptureMode, gr *graph, deps []*node) cuda.CUresult {
	switch {
	case mode < 0 || mode > cuda.CU_STREAM_CAPTURE_MODE_RELAXED:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case s.legacy():
		return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	case s.capture != nil:
		return cuda.CUDA_ERROR_ILLEGAL_STATE
	}
	given := gr != nil
	if !given {
		gr = newGraph()
	}
	cap := &capture{id: g.nextID(), graph: gr, given: given, mode: mode, thread: g.thread().id, origin: s,
		streams: map[*stream]struct{}{s: {}}}
	s.capture, s.capDeps = cap, deps
	g.captures[cap] = struct{}{}
	return ok
}

func (g *GPU) CuStreamEndCapture(h cuda.CUstream, ph *cuda.CUgraph) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*ph = 0
	cap := s.capture
	switch {
	case cap == nil:
		return cuda.CUDA_ERROR_ILLEGAL_STATE
	case cap.origin != s:
		cap.invalidate()
		return cuda.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
	}
	switch {
	case cap.invalid:
		r = cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	case !cap.joined():
		r = cuda.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
	case cap.mode != cuda.CU_STREAM_CAPTURE_MODE_RELAXED && cap.thread != g.thread().id:
		r = cuda.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD // and ended it is
	}
	g.endCapture(cap)
	if r != ok {
		if !cap.given {
			g.graphs.drop(cap.graph)
		}
		return r
	}
	g.graphs.name(cap.graph)
	*ph = cap.graph.handle
	return ok
}

// joined says whether the origin stream stands behind everything that the other streams have captured.
func (cap *capture) joined() bool {
	behind := map[*node]bool{}
	var visit func([]*node)
	visit = func(nodes []*node) {
		for _, n := range nodes {
			if !behind[n] {
				behind[n] = true
				visit(n.deps)
			}
		}
	}
	visit(cap.origin.capDeps)
	for s := range cap.streams {
		for _, n := range s.capDeps {
			if !behind[n] {
				return false
			}
		}
	}
	return true
}

func (g *GPU) CuStreamIsCapturing(h cuda.CUstream, status *cuda.CUstreamCaptureStatus) cuda.CUresult {
	return g.readCapture(h, status, func(*capture, *stream) cuda.CUresult { return ok })
}

// readCapture gives a stream's capture status, and calls read for an active one.
func (g *GPU) readCapture(h cuda.CUstream, status *cuda.CUstreamCaptureStatus,
	read func(*capture, *stream) cuda.CUresult) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if status == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	switch cap := s.capture; {
	case cap == nil:
		for active := range g.captures {
			if active.blocks(s) {
				return cuda.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT // but the capture goes on
			}
		}
		*status = cuda.CU_STREAM_CAPTURE_STATUS_NONE
	case cap.invalid:
		*status = cuda.CU_STREAM_CAPTURE_STATUS_INVALIDATED
	default:
		*status = cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE
		return read(cap, s)
	}
	return ok
}

func (g *GPU) CuStreamGetCaptureInfo(h cuda.CUstream, status *cuda.CUstreamCaptureStatus,
	id *cuda.Cuuint64) cuda.CUresult {
	return g.readCapture(h, status, func(cap *capture, _ *stream) cuda.CUresult {
		if id != nil {
			*id = cuda.Cuuint64(cap.id)
		}
		return ok
	})
}

func (g *GPU) CuStreamUpdateCaptureDependencies(h cuda.CUstream, deps *cuda.CUgraphNode, n uint64,
	flags uint32) cuda.CUresult {
	return g.CuStreamUpdateCaptureDependencies_v2(h, deps, nil, n, flags)
}

func (g *GPU) CuStreamUpdateCaptureDependencies_v2(h cuda.CUstream, deps *cuda.CUgraphNode, data *cuda.CUgraphEdgeData,
	n uint64, flags uint32) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	cap := s.capture
	switch {
	case cap == nil:
		return cuda.CUDA_ERROR_ILLEGAL_STATE
	case cap.invalid:
		return cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	}
	nodes, r := g.nodesOf(cap.graph, deps, data, n)
	if r != ok {
		return r
	}
	switch flags {
	case uint32(cuda.CU_STREAM_ADD_CAPTURE_DEPENDENCIES):
		s.capDeps = union(s.capDeps, nodes)
	case uint32(cuda.CU_STREAM_SET_CAPTURE_DEPENDENCIES):
		s.capDeps = nodes
	default:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

// dependencyList is memory outside the Go heap for the node array that CuStreamGetCaptureInfo points its caller to.
type dependencyList struct{ span }

var edgeDataSize = sizeOf[cuda.CUgraphEdgeData]()

func (l *dependencyList) free() {
	if l.size != 0 {
		_ = unmap(l.base, l.size) // a range of our own: the call cannot fail
		l.span = span{}
	}
}

// set stores the nodes and as many empty edge records, and gives the addresses of both.
func (l *dependencyList) set(nodes []*node) (handles, edges pointer, err error) {
	n := uint64(len(nodes))
	if need := n * (8 + edgeDataSize); need > l.size || l.size == 0 {
		l.free()
		size := roundUp(max(need, 1), 4096)
		base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return nil, nil, err
		}
		l.span = span{base, size}
	}
	array := sliceOf(view[cuda.CUgraphNode](at(l.base)), n)
	for i, node := range nodes {
		array[i] = node.handle
	}
	clear(bytesAt(l.base+8*n, n*edgeDataSize))
	return at(l.base), at(l.base + 8*n), nil
}

func (g *GPU) CuStreamGetCaptureInfo_v2(h cuda.CUstream, status *cuda.CUstreamCaptureStatus, id *cuda.Cuuint64,
	gr *cuda.CUgraph, deps pointer, n *uint64) cuda.CUresult {
	return g.CuStreamGetCaptureInfo_v3(h, status, id, gr, deps, nil, n)
}

func (g *GPU) CuStreamGetCaptureInfo_v3(h cuda.CUstream, status *cuda.CUstreamCaptureStatus, id *cuda.Cuuint64,
	gr *cuda.CUgraph, deps, edges pointer, n *uint64) cuda.CUresult {
	return g.readCapture(h, status, func(cap *capture, s *stream) cuda.CUresult {
		if id != nil {
			*id = cuda.Cuuint64(cap.id)
		}
		if gr != nil {
			g.graphs.name(cap.graph)
			*gr = cap.graph.handle
		}
		nodes, data, err := cap.deps.set(s.capDeps)
		if err != nil {
			return cuda.CUDA_ERROR_OUT_OF_MEMORY
		}
		if deps != nil {
			*view[pointer](deps) = nodes
		}
		if edges != nil {
			*view[pointer](edges) = data
		}
		if n != nil {
			*n = uint64(len(s.capDeps))
		}
		return ok
	})
}
