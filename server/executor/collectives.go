package executor

import (
	"cmp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/liveness"
	"scuda.dev/scuda/server/metrics"
)

// Collectives: NCCL's calls, which a client's libnccl.so.2 sends. A call may wait until other ranks make theirs. So
// each communicator has a thread of its own that makes them, and the executor goes on with what other threads of the
// program send. The calling one waits for the answer, as it would natively, and what it sends next comes behind.
//
// Most calls of a program are repetitions, for which NCCL's connections are made: those wait for nobody. The client
// asks for no answer then, and the executor makes them itself, so that whatever comes behind is behind them.

// mostComms is how many communicators a session may have at a time.
const mostComms = 1024

// mostCalls is how many calls of a session may wait at a time. A thread of the program has one.
const mostCalls = 1024

// mostRanks bounds what a client may say of the size of a communicator.
const mostRanks = 1 << 20

// collectives is the engine of NCCL's calls.
//
// mu guards ended, to which communicators' threads add. The rest belongs to the executor's thread.
type collectives struct {
	*base
	loop    collectivesLoop
	library nccl.Library // nil: not here
	none    string       // why not
	open    bool         // the library is

	comms      map[uint64]*communicator // by the client's number
	hubs       []*liveness.Hub          // of the ids that were made here
	abortAfter time.Duration
	underWay   int

	mu    sync.Mutex
	ended []*collectiveCall
}

// collectivesLoop is what it asks of the loop.
type collectivesLoop interface {
	reply(thread uint32, seq uint64, r cuda.CUresult, payload []byte)
}

// communicator is a rank of this session.
type communicator struct {
	comm        nccl.Comm // 0: it has not begun yet
	rank, ranks int32
	ctx         *context
	calls       chan *collectiveCall
	underWay    int         // calls that its thread has
	aborted     atomic.Bool // its thread makes no more calls
	rankWatch
	reductions map[uint32]nccl.ReduceOp // the program's own, by the numbers that it was told; 0: not made yet
}

// collectiveCall is a call that somebody waits for.
type collectiveCall struct {
	thread   uint32
	seq      uint64
	class    class.Class
	began    int64
	make     func() nccl.Result // on the communicator's thread
	answer   func(text string) []byte
	result   nccl.Result
	text     string     // what was wrong
	contexts []*context // which must not end meanwhile, nor must these
	used     []*stream
	over     func(ok bool)  // on the executor's thread
	real     cuda.CUcontext // current while it is made; 0: none
	comm     *communicator  // whose thread makes it; nil: one of its own
	awaited  chan struct{}  // closed when it is over, where nobody gets an answer
}

func newCollectives(s *Session, cfg Config) collectives {
	return collectives{base: &s.base, loop: s, library: cfg.NCCL, none: cfg.NoNCCL, comms: map[uint64]*communicator{},
		abortAfter: cmp.Or(cfg.abortAfter, abortAfter)}
}

// result is the payload of most answers.
func ncclResult(r nccl.Result, value uint32, text string) []byte {
	m := wire.NcclResult{Result: int32(r), Value: value, TextBytes: uint32(len(text))}
	return append(wire.Bytes(&m), text...)
}

// refuseCall answers a call that is not made.
func refuseCall(c *command, r nccl.Result, text string) (cuda.CUresult, error) {
	c.reply = ncclResult(r, 0, text)
	return cuda.CUDA_SUCCESS, nil
}

// call prepares a call for a command.
func (cl *collectives) call(c *command, run func() nccl.Result) *collectiveCall {
	call := &collectiveCall{thread: c.Thread, seq: c.Seq, class: class.Of(c.Op), began: c.began, make: run}
	call.answer = func(text string) []byte { return ncclResult(call.result, 0, text) }
	return call
}

// begin has a communicator's thread make a call, or a thread for this call alone.
func (cl *collectives) begin(c *command, cm *communicator, call *collectiveCall) (cuda.CUresult, error) {
	if cl.underWay >= mostCalls {
		return 0, protocolError("more than %d calls of NCCL at a time", mostCalls)
	}
	c.later = true
	cl.underWay++
	for i, ctx := range call.contexts {
		ctx.collectives++
		if i == 0 {
			call.real = ctx.real
		}
	}
	for _, st := range call.used {
		st.collectives++
	}
	if cm != nil {
		cm.underWay++
		call.comm = cm
		cm.calls <- call // there is room for all that may be under way
		return cuda.CUDA_SUCCESS, nil
	}
	go func() {
		runtime.LockOSThread() // and ends with the call
		cl.gpu.ThreadInit()
		cl.carryOut(call)
		cl.tell(call)
	}()
	return cuda.CUDA_SUCCESS, nil
}

// serve makes a communicator's calls, until there are no more.
func (cl *collectives) serve(cm *communicator) {
	runtime.LockOSThread()
	cl.gpu.ThreadInit()
	for call := range cm.calls {
		cl.carryOut(call)
		if call.awaited != nil {
			close(call.awaited)
		} else {
			cl.tell(call)
		}
	}
}

// carryOut makes a call on this thread.
func (cl *collectives) carryOut(call *collectiveCall) {
	switch {
	case call.comm != nil && call.comm.aborted.Load():
		call.result, call.text = nccl.InvalidUsage, "the communicator was aborted"
	case cl.gpu.CuCtxSetCurrent(call.real) != cuda.CUDA_SUCCESS:
		call.result, call.text = nccl.UnhandledCudaError, "the communicator's context cannot be used"
	default:
		if call.result = call.make(); call.result != nccl.Success && call.text == "" {
			call.text = cl.library.LastError()
		}
	}
}

// tell has the executor answer a call that is over.
func (cl *collectives) tell(call *collectiveCall) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.ended = append(cl.ended, call)
}

// poll answers calls that are over. It says whether there was one.
func (cl *collectives) poll() bool {
	if cl.underWay == 0 {
		return false
	}
	cl.mu.Lock()
	ended := cl.ended
	cl.ended = nil
	cl.mu.Unlock()
	for _, call := range ended {
		cl.underWay--
		if call.comm != nil {
			call.comm.underWay--
		}
		for _, ctx := range call.contexts {
			ctx.collectives--
		}
		for _, st := range call.used {
			st.collectives--
			st.used = true
		}
		if call.over != nil {
			call.over(call.result == nccl.Success)
		}
		if call.result != nccl.Success {
			cl.log.Debug("a call of NCCL failed", "result", call.result, "text", call.text)
		}
		cl.metrics.Observe(metrics.Histogram(call.class), metrics.Now()-call.began)
		cl.loop.reply(call.thread, call.seq, cuda.CUDA_SUCCESS, call.answer(call.text))
	}
	return len(ended) > 0
}

// makeNow makes a call that nobody gets an answer to before the executor goes on. The communicator's thread makes it
// where that one has other calls, or where a capture that was begun on the executor's thread would see it.
func (cl *collectives) makeNow(cm *communicator, call *collectiveCall) {
	call.real, call.comm = cm.ctx.real, cm
	if cm.underWay == 0 && len(cl.captures) == 0 {
		cl.carryOut(call)
		cl.gpu.CuCtxSetCurrent(cl.entered.real) // NCCL has its own ideas of what is current
	} else {
		call.awaited = make(chan struct{})
		cm.calls <- call
		<-call.awaited
	}
	for _, st := range call.used {
		st.used = true
	}
	if call.result != nccl.Success {
		cl.keepFailure(cm, call.result, call.text)
	}
}

// keepFailure keeps what was wrong with a call that nobody gets an answer to: it is the communicator's asynchronous
// error from now on.
func (cl *collectives) keepFailure(cm *communicator, r nccl.Result, text string) {
	cl.log.Warn("a call of NCCL failed that needs no answer", "result", r, "text", text)
	if cm != nil {
		cm.failed.CompareAndSwap(nil, &commFailure{r, text})
	}
}

// asked reads a command that has to be answered, and says whether its call can be made.
func asked[T any](cl *collectives, c *command) (m *T, rest []byte, ready bool, err error) {
	if c.Flags&wire.CommandAnswer == 0 {
		return nil, nil, false, protocolError("%s without an answer", OpName(c.Op))
	}
	m, rest, err = view[T](c)
	return m, rest, cl.open, err
}

const (
	notOpen  = "NCCL was not opened on this server"
	notBegun = "the communicator is none, or has ended"
)

// openLibrary: nccl_open.
func (cl *collectives) openLibrary(c *command) (cuda.CUresult, error) {
	m, rest, _, err := asked[wire.NcclOpen](cl, c)
	if err != nil {
		return 0, err
	}
	settings, refused, err := readSettings(rest, m)
	if err != nil {
		return 0, err
	}
	if cl.library == nil {
		return refuseCall(c, nccl.InvalidUsage, cl.none)
	}
	var version uint32
	call := cl.call(c, nil)
	call.make = func() nccl.Result {
		v, err := cl.library.Open(settings)
		if err != nil {
			call.text = err.Error()
			return nccl.SystemError
		}
		version, call.text = v, strings.Join(refused, " ")
		return nccl.Success
	}
	call.answer = func(text string) []byte { return ncclResult(call.result, version, text) }
	call.over = func(ok bool) {
		cl.open = cl.open || ok
		if !ok {
			cl.log.Warn("a client's program uses NCCL, which cannot be opened here", "error", call.text)
		}
	}
	return cl.begin(c, nil, call)
}

// uniqueID: ncclGetUniqueId.
func (cl *collectives) uniqueID(c *command) (cuda.CUresult, error) {
	_, _, ready, err := asked[wire.NcclUniqueID](cl, c)
	if err != nil {
		return 0, err
	}
	id := new(nccl.ID)
	answer := func(r nccl.Result, text string) []byte {
		m := wire.NcclID{Result: int32(r), TextBytes: uint32(len(text)), ID: *id}
		return append(wire.Bytes(&m), text...)
	}
	if !ready {
		c.reply = answer(nccl.InvalidUsage, notOpen)
		return cuda.CUDA_SUCCESS, nil
	}
	var hub *liveness.Hub
	room := len(cl.hubs) < mostComms
	call := cl.call(c, nil)
	call.make = func() nccl.Result {
		r := cl.library.UniqueID(id)
		if r == nccl.Success && room {
			hub = cl.newHub(id)
		}
		return r
	}
	call.over = func(bool) {
		if hub != nil {
			cl.hubs = append(cl.hubs, hub)
		}
	}
	call.answer = func(text string) []byte { return answer(call.result, text) }
	return cl.begin(c, nil, call)
}

// forget ends a communicator's thread, behind the calls that it has.
func (cl *collectives) forget(number uint64) {
	close(cl.comms[number].calls)
	delete(cl.comms, number)
}

// close ends the communicators' threads; those that are in a call end with the process. Where the session does not end
// as it should, the other ranks learn of it.
func (cl *collectives) close(fine bool) {
	for number, cm := range cl.comms {
		cm.unwatch(fine)
		cl.forget(number)
	}
	for _, h := range cl.hubs {
		if fine {
			h.Close()
		} else {
			h.Drop()
		}
	}
}

// comm finds a communicator that has begun and whose context is there.
func (cl *collectives) comm(number uint64) *communicator {
	cm := cl.comms[number]
	if cm == nil || cm.comm == 0 || cm.gone.Load() || cl.contexts[cm.ctx.handle] != cm.ctx {
		return nil
	}
	return cm
}

// refusal is why there is no such communicator.
func (cl *collectives) refusal(number uint64) (nccl.Result, string) {
	if cm := cl.comms[number]; cm != nil {
		if f := cm.failed.Load(); f != nil {
			return f.result, f.text
		}
	}
	return nccl.InvalidArgument, notBegun
}

// refuseComm answers a call of a communicator that there is not.
func (cl *collectives) refuseComm(c *command, number uint64) (cuda.CUresult, error) {
	r, text := cl.refusal(number)
	return refuseCall(c, r, text)
}

// group: operations, several as a group.
func (cl *collectives) group(c *command) (cuda.CUresult, error) {
	m, rest, err := view[wire.NcclGroup](c)
	if err != nil {
		return 0, err
	}
	if m.Count < 1 || m.Count > wire.MaxNcclOperations || len(rest) != int(m.Count)*wire.SizeNcclOperation {
		return 0, protocolError("%d operations of NCCL in %d bytes", m.Count, len(rest))
	}
	var first *communicator
	refuse := func(r nccl.Result, text string) (cuda.CUresult, error) {
		if c.Flags&wire.CommandAnswer == 0 {
			cl.keepFailure(first, r, text)
		}
		return refuseCall(c, r, text)
	}
	if !cl.open {
		return refuse(nccl.InvalidUsage, notOpen)
	}
	list := make([]nccl.Operation, 0, m.Count)
	used, contexts := map[*stream]bool{}, map[*context]bool{}
	place := newRangeCheck(cl.base)
	for range m.Count {
		var o *wire.NcclOperation
		o, rest, _ = wire.View[wire.NcclOperation](rest)
		cm := cl.comm(o.Comm)
		if cm == nil {
			return refuse(cl.refusal(o.Comm))
		}
		if first == nil {
			first = cm
		}
		if f := cm.failed.Load(); f != nil {
			return refuse(f.result, f.text)
		}
		contexts[cm.ctx] = true
		if r := cl.enter(cm.ctx.handle); r != cuda.CUDA_SUCCESS {
			return r, nil
		}
		st, text := cl.streamFor(o.Stream, cm)
		if st == nil {
			return refuse(nccl.InvalidArgument, text)
		}
		op, text := cl.operation(o, cm, st, place)
		if text != "" {
			return refuse(nccl.InvalidArgument, text)
		}
		used[st] = true
		list = append(list, op)
	}
	call := cl.call(c, func() nccl.Result { return cl.library.Group(list) })
	call.contexts = []*context{first.ctx}
	for ctx := range contexts {
		if ctx != first.ctx {
			call.contexts = append(call.contexts, ctx)
		}
	}
	for st := range used {
		call.used = append(call.used, st)
	}
	if c.Flags&wire.CommandAnswer == 0 {
		cl.makeNow(first, call)
		return cuda.CUDA_SUCCESS, nil
	}
	return cl.begin(c, first, call)
}

// streamFor finds the stream of an operation, or says what is wrong with it.
func (cl *collectives) streamFor(h uint64, cm *communicator) (*stream, string) {
	st, r := cl.stream(h)
	switch {
	case r != cuda.CUDA_SUCCESS:
		return nil, "the stream is none"
	case st.ctx != cm.ctx:
		return nil, "the stream belongs to another context than the communicator"
	case len(cl.captures) == 0:
		return st, ""
	}
	status := alloc[cuda.CUstreamCaptureStatus](&cl.arena)
	if r := cl.gpu.CuStreamIsCapturing(st.real, status); r != cuda.CUDA_SUCCESS ||
		*status != cuda.CU_STREAM_CAPTURE_STATUS_NONE {
		return nil, "the stream is captured; scuda does not take collectives into graphs"
	}
	return st, ""
}

// operation makes the library's operation of a client's, or says what is wrong with it.
func (*collectives) operation(
	o *wire.NcclOperation, cm *communicator, st *stream, place *rangeCheck,
) (nccl.Operation, string) {
	op := nccl.Operation{Comm: cm.comm, Count: o.Count, Stream: uint64(st.real), Function: nccl.Function(o.Function),
		Type: nccl.DataType(o.Type), Op: nccl.ReduceOp(o.Op), Peer: o.Peer}
	own := cm.reductions[o.Op]
	if op.Op.Made() && own != 0 {
		op.Op = nccl.Sum
	}
	send, recv, ok := op.Ends(cm.rank, cm.ranks)
	if own != 0 {
		op.Op = own
	}
	if !ok {
		return op, "there is no such function, type, reduction or peer, or the count is too large"
	}
	if !place.holds(o.Send, send) || !place.holds(o.Recv, recv) {
		return op, "a buffer does not lie in the GPU's memory as a whole"
	}
	if send != 0 {
		op.Send = o.Send
	}
	if recv != 0 {
		op.Recv = o.Recv
	}
	return op, ""
}

// rangeCheck finds out whether addresses are those of a GPU's memory.
type rangeCheck struct {
	b     *base
	value *uint64
}

func newRangeCheck(b *base) *rangeCheck { return &rangeCheck{b, alloc[uint64](&b.arena)} }

// ask gives an attribute of an address; 0: the driver does not know it.
func (p *rangeCheck) ask(attribute cuda.CUpointer_attribute, address uint64) uint64 {
	*p.value = 0
	if p.b.gpu.CuPointerGetAttribute(pointerOf(p.value), attribute, cuda.CUdeviceptr(address)) != cuda.CUDA_SUCCESS {
		return 0
	}
	return *p.value
}

// holds says whether bytes from an address on are the GPU's own memory. They may lie in several mappings, one behind
// the other.
func (p *rangeCheck) holds(address, bytes uint64) bool {
	for bytes > 0 {
		if p.ask(cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != uint64(cuda.CU_MEMORYTYPE_DEVICE) {
			return false
		}
		start, size := p.ask(cuda.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address),
			p.ask(cuda.CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)
		left := start + size - address
		if left == 0 || left > size {
			return false
		}
		left = min(left, bytes)
		address, bytes = address+left, bytes-left
	}
	return true
}

// end: ncclCommFinalize, ncclCommDestroy, ncclCommAbort.
func (cl *collectives) end(c *command) (cuda.CUresult, error) {
	m, _, _, err := asked[wire.NcclEnd](cl, c)
	if err != nil {
		return 0, err
	}
	if m.Verb > wire.NcclEndAbort {
		return 0, protocolError("communicator verb %d", m.Verb)
	}
	cm := cl.comms[m.Comm]
	if cm == nil || cm.comm == 0 {
		return refuseCall(c, nccl.InvalidArgument, notBegun)
	}
	call := cl.call(c, nil)
	if cl.contexts[cm.ctx.handle] == cm.ctx {
		call.contexts = []*context{cm.ctx}
	}
	if m.Verb == wire.NcclEndFinalize {
		if cm.gone.Load() {
			return cl.refuseComm(c, m.Comm)
		}
		call.make = func() nccl.Result { return cl.library.Finalize(cm.comm) }
		return cl.begin(c, cm, call)
	}
	defer cl.forget(m.Comm)                   // it is the last call
	if !cm.gone.CompareAndSwap(false, true) { // the server has aborted it
		cm.unwatch(true)
		return refuseCall(c, nccl.Success, "")
	}
	call.over = func(bool) { cm.unwatch(true) }
	if m.Verb == wire.NcclEndDestroy {
		call.make = func() nccl.Result { return cl.library.Destroy(cm.comm) }
		return cl.begin(c, cm, call)
	}
	cm.aborted.Store(true) // its thread may be in a call that this one ends
	call.make = func() nccl.Result { return cl.library.Abort(cm.comm) }
	return cl.begin(c, nil, call)
}

// state: ncclCommGetAsyncError.
func (cl *collectives) state(c *command) (cuda.CUresult, error) {
	m, _, _, err := asked[wire.NcclState](cl, c)
	if err != nil {
		return 0, err
	}
	cm := cl.comms[m.Comm]
	if cm == nil || cm.comm == 0 {
		return refuseCall(c, nccl.InvalidArgument, notBegun)
	}
	if f := cm.failed.Load(); f != nil {
		c.reply = ncclResult(nccl.Success, uint32(f.result), f.text)
		return cuda.CUDA_SUCCESS, nil
	}
	state, r := cl.library.AsyncError(cm.comm)
	text := ""
	if r != nccl.Success || state != nccl.Success && state != nccl.InProgress {
		text = cl.library.LastError()
	}
	c.reply = ncclResult(r, uint32(state), text)
	return cuda.CUDA_SUCCESS, nil
}

// behind: nccl_behind, whose position is what counts.
func (cl *collectives) behind(c *command) (cuda.CUresult, error) {
	m, _, err := view[wire.NcclBehind](c)
	if err != nil {
		return 0, err
	}
	_, r := cl.stream(m.Stream)
	return r, nil
}
