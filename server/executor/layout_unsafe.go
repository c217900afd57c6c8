package executor

import (
	"errors"
	"fmt"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/fatbin"
)

var errNoLayout = errors.New("no cubin describes the kernel's parameters")

// layout is how a function's parameters lie in its packed buffer.
type layout struct {
	real    uint64 // the driver's function or kernel
	offsets []uint32
	sizes   []uint32
	bytes   uint32
	name    string // where the driver does not tell layouts, else empty
	scan    *scan  // whether its image prints
	waited  bool   // its code is loaded; see mayWait
}

// layoutOf finds a function or kernel that is about to be launched, and its parameters.
func (m *modules) layoutOf(h uint64) (*layout, cuda.CUresult) {
	real, ok := m.table.Real(cuda.KindFunction, h)
	if !ok {
		return nil, cuda.CUDA_ERROR_INVALID_HANDLE
	}
	if l := m.layouts[h]; l != nil && l.real == real {
		if l.scan != nil && !l.scan.noted {
			m.loop.noteLaunch(l.scan)
		}
		return l, cuda.CUDA_SUCCESS
	}
	l, r := m.layoutFor(real, m.table.Kind(h) == cuda.KindKernel, m.table.Parent(h), "")
	if r == cuda.CUDA_SUCCESS {
		m.layouts[h] = l
		l.scan = m.scanOf(h)
		m.loop.noteLaunch(l.scan)
	}
	return l, r
}

// layoutFor finds the parameters of a function or kernel. Drivers from CUDA 12.4 on tell them; for older ones they
// are read from the image that the function came from, by its name.
func (m *modules) layoutFor(real uint64, kernel bool, parent uint64, name string) (*layout, cuda.CUresult) {
	l, r := m.askLayout(real, kernel)
	if r != cuda.CUDA_ERROR_NOT_SUPPORTED {
		return l, r
	}
	params, err := m.readLayout(parent, name)
	if err != nil {
		m.log.Error("the driver does not tell the parameters of a kernel, and they cannot be read from its image; "+
			"a driver of CUDA 12.4 or newer on the server would", "kernel", name, "error", err)
		return nil, r
	}
	l = &layout{real: real, name: name}
	for _, p := range params {
		l.add(p.Offset, p.Size)
	}
	return l, cuda.CUDA_SUCCESS
}

func (l *layout) add(offset, size uint32) {
	l.offsets, l.sizes = append(l.offsets, offset), append(l.sizes, size)
	l.bytes = max(l.bytes, offset+size)
}

// askLayout has the driver tell a layout; CUDA_ERROR_NOT_SUPPORTED from a driver that does not.
func (m *modules) askLayout(real uint64, kernel bool) (*layout, cuda.CUresult) {
	l := &layout{real: real}
	off, size := alloc[uint64](&m.arena), alloc[uint64](&m.arena)
	for i := uint64(0); ; i++ {
		var r cuda.CUresult
		if kernel {
			r = m.gpu.CuKernelGetParamInfo(cuda.CUkernel(real), i, off, size)
		} else {
			r = m.gpu.CuFuncGetParamInfo(cuda.CUfunction(real), i, off, size)
		}
		if r == cuda.CUDA_ERROR_INVALID_VALUE { // there is no such parameter
			return l, cuda.CUDA_SUCCESS
		}
		if r != cuda.CUDA_SUCCESS {
			return nil, r
		}
		l.add(uint32(*off), uint32(*size))
	}
}

// readLayout looks a kernel up in the cubins of its image, and where there is none in what the driver's linker makes
// of its PTX.
func (m *modules) readLayout(parent uint64, name string) ([]fatbin.Param, error) {
	hash, ok := m.loaded[parent]
	for range 3 { // a kernel's function, its kernel, the library
		if ok {
			break
		}
		parent = m.table.Parent(parent)
		hash, ok = m.loaded[parent]
	}
	if !ok {
		return nil, errNoLayout
	}
	all, known := m.knownParams[hash]
	if !known {
		var err error
		if all, err = m.readLayouts(m.images[hash].Data); err != nil {
			return nil, err
		}
		m.knownParams[hash] = all
	}
	params, ok := all[name]
	if !ok {
		return nil, errNoLayout
	}
	return params, nil
}

func (m *modules) readLayouts(image []byte) (map[string][]fatbin.Param, error) {
	img, err := fatbin.Parse(image)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]fatbin.Param)
	for i := range img.Members {
		if img.Members[i].Kind != fatbin.ELF {
			continue
		}
		cubin, err := img.Members[i].Data()
		if err != nil {
			return nil, err
		}
		if err := addLayouts(all, cubin); err != nil {
			return nil, err
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	text, err := img.PTX(1<<32 - 1)
	if err != nil {
		return nil, err
	}
	cubin, err := m.assemblePTX(text)
	if err != nil {
		return nil, err
	}
	return all, addLayouts(all, cubin)
}

func addLayouts(all map[string][]fatbin.Param, cubin []byte) error {
	some, err := fatbin.Params(cubin)
	for name, params := range some {
		if _, twice := all[name]; !twice {
			all[name] = params
		}
	}
	return err
}

// assemblePTX has the driver's linker make a cubin of PTX.
func (m *modules) assemblePTX(ptx []byte) ([]byte, error) {
	if len(ptx) == 0 || ptx[len(ptx)-1] != 0 {
		ptx = append(append([]byte(nil), ptx...), 0)
	}
	state := alloc[cuda.CUlinkState](&m.arena)
	if r := m.gpu.CuLinkCreate_v2(0, nil, nil, state); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("the driver's linker: %w", r)
	}
	defer m.gpu.CuLinkDestroy(*state)
	r := m.gpu.CuLinkAddData_v2(*state, cuda.CU_JIT_INPUT_PTX, pointerTo(ptx), uint64(len(ptx)), nil, 0, nil, nil)
	if r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("the driver's linker: %w", r)
	}
	cubin, size := alloc[uintptr](&m.arena), alloc[uint64](&m.arena)
	if r := m.gpu.CuLinkComplete(*state, unsafe.Pointer(cubin), size); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("the driver's linker: %w", r)
	}
	return append([]byte(nil), driverBytes(*cubin, int(*size))...), nil
}
