package executor

import (
	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// capture is a capture sequence that a client thread began.
type capture struct {
	thread uint32
	mode   cuda.CUstreamCaptureMode
	given  bool // the graph is the program's
}

func (g *graphs) setThreadMode(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.CaptureMode](c)
	if err != nil {
		return 0, err
	}
	g.thread().mode = cuda.CUstreamCaptureMode(p.Mode)
	return cuda.CUDA_SUCCESS, nil
}

// markBarriersBeforeCapture comes before a capture: work for the legacy stream is forbidden while others capture, and
// so would be a barrier's mark.
func (g *graphs) markBarriersBeforeCapture() {
	for kind := range barrierKinds {
		if g.barriers.of[kind].src != nil && !g.barriers.isRecorded(kind) {
			g.launchAll()
			g.markBarrier(kind)
		}
	}
}

// noteCapture notes a capture that the driver has begun.
func (g *graphs) noteCapture(st *stream, mode cuda.CUstreamCaptureMode, given bool) {
	g.captures[st.real] = capture{g.cmd.Thread, mode, given}
}

// beginCapture: cuStreamBeginCapture (global mode) and cuStreamBeginCapture_v2.
func (g *graphs) beginCapture(c *command) (cuda.CUresult, error) {
	begin := func(st *stream, _ cuda.CUstreamCaptureMode) cuda.CUresult { return g.gpu.CuStreamBeginCapture(st.real) }
	return g.beginCaptureBy(c, cuda.CU_STREAM_CAPTURE_MODE_GLOBAL, begin)
}

func (g *graphs) beginCaptureV2(c *command) (cuda.CUresult, error) {
	return g.beginCaptureBy(c, -1, func(st *stream, mode cuda.CUstreamCaptureMode) cuda.CUresult {
		return g.gpu.CuStreamBeginCapture_v2(st.real, mode)
	})
}

// beginCaptureBy reads the stream, then the mode unless the function has a fixed one, and calls the driver.
func (g *graphs) beginCaptureBy(
	c *command, mode cuda.CUstreamCaptureMode, call func(*stream, cuda.CUstreamCaptureMode) cuda.CUresult,
) (cuda.CUresult, error) {
	a := g.args(c)
	h := a.U64()
	if mode < 0 {
		mode = cuda.CUstreamCaptureMode(a.U64())
	}
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := g.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	g.markBarriersBeforeCapture()
	if r = call(st, mode); r == cuda.CUDA_SUCCESS {
		g.noteCapture(st, mode, false)
	}
	return r, nil
}

func (g *graphs) beginCaptureToGraph(c *command) (cuda.CUresult, error) {
	a := g.args(c)
	h, graph := a.U64(), a.U64()
	deps, n := a.In(8)
	edges, ne := a.In(8)
	count, mode := a.U64(), cuda.CUstreamCaptureMode(a.U64())
	a.Need(n, count)
	a.Need(ne, count)
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := g.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	real, ok := g.table.Real(cuda.KindGraph, graph)
	if !ok || count > 0 && deps == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	nodes := codec.Words(deps, n)
	for i, h := range nodes {
		if nodes[i], ok = g.table.Real(cuda.KindGraphNode, h); !ok {
			return cuda.CUDA_ERROR_INVALID_HANDLE, nil
		}
	}
	g.markBarriersBeforeCapture()
	r = g.gpu.CuStreamBeginCaptureToGraph(st.real, cuda.CUgraph(real),
		(*cuda.CUgraphNode)(deps), (*cuda.CUgraphEdgeData)(edges), count, mode)
	if r == cuda.CUDA_SUCCESS {
		g.noteCapture(st, mode, true)
	}
	return r, nil
}

// endCapture: cuStreamEndCapture(hStream, *phGraph).
func (g *graphs) endCapture(c *command) (cuda.CUresult, error) {
	a := g.args(c)
	h, capacity := a.U64(), a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := g.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	k, known := g.captures[st.real]
	graph := alloc[cuda.CUgraph](&g.arena)
	r = g.gpu.CuStreamEndCapture(st.real, graph)
	if known && r == cuda.CUDA_SUCCESS && k.thread != g.cmd.Thread && k.mode != cuda.CU_STREAM_CAPTURE_MODE_RELAXED {
		// For the driver all threads are this one. Natively such a call ends the capture, too, and gives no graph.
		if r = cuda.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; !k.given {
			g.gpu.CuGraphDestroy(*graph)
		}
	}
	if !g.isCapturing(st) {
		delete(g.captures, st.real)
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if capacity == 0 { // the program does not want the graph
		c.reply = g.arena.bytes(8)
		clear(c.reply)
		return r, nil
	}
	c.reply = g.handleReply(cuda.KindGraph, uint64(*graph), 0)
	return r, nil
}

// captureInfo: cuStreamGetCaptureInfo_v2 and _v3, whose lists lie in the driver's memory.
func (g *graphs) captureInfo(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.CaptureInfo](c)
	if err != nil {
		return 0, err
	}
	st, r := g.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	const edgeBytes = 8
	status, id := alloc[cuda.CUstreamCaptureStatus](&g.arena), alloc[cuda.Cuuint64](&g.arena)
	graph, count := alloc[cuda.CUgraph](&g.arena), alloc[uint64](&g.arena)
	nodes, edges := alloc[uintptr](&g.arena), alloc[uintptr](&g.arena)
	wantEdges := p.Flags&wire.CaptureInfoEdges != 0
	if wantEdges {
		r = g.gpu.CuStreamGetCaptureInfo_v3(st.real, status, id, graph, pointerOf(nodes), pointerOf(edges), count)
	} else {
		r = g.gpu.CuStreamGetCaptureInfo_v2(st.real, status, id, graph, pointerOf(nodes), count)
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	v := wire.CaptureValues{Status: int32(*status)}
	if *status != cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		answerWith(&g.arena, c, v, 0)
		return r, nil
	}
	v.ID, v.Graph, v.Count = uint64(*id), g.table.Client(cuda.KindGraph, uint64(*graph), 0), uint32(*count)
	v.Sent = uint32(min(*count, uint64(p.MaxNodes), 1<<15))
	each := 8
	if wantEdges {
		each += edgeBytes
	}
	out := answerWith(&g.arena, c, v, int(v.Sent)*each)
	if v.Sent == 0 {
		return r, nil
	}
	list := driverWords(*nodes, int(v.Sent))
	for i := range list {
		h := g.table.Client(cuda.KindGraphNode, list[i], v.Graph)
		copy(out[i*8:], wire.Bytes(&h))
	}
	if wantEdges && *edges != 0 {
		for i, e := range driverWords(*edges, int(v.Sent)) {
			copy(out[int(v.Sent)*8+i*edgeBytes:], wire.Bytes(&e))
		}
	}
	return r, nil
}

// captureH2D captures an upload: its bytes are fetched whenever the graph runs.
func (g *graphs) captureH2D(p *wire.CopyH2DPull, st *stream) cuda.CUresult {
	if p.Bytes > maxWidth {
		return g.capturePieces(p, st)
	}
	mem, r := g.nodeBuffer(st.ctx, int(p.Bytes))
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	b := &cuda.CUDA_MEMCPY3D{WidthInBytes: p.Bytes, Height: 1, Depth: 1, SrcMemoryType: cuda.CU_MEMORYTYPE_HOST,
		SrcHost:       uintptr(addressOf(mem)),
		DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstDevice: cuda.CUdeviceptr(p.Dst)}
	return g.captureHostCopy(st, g.uploadEnd(st.ctx, p.Source, mem), b, func() cuda.CUresult {
		return g.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(p.Dst), pointerTo(mem), p.Bytes, st.real)
	})
}

// capturePieces captures one that is too long for a node. Its pieces go through the same memory, one behind the other.
func (g *graphs) capturePieces(p *wire.CopyH2DPull, st *stream) cuda.CUresult {
	mem, r := g.nodeBuffer(st.ctx, pullMost)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	source := p.Source
	for off := uint64(0); off < p.Bytes && r == cuda.CUDA_SUCCESS; off += pullMost {
		at, piece := off, mem[:min(pullMost, p.Bytes-off)]
		end := g.newHostEnd(transport.ForgetSource, 0, func() {
			if err := g.callback.pull(source, at, piece, false); err != nil {
				g.loop.clientFailed("fetch the source of a captured upload", err)
			}
		})
		if off == 0 { // all belong to one graph, and end with it
			end.number, end.ctx, end.mem = uint64(source), st.ctx, mem
		}
		r = g.captureHostCopy(st, end, nil, func() cuda.CUresult {
			return g.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(p.Dst+at), pointerTo(piece), uint64(len(piece)), st.real)
		})
	}
	return r
}

// captureD2H captures a download: whenever the graph runs, its data are sent in stream order, over the callback
// connection, so that what follows on the stream finds them with the client. Its buffer is its own, since the graph may
// run at any time.
func (g *graphs) captureD2H(p *wire.CopyD2H, st *stream) cuda.CUresult {
	if p.Bytes == 0 {
		return cuda.CUDA_SUCCESS
	}
	mem, r := g.nodeBuffer(st.ctx, int(p.Bytes))
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	var one *cuda.CUDA_MEMCPY3D
	if p.Bytes <= maxWidth {
		one = &cuda.CUDA_MEMCPY3D{WidthInBytes: p.Bytes, Height: 1, Depth: 1, SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE,
			SrcDevice:     cuda.CUdeviceptr(p.Src),
			DstMemoryType: cuda.CU_MEMORYTYPE_HOST, DstHost: uintptr(addressOf(mem))}
	}
	end := g.downloadEnd(st.ctx, p.Transfer, mem, rows{p.Bytes, 1, 1, 0, 0})
	return g.captureHostCopy(st, end, one, func() cuda.CUresult {
		return g.gpu.CuMemcpyDtoHAsync_v2(pointerTo(mem), cuda.CUdeviceptr(p.Src), p.Bytes, st.real)
	})
}

// capture3D captures a copy: its rows are fetched or sent whenever the graph runs.
func (g *graphs) capture3D(p *wire.Copy3D, b *copy3D, st *stream) cuda.CUresult {
	mem, r := g.nodeBuffer(st.ctx, int(p.Bytes))
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	end := g.downloadEnd
	if !b.down {
		end = func(ctx *context, id uint32, mem []byte, _ rows) *hostEnd { return g.uploadEnd(ctx, id, mem) }
	}
	var one *cuda.CUDA_MEMCPY3D
	if !b.peer {
		one = asPlainCopy(b.straight(&g.arena, mem))
	}
	return g.captureHostCopy(st, end(st.ctx, p.ID, mem, b.host), one, func() cuda.CUresult {
		return b.enqueue(g.gpu, b.straight(&g.arena, mem), st)
	})
}
