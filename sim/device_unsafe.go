package sim

import (
	"strings"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// giveText writes text and a NUL into a buffer of n bytes, cut to fit.
func giveText(buf unsafe.Pointer, n int32, text string) cuda.CUresult {
	if buf == nil || n <= 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	b := bytesOf(buf, uint64(n))
	b[copy(b[:n-1], text)] = 0
	return ok
}

func (g *GPU) CuDeviceGetName(name unsafe.Pointer, n int32, dev cuda.CUdevice) cuda.CUresult {
	r := g.readDevice(dev, name == nil, func(*device) {})
	if r != ok {
		return r
	}
	return giveText(name, n, g.cfg.Name)
}

func (g *GPU) CuDeviceGetPCIBusId(id unsafe.Pointer, n int32, dev cuda.CUdevice) cuda.CUresult {
	var text string
	if r := g.readDevice(dev, id == nil, func(d *device) { text = d.pciBusID() }); r != ok {
		return r
	}
	if r := giveText(id, n, text); r != ok || int(n) > len(text) {
		return r
	}
	return cuda.CUDA_ERROR_INVALID_VALUE // a name is cut, this is not
}

func (g *GPU) CuDeviceGetByPCIBusId(dev *cuda.CUdevice, id unsafe.Pointer) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	text, found := cString(id, 32)
	if dev == nil || !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for i, d := range g.devices {
		if strings.EqualFold(text, d.pciBusID()) || strings.EqualFold(text, strings.TrimPrefix(d.pciBusID(), "0000:")) {
			*dev = cuda.CUdevice(i)
			return ok
		}
	}
	return cuda.CUDA_ERROR_INVALID_DEVICE
}
