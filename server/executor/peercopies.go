package executor

import (
	"maps"
	"slices"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// peerCopy is this server's part of a copy between two servers.
type peerCopy struct {
	*copy3D
	st     *stream
	number uint64
	header transport.CommandHeader // for profiles
}

// peerSend is one whose bytes leave.
type peerSend struct {
	peerCopy
	chunk  uint64   // bytes of a chunk
	at     uint64   // bytes that the GPU was told to copy into slots
	chunks []*chunk // which it has not done yet
}

// peerReceive is one whose bytes come.
type peerReceive struct {
	peerCopy
	name    peerCopyName
	begun   bool
	left    uint64 // bytes to come
	landing int    // slots out of which the GPU copies
	over    bool
	result  cuda.CUresult

	awaited bool // by this call
	thread  uint32
	seq     uint64
}

// peerCopyName is what two servers and their client call a copy.
type peerCopyName struct {
	peer   uint32
	number uint64
}

// mostPeerCopies bounds the copies that nobody has awaited, and those that wait for their turn to leave. A thread of
// the program has one.
const mostPeerCopies = 1 << 16

// peerCopyOf reads this server's part of a copy, and finds its stream.
func (ps *peers) peerCopyOf(c *command, p *wire.PeerSend, down bool) (peerCopy, cuda.CUresult, error) {
	v := peerCopy{number: p.Number, header: c.CommandHeader}
	m := wire.Copy3D{Copy: p.Copy, Flags: p.Flags & copy3DPeer}
	if p.Flags&^copy3DPeer != 0 || len(c.payload) != wire.SizePeerSend {
		return v, 0, protocolError("a copy between servers with flags %#x", p.Flags)
	}
	shape := copy3DOf(&m.Copy)
	if down {
		m.Flags |= copy3DDownload
		shape.DstPitch, shape.DstHeight = shape.WidthInBytes, shape.Height
	} else {
		m.Flags |= copy3DData
		shape.SrcPitch, shape.SrcHeight = shape.WidthInBytes, shape.Height
	}
	reach, ok := extent(shape.WidthInBytes, shape.Height, shape.Depth, shape.WidthInBytes, shape.Height)
	if !ok || reach == 0 {
		return v, 0, protocolError("copy of %d × %d × %d between servers", shape.WidthInBytes, shape.Height, shape.Depth)
	}
	m.Bytes = reach
	r := ps.enter(c.Context)
	var err error
	if r == cuda.CUDA_SUCCESS {
		v.copy3D, r, err = ps.newCopy3D(&m)
	} else {
		v.copy3D = &copy3D{bytes: reach}
	}
	if err != nil || r != cuda.CUDA_SUCCESS {
		return v, r, err
	}
	if v.st, r = ps.stream(p.Stream); r == cuda.CUDA_SUCCESS && ps.isCapturing(v.st) {
		r = cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	}
	return v, r, nil
}

// send begins the part of a copy whose bytes leave. Where it cannot be, the other server learns of it by the end of the
// connections, and the client from that.
func (ps *peers) send(c *command) (cuda.CUresult, error) {
	m, _, err := view[wire.PeerSend](c)
	if err != nil {
		return 0, err
	}
	v, r, err := ps.peerCopyOf(c, m, true)
	if err != nil {
		return 0, err
	}
	p, err := ps.of(m.Peer, m.Epoch)
	switch {
	case err != nil || p == nil:
		return cuda.CUDA_SUCCESS, err
	case r == cuda.CUDA_SUCCESS && !p.lock(v.st.ctx):
		r = cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	if r != cuda.CUDA_SUCCESS {
		ps.log.Debug("a copy to another server cannot begin", "result", resultText(r))
		p.fail(errPeerCopy)
		return cuda.CUDA_SUCCESS, nil
	}
	if len(p.sends) == mostPeerCopies {
		return 0, protocolError("more than %d copies to server %d", mostPeerCopies, m.Peer)
	}
	p.sends = append(p.sends, &peerSend{peerCopy: v})
	ps.isBusy(p)
	return cuda.CUDA_SUCCESS, nil
}

// receive begins the part of a copy whose bytes come. They are taken also where nobody wants them, as those of other
// copies stand behind them.
func (ps *peers) receive(c *command) (cuda.CUresult, error) {
	m, _, err := view[wire.PeerReceive](c)
	if err != nil {
		return 0, err
	}
	same := wire.PeerSend(*m)
	v, r, err := ps.peerCopyOf(c, &same, false)
	if err != nil {
		return 0, err
	}
	name := peerCopyName{m.Peer, m.Number}
	if ps.copies[name] != nil || len(ps.copies) == mostPeerCopies {
		return 0, protocolError("copy %d from server %d is there, or there are too many", m.Number, m.Peer)
	}
	p, err := ps.of(m.Peer, m.Epoch)
	if err != nil {
		return 0, err
	}
	if p != nil && r == cuda.CUDA_SUCCESS && !p.lock(v.st.ctx) || p != nil && p.mem == nil {
		p.fail(errPeerCopy) // there is no memory into which the bytes could come
		p.giveUp()
		p = nil
	}
	rc := &peerReceive{peerCopy: v, name: name, left: v.bytes, result: r, over: p == nil}
	ps.copies[name] = rc
	if p != nil {
		p.receives = append(p.receives, rc)
		ps.isBusy(p)
	}
	return cuda.CUDA_SUCCESS, nil
}

// await answers when a copy is over.
func (ps *peers) await(c *command) (cuda.CUresult, error) {
	m, rest, err := view[wire.PeerAwait](c)
	if err != nil {
		return 0, err
	}
	rc := ps.copies[peerCopyName{m.Peer, m.Number}]
	if rc == nil || rc.awaited || len(rest) != 0 || c.Flags&transport.FlagAnswer == 0 {
		return 0, protocolError("nobody receives copy %d from server %d", m.Number, m.Peer)
	}
	c.later = true
	rc.awaited, rc.thread, rc.seq = true, c.Thread, c.Seq
	if rc.over {
		ps.tell(rc)
	}
	return cuda.CUDA_SUCCESS, nil
}

// end notes that a copy is over: the GPU has all of it, or no more will come.
func (ps *peers) end(rc *peerReceive) {
	if rc.over {
		return
	}
	rc.over = true
	if rc.awaited {
		ps.tell(rc)
	}
}

// endLanded ends a copy of which the GPU has all.
func (ps *peers) endLanded(rc *peerReceive) {
	if rc.left == 0 && rc.landing == 0 {
		ps.end(rc)
	}
}

func (ps *peers) tell(rc *peerReceive) {
	delete(ps.copies, rc.name)
	m := wire.PeerArrived{Bytes: rc.bytes - rc.left}
	if rc.result != cuda.CUDA_SUCCESS {
		ps.countError(rc.result)
	}
	ps.loop.reply(rc.thread, rc.seq, rc.result, wire.Bytes(&m))
}

// isBusy notes that a server's connections have to be looked at.
func (ps *peers) isBusy(p *peer) {
	if !slices.Contains(ps.busy, p) {
		ps.busy = append(ps.busy, p)
		ps.active.Store(true)
	}
}

// pending says whether anything has to be looked at between commands.
func (ps *peers) pending() bool { return len(ps.busy) > 0 }

// watches says whether the GPU works for them, whose end only a look shows. All else wakes the executor.
func (ps *peers) watches() bool {
	return slices.ContainsFunc(ps.busy, func(p *peer) bool {
		return len(p.sends) > 0 && len(p.sends[0].chunks) > 0 || p.copies()
	})
}

// poll does what can be done. It says whether that was anything.
func (ps *peers) poll() (progress bool) {
	if len(ps.busy) == 0 {
		return false
	}
	ps.enterAny()
	kept := ps.busy[:0]
	for _, p := range ps.busy {
		if p.poll() {
			progress = true
		}
		if p.rests() {
			progress = true
		} else {
			kept = append(kept, p)
		}
	}
	clear(ps.busy[len(kept):])
	ps.busy = kept
	if len(kept) == 0 {
		ps.active.Store(false)
	}
	return progress
}

// rests says whether there is nothing to look at.
func (p *peer) rests() bool {
	return len(p.sends) == 0 && len(p.receives) == 0 && !p.copies()
}

// copies says whether the GPU copies out of slots, or into those of copies that have failed.
func (p *peer) copies() bool {
	return slices.ContainsFunc(p.all, func(sl *slot) bool { return sl.event != 0 })
}

func (p *peer) poll() (progress bool) {
	if !p.since.IsZero() {
		switch {
		case p.connections() > 0:
			p.since = time.Time{}
		case time.Since(p.since) > peerPatience:
			p.fail(errPeerLate)
		}
	}
	if p.out.Err() != nil {
		return p.giveUp()
	}
	p.openPath()
	progress = p.reclaim()
	if len(p.sends) > 0 && p.pollSend(p.sends[0]) {
		progress = true
	}
	if len(p.receives) > 0 && p.pollReceive(p.receives[0]) {
		progress = true
	}
	return progress
}

// giveUp ends what is under way on connections that have ended.
func (p *peer) giveUp() (progress bool) {
	for _, s := range p.sends {
		for _, c := range s.chunks { // the GPU still writes there
			c.slot.event, c.slot.st = c.event, s.st
		}
		progress = true
	}
	for _, rc := range p.receives {
		p.ps.end(rc)
		progress = true
	}
	p.sends, p.receives = nil, nil
	return p.reclaim() || progress
}

// pollSend has the GPU copy as much into slots as these hold, and sends what it has copied.
func (p *peer) pollSend(s *peerSend) (progress bool) {
	if s.chunk == 0 {
		n := p.connections()
		if n == 0 {
			return false
		}
		s.chunk = uint64(bulk.ChunkBytes(int(min(s.bytes, 1<<40)), n))
	}
	for s.at < s.bytes {
		sl := takeFree(p.down)
		if sl == nil {
			break
		}
		n := min(s.chunk, s.bytes-s.at)
		e, r := p.enqueue(&s.peerCopy, s.at, sl.mem[:n])
		if r != cuda.CUDA_SUCCESS {
			sl.free.Store(true)
			p.breakOff(r)
			return true
		}
		s.chunks = append(s.chunks, &chunk{slot: sl, off: s.at, bytes: int(n), event: e})
		s.at += n
		progress = true
	}
	for len(s.chunks) > 0 {
		c := s.chunks[0]
		r := p.ps.gpu.CuEventQuery(c.event)
		if r == cuda.CUDA_ERROR_NOT_READY {
			return progress
		}
		if r != cuda.CUDA_SUCCESS {
			p.breakOff(r)
			return true
		}
		s.st.ctx.events = append(s.st.ctx.events, c.event)
		s.chunks = s.chunks[1:]
		c.slot.out = bulk.Transfer{Seq: s.number, Offset: c.off, Bytes: c.bytes, Data: c.slot.mem[:c.bytes],
			More: c.off+uint64(c.bytes) < s.bytes, Owner: c.slot}
		if p.via != nil {
			p.out.Add(&c.slot.out)
		} else {
			p.out.Post(&c.slot.out)
		}
		progress = true
	}
	if s.at == s.bytes {
		p.sends = p.sends[1:]
		progress = true
	}
	return progress
}

// breakOff ends the connections because of what the driver said here: the client carries the bytes then, and is told.
func (p *peer) breakOff(r cuda.CUresult) {
	p.ps.log.Debug("a copy to another server fails", "result", resultText(r))
	p.fail(errPeerCopy)
	p.giveUp()
}

// pollReceive lends slots for the copy's chunks, and has the GPU copy those that have come.
func (p *peer) pollReceive(rc *peerReceive) (progress bool) {
	if !rc.begun {
		p.in.Begin(rc.number, rc.bytes)
		rc.begun = true
	}
	for p.in.Wants(p.lent, p.out.State()) {
		sl := takeFree(p.up)
		if sl == nil {
			break
		}
		p.in.Lend(sl)
		p.lent++
	}
	got, err := p.in.Take()
	if err != nil {
		p.fail(err)
		p.giveUp()
		return true
	}
	for i := range got {
		if !got[i].Buffer.(*slot).path {
			p.lent--
		}
		rc.left -= uint64(got[i].Bytes)
		p.land(rc, &got[i])
		progress = true
	}
	if rc.left == 0 {
		p.in.End(func(b bulk.Buffer) { b.(*slot).free.Store(true) })
		p.lent = 0
		p.receives = p.receives[1:]
		p.ps.endLanded(rc)
		progress = true
	}
	return progress
}

// land has the GPU copy a chunk that has come, unless the copy has failed.
func (p *peer) land(rc *peerReceive, a *bulk.Arrival) {
	sl := a.Buffer.(*slot)
	if rc.result == cuda.CUDA_SUCCESS {
		sl.event, rc.result = p.enqueue(&rc.peerCopy, a.Offset, sl.mem[:a.Bytes])
	}
	if sl.event != 0 {
		sl.st, sl.receive = rc.st, rc
		rc.landing++
	} else {
		p.release(sl)
	}
}

// enqueue has the GPU copy bytes of a copy from or to mem, and tells by an event when it is through.
func (p *peer) enqueue(v *peerCopy, off uint64, mem []byte) (e cuda.CUevent, r cuda.CUresult) {
	ps := p.ps
	if ps.profile.on { // until the next command says whose the work is
		ps.profile.correlate(&v.header)
	}
	r = ps.within(v.st.ctx, func() (r cuda.CUresult) {
		if ps.isCapturing(v.st) { // since the copy began: a graph would copy to and from slots whenever it is launched
			return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
		if r = p.move(v, off, mem); r == cuda.CUDA_SUCCESS {
			e, r = ps.recordEvent(v.st)
		}
		return r
	})
	return e, r
}

// move enqueues the copy of bytes of it from or to mem.
func (p *peer) move(v *peerCopy, off uint64, mem []byte) cuda.CUresult {
	m, gpu := &v.shape, p.ps.gpu
	kind, at := m.SrcMemoryType, uint64(m.SrcDevice)+(m.SrcZ*m.SrcHeight+m.SrcY)*m.SrcPitch+m.SrcXInBytes
	if !v.down {
		kind, at = m.DstMemoryType, uint64(m.DstDevice)+(m.DstZ*m.DstHeight+m.DstY)*m.DstPitch+m.DstXInBytes
	}
	switch n := uint64(len(mem)); {
	case kind != cuda.CU_MEMORYTYPE_DEVICE || v.bytes != m.WidthInBytes: // not a line of the GPU's memory
		return v.move(gpu, &p.arena, off, mem, v.st)
	case v.down:
		return gpu.CuMemcpyDtoHAsync_v2(pointerTo(mem), cuda.CUdeviceptr(at+off), n, v.st.real)
	default:
		return gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(at+off), pointerTo(mem), n, v.st.real)
	}
}

// leave ends the copies of streams that are about to end. The client carries them out otherwise, if it still can. What
// the GPU copies already, events tell of, which outlive streams.
func (ps *peers) leave(ends func(*stream) bool) {
	for _, p := range ps.busy {
		if slices.ContainsFunc(p.sends, func(s *peerSend) bool { return ends(s.st) }) ||
			slices.ContainsFunc(p.receives, func(rc *peerReceive) bool { return rc.st != nil && ends(rc.st) }) {
			p.fail(errPeerStream)
			p.giveUp()
		}
	}
}

// abandon ends what is under way in a context that ends; its work is over. With it goes the page-locking of memory that
// copies of other contexts may use.
func (ps *peers) abandon(ctx *context) {
	ps.leave(func(st *stream) bool { return st.ctx == ctx })
	for _, p := range ps.busy {
		for _, sl := range p.all {
			if sl.event != 0 && sl.st.ctx == ctx {
				p.finish(sl, cuda.CUDA_SUCCESS)
			}
		}
	}
	ps.mu.Lock()
	all := slices.AppendSeq(slices.Clone(ps.old), maps.Values(ps.list))
	ps.mu.Unlock()
	for _, p := range all {
		if p.owner != ctx {
			continue
		}
		p.owner = nil
		if !p.rests() {
			p.fail(errPeerStream)
			p.giveUp()
			p.settle()
		}
	}
}

// settle waits until the GPU is through with all slots, for which nothing but the copies before them has to end.
func (p *peer) settle() {
	for _, sl := range p.all {
		if sl.event != 0 {
			p.ps.gpu.CuEventSynchronize(sl.event)
		}
	}
	p.reclaim()
}
