package sim

import (
	"testing"

	"scuda.dev/scuda/api/cuda"
)

func TestVirtualMemory(t *testing.T) {
	m := open(t, Config{})
	prop := cuda.CUmemAllocationProp{Type: cuda.CU_MEM_ALLOCATION_TYPE_PINNED}
	prop.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	var unit uint64
	m.must(m.CuMemGetAllocationGranularity(&unit, &prop, cuda.CU_MEM_ALLOC_GRANULARITY_MINIMUM))

	// At a fixed address, which is free, and somewhere.
	const fixed = cuda.CUdeviceptr(0x6f0000000000)
	var at, any cuda.CUdeviceptr
	m.must(m.CuMemAddressReserve(&at, 2*unit, 0, fixed, 0))
	if at != fixed {
		t.Errorf("reserved at %#x", at)
	}
	m.must(m.CuMemAddressReserve(&any, unit, 0, fixed, 0))
	if any == fixed || uint64(any)%unit != 0 {
		t.Errorf("reserved at %#x, which is taken", any)
	}
	var h cuda.CUmemGenericAllocationHandle
	m.must(m.CuMemCreate(&h, 2*unit, &prop, 0))
	m.must(m.CuMemMap(at, unit, unit, h, 0))
	m.must(m.CuMemMap(at+cuda.CUdeviceptr(unit), unit, 0, h, 0))
	m.must(m.CuMemMap(any, unit, 0, h, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemMap(any, unit, 0, h, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemMap(any+cuda.CUdeviceptr(unit), unit, 0, h, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemsetD8_v2(at, 0, 1)) // no access yet
	access := cuda.CUmemAccessDesc{Flags: cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE}
	access.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	m.must(m.CuMemSetAccess(at, 2*unit, &access, 1))
	m.must(m.CuMemSetAccess(any, unit, &access, 1))
	m.must(m.CuMemRelease(h)) // lives on in its mappings

	// One copy across both mappings; the same memory at another address.
	m.must(m.CuMemsetD8_v2(at, 3, 2*unit))
	m.must(m.CuMemsetD8_v2(at+cuda.CUdeviceptr(unit), 4, unit))
	if a, b := m.download(at, 1)[0], m.download(any, 1)[0]; a != 3 || b != 4 {
		t.Errorf("got %d and %d", a, b)
	}
	// Kernels reach it, too.
	m.must(m.launchOn(0, m.kernel(m.module(), "fault"), 1, 1, 0, any))
	if got := m.download(at+cuda.CUdeviceptr(unit), 4)[0]; got != 1 {
		t.Errorf("a kernel wrote %d", got)
	}
	var free uint64
	m.must(m.CuMemGetInfo_v2(&free, nil))
	if used := testMemory - free; used < 2*unit {
		t.Errorf("%d bytes used", used)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemUnmap(at, unit/2))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemAddressFree(at, 2*unit))
	m.must(m.CuMemUnmap(at, 2*unit))
	m.must(m.CuMemUnmap(any, unit))
	m.must(m.CuMemAddressFree(at, 2*unit))
	m.must(m.CuMemAddressFree(any, unit))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemAddressFree(any, unit))
	before := free
	m.must(m.CuMemGetInfo_v2(&free, nil))
	if free != before+2*unit {
		t.Errorf("%d bytes came back", free-before)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemRelease(h))
	m.want(cuda.CUDA_ERROR_OUT_OF_MEMORY, m.CuMemCreate(&h, 2*testMemory, &prop, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemCreate(&h, unit+1, &prop, 0))
}

// TestForgottenMappings: Close frees what the program left mapped, which goleak and open's clean-up see.
func TestForgottenMappings(t *testing.T) {
	m := open(t, Config{})
	prop := cuda.CUmemAllocationProp{Type: cuda.CU_MEM_ALLOCATION_TYPE_PINNED}
	prop.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	var p cuda.CUdeviceptr
	var h cuda.CUmemGenericAllocationHandle
	m.must(m.CuMemAddressReserve(&p, vmmGranularity, 0, 0, 0))
	m.must(m.CuMemCreate(&h, vmmGranularity, &prop, 0))
	m.must(m.CuMemMap(p, vmmGranularity, 0, h, 0))
}

func TestPools(t *testing.T) {
	m := open(t, Config{})
	s := m.stream(cuda.CU_STREAM_NON_BLOCKING)
	var p cuda.CUdeviceptr
	m.must(m.CuMemAllocAsync(&p, 4096, s))
	m.must(m.CuMemsetD8Async(p, 1, 4096, s))
	m.must(m.CuMemFreeAsync(p, s))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemFreeAsync(p, s))
	m.must(m.CuStreamSynchronize(s))
	var free uint64
	m.must(m.CuMemGetInfo_v2(&free, nil))
	if free != testMemory {
		t.Errorf("%d bytes free", free)
	}
	// An allocation that does not fit waits for a free that is on its way.
	m.must(m.CuMemAllocAsync(&p, testMemory, s))
	openIt := m.gate(s)
	m.must(m.CuMemFreeAsync(p, s))
	openIt()
	m.must(m.CuMemAllocAsync(&p, testMemory, s))
	m.want(cuda.CUDA_ERROR_OUT_OF_MEMORY, m.CuMemAllocAsync(&p, 1, s))

	var pool cuda.CUmemoryPool
	m.must(m.CuDeviceGetDefaultMemPool(&pool, 0))
	v := m.pageable(8)
	as[uint64](v)[0] = 12345
	m.must(m.CuMemPoolSetAttribute(pool, cuda.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, pointerTo(v)))
	clear(v)
	m.must(m.CuMemPoolGetAttribute(pool, cuda.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, pointerTo(v)))
	if as[uint64](v)[0] != 12345 {
		t.Errorf("threshold %d", as[uint64](v)[0])
	}
	m.must(m.CuMemPoolGetAttribute(pool, cuda.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pointerTo(v)))
	if as[uint64](v)[0] != testMemory {
		t.Errorf("%d bytes used", as[uint64](v)[0])
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemPoolSetAttribute(pool, cuda.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
		pointerTo(v)))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemPoolDestroy(pool))
}

func TestPointerAttributes(t *testing.T) {
	m := open(t, Config{Devices: 2})
	dev, host, plain := m.alloc(1000), m.pinned(100), m.pageable(100)
	out := m.pageable(16)
	for _, c := range []struct {
		name string
		attr cuda.CUpointer_attribute
		ptr  uint64
		want uint64
		r    cuda.CUresult
	}{
		{"type", cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, uint64(dev) + 3, 2, ok},
		{"type of host memory", cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addressOfBytes(host), 1, ok},
		{"type of other memory", cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addressOfBytes(plain), 0,
			cuda.CUDA_ERROR_INVALID_VALUE},
		{"context", cuda.CU_POINTER_ATTRIBUTE_CONTEXT, uint64(dev), uint64(m.ctx), ok},
		{"device", cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, uint64(dev), 0, ok},
		{"start", cuda.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, uint64(dev) + 999, uint64(dev), ok},
		{"size", cuda.CU_POINTER_ATTRIBUTE_RANGE_SIZE, uint64(dev), 1000, ok},
		{"host pointer", cuda.CU_POINTER_ATTRIBUTE_HOST_POINTER, addressOfBytes(host) + 4, addressOfBytes(host) + 4, ok},
		{"host pointer of device memory", cuda.CU_POINTER_ATTRIBUTE_HOST_POINTER, uint64(dev), 0,
			cuda.CUDA_ERROR_INVALID_VALUE},
		{"managed", cuda.CU_POINTER_ATTRIBUTE_IS_MANAGED, uint64(dev), 0, ok},
		{"unknown attribute", 99, uint64(dev), 0, cuda.CUDA_ERROR_INVALID_VALUE},
	} {
		clear(out)
		r := m.CuPointerGetAttribute(pointerTo(out), c.attr, cuda.CUdeviceptr(c.ptr))
		if got := as[uint64](out)[0]; r != c.r || got != c.want {
			t.Errorf("%s: %d %v, want %d %v", c.name, got, r, c.want, c.r)
		}
	}
	// The plural form answers for any memory.
	attrs := []cuda.CUpointer_attribute{cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL}
	as[uint32](out)[0], as[uint32](out)[2] = 7, 7
	table := as[uint64](m.pageable(16))
	table[0], table[1] = addressOfBytes(out), addressOfBytes(out[8:])
	m.must(m.CuPointerGetAttributes(2, &attrs[0], pointerOf(table), cuda.CUdeviceptr(addressOfBytes(plain))))
	if got := as[int32](out); got[0] != 0 || got[2] != -2 {
		t.Errorf("unknown memory: type %d device %d", got[0], got[2])
	}
}
