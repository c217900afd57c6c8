package addresses

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/window"
	"scuda.dev/scuda/sim"
)

// drive has a driver, which starts now, give memory of each kind.
func drive(w window.Range, k *Kept) error {
	g, err := sim.Open(sim.Config{MemoryBytes: 4 << 30, Devices: 2, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	defer g.Close()
	if r := g.CuInit(0); r != 0 {
		return fmt.Errorf("cuInit: %w", r)
	}
	if err := k.Begun(); err != nil {
		return err
	}
	runtime.LockOSThread() // a context is current on a thread
	defer runtime.UnlockOSThread()
	var ctx cuda.CUcontext
	var at cuda.CUdeviceptr
	var host unsafe.Pointer
	var pitch uint64
	pinned := func(n uint64) cuda.CUresult {
		r := g.CuMemHostAlloc(unsafe.Pointer(&host), n, 0)
		at = cuda.CUdeviceptr(uintptr(host))
		return r
	}
	for _, device := range []cuda.CUdevice{0, 1} {
		if r := g.CuDevicePrimaryCtxRetain(&ctx, device); r != 0 {
			return fmt.Errorf("context: %w", r)
		}
		if r := g.CuCtxSetCurrent(ctx); r != 0 {
			return fmt.Errorf("context: %w", r)
		}
		for _, c := range []struct {
			name  string
			bytes uint64
			ask   func(n uint64) cuda.CUresult
		}{
			{"memory", 1 << 30, func(n uint64) cuda.CUresult { return g.CuMemAlloc_v2(&at, n) }},
			{"a little memory", 100, func(n uint64) cuda.CUresult { return g.CuMemAlloc_v2(&at, n) }},
			{"memory in rows", 1 << 20, func(uint64) cuda.CUresult { return g.CuMemAllocPitch_v2(&at, &pitch, 1000, 1000, 4) }},
			{"memory of a pool", 1 << 20, func(n uint64) cuda.CUresult { return g.CuMemAllocAsync(&at, n, 0) }},
			{"managed memory", 64 << 20, func(n uint64) cuda.CUresult {
				return g.CuMemAllocManaged(&at, n, uint32(cuda.CU_MEM_ATTACH_GLOBAL))
			}},
			{"a page of pinned memory", 4096, pinned},
			{"pinned memory", 1 << 30, pinned},
			{"the device pointer of pinned memory", 1 << 30, func(uint64) cuda.CUresult {
				return g.CuMemHostGetDevicePointer_v2(&at, host, 0)
			}},
			{"addresses", 1 << 40, func(n uint64) cuda.CUresult { return g.CuMemAddressReserve(&at, n, 0, 0, 0) }},
			{"addresses elsewhere", 1 << 30, func(n uint64) cuda.CUresult {
				return g.CuMemAddressReserve(&at, n, 0, window.ClientLow, 0)
			}},
		} {
			if r := c.ask(c.bytes); r != 0 {
				return fmt.Errorf("%s: %w", c.name, r)
			}
			if !w.Holds(uint64(at), c.bytes) {
				return fmt.Errorf("%s at %#x, outside of %#x to %#x", c.name, uint64(at), w.From, w.To)
			}
		}
	}
	return nil
}
