package real

import "C"

import (
	"runtime"
	"runtime/cgo"
	"sync"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// DefaultCUDA and DefaultNVML are the names that the loader finds the libraries by.
const (
	DefaultCUDA = "libcuda.so.1"
	DefaultNVML = "libnvidia-ml.so.1"
)

// GPU is the machine's CUDA driver.
type GPU struct {
	driver
	lib   *library
	lanes int // threads that make launches

	primary unsafe.Pointer // CUDART_INTERFACE slot 2, nil where the driver does not have it
	tpcMap  unsafe.Pointer // TPC_MAP slots 4 and 13
	tpcFree unsafe.Pointer

	mu   sync.Mutex
	kept map[cgo.Handle]struct{} // host functions of graphs, which may run again
}

var (
	_ cuda.GPU       = (*GPU)(nil)
	_ cuda.Caller    = (*GPU)(nil)
	_ cuda.TPCMapper = (*GPU)(nil)
	_ cuda.FP8Teller = (*GPU)(nil)
	_ cuda.Launcher  = (*GPU)(nil)
)

// Open opens the driver library; an empty path means DefaultCUDA. It does not initialise the driver.
func Open(path string) (cuda.GPU, error) {
	if path == "" {
		path = DefaultCUDA
	}
	lib, err := open(path)
	if err != nil {
		return nil, err
	}
	if lib.symbol("cuInit") == nil {
		return nil, &LibraryError{path, "it has no cuInit, so it is no CUDA driver"}
	}
	g := &GPU{lib: lib, lanes: mostLanes(runtime.NumCPU())}
	for op := range g.fns {
		g.fns[op] = lib.symbol(cuda.OpName(uint16(op)))
	}
	return g, nil
}

// driver has the generated methods.
type driver struct {
	fns [cuda.Ops]unsafe.Pointer
}

// Call calls the function of an operation.
func (d *driver) Call(op uint16, a *cuda.Words) cuda.CUresult {
	if int(op) >= len(d.fns) || d.fns[op] == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return cuda.CUresult(int32(callForm(d.fns[op], &cudaForms[op], a)))
}

func (d *driver) invoke(op uint16, a *words) cuda.CUresult {
	if d.fns[op] == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return cuda.CUresult(int32(call(d.fns[op], a)))
}

// Private tables of the driver, by their identifiers.
var (
	cudartInterface = cuda.CUuuid{
		Bytes: [16]byte{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
	}
	fp8Table = cuda.CUuuid{
		Bytes: [16]byte{0xcd, 0x3e, 0xa2, 0xc6, 0x70, 0x76, 0xdb, 0x4b, 0x88, 0x2e, 0x52, 0xae, 0x6c, 0x2d, 0x86, 0xf7},
	}
	tpcMapTable = cuda.CUuuid{
		Bytes: [16]byte{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca},
	}
)

// tableSlot reads a function from a private table whose first word is its size; nil when there is no such table or
// slot.
func (g *GPU) tableSlot(id *cuda.CUuuid, slot int) unsafe.Pointer {
	var table unsafe.Pointer
	if g.CuGetExportTable(unsafe.Pointer(&table), id) != cuda.CUDA_SUCCESS || table == nil {
		return nil
	}
	if *(*uint64)(table) < uint64(slot+1)*8 || *(*uint64)(table) > 1<<16 {
		return nil
	}
	return *(*unsafe.Pointer)(unsafe.Add(table, slot*8))
}

// PrimaryContext gives the handle of a device's primary context without retaining it.
func (g *GPU) PrimaryContext(dev cuda.CUdevice) (cuda.CUcontext, cuda.CUresult) {
	if g.primary == nil {
		if g.primary = g.tableSlot(&cudartInterface, 2); g.primary == nil {
			return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
		}
	}
	var ctx cuda.CUcontext
	r := call(g.primary, &words{address(&ctx), uint64(uint32(dev))})
	return ctx, cuda.CUresult(int32(r))
}

// TPCMap reads where the texture processing clusters of the current context's GPU lie.
func (g *GPU) TPCMap() (tpcInGPC, gpcOfTPC []byte, r cuda.CUresult) {
	if g.tpcMap == nil {
		g.tpcMap, g.tpcFree = g.tableSlot(&tpcMapTable, 4), g.tableSlot(&tpcMapTable, 13)
	}
	if g.tpcMap == nil || g.tpcFree == nil {
		return nil, nil, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	var dev cuda.CUdevice
	var processors int32
	if r := g.CuCtxGetDevice(&dev); r != cuda.CUDA_SUCCESS {
		return nil, nil, r
	}
	if r := g.CuDeviceGetAttribute(&processors, cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
		dev); r != cuda.CUDA_SUCCESS {
		return nil, nil, r
	}
	var a, b unsafe.Pointer
	if r := cuda.CUresult(int32(call(g.tpcMap, &words{address(&a), address(&b)}))); r != cuda.CUDA_SUCCESS {
		return nil, nil, r
	}
	// Two multiprocessors share a cluster; the driver's arrays are never shorter than that.
	n := int(processors) / 2
	if a != nil && b != nil {
		tpcInGPC = append(tpcInGPC, unsafe.Slice((*byte)(a), n)...)
		gpcOfTPC = append(gpcOfTPC, unsafe.Slice((*byte)(b), n)...)
	}
	call(g.tpcFree, &words{uint64(uintptr(a)), uint64(uintptr(b))})
	return tpcInGPC, gpcOfTPC, cuda.CUDA_SUCCESS
}

// FP8 asks what cuSPARSELt asks before it takes matrices of 8-bit floating point numbers, as that asks it.
func (g *GPU) FP8() (int32, cuda.CUresult) {
	slot := g.tableSlot(&fp8Table, 1)
	if slot == nil {
		return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return int32(call(slot, &words{0, 7})), cuda.CUDA_SUCCESS
}

// hostFunc is what a cgo handle of HostFunc leads to.
type hostFunc struct {
	run  func()
	once bool
}

// HostFunc enqueues f as a host function of stream.
func (g *GPU) HostFunc(stream cuda.CUstream, f func()) cuda.CUresult {
	fn := g.fns[cuda.OpCuLaunchHostFunc]
	if fn == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	var status cuda.CUstreamCaptureStatus
	captured := g.CuStreamIsCapturing(stream, &status) != cuda.CUDA_SUCCESS || status != cuda.CU_STREAM_CAPTURE_STATUS_NONE
	h := cgo.NewHandle(&hostFunc{f, !captured})
	r := cuda.CUresult(int32(launchHost(fn, uint64(stream), uintptr(h))))
	switch {
	case r != cuda.CUDA_SUCCESS:
		h.Delete()
	case captured:
		g.keep(h)
	}
	return r
}

// LaunchNode enqueues a function that HostNode keeps; captured, it becomes a node with just these parameters.
func (g *GPU) LaunchNode(stream cuda.CUstream, p cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	fn := g.fns[cuda.OpCuLaunchHostFunc]
	if fn == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return cuda.CUresult(int32(launchHost(fn, uint64(stream), p.UserData)))
}

// LaunchAll carries out launches with one crossing into C.
func (g *GPU) LaunchAll(list []cuda.Launch) {
	if len(list) > 0 {
		launchAll(g.fns[cuda.OpCuLaunchKernel], g.fns[cuda.OpCuCtxGetCurrent], g.fns[cuda.OpCuCtxSetCurrent],
			address(unsafe.SliceData(list)), len(list), g.lanes)
	}
}

// HostNode keeps f for graph nodes.
func (g *GPU) HostNode(f func()) cuda.CUDA_HOST_NODE_PARAMS {
	h := cgo.NewHandle(&hostFunc{f, false})
	g.keep(h)
	return cuda.CUDA_HOST_NODE_PARAMS{Fn: hostEntry(), UserData: uintptr(h)}
}

func (g *GPU) keep(h cgo.Handle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.kept == nil {
		g.kept = make(map[cgo.Handle]struct{})
	}
	g.kept[h] = struct{}{}
}

// DropNode forgets what HostNode gave.
func (g *GPU) DropNode(p cuda.CUDA_HOST_NODE_PARAMS) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := cgo.Handle(p.UserData)
	if _, kept := g.kept[h]; kept {
		delete(g.kept, h)
		h.Delete()
	}
}

//export scudaRealHostFunc
func scudaRealHostFunc(handle unsafe.Pointer) {
	h := cgo.Handle(uintptr(handle))
	f := h.Value().(*hostFunc)
	f.run()
	if f.once {
		h.Delete()
	}
}

// ThreadInit has nothing to do: the driver sets up threads by itself.
func (g *GPU) ThreadInit() {}

// Close forgets the host functions of graphs. The library stays open, because drivers do not survive being unloaded.
func (g *GPU) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for h := range g.kept {
		h.Delete()
	}
	g.kept = nil
	return nil
}
