package smi

import (
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

// users answers a list of the processes that use a device, in which convert makes the entries: as many as there is room
// for, or how many there are. to may be NULL where count says that it has no room.
func users[T any](d *Driver, dev nvml.NvmlDevice, count *uint32, to *T,
	convert func(pid uint32, used uint64) T) nvml.NvmlReturn {
	g, r := d.find(dev, count != nil)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	list := d.read(g).Users
	room := *count
	*count = uint32(len(list))
	if len(list) == 0 {
		return nvml.NVML_SUCCESS
	}
	if uint64(room) < uint64(len(list)) {
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	for i, u := range list {
		unsafe.Slice(to, len(list))[i] = convert(uint32(u.PID), u.Used)
	}
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlDeviceGetComputeRunningProcesses(dev nvml.NvmlDevice, count *uint32,
	to *nvml.NvmlProcessInfo_v1) nvml.NvmlReturn {
	return users(d, dev, count, to, func(pid uint32, used uint64) nvml.NvmlProcessInfo_v1 {
		return nvml.NvmlProcessInfo_v1{Pid: pid, UsedGpuMemory: used}
	})
}

const noInstance = ^uint32(0) // of a GPU that is not parted

func (d *Driver) NvmlDeviceGetComputeRunningProcesses_v2(dev nvml.NvmlDevice, count *uint32,
	to *nvml.NvmlProcessInfo_v2) nvml.NvmlReturn {
	return users(d, dev, count, to, func(pid uint32, used uint64) nvml.NvmlProcessInfo_v2 {
		return nvml.NvmlProcessInfo_v2{Pid: pid, UsedGpuMemory: used, GpuInstanceId: noInstance,
			ComputeInstanceId: noInstance}
	})
}

func (d *Driver) NvmlDeviceGetComputeRunningProcesses_v3(dev nvml.NvmlDevice, count *uint32,
	to *nvml.NvmlProcessInfo) nvml.NvmlReturn {
	return users(d, dev, count, to, func(pid uint32, used uint64) nvml.NvmlProcessInfo {
		return nvml.NvmlProcessInfo{Pid: pid, UsedGpuMemory: used, GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
	})
}
