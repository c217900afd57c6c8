package executor

import (
	"errors"
	"maps"
	"slices"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/trait"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/dispatch"
	"scuda.dev/scuda/server/handle"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// handler carries a command out. Its result is the answer unless it set c.later. An error ends the session.
type handler func(s *Session, c *command) (cuda.CUresult, error)

// firstWire is the least number of an operation of wire.spec.
const firstWire = wire.FirstOp

// wireOps are the operations of wire.spec, by number from firstWire on.
var wireOps = [...]handler{
	wire.OpLaunch - firstWire:            (*Session).launch,
	wire.OpCopyH2D - firstWire:           copyH2D,
	wire.OpCopyH2DPull - firstWire:       inUploads((*uploads).copyH2DPull),
	wire.OpCopyD2H - firstWire:           copyD2H,
	wire.OpHostFunc - firstWire:          (*Session).hostFunc,
	wire.OpModulePut - firstWire:         inUploads((*uploads).startImage),
	wire.OpLibraryLoad - firstWire:       inModules((*modules).libraryLoad),
	wire.OpModuleLoad - firstWire:        inModules((*modules).moduleLoad),
	wire.OpGetFunction - firstWire:       inModules((*modules).getFunction),
	wire.OpGetGlobal - firstWire:         inModules((*modules).getGlobal),
	wire.OpPrimary - firstWire:           inObjects((*objects).callPrimary),
	wire.OpCaptureMode - firstWire:       inGraphs((*graphs).setThreadMode),
	wire.OpThreadExit - firstWire:        inObjects((*objects).endThread),
	wire.OpPing - firstWire:              (*Session).ping,
	wire.OpPointerAttributes - firstWire: (*Session).pointerAttributes,
	wire.OpHostMap - firstWire:           inHostmem((*hostmem).mapRange),
	wire.OpHostUnmap - firstWire:         inHostmem((*hostmem).unmapRange),
	wire.OpHostChanges - firstWire:       inHostmem((*hostmem).downloadChanges),
	wire.OpOccupancyClusters - firstWire: (*Session).occupancyClusters,
	wire.OpCaptureInfo - firstWire:       inGraphs((*graphs).captureInfo),
	wire.OpFunctionNames - firstWire:     inModules((*modules).functionNames),
	wire.OpLinkCreate - firstWire:        inModules((*modules).linkCreate),
	wire.OpLinkData - firstWire:          inModules((*modules).linkData),
	wire.OpLinkAdd - firstWire:           inModules((*modules).linkAdd),
	wire.OpLinkComplete - firstWire:      inModules((*modules).linkComplete),
	wire.OpLinkRead - firstWire:          inModules((*modules).linkRead),
	wire.OpLinkDestroy - firstWire:       inModules((*modules).linkDestroy),
	wire.OpErrorText - firstWire:         (*Session).errorText,
	wire.OpUserObject - firstWire:        inGraphs((*graphs).userObject),
	wire.OpGraphNode - firstWire:         inGraphs((*graphs).putNode),
	wire.OpGraphNodeGet - firstWire:      inGraphs((*graphs).getNode),
	wire.OpGraphDot - firstWire:          inGraphs((*graphs).printDot),
	wire.OpCopy3D - firstWire:            inCopies((*copies).copy3D),
	wire.OpShareExport - firstWire:       inHostmem((*hostmem).shareExport),
	wire.OpShareImport - firstWire:       inHostmem((*hostmem).shareImport),
	wire.OpShareEnd - firstWire:          inHostmem((*hostmem).shareEnd),
	wire.OpLaunchSeveral - firstWire:     (*Session).launchSeveral,
	wire.OpOrderJoin - firstWire:         inOrdering((*ordering).join),
	wire.OpBye - firstWire:               (*Session).bye,
	wire.OpSkip - firstWire:              (*Session).skip,
	wire.OpProfile - firstWire:           inProfile((*profile).control),
	wire.OpProfileRead - firstWire:       inProfile((*profile).read),
	wire.OpProfileNumber - firstWire:     inProfile((*profile).number),
	wire.OpNcclOpen - firstWire:          inCollectives((*collectives).openLibrary),
	wire.OpNcclUniqueID - firstWire:      inCollectives((*collectives).uniqueID),
	wire.OpNcclInit - firstWire:          inCollectives((*collectives).initRank),
	wire.OpNcclGroup - firstWire:         inCollectives((*collectives).group),
	wire.OpNcclEnd - firstWire:           inCollectives((*collectives).end),
	wire.OpNcclState - firstWire:         inCollectives((*collectives).state),
	wire.OpNcclBehind - firstWire:        inCollectives((*collectives).behind),
	wire.OpNcclSplit - firstWire:         inCollectives((*collectives).split),
	wire.OpNcclReduction - firstWire:     inCollectives((*collectives).makeReduction),
	wire.OpNcclReductionEnd - firstWire:  inCollectives((*collectives).endReduction),
	wire.OpPeerSend - firstWire:          inPeers((*peers).send),
	wire.OpPeerReceive - firstWire:       inPeers((*peers).receive),
	wire.OpPeerAwait - firstWire:         inPeers((*peers).await),
}

// serverOps carry out the functions of the driver that the generated dispatch does not carry out, or not alone: those
// with the flag server in api/cuda.semantics; a test compares the two.
var serverOps = map[uint16]handler{
	cuda.OpCuCtxCreate:                  inObjects((*objects).createContext),
	cuda.OpCuCtxCreate_v2:               inObjects((*objects).createContext),
	cuda.OpCuCtxCreate_v3:               inObjects((*objects).createContextV3),
	cuda.OpCuCtxDestroy:                 inObjects((*objects).destroyContext),
	cuda.OpCuCtxDestroy_v2:              inObjects((*objects).destroyContext),
	cuda.OpCuCtxSynchronize:             inWaits((*waits).synchronizeContext),
	cuda.OpCuCtxSynchronize_v2:          inWaits((*waits).synchronizeContextV2),
	cuda.OpCuEventDestroy:               inWaits((*waits).destroyEvent),
	cuda.OpCuEventDestroy_v2:            inWaits((*waits).destroyEvent),
	cuda.OpCuEventQuery:                 inWaits((*waits).queryEvent),
	cuda.OpCuEventRecord:                inWaits((*waits).recordEventOfClient),
	cuda.OpCuEventRecordWithFlags:       inWaits((*waits).recordEventOfClient),
	cuda.OpCuEventSynchronize:           inWaits((*waits).synchronizeEvent),
	cuda.OpCuGraphDestroy:               inGraphs((*graphs).releaseObjects),
	cuda.OpCuGraphExecDestroy:           inGraphs((*graphs).destroyExec),
	cuda.OpCuGraphAddChildGraphNode:     inGraphs((*graphs).addChildGraph),
	cuda.OpCuGraphInstantiateWithFlags:  inGraphs((*graphs).instantiate),
	cuda.OpCuGraphInstantiateWithParams: inGraphs((*graphs).instantiate),
	cuda.OpCuGraphReleaseUserObject:     inGraphs((*graphs).releaseObjects),
	cuda.OpCuStreamBeginCapture:         inGraphs((*graphs).beginCapture),
	cuda.OpCuStreamBeginCapture_v2:      inGraphs((*graphs).beginCaptureV2),
	cuda.OpCuStreamBeginCaptureToGraph:  inGraphs((*graphs).beginCaptureToGraph),
	cuda.OpCuStreamCreate:               inObjects((*objects).createStream),
	cuda.OpCuStreamCreateWithPriority:   inObjects((*objects).createStreamWithPriority),
	cuda.OpCuStreamDestroy:              inObjects((*objects).destroyStream),
	cuda.OpCuStreamDestroy_v2:           inObjects((*objects).destroyStream),
	cuda.OpCuStreamEndCapture:           inGraphs((*graphs).endCapture),
	cuda.OpCuStreamQuery:                inWaits((*waits).queryStream),
	cuda.OpCuStreamSynchronize:          inWaits((*waits).synchronizeStream),
	cuda.OpCuUserObjectRelease:          inGraphs((*graphs).releaseObjects),
}

// serverTable is serverOps by number.
var serverTable = func() []handler {
	t := make([]handler, slices.Max(slices.Collect(maps.Keys(serverOps)))+1)
	for op, h := range serverOps {
		t[op] = h
	}
	return t
}()

// OpName names an operation for messages.
func OpName(op uint16) string {
	if op >= firstWire {
		return wire.OpName(op)
	}
	return cuda.OpName(op)
}

// step carries out the next command or piece of bulk data. It says whether there was one.
func (s *Session) step() (bool, error) {
	s.arena.reset()
	if s.copies.uploads.incoming != nil {
		return s.feedBulk()
	}
	ok, err := s.in.next(&s.cmd)
	if err != nil || !ok {
		return false, err
	}
	began := s.profile.begun(&s.cmd)
	err = s.count(&s.cmd)
	if began != 0 {
		s.profile.tell(cuda.WorkCommand, &s.cmd, began)
	}
	if err == nil && s.copies.uploads.incoming == nil { // one with bulk data is carried out when those have come
		s.ordering.carriedOut(&s.cmd)
	}
	return true, err
}

// feedBulk goes on with the bulk data of a command, which it ends behind the last of them. It says whether it could:
// false means that more bytes are needed.
func (s *Session) feedBulk() (bool, error) {
	b := s.copies.uploads.incoming
	if s.profile.on {
		s.profile.correlate(&b.cmd.CommandHeader)
	}
	if complete, err := s.copies.uploads.feed(b); !complete || err != nil {
		return false, err
	}
	s.cmd = b.cmd
	s.ordering.carriedOut(&s.cmd)
	r := b.result
	if b.image != nil {
		r = s.modules.keepImage(b.hash, b.image)
	} else if b.sync && r == cuda.CUDA_SUCCESS && b.st != nil {
		s.raiseBarrier(ordinary, b.st)
	}
	s.answer(&b.cmd, r)
	return true, nil
}

// count carries a command out, counts it and, where somebody waits for it or its turn has come, notes how long it took.
func (s *Session) count(c *command) error {
	kind := class.Of(c.Op)
	n := s.metrics.Call(kind)
	if c.Flags&transport.FlagAnswer == 0 && n%metrics.SampleEvery != 0 {
		return s.execute(c)
	}
	c.began = metrics.Now()
	s.metrics.Observe(metrics.QueueWait, c.began-s.came)
	err := s.execute(c)
	if !c.later {
		s.metrics.Observe(metrics.Histogram(kind), metrics.Now()-c.began)
	}
	return err
}

func (s *Session) execute(c *command) error {
	if c.Op == wire.OpOrder {
		return s.ordering.awaitOthers(c) // no end of a run of launches
	}
	if usesGPU[class.Of(c.Op)] {
		if err := s.turns.handOver(); err != nil {
			return err
		}
	}
	s.commands++
	if c.Op != wire.OpLaunch {
		s.launchAll()
	}
	if s.profile.on {
		s.profile.correlate(&c.CommandHeader)
	}
	if s.times.work > 0 && c.Flags&transport.FlagAnswer != 0 { // in which the driver may wait
		s.times.mark(metrics.Now())
	}
	is := trait.Of(c.Op)
	if c.Flags&transport.FlagBulk != 0 && !is.Has(trait.Bulk) {
		return protocolError("%s with bulk data", OpName(c.Op))
	}
	if c.Flags&transport.FlagTransfer != 0 && !is.Has(trait.Transfer) {
		return protocolError("%s with a bulk transfer", OpName(c.Op))
	}
	r := cuda.CUDA_SUCCESS
	if !is.Has(trait.Contextless) {
		r = s.enter(c.Context)
	}
	var err error
	switch {
	case r != cuda.CUDA_SUCCESS && c.Flags&transport.FlagBulk != 0:
		s.copies.uploads.startBulk(c, c.BulkBytes(c.payload)).result = r
	case r != cuda.CUDA_SUCCESS:
	case c.Op >= firstWire:
		if int(c.Op-firstWire) >= len(wireOps) || wireOps[c.Op-firstWire] == nil {
			return protocolError("unknown operation %d", c.Op)
		}
		r, err = wireOps[c.Op-firstWire](s, c)
	case is.Has(trait.ByHand):
		c.async = is.Has(trait.AsyncErrors)
		r, err = serverTable[c.Op](s, c)
	default:
		c.async = is.Has(trait.AsyncErrors)
		r, err = s.general(c)
	}
	if errors.Is(err, handle.ErrHandle) {
		err = protocolError("%s: %v", OpName(c.Op), err)
	}
	if err != nil || c.later {
		return err
	}
	s.answer(c, r)
	return nil
}

// general carries out an operation by the generated dispatch.
func (s *Session) general(c *command) (cuda.CUresult, error) {
	s.printf.usesPools = s.printf.usesPools || trait.Of(c.Op).Has(trait.Pools)
	s.reader.Reset(c.payload)
	s.writer.Reset()
	perThread := c.Flags&transport.FlagPTDS != 0
	if ctx := s.entered; ctx != nil && ctx.legacy.passed != s.barriers.gen {
		s.passBarriers(&ctx.legacy) // the dispatch does not ask for the legacy stream
	}
	if c.Flags&transport.FlagAnswer != 0 { // among these are the calls in which the driver waits
		defer s.ordering.beforeWaitingCall()()
	}
	var r cuda.CUresult
	var err error
	if len(s.captures) == 0 {
		r, err = dispatch.Call(c.Op, perThread, s.gpu, s.handles, &s.reader, s.writer)
	} else {
		s.inThreadMode(func() cuda.CUresult {
			r, err = dispatch.Call(c.Op, perThread, s.gpu, s.handles, &s.reader, s.writer)
			return r
		})
	}
	if err != nil {
		return 0, protocolError("%s: %v", OpName(c.Op), err)
	}
	if r == cuda.CUDA_ERROR_NOT_SUPPORTED && !s.noSupport[c.Op] {
		s.noSupport[c.Op] = true
		s.log.Warn("the driver does not support a call", "function", OpName(c.Op))
	}
	c.reply = s.writer.Bytes()
	c.outs = true // the dispatch leaves out what must not be sent with a failure
	return r, nil
}

// noAddress answers what would have the driver follow an address of the client's memory: commands that scuda's client
// does not send.
const noAddress = cuda.CUDA_ERROR_NOT_SUPPORTED

// answer ends a command: with a REPLY where one is expected, else a failure is kept.
func (s *Session) answer(c *command, r cuda.CUresult) {
	if c.Flags&transport.FlagAnswer == 0 {
		if r != cuda.CUDA_SUCCESS {
			s.unanswered(c.Op, r)
		}
		return
	}
	if r != cuda.CUDA_SUCCESS {
		s.log.Debug("a call failed", "function", OpName(c.Op), "result", resultText(r))
		if !c.fine {
			s.countError(r)
		}
	}
	if c.async {
		r = s.withAsyncError(r)
	}
	payload := c.reply
	if r != cuda.CUDA_SUCCESS && !c.outs {
		payload = nil
	}
	s.pollProgress() // whoever learns of the answer may look at what came down before
	s.reply(c.Thread, c.Seq, r, payload)
}

func (s *Session) reply(thread uint32, seq uint64, r cuda.CUresult, payload []byte) {
	s.printf.sendText(r)
	s.out.message(transport.MessageHeader{Type: transport.MsgReply, ID: thread, Result: int32(r), Seq: seq}, payload, nil)
}

// nonzero makes an error of a result.
func nonzero(r cuda.CUresult) error {
	if r == cuda.CUDA_SUCCESS {
		return nil
	}
	return r
}

// args reads the parameters of a generally encoded call.
type args struct{ codec.Reader }

func (a *args) end() error {
	if err := a.End(); err != nil {
		return protocolError("%v", err)
	}
	return nil
}

// view reads the structure of an operation of wire.spec and what follows it.
func view[T any](c *command) (*T, []byte, error) {
	p, rest, ok := wire.View[T](c.payload)
	if !ok {
		return nil, nil, protocolError("%s with a payload of %d bytes", OpName(c.Op), len(c.payload))
	}
	return p, rest, nil
}

// answerWith copies v to where it lives until the answer is queued.
func answerWith[T any](a *arena, c *command, v T, more int) []byte {
	b := a.bytes(len(wire.Bytes(&v)) + more)
	n := copy(b, wire.Bytes(&v))
	c.reply = b
	return b[n:]
}

// handles is the session as the generated dispatch sees it.
type handles struct {
	*handle.Table
	b      *base
	tokens tokens
}

// Real finds streams in the session: whoever asks is about to use them.
func (h *handles) Real(kind cuda.Kind, client uint64) (uint64, bool) {
	if kind != cuda.KindStream {
		return h.Table.Real(kind, client)
	}
	st, r := h.b.stream(client)
	if r != cuda.CUDA_SUCCESS {
		return 0, false
	}
	return uint64(st.real), true
}

// New gives what the current context owns that parent.
func (h *handles) New(kind cuda.Kind, client, real, parent uint64) error {
	if parent == 0 && h.b.entered != nil && (kind == cuda.KindEvent || kind == cuda.KindModule) {
		parent = h.b.entered.handle
	}
	return h.Table.New(kind, client, real, parent)
}

// Client ties the module of a library to the current context.
func (h *handles) Client(kind cuda.Kind, real, parent uint64) uint64 {
	client := h.Table.Client(kind, real, parent)
	if kind == cuda.KindModule && h.b.entered != nil {
		h.Tie(client, h.b.entered.handle)
	}
	return client
}

// PerThread is the calling thread's default stream; where it cannot be made the driver answers for the legacy stream.
func (h *handles) PerThread() uint64 {
	st, r := h.b.stream(uint64(cuda.StreamPerThread))
	if r != cuda.CUDA_SUCCESS {
		return 0
	}
	return uint64(st.real)
}

func (s *Session) ping(c *command) (cuda.CUresult, error) {
	s.times.pings++
	if c.Flags&transport.FlagAnswer == 0 {
		s.out.message(transport.MessageHeader{Type: transport.MsgAlive, Seq: c.Seq}, nil, nil)
	}
	return cuda.CUDA_SUCCESS, nil
}

// skip notes that part of the client's command stream is for other servers.
func (s *Session) skip(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.Skip](c)
	if err != nil {
		return 0, err
	}
	if n := p.Bytes; c.Thread != transport.CoreThread || n == 0 || n%8 != 0 || max(n, s.in.at) > mostSkipped {
		return 0, protocolError("a skip of %d bytes at %d by thread %d", n, s.in.at, c.Thread)
	}
	s.in.at += p.Bytes
	return cuda.CUDA_SUCCESS, nil
}

// mostSkipped is a position that no client's stream gets to, and so much less than would make one overflow.
const mostSkipped = 1 << 62

// bye notes that the program takes its leave.
func (s *Session) bye(*command) (cuda.CUresult, error) {
	s.left = true
	return cuda.CUDA_SUCCESS, nil
}
