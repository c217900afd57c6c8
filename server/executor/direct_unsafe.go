package executor

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport/rdma"
	"scuda.dev/scuda/transport/rdma/gpudirect"
	"scuda.dev/scuda/verbs"
)

// GPUDirect says when a session's RDMA slots lie in the GPU's memory.
type GPUDirect string

// Wishes for GPUDirect.
const (
	DirectAuto   GPUDirect = "auto"   // where the self-test finds it right and not slower
	DirectAlways GPUDirect = "always" // wherever it works
	DirectNever  GPUDirect = "never"
)

// ParseGPUDirect reads a wish; none means auto.
func ParseGPUDirect(s string) (GPUDirect, error) {
	switch g := GPUDirect(s); g {
	case "":
		return DirectAuto, nil
	case DirectAuto, DirectAlways, DirectNever:
		return g, nil
	}
	return "", fmt.Errorf("%q is not auto, always or never", s)
}

// directGPU is a GPU as [gpudirect] sees it. It is used on an OS thread of its own, with a primary context that is
// retained meanwhile, and copies on a stream that waits for no work of the program's.
type directGPU struct {
	gpu    cuda.GPU
	device cuda.CUdevice
	stream cuda.CUstream
	args   arena
}

var _ gpudirect.Copier = (*directGPU)(nil)

// attribute leaves the arguments of another call that are being laid out as they are.
func (d *directGPU) attribute(a cuda.CUdevice_attribute) int32 {
	v := alloc[int32](&d.args)
	if d.gpu.CuDeviceGetAttribute(v, a, d.device) != cuda.CUDA_SUCCESS {
		return 0
	}
	return *v
}

func (d *directGPU) SupportsDMABuf() bool {
	return d.attribute(cuda.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0
}

// Scratch gives memory that belongs to the device and to no context, so that the program's contexts may end before it.
func (d *directGPU) Scratch(n uint64) (addr uint64, free func(), err error) {
	d.args.reset()
	g := d.gpu
	prop := alloc[cuda.CUmemAllocationProp](&d.args)
	prop.Type = cuda.CU_MEM_ALLOCATION_TYPE_PINNED
	prop.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	prop.Location.Id = int32(d.device)
	if d.attribute(cuda.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0 {
		prop.AllocFlags.GpuDirectRDMACapable = 1
	}
	grain := alloc[uint64](&d.args)
	if r := g.CuMemGetAllocationGranularity(grain, prop, cuda.CU_MEM_ALLOC_GRANULARITY_MINIMUM); r != cuda.CUDA_SUCCESS {
		return 0, nil, fmt.Errorf("cuMemGetAllocationGranularity: %w", r)
	}
	size := (n + *grain - 1) / *grain * *grain
	h := alloc[cuda.CUmemGenericAllocationHandle](&d.args)
	if r := g.CuMemCreate(h, size, prop, 0); r != cuda.CUDA_SUCCESS {
		return 0, nil, fmt.Errorf("cuMemCreate of %d bytes: %w", size, r)
	}
	defer g.CuMemRelease(*h) // the mapping keeps it
	p := alloc[cuda.CUdeviceptr](&d.args)
	if r := g.CuMemAddressReserve(p, size, 0, 0, 0); r != cuda.CUDA_SUCCESS {
		return 0, nil, fmt.Errorf("cuMemAddressReserve of %d bytes: %w", size, r)
	}
	at := *p
	if r := g.CuMemMap(at, size, 0, *h, 0); r != cuda.CUDA_SUCCESS {
		g.CuMemAddressFree(at, size)
		return 0, nil, fmt.Errorf("cuMemMap of %d bytes: %w", size, r)
	}
	free = func() {
		g.CuMemUnmap(at, size)
		g.CuMemAddressFree(at, size)
	}
	access := alloc[cuda.CUmemAccessDesc](&d.args)
	access.Location, access.Flags = prop.Location, cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	if r := g.CuMemSetAccess(at, size, access, 1); r != cuda.CUDA_SUCCESS {
		free()
		return 0, nil, fmt.Errorf("cuMemSetAccess: %w", r)
	}
	// What a card reads or writes must not be overtaken by a synchronous copy that the driver finishes later.
	on := alloc[uint32](&d.args)
	*on = 1
	_ = g.CuPointerSetAttribute(unsafe.Pointer(on), cuda.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at)
	return uint64(at), free, nil
}

func (d *directGPU) Export(addr, n uint64) (fd int, done func(), err error) {
	d.args.reset()
	p := alloc[int32](&d.args)
	if r := d.gpu.CuMemGetHandleForAddressRange(unsafe.Pointer(p), cuda.CUdeviceptr(addr), n,
		cuda.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0); r != cuda.CUDA_SUCCESS {
		return -1, nil, fmt.Errorf("cuMemGetHandleForAddressRange: %w", r)
	}
	fd = int(*p)
	return fd, func() { _ = unix.Close(fd) }, nil
}

func (d *directGPU) PageLocked(n int) (mem []byte, free func(), err error) {
	d.args.reset()
	p := alloc[unsafe.Pointer](&d.args)
	if r := d.gpu.CuMemHostAlloc(unsafe.Pointer(p), uint64(n), hostPortable); r != cuda.CUDA_SUCCESS {
		return nil, nil, fmt.Errorf("cuMemHostAlloc of %d bytes: %w", n, r)
	}
	at := *p
	return hostMemory(at, n), func() { d.gpu.CuMemFreeHost(at) }, nil
}

func (d *directGPU) Write(addr uint64, b []byte) error {
	return d.over(d.gpu.CuMemcpyHtoDAsync_v2(cuda.CUdeviceptr(addr), pointerTo(b), uint64(len(b)), d.stream))
}

func (d *directGPU) Read(b []byte, addr uint64) error {
	return d.over(d.gpu.CuMemcpyDtoHAsync_v2(pointerTo(b), cuda.CUdeviceptr(addr), uint64(len(b)), d.stream))
}

// over waits for a copy that was enqueued, or not (r).
func (d *directGPU) over(r cuda.CUresult) error {
	if r == cuda.CUDA_SUCCESS {
		r = d.gpu.CuStreamSynchronize(d.stream)
	}
	return nonzero(r)
}

// flushes says whether the GPU has to be told to take notice of a card's writes before work that reads them; an error
// says that it cannot be.
func (d *directGPU) flushes() (bool, error) {
	if d.attribute(cuda.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >= int32(
		cuda.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) {
		return false, nil
	}
	if d.attribute(cuda.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)&int32(
		cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0 {
		return false, errors.New("the GPU neither orders a card's writes nor can it be told to take notice of them")
	}
	return true, nil
}

// directSlots is memory of a GPU for a session's slots.
type directSlots struct {
	gpudirect.Range
	method gpudirect.Method
	flush  bool
}

// memory is a part of the slots for a link.
func (d *directSlots) memory(from, n int) rdma.Memory {
	return rdma.Memory{Addr: d.Addr + uint64(from), Bytes: uint64(n),
		Register: func(pd *verbs.PD, access verbs.Access) (*verbs.MR, error) {
			return d.Part(uint64(from), uint64(n)).Register(pd, access)
		}}
}

// openCard opens the card for trials; tests have another one.
var openCard = func(
	wish string, local, remote netip.Addr, gpu gpudirect.Copier,
) (card gpudirect.Card, done func(), err error) {
	place, err := rdma.Choose(wish, local, remote)
	if err != nil {
		return nil, nil, err
	}
	c, err := gpudirect.Open(place.Device, verbs.Local{Port: place.Port, GIDIndex: place.GID.Index}, gpu)
	if err != nil {
		return nil, nil, err
	}
	return c, c.Close, nil
}

// chooseDirect tries the ways between the session's GPU and the card, and gives slots in the GPU's memory where that is
// best. An error says why slots lie in the host's memory. They live as long as the process.
func (p *path) chooseDirect(local, remote netip.Addr, bytes int) (d *directSlots, err error) {
	if p.wish == DirectNever {
		return nil, errors.New("it is switched off")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.gpu.ThreadInit()
	g := &directGPU{gpu: p.gpu, device: cuda.CUdevice(p.lastDevice.Load())}
	if g.args.mem, err = mapMemory(4096); err != nil {
		return nil, err
	}
	defer unmapMemory(g.args.mem)
	ctx := alloc[cuda.CUcontext](&g.args)
	if r := p.gpu.CuDevicePrimaryCtxRetain(ctx, g.device); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuDevicePrimaryCtxRetain: %w", r)
	}
	defer p.gpu.CuDevicePrimaryCtxRelease_v2(g.device)
	if r := p.gpu.CuCtxSetCurrent(*ctx); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuCtxSetCurrent: %w", r)
	}
	defer p.gpu.CuCtxSetCurrent(0)
	st := alloc[cuda.CUstream](&g.args)
	if r := p.gpu.CuStreamCreate(st, uint32(cuda.CU_STREAM_NON_BLOCKING)); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuStreamCreate: %w", r)
	}
	g.stream = *st
	defer p.gpu.CuStreamDestroy_v2(g.stream)
	flush, err := g.flushes()
	if err != nil && p.wish != DirectAlways {
		return nil, err
	}
	card, done, err := openCard(p.device, local, remote, g)
	if err != nil {
		return nil, err
	}
	defer done()
	c, err := gpudirect.Choose(card, g)
	if p.wish == DirectAlways && err == nil {
		c, err = gpudirect.Direct(card, g)
	}
	if err != nil {
		return nil, err
	}
	if c.Method == gpudirect.Staged {
		return nil, errors.New(c.Why)
	}
	addr, free, err := g.Scratch(uint64(bytes))
	if err != nil {
		return nil, err
	}
	d = &directSlots{Range: gpudirect.Range{Addr: addr, Bytes: uint64(bytes), FD: -1}, method: c.Method, flush: flush}
	if c.Method == gpudirect.DMABuf {
		if d.FD, _, err = g.Export(addr, uint64(bytes)); err != nil {
			free()
			return nil, err
		}
	}
	p.log.Info("RDMA reads and writes the GPU's memory", "method", c.Method, "device", g.device, "rate",
		fmt.Sprintf("%.1f GB/s", c.Rate/1e9), "others", c.Why)
	return d, nil
}
