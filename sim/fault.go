package sim

import (
	"context"
	"errors"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
)

// errKernelTime ends a kernel that ran for longer than Config.KernelTime.
var errKernelTime = &deviceError{cuda.CUDA_ERROR_LAUNCH_TIMEOUT, "the kernel ran for longer than kernel-time allows"}

// faulty says whether an allocation is one that has to fail. g.mu is held.
func (g *GPU) faulty(kind regionKind) bool {
	if kind == regionGlobal || g.cfg.Faults.Alloc == 0 {
		return false
	}
	g.allocs++
	return g.allocs == g.cfg.Faults.Alloc || g.cfg.Faults.AllocOn && g.allocs > g.cfg.Faults.Alloc
}

// execute runs a kernel's grid within its limits, and the faults that are due at it.
func (g *GPU) execute(ctx context.Context, dev *device, run func(context.Context) error) error {
	if g.cfg.KernelTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, g.cfg.KernelTime, errKernelTime)
		defer cancel()
	}
	n := g.kernels.Add(1)
	switch {
	case n == g.cfg.Faults.Lost:
		g.fail(dev, deviceLost)
		return &deviceError{deviceLost, "the GPU fell off the bus, as fault-lost asks for"}
	case n == g.cfg.Faults.Hang:
		g.log.Warn("sim: a kernel hangs, as fault-hang asks for")
		<-ctx.Done()
		return endOf(ctx, ctx.Err())
	}
	return endOf(ctx, run(ctx))
}

// takeTurn waits until a GPU works for no other kernel, and has it work for at least so long; 0: kernels take no turns.
func takeTurn(ctx context.Context, seat *board.Seat, dev *device, least time.Duration) (leave func(), _ error) {
	if least == 0 {
		return func() {}, nil
	}
	release, err := seat.Take(ctx, dev.number)
	if err != nil {
		return nil, err
	}
	over := time.NewTimer(least)
	return func() {
		select {
		case <-over.C:
		case <-ctx.Done():
		}
		over.Stop()
		release()
	}, nil
}

// endOf tells a kernel that took too long from one that was stopped for another reason.
func endOf(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errKernelTime) && errors.Is(err, context.DeadlineExceeded) {
		return errKernelTime
	}
	return err
}

// deviceLost is what calls get from a GPU that does not answer any more.
const deviceLost = cuda.CUDA_ERROR_UNKNOWN

// workFailed ends what shares a device with work that went wrong.
func (g *GPU) workFailed(c *cudaContext, err error) {
	g.log.Warn("sim: the context failed", "error", err)
	g.printAssert(err)
	g.fail(c.dev, resultOf(err))
}

// fail makes every context of a device fail, for good: after a kernel's fault a process can do nothing more on that
// GPU.
func (g *GPU) fail(dev *device, r cuda.CUresult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if dev.failure == ok {
		dev.failure = r
	}
	for c := range g.contexts {
		if c.dev == dev {
			c.stop(dev.failure)
		}
	}
}

// pace makes a copy take the time that its bytes need at Config's rate.
func (g *GPU) pace(ctx context.Context, bytes uint64) {
	rate := g.cfg.Faults.CopyBytes
	if rate == 0 {
		return
	}
	t := time.NewTimer(time.Duration(float64(bytes) / float64(rate) * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// runCopy copies, as slowly as it has to be.
func (g *GPU) runCopy(ctx context.Context, b *copy3D) error {
	defer g.moving(b.dst.addr, b.src.addr)()
	defer telling(ctx, b.describe(&g.mem))()
	g.pace(ctx, b.width*b.height*b.depth)
	return g.run(b)
}
