package executor

import (
	"fmt"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/trait"
	"scuda.dev/scuda/server/handle"
	"scuda.dev/scuda/transport"
)

// context is a CUDA context of the session and what the executor keeps in it. All of that ends with the context.
type context struct {
	handle    uint64 // the client's
	real      cuda.CUcontext
	legacy    stream
	streams   []*stream // all others
	perThread map[uint32]*stream

	events     []cuda.CUevent // free ones, without timing
	left       []cuda.CUevent // behind the work of streams that were destroyed meanwhile
	small      slotPool
	large      slotPool
	pulls      []*pullBuffer
	marks      []*mark
	nodeMemory [][]byte      // page-locked, of graphs that are gone
	pinned     uint64        // bytes of page-locked memory
	helper     cuda.CUstream // for events that stand for other events; made on demand
	// calls of NCCL under way, within which it must not end
	collectives int
	barriers    [barrierKinds]cuda.CUevent // of barriers whose source lies here
}

// stream is a stream of the session.
type stream struct {
	handle      uint64 // 0 for those that the client has no handle of
	real        cuda.CUstream
	ctx         *context
	legacy      bool
	nonBlocking bool                 // not ordered against the legacy stream
	used        bool                 // since it was last known to be empty
	passed      [barrierKinds]uint64 // gen of each barrier
	sent        uint64               // unanswered commands, of a session that shares memory
	half        cuda.CUevent         // behind the first half of queueMost of them; see pace
	kernels     uint64               // launches, of graphs too
	timed       uint64               // so many of them when a mark of timelimit was put here
	judged      uint64               // so many of them have been seen to end without a failed assertion
	downloads   []*chunk
	mark        *mark // which the GPU writes behind asynchronous downloads
	watches     []*watch
	collectives int // calls of NCCL under way with it
}

// thread is what the server knows of a client thread.
type thread struct {
	mode cuda.CUstreamCaptureMode
}

// command is a command and the answer that grows for it.
type command struct {
	transport.CommandHeader
	payload []byte
	reply   []byte // answer's payload
	outs    bool   // reply counts with failures too
	async   bool   // the answer may carry an error of an earlier unanswered command
	later   bool   // somebody else will answer
	fine    bool   // a failure is an answer like any other: the image of a load is not there
	began   int64  // when it was turned to, by metrics.Now; 0: nobody asks
}

func newTable(h transport.Hello) (*handle.Table, error) { return handle.New(regions(&h)) }

// CheckHello says why no session can be opened for a client, before a worker is spent on it.
func CheckHello(h *transport.Hello) error {
	if err := handle.Check(regions(h)); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// regions are where the client and the server take handles from.
func regions(h *transport.Hello) (client, server handle.Region) {
	return handle.Region{Base: h.ClientBase, Slots: h.ClientSlots}, handle.Region{Base: h.ServerBase, Slots: h.ServerSlots}
}

// enter makes the command's context the driver's current one.
func (b *base) enter(h uint64) cuda.CUresult {
	if b.enteredOK && (b.entered == nil && h == 0 || b.entered != nil && b.entered.handle == h) {
		return cuda.CUDA_SUCCESS
	}
	b.launchAll()
	var ctx *context
	var real cuda.CUcontext
	if h != 0 {
		if ctx = b.contexts[h]; ctx == nil {
			return cuda.CUDA_ERROR_INVALID_CONTEXT
		}
		real = ctx.real
	}
	if r := b.gpu.CuCtxSetCurrent(real); r != cuda.CUDA_SUCCESS {
		b.enteredOK = false
		return r
	}
	b.entered, b.enteredOK = ctx, true
	return cuda.CUDA_SUCCESS
}

// enterAny makes some context current where none is: the driver answers no query without one.
func (b *base) enterAny() {
	if b.entered != nil {
		return
	}
	for h := range b.contexts {
		b.enter(h)
		break
	}
}

// helperOf is a context's own stream, which waits for no other; the context is the present one.
func (b *base) helperOf(ctx *context) (cuda.CUstream, cuda.CUresult) {
	if ctx.helper == 0 {
		p := alloc[cuda.CUstream](&b.arena)
		if r := b.gpu.CuStreamCreate(p, uint32(cuda.CU_STREAM_NON_BLOCKING)); r != cuda.CUDA_SUCCESS {
			return 0, r
		}
		ctx.helper = *p
	}
	return ctx.helper, cuda.CUDA_SUCCESS
}

// copyAside enqueues a copy on a stream that waits for no other, in the present context, and waits for its end.
func (b *base) copyAside(enqueue func(cuda.CUstream) cuda.CUresult) cuda.CUresult {
	if b.entered == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	st, r := b.helperOf(b.entered)
	if r == cuda.CUDA_SUCCESS {
		r = enqueue(st)
	}
	if r == cuda.CUDA_SUCCESS {
		r = b.gpu.CuStreamSynchronize(st)
	}
	return r
}

// within runs f with ctx current and returns to the context before.
func (b *base) within(ctx *context, f func() cuda.CUresult) cuda.CUresult {
	before := b.entered
	if ctx == before && b.enteredOK {
		return f()
	}
	if r := b.enter(ctx.handle); r != cuda.CUDA_SUCCESS {
		return r
	}
	r := f()
	if before == nil {
		b.enter(0)
	} else {
		b.enter(before.handle)
	}
	return r
}

// addContext enters a new context of the driver under the client's handle.
func (b *base) addContext(h uint64, real cuda.CUcontext) error {
	if err := b.table.New(cuda.KindContext, h, uint64(real), 0); err != nil {
		return err
	}
	ctx := &context{handle: h, real: real, perThread: make(map[uint32]*stream)}
	ctx.legacy = stream{real: 0, ctx: ctx, legacy: true, used: true}
	ctx.small.init(smallBytes, smallSlots)
	ctx.large.init(largeBytes, b.largeSlots)
	b.contexts[h] = ctx
	return nil
}

// addStream enters a stream that the driver made in the current context.
func (b *base) addStream(h uint64, real cuda.CUstream, flags uint32) (*stream, error) {
	ctx := b.entered
	if h != 0 {
		if err := b.table.New(cuda.KindStream, h, uint64(real), ctx.handle); err != nil {
			return nil, err
		}
	}
	st := &stream{handle: h, real: real, ctx: ctx, nonBlocking: flags&uint32(cuda.CU_STREAM_NON_BLOCKING) != 0}
	ctx.streams = append(ctx.streams, st)
	if h != 0 {
		b.streams[h] = st
	}
	return st, nil
}

// stream finds the stream that a command names and prepares it for more work.
func (b *base) stream(h uint64) (*stream, cuda.CUresult) {
	st, r := b.streamAhead(h)
	if r == cuda.CUDA_SUCCESS && st.passed != b.barriers.gen {
		b.launchAll()
		b.passBarriers(st)
	}
	return st, r
}

// streamOf is the same for an upload of a kind.
func (b *base) streamOf(kind barrierKind, h uint64) (*stream, cuda.CUresult) {
	if kind == ordinary {
		return b.stream(h)
	}
	st, r := b.streamAhead(h)
	if r == cuda.CUDA_SUCCESS {
		b.passBarrier(kind, st)
	}
	return st, r
}

// streamAhead is the same for work that comes ahead of the barriers.
func (b *base) streamAhead(h uint64) (*stream, cuda.CUresult) {
	var st *stream
	switch {
	case h == 0 && b.cmd.Flags&transport.FlagPTDS == 0, h == uint64(cuda.StreamLegacy):
		if b.entered == nil {
			return nil, cuda.CUDA_ERROR_INVALID_CONTEXT
		}
		st = &b.entered.legacy
	case h == 0, h == uint64(cuda.StreamPerThread):
		var r cuda.CUresult
		if st, r = b.perThread(); r != cuda.CUDA_SUCCESS {
			return nil, r
		}
	default:
		if st = b.streams[h]; st == nil {
			return nil, cuda.CUDA_ERROR_INVALID_HANDLE
		}
	}
	st.used = true
	if trait.Of(b.cmd.Op).Has(trait.Launches) {
		st.kernels++
	}
	if b.order != nil && b.cmd.Flags&transport.FlagAnswer == 0 {
		b.order.limitWork(st)
	}
	if b.pacer != nil {
		b.pacer.mark(st)
	}
	return st, cuda.CUDA_SUCCESS
}

// perThread is the calling thread's default stream in the current context.
func (b *base) perThread() (*stream, cuda.CUresult) {
	ctx := b.entered
	if ctx == nil {
		return nil, cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	if st := ctx.perThread[b.cmd.Thread]; st != nil {
		return st, cuda.CUDA_SUCCESS
	}
	p := alloc[cuda.CUstream](&b.arena)
	if r := b.gpu.CuStreamCreate(p, 0); r != cuda.CUDA_SUCCESS {
		return nil, r
	}
	st, err := b.addStream(0, *p, 0)
	if err != nil {
		return nil, cuda.CUDA_ERROR_UNKNOWN
	}
	ctx.perThread[b.cmd.Thread] = st
	return st, cuda.CUDA_SUCCESS
}

func (b *base) thread() *thread {
	t := b.threads[b.cmd.Thread]
	if t == nil {
		t = &thread{mode: cuda.CU_STREAM_CAPTURE_MODE_GLOBAL}
		b.threads[b.cmd.Thread] = t
	}
	return t
}

// event takes an event of the context.
func (b *base) event(ctx *context) (cuda.CUevent, cuda.CUresult) {
	if n := len(ctx.events); n > 0 {
		e := ctx.events[n-1]
		ctx.events = ctx.events[:n-1]
		return e, cuda.CUDA_SUCCESS
	}
	p := alloc[cuda.CUevent](&b.arena)
	r := b.within(ctx, func() cuda.CUresult { return b.gpu.CuEventCreate(p, uint32(cuda.CU_EVENT_DISABLE_TIMING)) })
	return *p, r
}

// recordEvent takes an event and records it on st.
func (b *base) recordEvent(st *stream) (cuda.CUevent, cuda.CUresult) {
	e, r := b.event(st.ctx)
	if r != cuda.CUDA_SUCCESS {
		return 0, r
	}
	if r = b.gpu.CuEventRecord(e, st.real); r != cuda.CUDA_SUCCESS {
		st.ctx.events = append(st.ctx.events, e)
		return 0, r
	}
	return e, cuda.CUDA_SUCCESS
}

// barrier orders streams behind an upload that comes before all later work. Natively a synchronous upload returns when
// the data have arrived, so every later command on any stream sees them; here it returns earlier. Streams that are not
// ordered behind the upload's stream anyway wait for it before their next command. Nothing is recorded until there is
// such a stream, or a kernel that it should not wait for.
type barrier struct {
	src      *stream
	recorded uint64 // gen that the source context's event stands for
}

// barrierKind tells uploads apart by what they may wait for.
type barrierKind int

const (
	// The program's uploads, and those of unified memory, are behind what their stream has.
	ordinary barrierKind = iota
	// A kernel may wait for what the program writes to pinned memory. So uploads to its mirrors wait for each other
	// alone, whatever streams they are on: the program's may be behind that kernel.
	mirrors
	barrierKinds
)

// barriers are one of each kind. gen counts its uploads.
type barriers struct {
	of  [barrierKinds]barrier
	gen [barrierKinds]uint64
}

// from says whether the last upload of a kind was on st.
func (b *barriers) from(st *stream) bool { return b.of[ordinary].src == st || b.of[mirrors].src == st }

func (b *barriers) isRecorded(kind barrierKind) bool { return b.of[kind].recorded == b.gen[kind] }

// raiseBarrier notes an upload on st.
func (b *base) raiseBarrier(kind barrierKind, st *stream) {
	k := &b.barriers.of[kind]
	if k.src != nil && k.src != st {
		if e, ok := b.markBarrier(kind); ok {
			b.gpu.CuStreamWaitEvent(st.real, e, 0) // so that waiting for st covers the earlier upload as well
		}
	}
	b.barriers.gen[kind]++
	k.src = st
	st.passed[kind] = b.barriers.gen[kind]
}

// markBarrier gives an event behind the last upload, false when that has arrived.
func (b *base) markBarrier(kind barrierKind) (cuda.CUevent, bool) {
	k := &b.barriers.of[kind]
	ctx := k.src.ctx
	mark := &ctx.barriers[kind]
	if !b.barriers.isRecorded(kind) {
		r := b.within(ctx, func() cuda.CUresult {
			if *mark == 0 {
				e, r := b.event(ctx)
				if r != cuda.CUDA_SUCCESS {
					return r
				}
				*mark = e
			}
			return b.gpu.CuEventRecord(*mark, k.src.real)
		})
		if r != cuda.CUDA_SUCCESS { // a sticky error, which every later command reports by itself
			return 0, false
		}
		k.recorded = b.barriers.gen[kind]
	}
	if b.gpu.CuEventQuery(*mark) != cuda.CUDA_ERROR_NOT_READY {
		k.src = nil
		return 0, false
	}
	return *mark, true
}

// passBarriers makes st wait for the last upload of each kind.
func (b *base) passBarriers(st *stream) {
	for kind := range barrierKinds {
		b.passBarrier(kind, st)
	}
}

func (b *base) passBarrier(kind barrierKind, st *stream) {
	k := &b.barriers.of[kind]
	switch {
	case st.passed[kind] == b.barriers.gen[kind]:
	case k.src == nil, k.src == st, k.src.legacy && !st.nonBlocking && k.src.ctx == st.ctx:
	case b.isCapturing(st):
		return // a captured wait would be wrong; the graph's launch passes the barrier
	default:
		b.inRelaxedMode(func() {
			if e, ok := b.markBarrier(kind); ok {
				b.gpu.CuStreamWaitEvent(st.real, e, 0)
			}
		})
	}
	st.passed[kind] = b.barriers.gen[kind]
}

// fixBarriers is called before a kernel follows uploads on its stream: others must not wait for the kernel, which may
// wait for them.
func (b *base) fixBarriers(st *stream) {
	for kind := range barrierKinds {
		if b.barriers.of[kind].src == st && !b.barriers.isRecorded(kind) && len(b.streams) > 0 && !b.isCapturing(st) {
			b.launchAll()
			b.markBarrier(kind)
		}
	}
}

// settleBarriers is called before a stream ends: from then on a recorded event stands for it.
func (b *base) settleBarriers(st *stream) {
	for kind := range barrierKinds {
		k := &b.barriers.of[kind]
		if k.src != st {
			continue
		}
		if _, busy := b.markBarrier(kind); busy {
			k.src = &stream{ctx: st.ctx}
		}
	}
}
