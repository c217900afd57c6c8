package smi

import (
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

// storeVersion answers a query whose structure begins with its version: fill writes the rest.
func storeVersion[T any](d *Driver, dev nvml.NvmlDevice, to *T, version uint32, fill func(*Device)) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	if *(*uint32)(unsafe.Pointer(to)) != version {
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	fill(g)
	return r
}

// array is the n elements at to.
func array[T any](to *T, n uint32) []T {
	if to == nil {
		return nil
	}
	return unsafe.Slice(to, n)
}
