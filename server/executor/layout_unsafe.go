package executor

import (
	"errors"
	"fmt"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/fatbin"
)

var errNoLayout = errors.New("no cubin describes the kernel's parameters")

// layoutFor finds the parameters of a function or kernel. Drivers from CUDA 12.4 on tell them; for older ones they are read from the image that the
// function came from, by its name.
func (s *Session) layoutFor(real uint64, kernel bool, parent uint64, name string) (*layout, cuda.CUresult) {
	l, r := s.askLayout(real, kernel)
	if r != cuda.CUDA_ERROR_NOT_SUPPORTED {
		return l, r
	}
	params, err := s.readLayout(parent, name)
	if err != nil {
		s.log.Error("the driver does not tell the parameters of a kernel, and they cannot be read from its image; a driver of CUDA 12.4 or newer on the server would", "kernel", name, "error", err)
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
func (s *Session) askLayout(real uint64, kernel bool) (*layout, cuda.CUresult) {
	l := &layout{real: real}
	off, size := alloc[uint64](&s.arena), alloc[uint64](&s.arena)
	for i := uint64(0); ; i++ {
		var r cuda.CUresult
		if kernel {
			r = s.gpu.CuKernelGetParamInfo(cuda.CUkernel(real), i, off, size)
		} else {
			r = s.gpu.CuFuncGetParamInfo(cuda.CUfunction(real), i, off, size)
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

// readLayout looks a kernel up in the cubins of its image, and where there is none in what the driver's linker makes of its PTX.
func (s *Session) readLayout(parent uint64, name string) ([]fatbin.Param, error) {
	hash, ok := s.loaded[parent]
	for range 3 { // a kernel's function, its kernel, the library
		if ok {
			break
		}
		parent = s.table.Parent(parent)
		hash, ok = s.loaded[parent]
	}
	if !ok {
		return nil, errNoLayout
	}
	all, known := s.knownParams[hash]
	if !known {
		var err error
		if all, err = s.readLayouts(s.images[hash].Data); err != nil {
			return nil, err
		}
		s.knownParams[hash] = all
	}
	params, ok := all[name]
	if !ok {
		return nil, errNoLayout
	}
	return params, nil
}

func (s *Session) readLayouts(image []byte) (map[string][]fatbin.Param, error) {
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
	cubin, err := s.assemble(text)
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

// assemble has the driver's linker make a cubin of PTX.
func (s *Session) assemble(ptx []byte) ([]byte, error) {
	if len(ptx) == 0 || ptx[len(ptx)-1] != 0 {
		ptx = append(append([]byte(nil), ptx...), 0)
	}
	state := alloc[cuda.CUlinkState](&s.arena)
	if r := s.gpu.CuLinkCreate_v2(0, nil, nil, state); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("the driver's linker: %w", r)
	}
	defer s.gpu.CuLinkDestroy(*state)
	if r := s.gpu.CuLinkAddData_v2(*state, cuda.CU_JIT_INPUT_PTX, pointerTo(ptx), uint64(len(ptx)), nil, 0, nil, nil); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("the driver's linker: %w", r)
	}
	cubin, size := alloc[uintptr](&s.arena), alloc[uint64](&s.arena)
	if r := s.gpu.CuLinkComplete(*state, unsafe.Pointer(cubin), size); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("the driver's linker: %w", r)
	}
	return append([]byte(nil), driverBytes(*cubin, int(*size))...), nil
}
