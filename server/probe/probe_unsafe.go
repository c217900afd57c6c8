// Package probe takes the snapshot of a server's GPUs that clients answer local calls from.
package probe

import (
	"bytes"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// Error is a driver that cannot serve.
type Error struct {
	Call   string
	Result cuda.CUresult
}

func (e *Error) Error() string {
	s := fmt.Sprintf("the driver answers %s with %s (%d)", e.Call, cuda.ResultName(e.Result), int32(e.Result))
	switch e.Result {
	case cuda.CUDA_ERROR_NO_DEVICE:
		return s + "; check with nvidia-smi that this machine's GPU is visible, or serve the simulated one with --gpu sim"
	case cuda.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return s + "; driver library and kernel module have different versions: reload the module or reboot"
	}
	return s
}

// Machine is what the probe found.
type Machine struct {
	DriverVersion int
	Devices       []transport.Device
	Retained      []cuda.CUdevice // devices whose primary context stays retained, made and warm
}

const (
	nameBytes    = 256
	answersBytes = 4096
)

// answers is memory outside the Go heap that the driver writes its answers to.
type answers struct {
	text   [nameBytes]byte
	word   uint64
	i      [2]int32
	u      uint32
	uuid   cuda.CUuuid
	device cuda.CUdevice
	ctx    cuda.CUcontext
}

// Run initialises the driver on the calling OS thread, which must be locked, and looks at all devices. The first
// device's primary context stays retained, so that the first client does not wait for its making.
func Run(gpu cuda.GPU) (*Machine, error) {
	mem, err := unix.Mmap(-1, 0, answersBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for the device snapshot: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	a := (*answers)(unsafe.Pointer(unsafe.SliceData(mem)))
	gpu.ThreadInit()
	if r := gpu.CuInit(0); r != cuda.CUDA_SUCCESS {
		return nil, &Error{"cuInit", r}
	}
	m := &Machine{}
	if r := gpu.CuDriverGetVersion(&a.i[0]); r != cuda.CUDA_SUCCESS {
		return nil, &Error{"cuDriverGetVersion", r}
	}
	m.DriverVersion = int(a.i[0])
	if r := gpu.CuDeviceGetCount(&a.i[0]); r != cuda.CUDA_SUCCESS {
		return nil, &Error{"cuDeviceGetCount", r}
	}
	n := int(a.i[0])
	if n == 0 {
		return nil, &Error{"cuDeviceGetCount", cuda.CUDA_ERROR_NO_DEVICE}
	}
	for i := range min(n, transport.MaxDevices) {
		d, err := device(gpu, a, int32(i), i == 0)
		if err != nil {
			return nil, err
		}
		m.Devices = append(m.Devices, *d)
	}
	m.Retained = []cuda.CUdevice{0}
	return m, nil
}

func device(gpu cuda.GPU, a *answers, ordinal int32, keep bool) (*transport.Device, error) {
	d := &transport.Device{}
	if r := gpu.CuDeviceGet(&a.device, ordinal); r != cuda.CUDA_SUCCESS {
		return nil, &Error{"cuDeviceGet", r}
	}
	dev := a.device
	clear(a.text[:])
	if r := gpu.CuDeviceGetName(unsafe.Pointer(&a.text), nameBytes, dev); r != cuda.CUDA_SUCCESS {
		return nil, &Error{"cuDeviceGetName", r}
	}
	d.Name = text(a.text[:])
	if r := gpu.CuDeviceTotalMem_v2(&a.word, dev); r != cuda.CUDA_SUCCESS {
		return nil, &Error{"cuDeviceTotalMem_v2", r}
	}
	d.TotalMem = a.word
	// A MIG slice has a UUID of its own, which only the second form knows.
	if gpu.CuDeviceGetUuid_v2(&a.uuid, dev) == cuda.CUDA_SUCCESS {
		copyUUID(&d.UUID, &a.uuid)
	}
	if gpu.CuDeviceGetUuid(&a.uuid, dev) == cuda.CUDA_SUCCESS {
		copyUUID(&d.UUIDv1, &a.uuid)
	}
	clear(a.text[:])
	if gpu.CuDeviceGetLuid(unsafe.Pointer(&a.text), &a.u, dev) == cuda.CUDA_SUCCESS {
		copy(d.LUID[:], a.text[:])
	}
	clear(a.text[:])
	if gpu.CuDeviceGetPCIBusId(unsafe.Pointer(&a.text), 16, dev) == cuda.CUDA_SUCCESS {
		d.PCIBusID = text(a.text[:16])
	}
	for i := range d.Attributes {
		a.i[0] = 0
		d.AttributeResult[i] = int32(gpu.CuDeviceGetAttribute(&a.i[0], cuda.CUdevice_attribute(i), dev))
		d.Attributes[i] = a.i[0]
	}
	return d, inContext(gpu, a, d, dev, keep)
}

// inContext looks at what only a context tells.
func inContext(gpu cuda.GPU, a *answers, d *transport.Device, dev cuda.CUdevice, keep bool) error {
	if r := gpu.CuDevicePrimaryCtxRetain(&a.ctx, dev); r != cuda.CUDA_SUCCESS {
		return &Error{"cuDevicePrimaryCtxRetain", r}
	}
	ctx := a.ctx
	if !keep {
		defer gpu.CuDevicePrimaryCtxRelease_v2(dev)
	}
	if r := gpu.CuCtxSetCurrent(ctx); r != cuda.CUDA_SUCCESS {
		return &Error{"cuCtxSetCurrent", r}
	}
	defer gpu.CuCtxSetCurrent(0)
	for i := range d.Limits {
		a.word = 0
		d.LimitResult[i] = int32(gpu.CuCtxGetLimit(&a.word, cuda.CUlimit(i)))
		d.Limits[i] = a.word
	}
	if gpu.CuCtxGetStreamPriorityRange(&a.i[0], &a.i[1]) == cuda.CUDA_SUCCESS {
		d.PriorityLeast, d.PriorityGreatest = a.i[0], a.i[1]
	}
	if gpu.CuCtxGetApiVersion(ctx, &a.u) == cuda.CUDA_SUCCESS {
		d.CtxAPIVersion = a.u
	}
	if gpu.CuCtxGetFlags(&a.u) == cuda.CUDA_SUCCESS {
		d.CtxFlags = a.u
	}
	if t, ok := gpu.(cuda.FP8Teller); ok {
		if answer, r := t.FP8(); r == cuda.CUDA_SUCCESS {
			d.HasFP8, d.FP8 = 1, answer
		}
	}
	if t, ok := gpu.(cuda.TPCMapper); ok {
		if in, of, r := t.TPCMap(); r == cuda.CUDA_SUCCESS && len(in) == len(of) && len(in) <= len(d.TPCInGPC) {
			d.TPCMapBytes = uint64(copy(d.TPCInGPC[:], in))
			copy(d.GPCOfTPC[:], of)
		}
	}
	return nil
}

func copyUUID(dst *[16]byte, src *cuda.CUuuid) {
	*dst = *(*[16]byte)(unsafe.Pointer(src))
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
