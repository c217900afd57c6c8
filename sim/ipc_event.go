package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/memfd"
)

// sharedState is what the processes know of an event that they share: how often it was recorded, and the last record
// that came to pass.
type sharedState struct{ recorded, passed atomic.Uint64 }

// newSharedEvent gives an event its memory file.
func newSharedEvent() (fd int, s *sharedState, err error) {
	fd, err = memfd.New("scuda-sim-event", page)
	if err != nil {
		return -1, nil, err
	}
	p, err := unix.MmapPtr(fd, 0, nil, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	return fd, view[sharedState](p), nil
}

// closeShared ends an event for the other processes. Tasks may still look at its state, which stays until the GPU is
// closed.
func (e *event) closeShared(lent *lending) {
	if e.shared != nil && e.fd >= 0 {
		lent.withdraw(e.fd)
		_ = unix.Close(e.fd)
		e.fd = -1
	}
}

func (g *GPU) closeSharedEvents() error {
	var errs []error
	for _, s := range g.sharedEvents {
		errs = append(errs, unix.MunmapPtr(rawOf(s), page))
	}
	g.sharedEvents = nil
	for _, o := range g.objects.live {
		if e, isEvent := o.(*event); isEvent {
			e.closeShared(&g.lent)
		}
	}
	return errors.Join(errs...)
}

// done says whether the last record of a shared event has come to pass.
func (s *sharedState) done() bool { return s.passed.Load() >= s.recorded.Load() }

const sharedNap = 20 * time.Microsecond // between two looks at what another process does

// await waits for a record of another process, or the end of ctx.
func (s *sharedState) await(ctx context.Context, record uint64) error {
	t := time.NewTicker(sharedNap)
	defer t.Stop()
	for s.passed.Load() < record {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return nil
}

// wait is the task of a wait for the last record so far.
func (s *sharedState) wait() func(context.Context) error {
	n := s.recorded.Load()
	return func(ctx context.Context) error { return s.await(ctx, n) }
}

// record is the task of a record.
func (s *sharedState) record() func(context.Context) error {
	n := s.recorded.Add(1)
	return func(context.Context) error {
		for {
			old := s.passed.Load()
			if old >= n || s.passed.CompareAndSwap(old, n) {
				return nil
			}
		}
	}
}

func (g *GPU) CuIpcGetEventHandle(h *cuda.CUipcEventHandle, he cuda.CUevent) cuda.CUresult {
	e, r := g.enterEvent(he)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if h == nil || e.shared == nil || e.fd < 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	p, err := g.lent.publish(sharedPlace{FD: uint32(e.fd), Size: page, Kind: sharedEvent})
	if err != nil {
		g.log.Error("sim: an event cannot be shared", "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	h.Reserved = p.encode()
	return ok
}

func (g *GPU) CuIpcOpenEventHandle(ph *cuda.CUevent, h cuda.CUipcEventHandle) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, err := decodePlace(h.Reserved[:], sharedEvent)
	switch {
	case ph == nil || err != nil || p.Size != page || p.Offset != 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case int(p.PID) == unix.Getpid():
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	base, _, err := g.lent.open(p)
	if err != nil {
		g.log.Debug("sim: event of another process", "error", err)
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	e := &event{ctx: c, flags: uint32(cuda.CU_EVENT_DISABLE_TIMING | cuda.CU_EVENT_INTERPROCESS),
		shared: view[sharedState](at(base)), fd: -1}
	g.sharedEvents = append(g.sharedEvents, e.shared)
	e.handle = cuda.CUevent(g.objects.add(e))
	*ph = e.handle
	return ok
}
