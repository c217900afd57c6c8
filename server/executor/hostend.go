package executor

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// hostEnd is what a copy with the client's memory, or a function of the client's, takes up for as long as some graph
// has it. A user object of the driver's stands for it, whose references belong to graphs: clones and executable
// graphs have their own, and launches under way hold them. The object's destructor comes from a thread of the
// driver's and must not call the driver, so it only tells the executor (freeEndedEnds).
type hostEnd struct {
	kind       uint32 // transport.Forget…
	number     uint64 // by which the client knows it
	call       cuda.CUDA_HOST_NODE_PARAMS
	mem        []byte // page-locked memory of the copy
	ctx        *context
	object     cuda.CUuserObject
	destructor cuda.CUDA_HOST_NODE_PARAMS // of the object
}

// up says whether it is the source of an upload.
func (h *hostEnd) up() bool { return h.kind == transport.ForgetSource }

// maxSpareNodes bounds the page-locked memory of graphs that are gone, which a context keeps for the next ones.
const maxSpareNodes = 64 << 20

// newHostEnd makes one of a function that a node calls.
func (g *graphs) newHostEnd(kind uint32, number uint64, f func()) *hostEnd {
	h := &hostEnd{kind: kind, number: number, call: g.gpu.HostNode(f)}
	g.hostEnds[h.call.UserData] = h
	return h
}

// attachEnd lets a graph hold it. A driver without user objects lets it live as long as the session.
func (g *graphs) attachEnd(h *hostEnd, graph cuda.CUgraph) {
	h.destructor = g.gpu.HostNode(func() {
		g.endedMu.Lock()
		defer g.endedMu.Unlock()
		g.ended = append(g.ended, h)
	})
	object := alloc[cuda.CUuserObject](&g.arena)
	const flags = uint32(cuda.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
	r := g.gpu.CuUserObjectCreate(object, pointerAt(h.destructor.UserData), pointerAt(h.destructor.Fn), 1, flags)
	if r == cuda.CUDA_SUCCESS {
		h.object = *object
		r = g.gpu.CuGraphRetainUserObject(graph, h.object, 1, uint32(cuda.CU_GRAPH_USER_OBJECT_MOVE))
	}
	if r != cuda.CUDA_SUCCESS {
		g.log.Debug("what a graph's node takes up stays to the session's end", "error", cuda.ResultName(r))
	}
}

// releaseEnd takes a graph's hold of what a node had before its parameters were changed.
func (g *graphs) releaseEnd(before *hostEnd, graph cuda.CUgraph) {
	if before != nil && before.object != 0 {
		g.gpu.CuGraphReleaseUserObject(graph, before.object, 1)
	}
}

// freeEndedEnds frees what no graph holds any more.
func (g *graphs) freeEndedEnds() {
	g.endedMu.Lock()
	ended := g.ended
	g.ended = nil
	g.endedMu.Unlock()
	for _, h := range ended {
		g.gpu.DropNode(h.destructor)
		g.freeEnd(h)
	}
}

// freeEnd frees what no graph has.
func (g *graphs) freeEnd(h *hostEnd) {
	delete(g.hostEnds, h.call.UserData)
	g.gpu.DropNode(h.call)
	if h.mem != nil {
		h.ctx.nodeMemory = append(h.ctx.nodeMemory, h.mem[:cap(h.mem)])
		g.trimNodes(h.ctx)
	}
	if h.number != 0 {
		g.out.message(transport.MessageHeader{Type: transport.MsgForget, ID: h.kind, Aux: h.number}, nil, nil)
	}
}

// nodeBuffer gives page-locked memory for a copy in graphs: what an ended one left, where that is not much too large.
func (g *graphs) nodeBuffer(ctx *context, bytes int) ([]byte, cuda.CUresult) {
	g.freeEndedEnds()
	best := -1
	for i, mem := range ctx.nodeMemory {
		if len(mem) >= bytes && len(mem)/2 <= bytes && (best < 0 || len(mem) < len(ctx.nodeMemory[best])) {
			best = i
		}
	}
	if best >= 0 {
		mem := ctx.nodeMemory[best]
		ctx.nodeMemory = slices.Delete(ctx.nodeMemory, best, best+1)
		return mem[:bytes], cuda.CUDA_SUCCESS
	}
	return g.pageLocked(ctx, bytes)
}

// trimNodes gives memory back where it is more than a context keeps. The driver waits for kernels that run, so it is
// done when there are none; until then the memory serves the graphs that come.
func (g *graphs) trimNodes(ctx *context) {
	total := 0
	for _, mem := range ctx.nodeMemory {
		total += len(mem)
	}
	if total <= maxSpareNodes || g.contexts[ctx.handle] != ctx || len(g.captures) > 0 || !g.loop.isIdle() {
		return
	}
	slices.SortFunc(ctx.nodeMemory, func(a, b []byte) int { return len(b) - len(a) })
	for total > maxSpareNodes {
		mem := ctx.nodeMemory[0]
		if r := g.freePageLocked(ctx, mem); r != cuda.CUDA_SUCCESS {
			return
		}
		ctx.nodeMemory = ctx.nodeMemory[1:]
		total -= len(mem)
	}
}
