package executor

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// chunkSpin is the time without a chunk before the executor takes a nap: while one is on its way the next is not far.
const chunkSpin = 100 * time.Microsecond

// receive receives an upload that comes in chunks and sends them on their way as they arrive.
func (u *uploads) receive(b *incoming) error {
	t := u.bulk
	if err := t.await(); err != nil {
		return err
	}
	t.in.Begin(b.cmd.Seq, b.left)
	defer t.in.End(func(sl bulk.Buffer) { sl.(*slot).free.Store(true) })
	defer u.loop.expect(false)
	var scratch []*slot
	last := time.Now()           // when there was last a chunk
	for lent := 0; b.left > 0; { // lent: slots with the receivers, filled or not
		for t.in.Wants(lent, t.out.State()) {
			sl, err := u.uploadSlot(b, lent == 0, &scratch)
			if err != nil {
				return err
			}
			if sl == nil {
				break
			}
			t.in.Lend(sl)
			lent++
		}
		got, err := t.in.Take()
		switch {
		case errors.Is(err, bulk.ErrProtocol):
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		u.path.poll()
		u.loop.expect(len(got) == 0 && lent > 0)
		if len(got) == 0 {
			if quiet := time.Since(last); quiet < chunkSpin {
				yield()
			} else if err := u.loop.napAfter(quiet); err != nil {
				return err
			}
			continue
		}
		last = time.Now()
		if b.result == cuda.CUDA_SUCCESS { // once for all of them
			b.result = u.enter(b.cmd.Context)
		}
		if b.result == cuda.CUDA_SUCCESS && t.out.State() == bulk.Up {
			u.path.lock(b.ctx)
		}
		for i := range got {
			a := &got[i]
			if !a.Buffer.(*slot).path {
				lent--
			}
			b.left -= uint64(a.Bytes)
			u.land(b, a, &scratch)
		}
	}
	return nil
}

// uploadSlot gives a slot for the next chunk, or nil where there is none at the moment and none is needed. What nobody
// wants goes to scratch memory.
func (u *uploads) uploadSlot(b *incoming, needed bool, scratch *[]*slot) (*slot, error) {
	if b.result == cuda.CUDA_SUCCESS {
		if r := u.enter(b.cmd.Context); r != cuda.CUDA_SUCCESS {
			b.result = r
		}
	}
	if b.result == cuda.CUDA_SUCCESS && b.st != nil {
		if !needed && !u.staging.atHand(b.ctx, &b.ctx.large) {
			return nil, nil
		}
		sl, r, err := u.staging.take(b.ctx, &b.ctx.large)
		if err != nil || r == cuda.CUDA_SUCCESS {
			return sl, err
		}
		b.result = r
	}
	if n := len(*scratch); n > 0 {
		sl := (*scratch)[n-1]
		*scratch = (*scratch)[:n-1]
		return sl, nil
	}
	if !needed {
		return nil, nil
	}
	return &slot{mem: make([]byte, transport.MaxChunk)}, nil
}

// land sends a chunk that has arrived in a slot to the device. The context is the present one.
func (u *uploads) land(b *incoming, a *bulk.Arrival, scratch *[]*slot) {
	sl, n, r := a.Buffer.(*slot), uint64(a.Bytes), b.result
	if r == cuda.CUDA_SUCCESS && sl.gpu != 0 && u.path.direct.flush { // before anything reads what the card wrote
		r = u.gpu.CuFlushGPUDirectRDMAWrites(cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
			cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
	}
	switch {
	case !sl.path:
	case r != cuda.CUDA_SUCCESS:
		u.path.drop(sl)
	default:
		sl = u.path.admit(sl, n, b.st)
	}
	switch dst := b.dst + cuda.CUdeviceptr(a.Offset); {
	case r != cuda.CUDA_SUCCESS:
	case sl.gpu != 0:
		r = u.gpu.CuMemcpyDtoDAsync_v2(dst, sl.gpu, n, b.st.real)
	default:
		r = u.gpu.CuMemcpyHtoDAsync_v2(dst, pointerTo(sl.mem), n, b.st.real)
	}
	if r == cuda.CUDA_SUCCESS {
		sl.event, r = u.recordEvent(b.st)
	}
	if r == cuda.CUDA_SUCCESS {
		return
	}
	b.result = r
	switch {
	case sl.path: // the path finds it without an event
	case sl.pooled:
		sl.free.Store(true)
	default:
		*scratch = append(*scratch, sl)
	}
}

// yield lets others run for a moment without giving up this OS thread's goroutine, as runtime.Gosched would.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
