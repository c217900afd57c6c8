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
		case errors.Is(err, bulk.ErrExcess):
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		u.path.poll()
		if len(got) == 0 {
			if quiet := time.Since(last); quiet < chunkSpin {
				yield()
			} else if err := u.loop.napAfter(quiet); err != nil {
				return err
			}
			continue
		}
		last = time.Now()
		for _, a := range got {
			l := landing{slot: a.Buffer.(*slot), off: a.Offset, n: int(a.Bytes)}
			if !l.slot.path {
				lent--
			}
			b.left -= uint64(l.n)
			u.chunkLanded(b, l, &scratch)
		}
	}
	return nil
}

// landing is a chunk that lies in a slot.
type landing struct {
	slot *slot
	off  uint64
	n    int
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

// chunkLanded sends a chunk to the device.
func (u *uploads) chunkLanded(b *incoming, l landing, scratch *[]*slot) {
	if l.slot.path {
		u.pathLanded(b, l)
		return
	}
	if b.result == cuda.CUDA_SUCCESS {
		r := u.enter(b.cmd.Context)
		if r == cuda.CUDA_SUCCESS {
			r = u.gpu.CuMemcpyHtoDAsync_v2(b.dst+cuda.CUdeviceptr(l.off), pointerTo(l.slot.mem), uint64(l.n), b.st.real)
		}
		if r == cuda.CUDA_SUCCESS {
			if r = u.staging.occupied(l.slot, b.st); r == cuda.CUDA_SUCCESS {
				return
			}
		}
		b.result = r
	}
	if !l.slot.pooled {
		*scratch = append(*scratch, l.slot)
		return
	}
	l.slot.free.Store(true)
}

// pathLanded sends a chunk to the device that came by RDMA.
func (u *uploads) pathLanded(b *incoming, l landing) {
	r := b.result
	if r == cuda.CUDA_SUCCESS && b.st == nil {
		r = cuda.CUDA_ERROR_INVALID_VALUE // nobody wants it
	}
	if r == cuda.CUDA_SUCCESS {
		r = u.enter(b.cmd.Context)
	}
	if r == cuda.CUDA_SUCCESS && l.slot.gpu != 0 && u.path.direct.flush { // before anything reads what the card wrote
		r = u.gpu.CuFlushGPUDirectRDMAWrites(cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
			cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
	}
	if r == cuda.CUDA_SUCCESS && u.path.crowded() {
		if moved := u.path.moveOut(b.ctx, &l); moved != nil {
			u.path.link().Release(l.slot.index)
			u.chunkLanded(b, *moved, nil)
			return
		}
	}
	if dst := b.dst + cuda.CUdeviceptr(l.off); r == cuda.CUDA_SUCCESS && l.slot.gpu != 0 {
		r = u.gpu.CuMemcpyDtoDAsync_v2(dst, l.slot.gpu, uint64(l.n), b.st.real)
	} else if r == cuda.CUDA_SUCCESS {
		u.path.lock(b.ctx)
		r = u.gpu.CuMemcpyHtoDAsync_v2(dst, pointerTo(l.slot.mem), uint64(l.n), b.st.real)
	}
	if r = u.path.occupy(l.slot, b.st, r); b.result == cuda.CUDA_SUCCESS && b.st != nil {
		b.result = r
	}
}

// yield lets others run for a moment without giving up this OS thread's goroutine, as runtime.Gosched would.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
