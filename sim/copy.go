package sim

import (
	"context"

	"scuda.dev/scuda/api/cuda"
)

// copy3D is a copy of up to three dimensions between two places in memory, in bytes.
type copy3D struct {
	dst, src             place
	width, height, depth uint64

	// Between contexts, by a synchronous form. With the driver it comes before all later work of both, and the caller
	// does not wait; here he does.
	peer bool
}

// rows says whether it has several.
func (b *copy3D) rows() bool { return b.height > 1 || b.depth > 1 }

// place is one end of a copy: rows of pitch bytes, slices of height rows.
type place struct {
	addr          uint64 // of the first byte of the copy, offsets included
	pitch, height uint64
	device        bool // must be memory that the device knows
}

func (p place) row(y, z uint64) uint64 { return p.addr + (z*p.height+y)*p.pitch }

// extent is the number of bytes from the first to the last byte of the copy.
func (p place) extent(b *copy3D) uint64 {
	return p.row(b.height-1, b.depth-1) - p.addr + b.width
}

func (b *copy3D) empty() bool { return b.width == 0 || b.height == 0 || b.depth == 0 }

// check says whether both ends can be what they claim.
func (g *GPU) check(b *copy3D) cuda.CUresult {
	if b.empty() {
		return ok
	}
	const limit = 1 << 47 // of user addresses: no product below overflows
	if b.width > limit || b.height > limit/b.width || b.depth > limit/(b.width*b.height) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for _, p := range []*place{&b.dst, &b.src} {
		if b.height == 1 && b.depth == 1 {
			p.pitch = b.width
		}
		if b.depth == 1 {
			p.height = b.height
		}
		if p.addr == 0 || p.pitch < b.width || p.height < b.height || p.pitch > limit || p.height > limit/p.pitch ||
			b.depth > limit/(p.pitch*p.height) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if (p.device || g.mem.find(p.addr) != nil) && !g.mem.covers(p.addr, p.extent(b)) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	return ok
}

// run copies. What the device owns is looked up again, as it may have been freed since the copy was submitted.
func (g *GPU) run(b *copy3D) error {
	if b.empty() {
		return nil
	}
	for _, p := range []place{b.dst, b.src} {
		if p.device && !g.mem.covers(p.addr, p.extent(b)) {
			return &deviceError{cuda.CUDA_ERROR_ILLEGAL_ADDRESS, "copy to or from memory that was freed"}
		}
	}
	if b.dst.pitch == b.width && b.src.pitch == b.width && b.dst.height == b.src.height {
		n := b.width * b.height
		if b.dst.height == b.height {
			n, b = n*b.depth, &copy3D{dst: b.dst, src: b.src, width: b.width, height: b.height, depth: 1}
		}
		for z := range b.depth {
			copy(bytesAt(b.dst.row(0, z), n), bytesAt(b.src.row(0, z), n))
		}
		return nil
	}
	for z := range b.depth {
		for y := range b.height {
			copy(bytesAt(b.dst.row(y, z), b.width), bytesAt(b.src.row(y, z), b.width))
		}
	}
	return nil
}

func (g *GPU) copyOp(b *copy3D) op {
	return op{kind: cuda.CU_GRAPH_NODE_TYPE_MEMCPY, params: b,
		run: func(ctx context.Context) error { return g.runCopy(ctx, b) }}
}

// pageable says that an end of a copy is host memory that the device cannot reach itself.
func (g *GPU) pageable(p place) bool { return !p.device && g.mem.find(p.addr) == nil }

const stagedBytes = 64 << 10 // the driver copies pageable sources up to this size before it returns

// inGPU says that an end of a copy is a GPU's own memory, which the CPU cannot look at.
func (m *memory) inGPU(p place) bool {
	r := m.find(p.addr)
	return r != nil && !r.kind.host() && r.kind != regionManaged && !r.syncOps
}

// copySync is a copy whose caller waits for it, unless it is within GPUs: as with the driver such a copy is only in the
// order of the legacy stream.
func (g *GPU) copySync(b *copy3D) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.check(b); r != ok {
		return r
	}
	s := g.implied(c)
	if s.capture != nil {
		return g.syncInCapture(s)
	}
	if r := g.implicitInCapture(s); r != ok {
		return r
	}
	if b.empty() {
		return ok
	}
	t := g.work.push(s, func(ctx context.Context) error { return g.runCopy(ctx, b) })
	if b.peer || !g.mem.inGPU(b.dst) || !g.mem.inGPU(b.src) {
		g.work.wait([]*task{t})
	}
	return c.failed()
}

// copyAsync is a copy in stream order. As with the driver, pageable memory makes it wait, except for a short source,
// which is staged.
func (g *GPU) copyAsync(b *copy3D, hs cuda.CUstream) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.check(b); r != ok {
		return r
	}
	if s.capture == nil && b.empty() {
		return ok
	}
	if s.capture == nil && g.pageable(b.src) && b.height == 1 && b.depth == 1 && b.width <= stagedBytes &&
		!g.pageable(b.dst) {
		staged := append([]byte(nil), bytesAt(b.src.addr, b.width)...)
		_, r := g.submit(s, op{run: func(ctx context.Context) error {
			defer telling(ctx, b.describe(&g.mem))()
			if b.dst.device && !g.mem.covers(b.dst.addr, b.width) {
				return &deviceError{cuda.CUDA_ERROR_ILLEGAL_ADDRESS, "copy to memory that was freed"}
			}
			copy(bytesAt(b.dst.addr, b.width), staged)
			return nil
		}})
		return r
	}
	t, r := g.submit(s, g.copyOp(b))
	if r != ok || t == nil || !g.pageable(b.src) && !g.pageable(b.dst) {
		return r
	}
	g.work.wait([]*task{t})
	return s.ctx.failed()
}

// line is a copy of n bytes in a row.
func line(dst, src place, n uint64) *copy3D {
	return &copy3D{dst: dst, src: src, width: n, height: 1, depth: 1}
}

func onDevice(p cuda.CUdeviceptr) place { return place{addr: uint64(p), device: true} }

// anywhere is unified addressing: device memory where the table knows it, else host memory.
func (g *GPU) anywhere(p cuda.CUdeviceptr) place {
	return place{addr: uint64(p), device: g.mem.find(uint64(p)) != nil || g.reserved(uint64(p))}
}

// reserved says whether an address lies where only device memory can be.
func (g *GPU) reserved(addr uint64) bool {
	for _, d := range g.devices {
		if addr-d.arena.base < d.arena.size {
			return true
		}
	}
	return g.vmm.has(addr, 1)
}

func (g *GPU) CuMemcpyDtoD_v2(dst, src cuda.CUdeviceptr, n uint64) cuda.CUresult {
	return g.copySync(line(onDevice(dst), onDevice(src), n))
}

func (g *GPU) CuMemcpyDtoDAsync_v2(dst, src cuda.CUdeviceptr, n uint64, s cuda.CUstream) cuda.CUresult {
	return g.copyAsync(line(onDevice(dst), onDevice(src), n), s)
}

func (g *GPU) CuMemcpy(dst, src cuda.CUdeviceptr, n uint64) cuda.CUresult {
	return g.copySync(line(g.anywhere(dst), g.anywhere(src), n))
}

func (g *GPU) CuMemcpyAsync(dst, src cuda.CUdeviceptr, n uint64, s cuda.CUstream) cuda.CUresult {
	return g.copyAsync(line(g.anywhere(dst), g.anywhere(src), n), s)
}

func (g *GPU) CuMemcpyPeer(dst cuda.CUdeviceptr, _ cuda.CUcontext, src cuda.CUdeviceptr, _ cuda.CUcontext,
	n uint64) cuda.CUresult {
	b := line(onDevice(dst), onDevice(src), n)
	b.peer = true
	return g.copySync(b)
}

func (g *GPU) CuMemcpyPeerAsync(dst cuda.CUdeviceptr, _ cuda.CUcontext, src cuda.CUdeviceptr, _ cuda.CUcontext,
	n uint64, s cuda.CUstream) cuda.CUresult {
	return g.copyAsync(line(onDevice(dst), onDevice(src), n), s)
}

func (g *GPU) CuMemcpy2D_v2(p *cuda.CUDA_MEMCPY2D) cuda.CUresult {
	b, r := g.copyFrom2D(p)
	if r != ok {
		return r
	}
	return g.copySync(b)
}

func (g *GPU) CuMemcpy2DUnaligned_v2(p *cuda.CUDA_MEMCPY2D) cuda.CUresult { return g.CuMemcpy2D_v2(p) }

func (g *GPU) CuMemcpy2DAsync_v2(p *cuda.CUDA_MEMCPY2D, s cuda.CUstream) cuda.CUresult {
	b, r := g.copyFrom2D(p)
	if r != ok {
		return r
	}
	return g.copyAsync(b, s)
}

func (g *GPU) CuMemcpy3D_v2(p *cuda.CUDA_MEMCPY3D) cuda.CUresult {
	b, r := g.copyFrom3D(p)
	if r != ok {
		return r
	}
	return g.copySync(b)
}

// as3D drops the contexts of a copy between devices: addresses say it all.
func as3D(p *cuda.CUDA_MEMCPY3D_PEER) *cuda.CUDA_MEMCPY3D {
	if p == nil {
		return nil
	}
	return &cuda.CUDA_MEMCPY3D{
		SrcXInBytes: p.SrcXInBytes, SrcY: p.SrcY, SrcZ: p.SrcZ, SrcLOD: p.SrcLOD, SrcMemoryType: p.SrcMemoryType,
		SrcHost:   p.SrcHost,
		SrcDevice: p.SrcDevice, SrcArray: p.SrcArray, SrcPitch: p.SrcPitch, SrcHeight: p.SrcHeight,
		DstXInBytes: p.DstXInBytes, DstY: p.DstY, DstZ: p.DstZ, DstLOD: p.DstLOD, DstMemoryType: p.DstMemoryType,
		DstHost:   p.DstHost,
		DstDevice: p.DstDevice, DstArray: p.DstArray, DstPitch: p.DstPitch, DstHeight: p.DstHeight,
		WidthInBytes: p.WidthInBytes, Height: p.Height, Depth: p.Depth,
	}
}

func (g *GPU) CuMemcpy3DPeer(p *cuda.CUDA_MEMCPY3D_PEER) cuda.CUresult {
	b, r := g.copyFrom3D(as3D(p))
	if r != ok {
		return r
	}
	b.peer = true
	return g.copySync(b)
}

func (g *GPU) CuMemcpy3DPeerAsync(p *cuda.CUDA_MEMCPY3D_PEER, s cuda.CUstream) cuda.CUresult {
	return g.CuMemcpy3DAsync_v2(as3D(p), s)
}

func (g *GPU) CuMemcpy3DAsync_v2(p *cuda.CUDA_MEMCPY3D, s cuda.CUstream) cuda.CUresult {
	b, r := g.copyFrom3D(p)
	if r != ok {
		return r
	}
	return g.copyAsync(b, s)
}

// copyEnd is one end of a 2-D or 3-D copy as the driver's structures describe it.
type copyEnd struct {
	kind                   cuda.CUmemorytype
	host                   uintptr
	dev                    cuda.CUdeviceptr
	array                  cuda.CUarray
	x, y, z, pitch, height uint64
}

func (g *GPU) place(s copyEnd, b *copy3D) (place, cuda.CUresult) {
	p := place{pitch: s.pitch, height: s.height}
	switch s.kind {
	case cuda.CU_MEMORYTYPE_HOST:
		p.addr = uint64(s.host)
	case cuda.CU_MEMORYTYPE_DEVICE:
		p.addr, p.device = uint64(s.dev), true
	case cuda.CU_MEMORYTYPE_UNIFIED:
		p = g.anywhere(s.dev)
		p.pitch, p.height = s.pitch, s.height
	case cuda.CU_MEMORYTYPE_ARRAY:
		return g.arrayPlace(s, b)
	default:
		return p, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if p.pitch == 0 {
		p.pitch = s.x + b.width
	}
	if p.height == 0 {
		p.height = s.y + b.height
	}
	if p.addr != 0 {
		p.addr += (s.z*p.height+s.y)*p.pitch + s.x
	}
	if s.x+b.width > p.pitch && (b.height > 1 || b.depth > 1) || s.y+b.height > p.height && b.depth > 1 {
		return p, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return p, ok
}

func (g *GPU) copyBetween(dst, src copyEnd, width, height, depth uint64) (*copy3D, cuda.CUresult) {
	b := &copy3D{width: width, height: height, depth: depth}
	var r cuda.CUresult
	if b.dst, r = g.place(dst, b); r != ok {
		return nil, r
	}
	if b.src, r = g.place(src, b); r != ok {
		return nil, r
	}
	return b, ok
}

func (g *GPU) copyFrom2D(p *cuda.CUDA_MEMCPY2D) (*copy3D, cuda.CUresult) {
	if p == nil {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.copyBetween(
		copyEnd{kind: p.DstMemoryType, host: p.DstHost, dev: p.DstDevice, array: p.DstArray, x: p.DstXInBytes, y: p.DstY,
			pitch: p.DstPitch},
		copyEnd{kind: p.SrcMemoryType, host: p.SrcHost, dev: p.SrcDevice, array: p.SrcArray, x: p.SrcXInBytes, y: p.SrcY,
			pitch: p.SrcPitch},
		p.WidthInBytes, p.Height, 1)
}

func (g *GPU) copyFrom3D(p *cuda.CUDA_MEMCPY3D) (*copy3D, cuda.CUresult) {
	if p == nil || p.SrcLOD != 0 || p.DstLOD != 0 {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.copyBetween(
		copyEnd{kind: p.DstMemoryType, host: p.DstHost, dev: p.DstDevice, array: p.DstArray, x: p.DstXInBytes, y: p.DstY,
			z: p.DstZ, pitch: p.DstPitch, height: p.DstHeight},
		copyEnd{kind: p.SrcMemoryType, host: p.SrcHost, dev: p.SrcDevice, array: p.SrcArray, x: p.SrcXInBytes, y: p.SrcY,
			z: p.SrcZ, pitch: p.SrcPitch, height: p.SrcHeight},
		p.WidthInBytes, p.Height, p.Depth)
}
