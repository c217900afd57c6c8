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
	flagTwin    = wire.CopyTwin    // wire.CopyH2D.Flags: the target is pinned memory's twin
	flagManaged = wire.CopyManaged // of both: blocks of unified memory
	flagPush    = wire.CopyPush    // wire.CopyD2H.Flags, wire.HostChanges.Flags: which come with a wait, not for a fault
	maxInline   = wire.MaxInline
	maxImage    = 2 << 30
)

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
	box    *boxCopy // instead of dst
	at     uint64   // bytes of the box that were sent on their way
	sync   bool
	slot   *slot
	filled int

	image []byte // of a module image: what it grows in
	have  int
	hash  modcache.Hash

	direct directTarget
}

// copyH2D: every upload whose data come with the command, inline or as bulk data.
func (s *Session) copyH2D(c *command) (cuda.CUresult, error) {
	c.async = true
	p, data, err := view[wire.CopyH2D](c)
	if err != nil {
		return 0, err
	}
	if s.metrics.Add(metrics.CopiedToDevice, int(p.Bytes)); p.Flags&flagManaged != 0 {
		s.metrics.Add(metrics.MigratedToDevice, int(p.Bytes))
		s.hostmem.forgetSent(p.Dst, p.Bytes)
	}
	if c.Flags&transport.FlagBulk != 0 {
		return s.startUpload(c, p)
	}
	if p.Bytes > maxInline || uint64(len(data)) != transport.Pad(p.Bytes) {
		return 0, protocolError("upload of %d bytes with %d bytes of data", p.Bytes, len(data))
	}
	st, r := s.uploadStream(p)
	if r != cuda.CUDA_SUCCESS || p.Bytes == 0 {
		return r, nil
	}
	// The driver has copied a pageable source of this size when the call returns.
	r = s.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(p.Dst), pointerTo(data), p.Bytes, st.real)
	if r == cuda.CUDA_SUCCESS && p.Flags&flagTwin != 0 {
		s.hostmem.noteSent(p.Dst, data[:p.Bytes])
	}
	if r == cuda.CUDA_SUCCESS && p.Flags&flagSync != 0 {
		s.raiseBarrier(st)
	}
	return r, nil
}

// uploadStream finds the stream of an upload and refuses what natively is refused during a capture.
func (s *Session) uploadStream(p *wire.CopyH2D) (*stream, cuda.CUresult) {
	st, r := s.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS || len(s.captures) == 0 {
		return st, r
	}
	if s.isCapturing(st) {
		// A captured copy reads its source when the graph runs; the client sends those as deferred uploads.
		s.log.Error("an upload with its data was sent to a capturing stream; the client's library is of another version")
		return nil, cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	}
	if p.Flags&flagSync != 0 && s.prohibited(s.cmd.Thread) {
		probe := s.arena.bytes(8) // the bytes are overwritten by the upload itself
		return st, s.inThreadMode(func() cuda.CUresult {
			return s.gpu.CuMemcpyHtoD_v2(cuda.CUdeviceptr(p.Dst), pointerTo(probe), min(p.Bytes, 8))
		})
	}
	return st, cuda.CUDA_SUCCESS
}

func (s *Session) startUpload(c *command, p *wire.CopyH2D) (cuda.CUresult, error) {
	n := c.BulkBytes(c.payload)
	if n != p.Bytes || len(c.payload) != wire.SizeCopyH2D+8 {
		return 0, protocolError("upload of %d bytes with %d bytes of bulk data", p.Bytes, n)
	}
	b := s.startBulk(c, n)
	st, r := s.uploadStream(p)
	if r != cuda.CUDA_SUCCESS {
		b.result = r
		return r, nil
	}
	b.st, b.ctx, b.dst, b.sync = st, st.ctx, cuda.CUdeviceptr(p.Dst), p.Flags&flagSync != 0
	return cuda.CUDA_SUCCESS, nil
}

// startBulk makes what follows the command's frame bulk data. The command is answered after them.
func (s *Session) startBulk(c *command, n uint64) *incoming {
	b := &incoming{cmd: *c, left: n, pad: int(-n & 7)}
	b.cmd.payload = nil
	c.later = true
	s.incoming = b
	return b
}

// bulkTarget is where the next bulk bytes may be received directly; nil when they have to go through the buffer.
func (s *Session) bulkTarget() *directTarget {
	b := s.incoming
	if b == nil || b.left == 0 || b.cmd.Flags&transport.FlagStriped != 0 {
		return nil
	}
	var room []byte
	switch {
	case b.image != nil:
		room = b.image[b.have:]
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

// feedBulk uses up the bulk data that have come. It says whether it could go on: false means that more bytes are
// needed.
func (s *Session) feedBulk() (bool, error) {
	b := s.incoming
	if b.cmd.Flags&transport.FlagStriped != 0 {
		if err := s.receiveUpload(b); err != nil {
			return false, err
		}
		b.pad = 0
	}
	if n := b.direct.got; n > 0 {
		b.direct = directTarget{}
		if err := s.bulkArrived(n); err != nil {
			return false, err
		}
	}
	for b.left > 0 {
		if b.st != nil && b.slot == nil && b.result == cuda.CUDA_SUCCESS {
			if err := s.bulkSlot(); err != nil {
				return false, err
			}
		}
		n := min(b.left, uint64(s.in.buffered()))
		if n == 0 {
			return false, nil
		}
		switch {
		case b.image != nil:
			n = uint64(copy(b.image[b.have:], s.in.take(int(n))))
		case b.slot != nil:
			n = min(n, uint64(len(b.slot.mem)-b.filled))
			copy(b.slot.mem[b.filled:], s.in.take(int(n)))
		default:
			s.in.take(int(n))
		}
		if err := s.bulkArrived(int(n)); err != nil {
			return false, err
		}
	}
	if s.in.buffered() < b.pad {
		return false, nil
	}
	s.in.take(b.pad)
	s.incoming = nil
	s.cmd = b.cmd
	s.ordering.carriedOut(&s.cmd)
	r := b.result
	if b.image != nil {
		r = s.modules.keepImage(b.hash, b.image)
	} else if b.sync && r == cuda.CUDA_SUCCESS && b.st != nil {
		s.raiseBarrier(b.st)
	}
	s.answer(&b.cmd, r)
	return true, nil
}

// bulkSlot gets a staging slot for the next piece of an upload.
func (s *Session) bulkSlot() error {
	b := s.incoming
	if r := s.enter(b.cmd.Context); r != cuda.CUDA_SUCCESS {
		b.result = r
		return nil
	}
	sl, r, err := s.takeSlot(b.ctx, &b.ctx.large)
	if err != nil {
		return err
	}
	b.slot, b.filled, b.result = sl, 0, r
	return nil
}

// bulkArrived notes n bytes at their place and sends a full slot on its way.
func (s *Session) bulkArrived(n int) error {
	b := s.incoming
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
	r := s.enter(b.cmd.Context)
	switch {
	case r != cuda.CUDA_SUCCESS:
	case b.box != nil:
		r = b.box.move(&s.base, b.at, sl.mem[:b.filled], b.st)
	default:
		r = s.gpu.CuMemcpyHtoDAsync_v2(b.dst, pointerTo(sl.mem), uint64(b.filled), b.st.real)
	}
	b.dst += cuda.CUdeviceptr(b.filled)
	b.at += uint64(b.filled)
	if r == cuda.CUDA_SUCCESS {
		r = s.occupied(sl, b.st)
	} else {
		sl.free.Store(true)
	}
	if b.result == cuda.CUDA_SUCCESS {
		b.result = r
	}
	return nil
}

// copyH2DPull: an upload in stream order. When the stream gets there, the server fetches the bytes.
func (s *Session) copyH2DPull(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.CopyH2DPull](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Bytes > 1<<50 {
		return 0, protocolError("deferred upload of %d bytes", p.Bytes)
	}
	st, r := s.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS || p.Bytes == 0 {
		return r, nil
	}
	s.metrics.Add(metrics.CopiedToDevice, int(p.Bytes))
	if s.isCapturing(st) {
		return s.graphs.captureH2D(p, st), nil
	}
	buf, r, err := s.takePull(st.ctx, p.Bytes)
	if err != nil || r != cuda.CUDA_SUCCESS {
		return r, err
	}
	source := p.Source
	for off := uint64(0); off < p.Bytes && r == cuda.CUDA_SUCCESS; {
		piece := buf.mem[:min(uint64(len(buf.mem)), p.Bytes-off)]
		at, last := off, off+uint64(len(piece)) == p.Bytes
		r = s.ask(st, func() {
			if err := s.side.pull(source, at, piece, last); err != nil {
				s.sideFailed("fetch the source of a deferred upload", err)
			}
		})
		if r == cuda.CUDA_SUCCESS {
			// The next pull into the same memory is behind this copy: all are on one stream.
			r = s.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(p.Dst+off), pointerTo(piece), uint64(len(piece)), st.real)
		}
		off += uint64(len(piece))
	}
	if e, re := s.recordEvent(st); re == cuda.CUDA_SUCCESS {
		buf.event = e
	} else if r == cuda.CUDA_SUCCESS {
		r = re
	}
	return r, nil
}

// startImage: a module image comes as bulk data.
func (s *Session) startImage(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.ModulePut](c)
	if err != nil {
		return 0, err
	}
	if c.Flags&transport.FlagBulk == 0 || len(rest) != 8 || c.BulkBytes(c.payload) != p.Bytes || p.Bytes == 0 ||
		p.Bytes > maxImage {
		return 0, protocolError("module image of %d bytes", p.Bytes)
	}
	mem, err := mapMemory(int(p.Bytes))
	if err != nil {
		s.log.Error("no memory for a module image", "bytes", p.Bytes, "error", err)
		b := s.startBulk(c, p.Bytes)
		b.result = cuda.CUDA_ERROR_OUT_OF_MEMORY
		return cuda.CUDA_SUCCESS, nil
	}
	b := s.startBulk(c, p.Bytes)
	b.image, b.hash = mem, p.Hash
	s.metrics.Add(metrics.ModuleUploaded, int(p.Bytes))
	return cuda.CUDA_SUCCESS, nil
}
