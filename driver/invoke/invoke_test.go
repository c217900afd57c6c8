package invoke

import (
	"strings"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
)

// inner and outer are drivers one within the other: outer's methods stand before inner's.
type inner struct{ calls []string }

func (d *inner) CuInit(flags uint32) cuda.CUresult {
	d.calls = append(d.calls, "inner")
	return cuda.CUresult(flags)
}

func (d *inner) CuCtxSetLimit(limit cuda.CUlimit, v uint64) cuda.CUresult {
	if limit != -3 || v != 1<<40 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return cuda.CUDA_SUCCESS
}

func (d *inner) CuMemAlloc_v2(p *cuda.CUdeviceptr, n uint64) cuda.CUresult {
	*p = cuda.CUdeviceptr(n + 1)
	return cuda.CUDA_SUCCESS
}

func (d *inner) CuTexRefSetMipmapLevelClamp(_ cuda.CUtexref, low, high float32) cuda.CUresult {
	if low != 1.5 || high != -2.25 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return cuda.CUDA_SUCCESS
}

func (d *inner) CuIpcOpenMemHandle_v2(p *cuda.CUdeviceptr, h cuda.CUipcMemHandle_v1, flags uint32) cuda.CUresult {
	*p = cuda.CUdeviceptr(h.Reserved[0]) + cuda.CUdeviceptr(h.Reserved[63])<<8 + cuda.CUdeviceptr(flags)<<16
	return cuda.CUDA_SUCCESS
}

func (d *inner) CuMemAdvise_v2(
	p cuda.CUdeviceptr, n uint64, advice cuda.CUmem_advise, at cuda.CUmemLocation_v1,
) cuda.CUresult {
	if p != 1 || n != 2 || advice != 3 || at != (cuda.CUmemLocation_v1{Type: 4, Id: -5}) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return cuda.CUDA_SUCCESS
}

func (d *inner) CuMemsetD8_v2(_ cuda.CUdeviceptr, v uint8, _ uint64) cuda.CUresult {
	return cuda.CUresult(v)
}

type outer struct{ *inner }

func (d outer) CuInit(uint32) cuda.CUresult {
	d.calls = append(d.calls, "outer")
	return -1
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// kept are on the heap, where they do not move.
var (
	kept   cuda.CUdeviceptr
	handle cuda.CUipcMemHandle_v1
)

func TestArgumentsOfEveryForm(t *testing.T) {
	handle.Reserved[0], handle.Reserved[63] = 3, 4
	location := cuda.CUmemLocation_v1{Type: 4, Id: -5}
	for _, c := range []struct {
		name string
		op   uint16
		args cuda.Words
		want cuda.CUresult
		kept cuda.CUdeviceptr
	}{
		{name: "4 bytes", op: cuda.OpCuInit, args: cuda.Words{0xffff_ffff_0000_0007}, want: 7},
		{name: "1 byte", op: cuda.OpCuMemsetD8_v2, args: cuda.Words{0, 0x1ff}, want: 255},
		{name: "a negative enumerator", op: cuda.OpCuCtxSetLimit, args: cuda.Words{0xffff_fffd, 1 << 40}},
		{name: "an address", op: cuda.OpCuMemAlloc_v2, args: cuda.Words{address(&kept), 20}, kept: 21},
		{name: "floats", op: cuda.OpCuTexRefSetMipmapLevelClamp, args: cuda.Words{0, 0x3fc00000, 0xc0100000}},
		{name: "64 bytes by value", op: cuda.OpCuIpcOpenMemHandle_v2,
			args: cuda.Words{address(&kept), address(&handle), 5}, kept: 3 + 4<<8 + 5<<16},
		{name: "8 bytes by value", op: cuda.OpCuMemAdvise_v2,
			args: cuda.Words{1, 2, 3, *(*uint64)(unsafe.Pointer(&location))}},
		{name: "a function that is not there", op: cuda.OpCuCtxSynchronize, want: cuda.CUDA_ERROR_NOT_SUPPORTED},
		{name: "no function", op: 0, want: cuda.CUDA_ERROR_NOT_SUPPORTED},
		{name: "beyond all functions", op: 60000, want: cuda.CUDA_ERROR_NOT_SUPPORTED},
	} {
		kept = 0
		if r := CUDA(&inner{}, c.op, &c.args); r != c.want || kept != c.kept {
			t.Errorf("%s: %v, %#x", c.name, r, uint64(kept))
		}
	}
}

func TestOuterMethodsGoFirst(t *testing.T) {
	d := outer{&inner{}}
	if r := CUDA(d, cuda.OpCuInit, &cuda.Words{7}); r != -1 || strings.Join(d.calls, " ") != "outer" {
		t.Error(r, d.calls)
	}
	if r := CUDA(d, cuda.OpCuMemsetD8_v2, &cuda.Words{0, 9}); r != 9 {
		t.Error(r)
	}
}

// wrapper has a method of its own and a driver in an interface that has another.
type wrapper struct{ Hidden }

// Hidden is an interface with few of a driver's methods.
type Hidden interface{ CuInit(uint32) cuda.CUresult }

func (wrapper) CuCtxSetLimit(cuda.CUlimit, uint64) cuda.CUresult { return -2 }

func TestDriverWithinAnother(t *testing.T) {
	for _, c := range []struct {
		name   string
		driver any
		op     uint16
		want   cuda.CUresult
	}{
		{"of the interface", wrapper{outer{&inner{}}}, cuda.OpCuInit, -1},
		{"of the outer one", wrapper{outer{&inner{}}}, cuda.OpCuCtxSetLimit, -2},
		{"of the inner one", &wrapper{outer{&inner{}}}, cuda.OpCuMemsetD8_v2, 9},
		{"by words", wrapper{caller{}}, cuda.OpCuMemsetD8_v2, 10},
		{"of none", wrapper{outer{&inner{}}}, cuda.OpCuCtxSynchronize, cuda.CUDA_ERROR_NOT_SUPPORTED},
		{"nothing within", wrapper{}, cuda.OpCuMemsetD8_v2, cuda.CUDA_ERROR_NOT_SUPPORTED},
	} {
		if r := CUDA(c.driver, c.op, &cuda.Words{0, 9}); r != c.want {
			t.Errorf("%s: %v", c.name, r)
		}
	}
}

type caller struct{ Hidden }

func (caller) Call(_ uint16, args *cuda.Words) cuda.CUresult { return cuda.CUresult(args[1] + 1) }

type library struct{}

func (library) NvmlInit_v2() nvml.Return { return nvml.NVML_ERROR_IN_USE }

func TestNVML(t *testing.T) {
	if r := NVML(library{}, nvml.OpNvmlInit_v2, &nvml.Words{}); r != nvml.NVML_ERROR_IN_USE {
		t.Error(r)
	}
	if r := NVML(library{}, nvml.OpNvmlShutdown, &nvml.Words{}); r != nvml.NVML_ERROR_NOT_SUPPORTED {
		t.Error(r)
	}
}
