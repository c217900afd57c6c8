package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

type regionKind uint8

const (
	regionDevice     regionKind = iota // cuMemAlloc
	regionManaged                      // cuMemAllocManaged
	regionPool                         // cuMemAllocAsync
	regionGlobal                       // a module's variable
	regionArray                        // a CUarray
	regionMapped                       // a mapping made by cuMemMap, with access
	regionForeign                      // memory of another process
	regionHost                         // cuMemHostAlloc
	regionRegistered                   // cuMemHostRegister
)

func (k regionKind) host() bool { return k == regionHost || k == regionRegistered }

// region is memory that kernels and copies may touch.
type region struct {
	base, size uint64
	asked      uint64 // the size that was asked for; size is rounded up
	kind       regionKind
	dev        *device
	ctx        *cudaContext
	id         uint64
	flags      uint32
	pool       *pool
	readOnly   bool
	syncOps    bool
	freeing    bool      // a cuMemFreeAsync is on its way
	graph      *graph    // owner of memory allocated by a capture
	out        bool      // of a graph: its last launch allocated it, and nobody has freed it
	mapping    *mapping  // for regionMapped
	managed    []advised // of managed memory
}

func (r *region) end() uint64 { return r.base + r.size }

var errOverlap = errors.New("sim: memory range is in use")

// memory is the table of live regions. Look-ups read an immutable sorted snapshot and take no lock, as kernels make one
// for every access that leaves the region of the one before.
type memory struct {
	mu   sync.Mutex
	snap atomic.Pointer[[]*region]
}

func (m *memory) all() []*region {
	if p := m.snap.Load(); p != nil {
		return *p
	}
	return nil
}

func search(regs []*region, addr uint64) (int, bool) {
	return slices.BinarySearchFunc(regs, addr, func(r *region, a uint64) int {
		switch {
		case r.end() <= a:
			return -1
		case r.base > a:
			return 1
		}
		return 0
	})
}

// find gives the region that holds addr, or nil.
func (m *memory) find(addr uint64) *region {
	regs := m.all()
	if i, found := search(regs, addr); found {
		return regs[i]
	}
	return nil
}

// covers says whether every byte of [addr, addr+n) lies in live regions.
func (m *memory) covers(addr, n uint64) bool {
	regs := m.all()
	i, found := search(regs, addr)
	if !found || addr+n < addr {
		return false
	}
	for end := addr + n; ; i++ {
		if end <= regs[i].end() {
			return true
		}
		if i+1 == len(regs) || regs[i+1].base != regs[i].end() {
			return false
		}
	}
}

func (m *memory) insert(r *region) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	regs := m.all()
	i, _ := slices.BinarySearchFunc(regs, r.base, func(x *region, a uint64) int { return cmp.Compare(x.base, a) })
	if i > 0 && regs[i-1].end() > r.base || i < len(regs) && regs[i].base < r.end() {
		return fmt.Errorf("%w: %#x+%#x", errOverlap, r.base, r.size)
	}
	next := make([]*region, 0, len(regs)+1)
	next = append(append(append(next, regs[:i]...), r), regs[i:]...)
	m.snap.Store(&next)
	return nil
}

// remove takes r out; false if it was not in.
func (m *memory) remove(r *region) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	regs := m.all()
	i, found := search(regs, r.base)
	if !found || regs[i] != r {
		return false
	}
	next := make([]*region, 0, len(regs)-1)
	next = append(append(next, regs[:i]...), regs[i+1:]...)
	m.snap.Store(&next)
	return true
}

const allocAlign = 512 // of cuMemAlloc; the driver promises 256 and gives 512

// allocate takes device memory out of the device's budget. g.mu is held.
func (g *GPU) allocate(c *cudaContext, kind regionKind, n uint64) (*region, cuda.CUresult) {
	d := c.dev
	size := roundUp(n, allocAlign)
	if n == 0 {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if size < n || size > d.total-d.used || g.faulty(kind) {
		return nil, cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	base, found := d.arena.alloc(size, allocAlign)
	if !found {
		return nil, cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	r := &region{base: base, size: size, asked: n, kind: kind, dev: d, ctx: c, id: g.nextID()}
	if err := g.mem.insert(r); err != nil {
		g.log.Error("sim: device memory table", "error", err)
		return nil, cuda.CUDA_ERROR_UNKNOWN
	}
	g.take(d, size)
	return r, ok
}

// freeRegion takes r out of the table and gives its memory back. g.mu is held, except at the very end.
func (g *GPU) freeRegion(r *region) error {
	if !g.mem.remove(r) {
		return nil
	}
	switch r.kind {
	case regionDevice, regionManaged, regionPool, regionGlobal, regionArray:
		g.give(r.dev, r.size)
		if r.pool != nil {
			r.pool.used -= r.size
		}
		if r.graph != nil {
			r.dev.graphUsed -= r.size
		}
		r.dev.arena.release(r.base, r.size)
		return r.dev.arena.discard(r.base, r.size)
	case regionForeign:
		return unmap(r.pages())
	case regionHost:
		return unmap(r.base, r.size)
	}
	return nil
}

// freeOwned is freeRegion for what goes with its owner, where nobody asks how it went.
func (g *GPU) freeOwned(r *region) {
	if err := g.freeRegion(r); err != nil {
		g.log.Error("sim: free", "error", err)
	}
}

// retire frees a region whose addresses go away: kernels that have found it since the caller waited must end first.
// g.mu is held, and given up meanwhile.
func (g *GPU) retire(r *region) error {
	if !g.mem.remove(r) {
		return nil
	}
	g.waitAll()
	if r.kind == regionHost {
		return unmap(r.base, r.size)
	}
	return nil
}

func (g *GPU) CuMemAlloc_v2(dptr *cuda.CUdeviceptr, n uint64) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if dptr == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	reg, r := g.allocateOrWait(c, regionDevice, n)
	if r != ok {
		return r
	}
	*dptr = cuda.CUdeviceptr(reg.base)
	return ok
}

// allocateOrWait is allocate that, when memory is short, first lets stream-ordered frees that are under way come to
// pass, as the driver does. g.mu is held, and given up while waiting.
func (g *GPU) allocateOrWait(c *cudaContext, kind regionKind, n uint64) (*region, cuda.CUresult) {
	reg, r := g.allocate(c, kind, n)
	if r != cuda.CUDA_ERROR_OUT_OF_MEMORY || len(c.dev.frees) == 0 {
		return reg, r
	}
	frees := c.dev.frees
	c.dev.frees = nil
	g.work.wait(frees)
	return g.allocate(c, kind, n)
}

func (g *GPU) CuMemAllocPitch_v2(dptr *cuda.CUdeviceptr, pitch *uint64, width, height uint64,
	elem uint32) cuda.CUresult {
	if dptr == nil || pitch == nil || width == 0 || height == 0 || elem != 4 && elem != 8 && elem != 16 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	p := roundUp(width, allocAlign)
	if p < width || height > (1<<62)/p {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	r := g.CuMemAlloc_v2(dptr, p*height)
	if r == ok {
		*pitch = p
	}
	return r
}

func (g *GPU) CuMemFree_v2(dptr cuda.CUdeviceptr) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if c, r := g.currentOf(g.thread()); r == ok && c.usable() != ok { // none need be current
		return c.usable()
	}
	if dptr == 0 {
		return ok
	}
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	reg := g.mem.find(uint64(dptr))
	if reg == nil || reg.base != uint64(dptr) || reg.kind != regionDevice && reg.kind != regionManaged &&
		reg.kind != regionPool && (reg.kind != regionForeign || reg.pool == nil) || reg.freeing {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := reg.ctx.usable(); r != ok {
		return r
	}
	reg.freeing = true
	// Kernels in flight may use the memory: the driver waits for them as well.
	r := g.work.waitContext(reg.ctx)
	if err := g.freeRegion(reg); err != nil {
		g.log.Error("sim: free", "error", err)
		return cuda.CUDA_ERROR_UNKNOWN
	}
	return r
}

func (g *GPU) CuMemGetInfo_v2(free, total *uint64) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if free != nil {
		*free = c.dev.total - c.dev.used
	}
	if total != nil {
		*total = c.dev.total
	}
	return ok
}

func (g *GPU) CuMemGetAddressRange_v2(base *cuda.CUdeviceptr, size *uint64, dptr cuda.CUdeviceptr) cuda.CUresult {
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(uint64(dptr))
	if reg == nil || reg.kind.host() {
		return cuda.CUDA_ERROR_NOT_FOUND
	}
	if base != nil {
		*base = cuda.CUdeviceptr(reg.base)
	}
	if size != nil {
		*size = reg.asked
	}
	return ok
}

// Region gives the interpreter the memory around a device address, if kernels may touch it.
func (m *memory) Region(addr uint64) (ptx.Region, bool) {
	r := m.find(addr)
	if r == nil {
		return ptx.Region{}, false
	}
	const align = 16 // what the interpreter needs; only registered host memory can begin in between
	base := r.base &^ (align - 1)
	return ptx.Region{Start: base, Bytes: bytesAt(base, r.end()-base), ReadOnly: r.readOnly}, true
}
