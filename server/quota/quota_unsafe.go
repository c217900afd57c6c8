package quota

import (
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/driver/invoke"
)

// unit is what the driver rounds allocations up to, at least.
const unit = 512

// Limit is how much may be had.
type Limit struct {
	Bytes   uint64                  // 0: any number
	Refused func(wants, has uint64) // is told what cannot be had, while a lock is held
}

func (l Limit) bytes() uint64 {
	if l.Bytes == 0 {
		return math.MaxUint64
	}
	return l.Bytes
}

// fits says whether somebody who has so much may have so much more.
func (l Limit) fits(has, more uint64) bool { return more <= l.bytes() && has <= l.bytes()-more }

// Account is what several sessions have together. Their GPUs may be in several processes.
type Account interface {
	// Book says that this session has so much and wants more, which is booked if all sessions then stay within the limit.
	// It gives what the other sessions have.
	Book(has, more, limit uint64) (others uint64, ok bool)
	// Has says how much this session has.
	Has(bytes uint64)
	// Others is how much the other sessions have.
	Others() uint64
}

// alone is the account of a session that shares its limit with nobody.
type alone struct{}

func (alone) Book(has, more, limit uint64) (uint64, bool) {
	return 0, Limit{Bytes: limit}.fits(has, more)
}
func (alone) Has(uint64)     {}
func (alone) Others() uint64 { return 0 }

// GPU is a driver with limits.
type GPU struct {
	cuda.GPU
	own, all Limit // of this session, and of those of the account
	account  Account

	mu        sync.Mutex
	used      uint64 // without what pools and graphs have
	linear    map[cuda.CUdeviceptr]block
	arrays    map[uint64]block
	physical  map[cuda.CUmemGenericAllocationHandle]*physical
	mapped    map[cuda.CUdeviceptr]mapping
	pools     map[cuda.CUmemoryPool]struct{}
	stretches bool // pools or graphs have been used
	args      cuda.Words
	out       struct { // of calls with args; in the heap, where it does not move
		word, second uint64
	}
}

// block is memory that ends with a context.
type block struct {
	bytes uint64
	ctx   cuda.CUcontext
}

// physical is memory that lives as long as its handle and its mappings.
type physical struct {
	bytes   uint64
	refs    int // handles, mappings, and what was exported
	handles int
}

type mapping struct {
	of    *physical
	bytes uint64
}

var (
	_ cuda.GPU    = (*GPU)(nil)
	_ cuda.Caller = (*GPU)(nil)
)

// New limits a driver's memory: that of this session, and that of all of an account; nil: there are no others.
func New(of cuda.GPU, own, all Limit, account Account) *GPU {
	if account == nil {
		account = alone{}
	}
	return &GPU{
		GPU: of, own: own, all: all, account: account,
		linear: make(map[cuda.CUdeviceptr]block), arrays: make(map[uint64]block),
		physical: make(map[cuda.CUmemGenericAllocationHandle]*physical),
		mapped:   make(map[cuda.CUdeviceptr]mapping), pools: make(map[cuda.CUmemoryPool]struct{}),
	}
}

// Used is how much the session has now.
func (g *GPU) Used() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.total()
}

// ask calls the driver. g.mu is held.
func (g *GPU) ask(op uint16, args ...uint64) cuda.CUresult {
	g.args = cuda.Words{}
	copy(g.args[:], args)
	return invoke.CUDA(g.GPU, op, &g.args)
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

func at[T any](word uint64) *T { return *(**T)(unsafe.Pointer(&word)) }

func roundUp(bytes uint64) uint64 {
	if bytes > 1<<62 {
		return bytes
	}
	return (bytes + unit - 1) &^ (unit - 1)
}

// total is what the session has. g.mu is held.
func (g *GPU) total() uint64 {
	n := g.used
	if !g.stretches {
		return n
	}
	n += g.ofPools(cuda.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
	for d := range g.devices() {
		g.out.word = 0
		r := g.ask(cuda.OpCuDeviceGetGraphMemAttribute, uint64(d), uint64(cuda.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT),
			address(&g.out.word))
		if r == cuda.CUDA_SUCCESS {
			n += g.out.word
		}
	}
	return n
}

// ofPools adds a figure of all pools up.
func (g *GPU) ofPools(attribute cuda.CUmemPool_attribute) (n uint64) {
	for p := range g.pools {
		g.out.word = 0
		if g.ask(cuda.OpCuMemPoolGetAttribute, uint64(p), uint64(attribute), address(&g.out.word)) == cuda.CUDA_SUCCESS {
			n += g.out.word
		}
	}
	return n
}

func (g *GPU) devices() int32 {
	g.out.word = 0
	count := (*int32)(unsafe.Pointer(&g.out.word))
	g.CuDeviceGetCount(count)
	return *count
}

// usePools notes that memory comes from pools: those of the devices, and those that the session makes.
func (g *GPU) usePools() {
	if g.stretches {
		return
	}
	g.stretches = true
	for d := range g.devices() {
		if g.ask(cuda.OpCuDeviceGetDefaultMemPool, address(&g.out.word), uint64(d)) == cuda.CUDA_SUCCESS {
			g.pools[cuda.CUmemoryPool(g.out.word)] = struct{}{}
		}
	}
}

// trim has the driver give back what pools and graphs keep and do not use.
func (g *GPU) trim() {
	for p := range g.pools {
		_ = g.ask(cuda.OpCuMemPoolTrimTo, uint64(p), 0)
	}
	for d := range g.devices() {
		_ = g.ask(cuda.OpCuDeviceGraphMemTrim, uint64(d))
	}
}

// room books so much more, if it may be had. g.mu is held.
func (g *GPU) room(bytes uint64) bool {
	has := g.total()
	refused := g.book(has, bytes)
	if refused == nil {
		return true
	}
	if g.stretches {
		if g.trim(); g.book(g.total(), bytes) == nil {
			return true
		}
	}
	refused(bytes)
	return false
}

// book books more for a session that has so much, or gives what tells of the refusal.
func (g *GPU) book(has, more uint64) (refused func(wants uint64)) {
	if !g.own.fits(has, more) {
		return func(wants uint64) { g.own.Refused(wants, has) }
	}
	if others, ok := g.account.Book(has, more, g.all.bytes()); !ok {
		return func(wants uint64) { g.all.Refused(wants, has+others) }
	}
	return nil
}

// tell says what the session has, where that is less than was booked. g.mu is held.
func (g *GPU) tell() { g.account.Has(g.total()) }

// Look tells what pools and graphs have: the driver takes some back by itself when work has been done.
func (g *GPU) Look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stretches {
		g.tell()
	}
}

// allocate makes an allocation of so many bytes and has kept note it. g.mu is not held.
func (g *GPU) allocate(bytes uint64, make func() cuda.CUresult, kept func(bytes uint64)) cuda.CUresult {
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes = roundUp(bytes); !g.room(bytes) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	r := make()
	if r == cuda.CUDA_SUCCESS {
		g.used += bytes
		kept(bytes)
		return r
	}
	g.tell()
	return r
}

// current is the calling thread's context.
func (g *GPU) current() cuda.CUcontext {
	g.out.word = 0
	_ = g.ask(cuda.OpCuCtxGetCurrent, address(&g.out.word))
	return cuda.CUcontext(g.out.word)
}

// CuMemAlloc_v2 counts linear memory.
func (g *GPU) CuMemAlloc_v2(p *cuda.CUdeviceptr, bytes uint64) cuda.CUresult {
	return g.allocate(bytes, func() cuda.CUresult { return g.GPU.CuMemAlloc_v2(p, bytes) }, func(n uint64) {
		g.linear[*p] = block{n, g.current()}
	})
}

// CuMemFree_v2 gives it back. It waits for the GPU, so nothing is locked meanwhile.
func (g *GPU) CuMemFree_v2(p cuda.CUdeviceptr) cuda.CUresult {
	g.mu.Lock()
	b, ok := g.linear[p]
	delete(g.linear, p) // before somebody else gets the address
	g.mu.Unlock()
	r := g.GPU.CuMemFree_v2(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !ok:
	case r == cuda.CUDA_SUCCESS:
		g.used -= b.bytes
		g.tell()
	default:
		g.linear[p] = b
	}
	return r
}

func (g *GPU) allocPitch(args *cuda.Words) cuda.CUresult {
	p := at[cuda.CUdeviceptr](args[0])
	over, bytes := bits.Mul64(roundUp(args[2]), args[3])
	if over > 0 {
		bytes = math.MaxUint64
	}
	return g.allocate(bytes, func() cuda.CUresult {
		return invoke.CUDA(g.GPU, cuda.OpCuMemAllocPitch_v2, args)
	}, func(n uint64) { g.linear[*p] = block{n, g.current()} })
}

// CuMemCreate counts physical memory.
func (g *GPU) CuMemCreate(
	h *cuda.CUmemGenericAllocationHandle, bytes uint64, prop *cuda.CUmemAllocationProp, flags uint64,
) cuda.CUresult {
	return g.allocate(bytes, func() cuda.CUresult { return g.GPU.CuMemCreate(h, bytes, prop, flags) }, func(n uint64) {
		g.physical[*h] = &physical{n, 1, 1}
	})
}

// hold adds to who has a handle's memory, where the driver agrees.
func (g *GPU) hold(h cuda.CUmemGenericAllocationHandle, call func() cuda.CUresult, held func(*physical)) cuda.CUresult {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := call()
	if p := g.physical[h]; p != nil && r == cuda.CUDA_SUCCESS {
		p.refs++
		held(p)
	}
	return r
}

func (g *GPU) drop(p *physical) {
	if p.refs--; p.refs == 0 {
		g.used -= p.bytes
		g.tell()
	}
}

// CuMemRelease gives a handle back.
func (g *GPU) CuMemRelease(h cuda.CUmemGenericAllocationHandle) cuda.CUresult {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.GPU.CuMemRelease(h)
	if p := g.physical[h]; p != nil && r == cuda.CUDA_SUCCESS {
		p.handles--
		if p.handles == 0 {
			delete(g.physical, h)
		}
		g.drop(p)
	}
	return r
}

// CuMemMap holds what is mapped.
func (g *GPU) CuMemMap(
	ptr cuda.CUdeviceptr, size, offset uint64, h cuda.CUmemGenericAllocationHandle, flags uint64,
) cuda.CUresult {
	return g.hold(h, func() cuda.CUresult { return g.GPU.CuMemMap(ptr, size, offset, h, flags) }, func(p *physical) {
		g.mapped[ptr] = mapping{p, size}
	})
}

// CuMemUnmap lets it go.
func (g *GPU) CuMemUnmap(ptr cuda.CUdeviceptr, size uint64) cuda.CUresult {
	r := g.GPU.CuMemUnmap(ptr, size)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m, ok := g.mapped[ptr]; ok && m.bytes == size {
		delete(g.mapped, ptr)
		g.drop(m.of)
		return r
	}
	for p, m := range g.mapped {
		if p >= ptr && uint64(p-ptr) < size {
			delete(g.mapped, p)
			g.drop(m.of)
		}
	}
	return r
}

// CuMemExportToShareableHandle gives memory to others.
func (g *GPU) CuMemExportToShareableHandle(
	out unsafe.Pointer, h cuda.CUmemGenericAllocationHandle, kind cuda.CUmemAllocationHandleType, flags uint64,
) cuda.CUresult {
	return g.hold(h, func() cuda.CUresult { return g.GPU.CuMemExportToShareableHandle(out, h, kind, flags) },
		func(*physical) {})
}

// CuGraphAddMemAllocNode, CuGraphAddNode and CuGraphAddNode_v2 may let graphs have memory.
func (g *GPU) CuGraphAddMemAllocNode(
	node *cuda.CUgraphNode, graph cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_MEM_ALLOC_NODE_PARAMS,
) cuda.CUresult {
	if !g.admitNode(p.Bytesize) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	return g.GPU.CuGraphAddMemAllocNode(node, graph, deps, n, p)
}

// CuGraphAddNode is the general form.
func (g *GPU) CuGraphAddNode(
	node *cuda.CUgraphNode, graph cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUgraphNodeParams,
) cuda.CUresult {
	if !g.admitParams(p) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	return g.GPU.CuGraphAddNode(node, graph, deps, n, p)
}

// CuGraphAddNode_v2 is the general form with edges.
func (g *GPU) CuGraphAddNode_v2(
	node *cuda.CUgraphNode, graph cuda.CUgraph, deps *cuda.CUgraphNode, edges *cuda.CUgraphEdgeData, n uint64,
	p *cuda.CUgraphNodeParams,
) cuda.CUresult {
	if !g.admitParams(p) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	return g.GPU.CuGraphAddNode_v2(node, graph, deps, edges, n, p)
}

func (g *GPU) admitParams(p *cuda.CUgraphNodeParams) bool {
	return p.Type != cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC || g.admitNode(
		(*cuda.CUDA_MEM_ALLOC_NODE_PARAMS)(unsafe.Pointer(&p.U)).Bytesize)
}

func (g *GPU) admitNode(bytes uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.usePools()
	return g.room(bytes)
}

// CuCtxDestroy_v2 ends what a context has.
func (g *GPU) CuCtxDestroy_v2(ctx cuda.CUcontext) cuda.CUresult {
	r := g.GPU.CuCtxDestroy_v2(ctx)
	if r == cuda.CUDA_SUCCESS {
		g.forget(ctx)
	}
	return r
}

// CuDevicePrimaryCtxRelease_v2 may end a primary context.
func (g *GPU) CuDevicePrimaryCtxRelease_v2(dev cuda.CUdevice) cuda.CUresult {
	ctx, known := g.PrimaryContext(dev)
	r := g.GPU.CuDevicePrimaryCtxRelease_v2(dev)
	g.mu.Lock()
	g.out.word, g.out.second = 0, 0
	_ = g.ask(cuda.OpCuDevicePrimaryCtxGetState, uint64(dev), address(&g.out.word), address(&g.out.second))
	over := int32(g.out.second) == 0
	g.mu.Unlock()
	if over && known == cuda.CUDA_SUCCESS {
		g.forget(ctx)
	}
	return r
}

// CuDevicePrimaryCtxReset_v2 ends one.
func (g *GPU) CuDevicePrimaryCtxReset_v2(dev cuda.CUdevice) cuda.CUresult {
	ctx, known := g.PrimaryContext(dev)
	r := g.GPU.CuDevicePrimaryCtxReset_v2(dev)
	if r == cuda.CUDA_SUCCESS && known == cuda.CUDA_SUCCESS {
		g.forget(ctx)
	}
	return r
}

func (g *GPU) forget(ctx cuda.CUcontext) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, b := range g.linear {
		if b.ctx == ctx {
			g.used -= b.bytes
			delete(g.linear, p)
		}
	}
	for a, b := range g.arrays {
		if b.ctx == ctx {
			g.used -= b.bytes
			delete(g.arrays, a)
		}
	}
	g.tell()
}
