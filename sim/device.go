package sim

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
)

// device is one simulated GPU.
type device struct {
	number               int // of the machine
	ordinal              int // of those that the process sees
	gpu                  int // its GPU on the machine: itself, but for instances of MIG
	uuid                 [16]byte
	parent               [16]byte // of the GPU of which it is an instance, else uuid
	arena                arena
	total                uint64
	used                 uint64
	failure              cuda.CUresult // that every context of it answers with, once something has gone wrong
	frees                []*task       // stream-ordered frees on their way
	primary              *cudaContext
	retained             int
	primaryFlags         uint32 // with which the primary context is made
	pools                devicePools
	graphUsed, graphHigh uint64 // memory of graphs: now, and at most
}

// deviceUUID is the same in every run: a hash (UUID version 8) of the device's name and number.
func deviceUUID(name string, ordinal int) (uuid [16]byte) {
	sum := sha256.Sum256(fmt.Appendf(nil, "scuda sim %s %d", name, ordinal))
	copy(uuid[:], sum[:])
	uuid[6] = uuid[6]&0x0f | 0x80
	uuid[8] = uuid[8]&0x3f | 0x80
	return uuid
}

func newDevice(g *GPU, number, ordinal int) (*device, error) {
	size := g.cfg.instanceMemory()
	a, err := newArena(number, size, g.seat, g.cfg.Contents)
	if err != nil {
		return nil, err
	}
	d := &device{number: number, ordinal: ordinal, gpu: g.cfg.gpuOf(number), arena: a, total: size}
	d.uuid, d.parent = g.cfg.uuid(number), deviceUUID(g.cfg.Name, d.gpu)
	d.primary = g.newContext(d, uint32(cuda.CU_CTX_MAP_HOST), true)
	g.newPools(d)
	return d, nil
}

// device finds a device by its number. g.mu is held.
func (g *GPU) device(dev cuda.CUdevice) (*device, cuda.CUresult) {
	if dev < 0 || int(dev) >= len(g.devices) {
		return nil, cuda.CUDA_ERROR_INVALID_DEVICE
	}
	return g.devices[dev], ok
}

// numbered finds a device by its number on the machine.
func numbered(devices []*device, n uint32) (*device, cuda.CUresult) {
	for _, d := range devices {
		if d.number == int(n) {
			return d, ok
		}
	}
	return nil, cuda.CUDA_ERROR_INVALID_DEVICE
}

// enterDevice is ready for calls about a device: it is locked where the device is there.
func (g *GPU) enterDevice(dev cuda.CUdevice) (*device, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	d, r := g.device(dev)
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return d, ok
}

// pciAddress is domain, bus and device, and pciBusID its text.
func (d *device) pciAddress() (domain, bus, dev int32) { return 0, 0, int32(d.gpu) + 1 }

func (d *device) pciBusID() string {
	domain, bus, dev := d.pciAddress()
	return fmt.Sprintf("%04X:%02X:%02X.0", domain, bus, dev)
}

// take notes that memory of a device is in use, give that it no longer is. g.mu is held.
func (g *GPU) take(d *device, bytes uint64) {
	d.used += bytes
	g.seat.Use(d.number, d.used)
}

func (g *GPU) give(d *device, bytes uint64) {
	d.used -= bytes
	g.seat.Use(d.number, d.used)
}

// countContexts tells the board how many contexts a device has. g.mu is held.
func (g *GPU) countContexts(d *device) {
	n := 0
	for c := range g.contexts {
		if c.dev == d {
			n++
		}
	}
	g.seat.Contexts(d.number, n)
}

// moving says that the devices that own the memory at these addresses are busy with a copy or a fill until the result
// is called.
func (g *GPU) moving(addrs ...uint64) (done func()) {
	var devices []int
	for _, a := range addrs {
		if r := g.mem.find(a); r != nil && !r.kind.host() && r.dev != nil && !slices.Contains(devices, r.dev.number) {
			devices = append(devices, r.dev.number)
			g.seat.Begin(r.dev.number, board.Copies)
		}
	}
	return func() {
		for _, d := range devices {
			g.seat.End(d, board.Copies)
		}
	}
}

func (g *GPU) CuDeviceGetCount(count *int32) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if count == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*count = int32(len(g.devices))
	return ok
}

func (g *GPU) CuDeviceGet(dev *cuda.CUdevice, ordinal int32) cuda.CUresult {
	return g.readDevice(cuda.CUdevice(ordinal), dev == nil, func(*device) { *dev = cuda.CUdevice(ordinal) })
}

// readDevice answers from a device.
func (g *GPU) readDevice(dev cuda.CUdevice, null bool, read func(*device)) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if null {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	read(d)
	return ok
}

func (g *GPU) CuDeviceGetAttribute(value *int32, attr cuda.CUdevice_attribute, dev cuda.CUdevice) cuda.CUresult {
	v, known := g.attribute(attr)
	return g.readDevice(dev, value == nil || !known && attr != cuda.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, func(d *device) {
		if attr == cuda.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID {
			_, _, v = d.pciAddress()
		}
		*value = v
	})
}

// attribute is what every device of the machine answers.
func (g *GPU) attribute(attr cuda.CUdevice_attribute) (int32, bool) {
	switch attr {
	case cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return g.sms(), true
	case cuda.CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT:
		if g.cfg.KernelTime > 0 {
			return 1, true
		}
	}
	if v, special := presets[g.cfg.Preset].attributes[attr]; special {
		return v, true
	}
	if v, known := g.capability.attribute(attr); known {
		return v, true
	}
	v, known := attributes[attr]
	return v, known
}

// sms is the number of multiprocessors.
func (g *GPU) sms() int32 { return max(presets[g.cfg.Preset].sms/int32(max(g.cfg.MIG, 1)), 1) }

func (g *GPU) CuDeviceTotalMem_v2(bytes *uint64, dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, bytes == nil, func(d *device) { *bytes = d.total })
}

func (g *GPU) CuDeviceComputeCapability(major, minor *int32, dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, major == nil || minor == nil, func(*device) {
		*major, *minor = int32(g.capability.arch/10), int32(g.capability.arch%10)
	})
}

// CuDeviceGetUuid knows no instances of MIG: theirs is their GPU's.
func (g *GPU) CuDeviceGetUuid(uuid *cuda.CUuuid, dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, uuid == nil, func(d *device) { setUUID(uuid, d.parent) })
}

func setUUID(to *cuda.CUuuid, uuid [16]byte) {
	for i := range to.Bytes {
		to.Bytes[i] = uuid[i]
	}
}

func (g *GPU) CuDeviceGetUuid_v2(uuid *cuda.CUuuid, dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, uuid == nil, func(d *device) { setUUID(uuid, d.uuid) })
}

func (g *GPU) CuDeviceCanAccessPeer(can *int32, dev, peer cuda.CUdevice) cuda.CUresult {
	if r := g.readDevice(dev, false, func(*device) {}); r != ok {
		return r
	}
	return g.readDevice(peer, can == nil, func(*device) {
		*can = 0
		if dev != peer {
			*can = 1
		}
	})
}

func (g *GPU) CuDeviceGetP2PAttribute(value *int32, attr cuda.CUdevice_P2PAttribute, src,
	dst cuda.CUdevice) cuda.CUresult {
	if src == dst {
		return cuda.CUDA_ERROR_INVALID_DEVICE
	}
	if r := g.readDevice(src, false, func(*device) {}); r != ok {
		return r
	}
	return g.readDevice(dst, value == nil, func(*device) {
		*value = 0
		switch attr {
		case cuda.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, cuda.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
			*value = 1
		}
	})
}

// CuDeviceGetHostAtomicCapabilities: the GPU is behind a bus that carries no atomic operations.
func (g *GPU) CuDeviceGetHostAtomicCapabilities(capabilities *uint32, operations *cuda.CUatomicOperation, n uint32,
	dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, capabilities == nil || operations == nil || n == 0,
		func(*device) { clear(sliceOf(capabilities, uint64(n))) })
}

// CuDeviceGetP2PAtomicCapabilities knows only what a device is told of itself.
func (g *GPU) CuDeviceGetP2PAtomicCapabilities(capabilities *uint32, operations *cuda.CUatomicOperation, n uint32, src,
	dst cuda.CUdevice) cuda.CUresult {
	r := g.readDevice(src, capabilities == nil || operations == nil || n == 0, func(*device) {})
	switch {
	case r != ok:
		return r
	case src == dst:
		return cuda.CUDA_ERROR_INVALID_DEVICE
	}
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}

// CuDeviceGetExecAffinitySupport: contexts have all multiprocessors or none.
func (g *GPU) CuDeviceGetExecAffinitySupport(supported *int32, _ cuda.CUexecAffinityType,
	dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, supported == nil, func(*device) { *supported = 0 })
}

// CuDeviceGetTexture1DLinearMaxWidth: a texture of linear memory has 4 GiB at most.
func (g *GPU) CuDeviceGetTexture1DLinearMaxWidth(elements *uint64, format cuda.CUarray_format, channels uint32,
	dev cuda.CUdevice) cuda.CUresult {
	texel := channelBytes(format) * uint64(channels)
	wrong := elements == nil || texel == 0 || channels != 1 && channels != 2 && channels != 4
	return g.readDevice(dev, wrong, func(*device) { *elements = 1 << 32 / texel })
}

// giveText writes text and a NUL into a buffer of n bytes, cut to fit.
func giveText(buf pointer, n int32, text string) cuda.CUresult {
	if buf == nil || n <= 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	b := bytesOf(buf, uint64(n))
	b[copy(b[:n-1], text)] = 0
	return ok
}

func (g *GPU) CuDeviceGetName(name pointer, n int32, dev cuda.CUdevice) cuda.CUresult {
	r := g.readDevice(dev, name == nil, func(*device) {})
	if r != ok {
		return r
	}
	return giveText(name, n, g.cfg.deviceName())
}

func (g *GPU) CuDeviceGetPCIBusId(id pointer, n int32, dev cuda.CUdevice) cuda.CUresult {
	var text string
	if r := g.readDevice(dev, id == nil, func(d *device) { text = d.pciBusID() }); r != ok {
		return r
	}
	if r := giveText(id, n, text); r != ok || int(n) > len(text) {
		return r
	}
	return cuda.CUDA_ERROR_INVALID_VALUE // a name is cut, this is not
}

func (g *GPU) CuDeviceGetByPCIBusId(dev *cuda.CUdevice, id pointer) cuda.CUresult {
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
