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
