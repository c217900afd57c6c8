package executor

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

const (
	smallBytes = 4 << 10
	smallSlots = 64
	largeBytes = 1 << 20

	// Slots beyond the usual number are made when none became free for this long: the stream is busy with something else,
	// and the commands behind the copy must not wait for that.
	patience  = 200 * time.Microsecond
	reserveBy = 8 // times the usual number

	hostPortable = 1 // CU_MEMHOSTALLOC_PORTABLE
)

// slot is a piece of page-locked memory through which a copy goes.
type slot struct {
	mem    []byte
	free   atomic.Bool
	pooled bool
	out    bulk.Transfer // the chunk that leaves from it
	event  cuda.CUevent  // of the copy under way; 0 when its end is told otherwise

	path  bool             // it is one of RDMA's
	gpu   cuda.CUdeviceptr // where it lies in the GPU's memory, and mem is nil; 0: it does not
	index uint32           // among those
	st    *stream          // on which the event is, where the slot is not of a pool

	receive *peerReceive     // of another server, whose chunk the GPU copies out of it; nil: of nobody
	waker   *transport.Waker // rung when the slot is free; nil: the executor looks
}

// Bytes is the slot's memory, for a chunk that arrives in it.
func (sl *slot) Bytes() []byte { return sl.mem }

// Sent makes the slot free when its chunk has left.
func (sl *slot) Sent() {
	sl.free.Store(true)
	sl.waker.Ring()
}

// takeFree gives a slot that is free, and takes it; nil: there is none.
func takeFree(slots []*slot) *slot {
	for _, sl := range slots {
		if sl.free.Load() {
			sl.free.Store(false)
			return sl
		}
	}
	return nil
}

// slotPool is a context's slots of one size.
type slotPool struct {
	size, limit int
	slots       []*slot
}

func (p *slotPool) init(size, limit int) { p.size, p.limit = size, limit }

// staging gives memory through which copies go. It belongs to contexts, with which it ends.
type staging struct {
	*base
	loop copiesLoop
}

// pageLocked allocates page-locked memory that lives as long as ctx.
func (b *base) pageLocked(ctx *context, bytes int) ([]byte, cuda.CUresult) {
	if !b.pinned.take(uint64(bytes)) {
		return nil, cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	p := alloc[unsafe.Pointer](&b.arena)
	r := b.within(ctx, func() cuda.CUresult {
		return b.gpu.CuMemHostAlloc(unsafe.Pointer(p), uint64(bytes), hostPortable)
	})
	if r != cuda.CUDA_SUCCESS {
		b.pinned.give(uint64(bytes))
		return nil, r
	}
	ctx.pinned += uint64(bytes)
	return hostMemory(*p, bytes), cuda.CUDA_SUCCESS
}

// freePageLocked gives such memory back before its context ends. The driver may wait for what runs on the GPU.
func (b *base) freePageLocked(ctx *context, mem []byte) cuda.CUresult {
	r := b.within(ctx, func() cuda.CUresult { return b.gpu.CuMemFreeHost(pointerTo(mem)) })
	if r == cuda.CUDA_SUCCESS {
		ctx.pinned -= uint64(len(mem))
		b.pinned.give(uint64(len(mem)))
	}
	return r
}

// take gives a slot of a context's pool, waiting for one where all are in use. The error says that the session is
// over.
func (sg *staging) take(ctx *context, p *slotPool) (*slot, cuda.CUresult, error) {
	var began time.Time
	grows := true // as far as is known
	for {
		if sl := takeFree(p.slots); sl != nil {
			return sl, cuda.CUDA_SUCCESS, nil
		}
		if sg.reclaim(ctx, p) {
			continue
		}
		if n := len(p.slots); grows &&
			(n < p.limit || n < p.limit*reserveBy && !began.IsZero() && time.Since(began) > patience) {
			r := sg.growPool(ctx, p)
			if r == cuda.CUDA_SUCCESS {
				continue
			}
			if n == 0 {
				return nil, r, nil
			}
			grows = false
		}
		if began.IsZero() {
			began = time.Now()
		}
		if err := sg.loop.napAfter(time.Since(began)); err != nil {
			return nil, 0, err
		}
	}
}

// atHand says whether a slot can be had without waiting.
func (sg *staging) atHand(ctx *context, p *slotPool) bool {
	for _, sl := range p.slots {
		if sl.free.Load() {
			return true
		}
	}
	return sg.reclaim(ctx, p) || len(p.slots) < p.limit
}

// reclaim frees the slots of uploads that have arrived.
func (sg *staging) reclaim(ctx *context, p *slotPool) bool {
	found := false
	for _, sl := range p.slots {
		if sl.event == 0 || sg.gpu.CuEventQuery(sl.event) == cuda.CUDA_ERROR_NOT_READY {
			continue
		}
		ctx.events = append(ctx.events, sl.event)
		sl.event = 0
		sl.free.Store(true)
		found = true
	}
	return found
}

// growPool adds slots: all small ones together, large ones one by one.
func (sg *staging) growPool(ctx *context, p *slotPool) cuda.CUresult {
	n := 1
	if p.size < largeBytes {
		n = p.limit
	}
	mem, r := sg.pageLocked(ctx, n*p.size)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	for i := range n {
		sl := &slot{pooled: true, mem: mem[i*p.size : (i+1)*p.size : (i+1)*p.size]}
		sl.free.Store(true)
		p.slots = append(p.slots, sl)
	}
	return cuda.CUDA_SUCCESS
}

// poolFor gives the pool whose slots fit a copy of so many bytes.
func (ctx *context) poolFor(bytes uint64) *slotPool {
	if bytes <= smallBytes {
		return &ctx.small
	}
	return &ctx.large
}

// occupied hands the slot over to the copy that was just enqueued on st; when its event fires, the slot is free.
func (sg *staging) occupied(sl *slot, st *stream) cuda.CUresult {
	e, r := sg.recordEvent(st)
	if r != cuda.CUDA_SUCCESS {
		sl.free.Store(true)
		return r
	}
	sl.event = e
	return cuda.CUDA_SUCCESS
}

// pullBuffer is page-locked memory of a deferred upload.
type pullBuffer struct {
	mem   []byte
	event cuda.CUevent // behind its last copy; 0 when free
}

const (
	pullLeast = 64 << 10
	pullMost  = 8 << 20   // also the size of one pull; a multiple of transport.PullUnit
	pullLimit = 512 << 20 // bytes of a context's pull buffers above which further deferred uploads wait
)

// takePull gives a buffer for pieces of a deferred upload of so many bytes. It must be used at once.
func (sg *staging) takePull(ctx *context, bytes uint64) (*pullBuffer, cuda.CUresult, error) {
	size := uint64(pullLeast)
	for size < pullMost && size < bytes {
		size *= 2
	}
	return sg.takeWhole(ctx, size)
}

// takeWhole gives a buffer of so many bytes at least. It must be used at once.
func (sg *staging) takeWhole(ctx *context, size uint64) (*pullBuffer, cuda.CUresult, error) {
	var began time.Time
	for {
		total, busy := uint64(0), false
		for _, b := range ctx.pulls {
			if b.event != 0 && sg.gpu.CuEventQuery(b.event) != cuda.CUDA_ERROR_NOT_READY {
				ctx.events = append(ctx.events, b.event)
				b.event = 0
			}
			if b.event == 0 && uint64(len(b.mem)) >= size {
				return b, cuda.CUDA_SUCCESS, nil
			}
			total, busy = total+uint64(len(b.mem)), busy || b.event != 0
		}
		if total+size <= pullLimit || total == 0 {
			break
		}
		if !busy { // none is large enough, and all together leave no room for one that is
			if r := sg.freePulls(ctx); r != cuda.CUDA_SUCCESS {
				return nil, r, nil
			}
			break
		}
		if began.IsZero() {
			began = time.Now()
		}
		if err := sg.loop.napAfter(time.Since(began)); err != nil {
			return nil, 0, err
		}
	}
	mem, r := sg.pageLocked(ctx, int(size))
	if r != cuda.CUDA_SUCCESS {
		return nil, r, nil
	}
	b := &pullBuffer{mem: mem}
	ctx.pulls = append(ctx.pulls, b)
	return b, cuda.CUDA_SUCCESS, nil
}

// freePulls frees the buffers of a context's deferred uploads, none of which is in use.
func (sg *staging) freePulls(ctx *context) cuda.CUresult {
	for len(ctx.pulls) > 0 {
		if r := sg.freePageLocked(ctx, ctx.pulls[0].mem); r != cuda.CUDA_SUCCESS {
			return r
		}
		ctx.pulls = ctx.pulls[1:]
	}
	return cuda.CUDA_SUCCESS
}

func resultText(r cuda.CUresult) string { return fmt.Sprintf("%s (%d)", cuda.ResultName(r), int32(r)) }
