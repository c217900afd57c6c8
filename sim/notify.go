package sim

import (
	"scuda.dev/scuda/api/cuda"
)

// notification is a registration for what a driver tells of by itself; here that never happens, as on Linux.
type notification struct{ dev *device }

func (g *GPU) CuDeviceRegisterAsyncNotification(dev cuda.CUdevice, callback, _ pointer,
	out *cuda.CUasyncCallbackHandle) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if callback == nil || out == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	d, r := g.device(dev)
	if r == ok {
		*out = cuda.CUasyncCallbackHandle(g.objects.add(&notification{d}))
	}
	return r
}

func (g *GPU) CuDeviceUnregisterAsyncNotification(dev cuda.CUdevice, h cuda.CUasyncCallbackHandle) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if n, found := lookup[*notification](g, h); !found || n.dev != d {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	g.objects.drop(uint64(h))
	return ok
}
