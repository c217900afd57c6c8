package executor

import (
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/dispatch"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// Flags of wire.Copy3D besides flagSync and flagDone.
const (
	copy3DData     = wire.Copy3DData     // the rows come along
	copy3DPull     = wire.Copy3DPull     // the server pulls the host end
	copy3DDownload = wire.Copy3DDownload // to host memory
	copy3DPeer     = wire.Copy3DPeer     // CUDA_MEMCPY3D_PEER
)

// copy3D is a 3-D copy with the client's memory at one end: 2D, 3D and array forms. Its bytes are counted row by
// row without the gaps.
type copy3D struct {
	shape cuda.CUDA_MEMCPY3D_PEER
	peer  bool
	down  bool
	host  rows // the client's end
	bytes uint64
}

// copy3D: every copy between host memory and anything but a straight line of device memory.
func (cs *copies) copy3D(c *command) (cuda.CUresult, error) {
	c.async = true
	p, data, err := view[wire.Copy3D](c)
	if err != nil {
		return 0, err
	}
	b, r, err := cs.newCopy3D(p)
	if err != nil {
		return 0, err
	}
	if r == cuda.CUDA_SUCCESS {
		cs.metrics.Add(b.copied(), int(b.bytes))
	}
	bulk := c.Flags&transport.FlagBulk != 0
	var st *stream
	if r == cuda.CUDA_SUCCESS {
		st, r = cs.copy3DStream(p, b)
	}
	if p.Flags&copy3DData != 0 {
		return cs.uploads.upload3D(c, p, b, st, data, r)
	}
	if bulk || len(data) != 0 {
		return 0, protocolError("3-D copy with data that nobody announced")
	}
	switch {
	case r == cuda.CUDA_SUCCESS && !b.down:
		r, err = cs.uploads.pull3D(p, b, st)
	case r == cuda.CUDA_SUCCESS && cs.isCapturing(st):
		return cs.uploads.graphs.capture3D(p, b, st), nil
	case b.down:
		return cs.downloads.download3D(c, p, b, st, r)
	}
	return r, err
}

// newCopy3D reads the description of a copy and makes its device end the driver's.
func (b *base) newCopy3D(p *wire.Copy3D) (*copy3D, cuda.CUresult, error) {
	v := &copy3D{shape: *copy3DOf(&p.Copy), peer: p.Flags&copy3DPeer != 0, down: p.Flags&copy3DDownload != 0}
	m := &v.shape
	v.host = rows{m.WidthInBytes, m.Height, m.Depth, m.SrcPitch, m.SrcHeight}
	if v.down {
		v.host.pitch, v.host.slice = m.DstPitch, m.DstHeight
	}
	reach, ok := extent(m.WidthInBytes, m.Height, m.Depth, v.host.pitch, v.host.slice)
	if !ok {
		return nil, 0, protocolError("3-D copy of %d × %d × %d", m.WidthInBytes, m.Height, m.Depth)
	}
	v.bytes = m.WidthInBytes * m.Height * m.Depth // not above reach
	if want := map[bool]uint64{true: v.bytes, false: reach}[p.Flags&copy3DData != 0]; p.Bytes != want {
		return nil, 0, protocolError("3-D copy of %d bytes that announces %d", want, p.Bytes)
	}
	r, err := b.copy3DEnds(m, v.down)
	return v, r, err
}

// copy3DEnds makes a copy between the client's memory and the GPU's one of the driver's. Nothing of the client's end
// stays: its bytes will lie, from the first on, in memory of the server's.
func (b *base) copy3DEnds(m *cuda.CUDA_MEMCPY3D_PEER, down bool) (cuda.CUresult, error) {
	if down {
		m.DstMemoryType, m.DstXInBytes, m.DstY, m.DstZ, m.DstLOD, m.DstDevice, m.DstArray, m.DstContext =
			cuda.CU_MEMORYTYPE_HOST, 0, 0, 0, 0, 0, 0, 0
	} else {
		m.SrcMemoryType, m.SrcXInBytes, m.SrcY, m.SrcZ, m.SrcLOD, m.SrcDevice, m.SrcArray, m.SrcContext =
			cuda.CU_MEMORYTYPE_HOST, 0, 0, 0, 0, 0, 0, 0
	}
	r, err := dispatch.Copy3DEnd(b.handles, m, down)
	if err != nil {
		return 0, protocolError("3-D copy with %v", err)
	}
	return r, nil
}

// copy3DStream finds the stream of a copy and refuses what natively is refused during a capture.
func (b *base) copy3DStream(p *wire.Copy3D, v *copy3D) (*stream, cuda.CUresult) {
	st, r := b.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS || len(b.captures) == 0 {
		return st, r
	}
	sync := p.Flags&flagSync != 0
	if b.isCapturing(st) {
		if sync || p.Flags&copy3DData != 0 {
			return nil, cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
		return st, r
	}
	if sync && b.prohibited(b.cmd.Thread) {
		probe := *v // of the device end's first bytes, read, so that nothing changes
		probe.turn()
		m := probe.part(&b.arena, 0, 0, 0, min(v.host.width, 64<<10), 1, 1, b.arena.bytes(64<<10))
		r = b.inThreadMode(func() cuda.CUresult { return b.gpu.CuMemcpy3D_v2(asPlainCopy(m)) })
	}
	return st, r
}

// copied is the counter of the bytes.
func (b *copy3D) copied() metrics.Series {
	if b.down {
		return metrics.CopiedToHost
	}
	return metrics.CopiedToDevice
}

// turn makes an upload the download of the same places.
func (b *copy3D) turn() {
	if b.down {
		return
	}
	m := &b.shape
	m.SrcXInBytes, m.SrcY, m.SrcZ, m.SrcLOD, m.SrcMemoryType = m.DstXInBytes, m.DstY, m.DstZ, m.DstLOD, m.DstMemoryType
	m.SrcDevice, m.SrcArray, m.SrcContext, m.SrcPitch, m.SrcHeight =
		m.DstDevice, m.DstArray, m.DstContext, m.DstPitch, m.DstHeight
	m.DstXInBytes, m.DstY, m.DstZ, m.DstLOD, m.DstMemoryType = 0, 0, 0, 0, cuda.CU_MEMORYTYPE_HOST
	m.DstDevice, m.DstArray, m.DstContext = 0, 0, 0
	b.down = true
}

// part describes the copy of a part of it from or to mem, which holds its rows without gaps.
func (b *copy3D) part(a *arena, x, y, z, width, height, depth uint64, mem []byte) *cuda.CUDA_MEMCPY3D_PEER {
	m := alloc[cuda.CUDA_MEMCPY3D_PEER](a)
	*m = b.shape
	m.WidthInBytes, m.Height, m.Depth = width, height, depth
	if b.down {
		m.SrcXInBytes, m.SrcY, m.SrcZ = m.SrcXInBytes+x, m.SrcY+y, m.SrcZ+z
		m.DstHost, m.DstPitch, m.DstHeight = uintptr(addressOf(mem)), width, height
	} else {
		m.DstXInBytes, m.DstY, m.DstZ = m.DstXInBytes+x, m.DstY+y, m.DstZ+z
		m.SrcHost, m.SrcPitch, m.SrcHeight = uintptr(addressOf(mem)), width, height
	}
	return m
}

// enqueue enqueues the copy that m describes: of the whole, or of a part of it.
func (b *copy3D) enqueue(gpu cuda.GPU, m *cuda.CUDA_MEMCPY3D_PEER, st *stream) cuda.CUresult {
	if b.peer {
		return gpu.CuMemcpy3DPeerAsync(m, st.real)
	}
	return gpu.CuMemcpy3DAsync_v2(asPlainCopy(m), st.real)
}

// move enqueues the copy of the bytes from offset off on, as many as mem has. A range of rows is at most three cuboids
// in a slice.
func (b *copy3D) move(gpu cuda.GPU, a *arena, off uint64, mem []byte, st *stream) cuda.CUresult {
	w, h := b.host.width, b.host.height
	for len(mem) > 0 {
		n := uint64(len(mem))
		x, row := off%w, off/w
		y, z := row%h, row/h
		width, height, depth := min(w-x, n), uint64(1), uint64(1)
		switch {
		case x > 0 || n < w:
		case y == 0 && n >= w*h:
			width, height, depth = w, h, min(n/(w*h), b.host.depth-z)
		default:
			width, height = w, min(n/w, h-y)
		}
		used := width * height * depth
		m := b.part(a, x, y, z, width, height, depth, mem[:used])
		if r := b.enqueue(gpu, m, st); r != cuda.CUDA_SUCCESS {
			return r
		}
		mem, off = mem[used:], off+used
		if a.room() < 64<<10 {
			a.reset()
		}
	}
	return cuda.CUDA_SUCCESS
}

// upload3D: an upload whose rows come with the command, inline or as bulk data.
func (u *uploads) upload3D(
	c *command, p *wire.Copy3D, b *copy3D, st *stream, data []byte, r cuda.CUresult,
) (cuda.CUresult, error) {
	if b.down || p.Flags&copy3DPull != 0 {
		return 0, protocolError("3-D copy with flags %#x", p.Flags)
	}
	if c.Flags&transport.FlagBulk != 0 {
		if len(data) != 8 || c.BulkBytes(c.payload) != p.Bytes {
			return 0, protocolError("3-D upload of %d bytes with %d bytes of bulk data", p.Bytes, c.BulkBytes(c.payload))
		}
		up := u.startBulk(c, p.Bytes)
		if up.result = r; r == cuda.CUDA_SUCCESS {
			up.st, up.ctx, up.copy3D, up.sync = st, st.ctx, b, p.Flags&flagSync != 0
		}
		return cuda.CUDA_SUCCESS, nil
	}
	if p.Bytes > maxInline || uint64(len(data)) != transport.Pad(p.Bytes) {
		return 0, protocolError("3-D upload of %d bytes with %d bytes of data", p.Bytes, len(data))
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	// Several copies may be needed where a row does not fit its neighbours, so the data go by way of a slot that stays
	// until they are done.
	sl, r, err := u.staging.take(st.ctx, st.ctx.poolFor(p.Bytes))
	if err != nil || r != cuda.CUDA_SUCCESS {
		return r, err
	}
	copy(sl.mem, data[:p.Bytes])
	if r = b.move(u.gpu, &u.arena, 0, sl.mem[:p.Bytes], st); r != cuda.CUDA_SUCCESS {
		u.staging.occupied(sl, st)
		return r, nil
	}
	if r = u.staging.occupied(sl, st); r == cuda.CUDA_SUCCESS && p.Flags&flagSync != 0 {
		u.raiseBarrier(ordinary, st)
	}
	return r, nil
}

// straight describes the whole copy with a host end that lies in mem as it lies in the client's memory.
func (b *copy3D) straight(a *arena, mem []byte) *cuda.CUDA_MEMCPY3D_PEER {
	m := b.part(a, 0, 0, 0, b.host.width, b.host.height, b.host.depth, mem)
	if b.down {
		m.DstPitch, m.DstHeight = b.host.pitch, b.host.slice
	} else {
		m.SrcPitch, m.SrcHeight = b.host.pitch, b.host.slice
	}
	return m
}

// pull3D: an upload in stream order. The host end is fetched as it is, with what lies between its rows.
func (u *uploads) pull3D(p *wire.Copy3D, b *copy3D, st *stream) (cuda.CUresult, error) {
	if u.isCapturing(st) {
		return u.graphs.capture3D(p, b, st), nil
	}
	take := u.staging.takePull
	if p.Bytes > pullMost {
		take = u.staging.takeWhole
	}
	buf, r, err := take(st.ctx, p.Bytes)
	if err != nil || r != cuda.CUDA_SUCCESS {
		return r, err
	}
	mem, source := buf.mem[:p.Bytes], p.ID
	r = u.ask(st, func() { u.graphs.fetchSource(source, mem, true) })
	if r == cuda.CUDA_SUCCESS {
		r = b.enqueue(u.gpu, b.straight(&u.arena, mem), st)
	}
	e, re := u.recordEvent(st)
	if re == cuda.CUDA_SUCCESS {
		buf.event = e
	} else if r == cuda.CUDA_SUCCESS {
		r = re
	}
	return r, nil
}

// download3D enqueues the pieces of a download, as download does for straight ones.
func (d *downloads) download3D(
	c *command, p *wire.Copy3D, b *copy3D, st *stream, r cuda.CUresult,
) (cuda.CUresult, error) {
	t := &transfer{
		id: p.ID, thread: c.Thread, seq: c.Seq, began: c.began, reply: c.Flags&transport.FlagAnswer != 0,
		done: p.Flags&flagDone != 0, rows: &b.host,
	}
	if r == cuda.CUDA_SUCCESS {
		var err error
		d.expect(t)
		r, err = d.downloadBy(st, t, b.bytes, func(off uint64, sl *slot, n uint64) cuda.CUresult {
			return b.move(d.gpu, &d.arena, off, sl.mem[:n], st)
		})
		if err != nil {
			return 0, err
		}
		d.failed(t, r)
		if t.left > 0 {
			c.later = true
			return r, nil
		}
	}
	if t.done {
		c.later = true
		d.failed(t, r)
		d.endTransfer(t)
	}
	return r, nil
}

// sendRows queues a piece of a 3-D copy for its places in the client's memory.
func (d *downloads) sendRows(t *transfer, off uint64, mem []byte, free *atomic.Bool) {
	b := t.rows
	whole := b.width // bytes without a gap
	if b.pitch == b.width {
		if whole *= b.height; b.slice == b.height {
			whole *= b.depth
		}
	}
	// The slot is free when the last row that is not copied has been sent.
	last := -1
	for at := 0; at < len(mem); {
		n := min(len(mem)-at, int(whole-(off+uint64(at))%whole))
		if n > inlineBytes {
			last = at
		}
		at += n
	}
	for at := 0; at < len(mem); {
		from := off + uint64(at)
		n := min(len(mem)-at, int(whole-from%whole))
		row := from / b.width
		h := transport.MessageHeader{
			Type: transport.MsgData, ID: t.id, Seq: t.seq, Aux: (row/b.height*b.slice+row%b.height)*b.pitch + from%b.width,
		}
		sent := free
		if at != last {
			sent = nil
		}
		d.out.message(h, mem[at:at+n], sent)
		at += n
	}
	if last < 0 {
		free.Store(true)
	}
}
