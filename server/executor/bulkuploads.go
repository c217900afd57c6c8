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

// receiveUpload receives an upload that comes in chunks and sends them on their way as they arrive.
func (s *Session) receiveUpload(b *incoming) error {
	t := s.bulk
	if err := t.await(); err != nil {
		return err
	}
	t.in.Begin(b.cmd.Seq, b.left)
	defer t.in.End(func(sl bulk.Buffer) { sl.(*slot).free.Store(true) })
	var scratch []*slot
	last := time.Now()           // when there was last a chunk
	for lent := 0; b.left > 0; { // lent: slots with the receivers, filled or not
		for t.in.Wants(lent, t.out.State()) {
			sl, err := s.uploadSlot(b, lent == 0, &scratch)
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
		s.pollPath()
		if len(got) == 0 {
			if quiet := time.Since(last); quiet < chunkSpin {
				yield()
			} else if err := s.napAfter(quiet); err != nil {
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
			s.chunkLanded(b, l, &scratch)
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
func (s *Session) uploadSlot(b *incoming, needed bool, scratch *[]*slot) (*slot, error) {
	if b.result == cuda.CUDA_SUCCESS {
		if r := s.enter(b.cmd.Context); r != cuda.CUDA_SUCCESS {
			b.result = r
		}
	}
	if b.result == cuda.CUDA_SUCCESS && b.st != nil {
		if !needed && !s.slotAtHand(b.ctx, &b.ctx.large) {
			return nil, nil
		}
		sl, r, err := s.takeSlot(b.ctx, &b.ctx.large)
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
func (s *Session) chunkLanded(b *incoming, l landing, scratch *[]*slot) {
	if l.slot.path {
		s.pathLanded(b, l)
		return
	}
	if b.result == cuda.CUDA_SUCCESS {
		r := s.enter(b.cmd.Context)
		if r == cuda.CUDA_SUCCESS {
			r = s.gpu.CuMemcpyHtoDAsync_v2(b.dst+cuda.CUdeviceptr(l.off), pointerTo(l.slot.mem), uint64(l.n), b.st.real)
		}
		if r == cuda.CUDA_SUCCESS {
			if r = s.occupied(l.slot, b.st); r == cuda.CUDA_SUCCESS {
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

// yield lets others run for a moment without giving up this OS thread's goroutine, as runtime.Gosched would.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// pathLanded sends a chunk to the device that came by RDMA.
func (s *Session) pathLanded(b *incoming, l landing) {
	r := b.result
	if r == cuda.CUDA_SUCCESS && b.st == nil {
		r = cuda.CUDA_ERROR_INVALID_VALUE // nobody wants it
	}
	if r == cuda.CUDA_SUCCESS {
		r = s.enter(b.cmd.Context)
	}
	if r == cuda.CUDA_SUCCESS && l.slot.gpu != 0 && s.path.gpu.flush { // before anything reads what the card wrote
		r = s.gpu.CuFlushGPUDirectRDMAWrites(cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
	}
	if r == cuda.CUDA_SUCCESS && s.crowded() {
		if moved := s.moveOut(b, &l); moved != nil {
			s.path.link().Release(l.slot.index)
			s.chunkLanded(b, *moved, nil)
			return
		}
	}
	if dst := b.dst + cuda.CUdeviceptr(l.off); r == cuda.CUDA_SUCCESS && l.slot.gpu != 0 {
		r = s.gpu.CuMemcpyDtoDAsync_v2(dst, l.slot.gpu, uint64(l.n), b.st.real)
	} else if r == cuda.CUDA_SUCCESS {
		s.lockPath(b.ctx)
		r = s.gpu.CuMemcpyHtoDAsync_v2(dst, pointerTo(l.slot.mem), uint64(l.n), b.st.real)
	}
	if r = s.occupyPath(l.slot, b.st, r); b.result == cuda.CUDA_SUCCESS && b.st != nil {
		b.result = r
	}
}

// moveOut copies a chunk into an ordinary staging slot, so that its own can be granted again while the stream is busy
// with something else. It gives nil where there is none.
func (s *Session) moveOut(b *incoming, l *landing) *landing {
	sl, r, err := s.takeSlot(b.ctx, &b.ctx.large)
	if err != nil || r != cuda.CUDA_SUCCESS || sl == nil {
		return nil
	}
	if l.slot.gpu == 0 {
		copy(sl.mem, l.slot.mem[:l.n])
	} else if r := s.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return s.gpu.CuMemcpyDtoHAsync_v2(pointerTo(sl.mem), l.slot.gpu, uint64(l.n), st)
	}); r != cuda.CUDA_SUCCESS {
		sl.free.Store(true)
		return nil
	}
	return &landing{slot: sl, off: l.off, n: l.n}
}
