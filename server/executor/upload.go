package executor

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/transport"
)

const (
	flagSync    = wire.CopySync    // wire.CopyH2D.Flags, wire.CopyD2H.Flags: the synchronous form
	flagDone    = wire.CopyDone    // wire.CopyD2H.Flags: a DONE message ends the transfer
	flagAhead   = wire.CopyAhead   // wire.CopyH2D.Flags: to a mirror, past the program's uploads
	flagMirror  = wire.CopyMirror  // wire.CopyH2D.Flags: the target is pinned memory's mirror
	flagManaged = wire.CopyManaged // of both: blocks of unified memory
	flagPush    = wire.CopyPush    // wire.CopyD2H.Flags, wire.HostChanges.Flags: which come with a wait, not for a fault
	maxInline   = wire.MaxInline
	maxImage    = modcache.MaxBytes
)

// uploads bring bytes to the GPU that come with their commands, behind them, beside them, or are fetched when a stream
// gets there. What comes behind a command on the main connection may also be a module's image.
type uploads struct {
	*base
	loop     copiesLoop
	in       *input
	callback *callbackConn
	graphs   *graphs
	modules  *modules
	hostmem  *hostmem
	staging  *staging
	bulk     *transfers
	path     *path

	incoming *incoming // nil: what comes next is a command
}

// incoming is the bulk data that the stream carries now, or the bulk connections do.
type incoming struct {
	cmd    command // without its payload
	left   uint64  // data bytes to come
	pad    int     // padding bytes behind them
	result cuda.CUresult

	// Of an upload to the device; st is nil for a module image and for data that nobody wants.
	st     *stream
	ctx    *context
	dst    cuda.CUdeviceptr
	copy3D *copy3D // instead of dst
	at     uint64  // bytes of it that were sent on their way
	sync   bool
	slot   *slot
	filled int

	image *modcache.Draft // of a module image: what it grows in
	have  int
	hash  modcache.Hash

	direct directTarget
}

// copyH2D: every upload whose data come with the command, inline or as bulk data.
func (u *uploads) copyH2D(c *command) (cuda.CUresult, error) {
	c.async = true
	p, data, err := view[wire.CopyH2D](c)
	if err != nil {
		return 0, err
	}
	if u.metrics.Add(metrics.CopiedToDevice, int(p.Bytes)); p.Flags&flagManaged != 0 {
		u.metrics.Add(metrics.MigratedToDevice, int(p.Bytes))
		u.hostmem.forgetSent(p.Dst, p.Bytes)
	}
	if c.Flags&transport.FlagBulk != 0 {
		return u.startUpload(c, p)
	}
	if p.Bytes > maxInline || uint64(len(data)) != transport.Pad(p.Bytes) {
		return 0, protocolError("upload of %d bytes with %d bytes of data", p.Bytes, len(data))
	}
	kind := ordinary
	if p.Flags&flagAhead != 0 {
		kind = mirrors
	}
	st, r := u.uploadStream(p, kind)
	if r != cuda.CUDA_SUCCESS || p.Bytes == 0 {
		return r, nil
	}
	// The driver has copied a pageable source of this size when the call returns.
	r = u.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(p.Dst), pointerTo(data), p.Bytes, st.real)
	if r == cuda.CUDA_SUCCESS && p.Flags&flagMirror != 0 {
		u.hostmem.noteSent(p.Dst, data[:p.Bytes])
	}
	if r == cuda.CUDA_SUCCESS && p.Flags&flagSync != 0 {
		u.raiseBarrier(kind, st)
	}
	return r, nil
}

// uploadStream finds the stream of an upload and refuses what natively is refused during a capture.
func (u *uploads) uploadStream(p *wire.CopyH2D, kind barrierKind) (*stream, cuda.CUresult) {
	st, r := u.streamOf(kind, p.Stream)
	if r != cuda.CUDA_SUCCESS || len(u.captures) == 0 {
		return st, r
	}
	if u.isCapturing(st) {
		// A captured copy reads its source when the graph runs; the client sends those as deferred uploads.
		u.log.Error("an upload with its data was sent to a capturing stream; the client's library is of another version")
		return nil, cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	}
	if p.Flags&flagSync != 0 && u.prohibited(u.cmd.Thread) {
		probe := u.arena.bytes(8) // the bytes are overwritten by the upload itself
		return st, u.inThreadMode(func() cuda.CUresult {
			return u.gpu.CuMemcpyHtoD_v2(cuda.CUdeviceptr(p.Dst), pointerTo(probe), min(p.Bytes, 8))
		})
	}
	return st, cuda.CUDA_SUCCESS
}

func (u *uploads) startUpload(c *command, p *wire.CopyH2D) (cuda.CUresult, error) {
	n := c.BulkBytes(c.payload)
	if n != p.Bytes || len(c.payload) != wire.SizeCopyH2D+8 {
		return 0, protocolError("upload of %d bytes with %d bytes of bulk data", p.Bytes, n)
	}
	b := u.startBulk(c, n)
	st, r := u.uploadStream(p, ordinary)
	if r != cuda.CUDA_SUCCESS {
		b.result = r
		return r, nil
	}
	b.st, b.ctx, b.dst, b.sync = st, st.ctx, cuda.CUdeviceptr(p.Dst), p.Flags&flagSync != 0
	return cuda.CUDA_SUCCESS, nil
}

// startBulk makes what follows the command's frame bulk data. The command is answered after them.
func (u *uploads) startBulk(c *command, n uint64) *incoming {
	b := &incoming{cmd: *c, left: n, pad: int(-n & 7)}
	b.cmd.payload = nil
	c.later = true
	u.incoming = b
	return b
}

// bulkTarget is where the next bulk bytes may be received directly; nil when they have to go through the buffer.
func (u *uploads) bulkTarget() *directTarget {
	b := u.incoming
	if b == nil || b.left == 0 || b.cmd.Flags&transport.FlagTransfer != 0 {
		return nil
	}
	var room []byte
	switch {
	case b.image != nil:
		room = b.image.Data[b.have:]
	case b.slot != nil:
		room = b.slot.mem[b.filled:]
	default:
		return nil
	}
	if uint64(len(room)) > b.left {
		room = room[:b.left]
	}
	b.direct = directTarget{room: room}
	return &b.direct
}

// feed uses up the bulk data that have come. It says whether they are complete.
func (u *uploads) feed(b *incoming) (bool, error) {
	if b.cmd.Flags&transport.FlagTransfer != 0 {
		if err := u.receive(b); err != nil {
			return false, err
		}
		b.pad = 0
	}
	if n := b.direct.got; n > 0 {
		b.direct = directTarget{}
		if err := u.bulkArrived(n); err != nil {
			return false, err
		}
	}
	for b.left > 0 {
		if b.st != nil && b.slot == nil && b.result == cuda.CUDA_SUCCESS {
			if err := u.bulkSlot(); err != nil {
				return false, err
			}
		}
		n := min(b.left, uint64(u.in.buffered()))
		if n == 0 {
			return false, nil
		}
		switch {
		case b.image != nil:
			n = uint64(copy(b.image.Data[b.have:], u.in.take(int(n))))
		case b.slot != nil:
			n = min(n, uint64(len(b.slot.mem)-b.filled))
			copy(b.slot.mem[b.filled:], u.in.take(int(n)))
		default:
			u.in.take(int(n))
		}
		if err := u.bulkArrived(int(n)); err != nil {
			return false, err
		}
	}
	if u.in.buffered() < b.pad {
		return false, nil
	}
	u.in.take(b.pad)
	u.incoming = nil
	return true, nil
}

// bulkSlot gets a staging slot for the next piece of an upload.
func (u *uploads) bulkSlot() error {
	b := u.incoming
	if r := u.enter(b.cmd.Context); r != cuda.CUDA_SUCCESS {
		b.result = r
		return nil
	}
	sl, r, err := u.staging.take(b.ctx, &b.ctx.large)
	if err != nil {
		return err
	}
	b.slot, b.filled, b.result = sl, 0, r
	return nil
}

// bulkArrived notes n bytes at their place and sends a full slot on its way.
func (u *uploads) bulkArrived(n int) error {
	b := u.incoming
	b.left -= uint64(n)
	if b.image != nil {
		b.have += n
		return nil
	}
	if b.slot == nil {
		return nil
	}
	b.filled += n
	if b.filled < len(b.slot.mem) && b.left > 0 {
		return nil
	}
	sl := b.slot
	b.slot = nil
	r := u.enter(b.cmd.Context)
	switch {
	case r != cuda.CUDA_SUCCESS:
	case b.copy3D != nil:
		r = b.copy3D.move(u.gpu, &u.arena, b.at, sl.mem[:b.filled], b.st)
	default:
		r = u.gpu.CuMemcpyHtoDAsync_v2(b.dst, pointerTo(sl.mem), uint64(b.filled), b.st.real)
	}
	b.dst += cuda.CUdeviceptr(b.filled)
	b.at += uint64(b.filled)
	if r == cuda.CUDA_SUCCESS {
		r = u.staging.occupied(sl, b.st)
	} else {
		sl.free.Store(true)
	}
	if b.result == cuda.CUDA_SUCCESS {
		b.result = r
	}
	return nil
}

// copyH2DPull: an upload in stream order. When the stream gets there, the server fetches the bytes.
func (u *uploads) copyH2DPull(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.CopyH2DPull](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Bytes > 1<<50 {
		return 0, protocolError("deferred upload of %d bytes", p.Bytes)
	}
	st, r := u.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS || p.Bytes == 0 {
		return r, nil
	}
	u.metrics.Add(metrics.CopiedToDevice, int(p.Bytes))
	if u.isCapturing(st) {
		return u.graphs.captureH2D(p, st), nil
	}
	buf, r, err := u.staging.takePull(st.ctx, p.Bytes)
	if err != nil || r != cuda.CUDA_SUCCESS {
		return r, err
	}
	source := p.Source
	for off := uint64(0); off < p.Bytes && r == cuda.CUDA_SUCCESS; {
		piece := buf.mem[:min(uint64(len(buf.mem)), p.Bytes-off)]
		at, last := off, off+uint64(len(piece)) == p.Bytes
		r = u.ask(st, func() {
			if err := u.callback.pull(source, at, piece, last); err != nil {
				u.loop.clientFailed("fetch the source of a deferred upload", err)
			}
		})
		if r == cuda.CUDA_SUCCESS {
			// The next pull into the same memory is behind this copy: all are on one stream.
			r = u.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(p.Dst+off), pointerTo(piece), uint64(len(piece)), st.real)
		}
		off += uint64(len(piece))
	}
	if e, re := u.recordEvent(st); re == cuda.CUDA_SUCCESS {
		buf.event = e
	} else if r == cuda.CUDA_SUCCESS {
		r = re
	}
	return r, nil
}

// startImage: a module image comes as bulk data.
func (u *uploads) startImage(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.ModulePut](c)
	if err != nil {
		return 0, err
	}
	if c.Flags&transport.FlagBulk == 0 || len(rest) != 8 || c.BulkBytes(c.payload) != p.Bytes || p.Bytes == 0 ||
		p.Bytes > maxImage {
		return 0, protocolError("module image of %d bytes", p.Bytes)
	}
	draft, err := u.modules.imageDraft(p.Bytes)
	if err != nil {
		u.log.Error("no memory for a module image", "bytes", p.Bytes, "error", err)
		b := u.startBulk(c, p.Bytes)
		b.result = cuda.CUDA_ERROR_OUT_OF_MEMORY
		return cuda.CUDA_SUCCESS, nil
	}
	b := u.startBulk(c, p.Bytes)
	b.image, b.hash = draft, p.Hash
	u.metrics.Add(metrics.ModuleUploaded, int(p.Bytes))
	return cuda.CUDA_SUCCESS, nil
}
