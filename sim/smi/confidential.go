package smi

import "scuda.dev/scuda/api/nvml"

// Confidential computing, which there is not: all of it is off.

func (d *Driver) NvmlSystemGetConfComputeCapabilities(to *nvml.NvmlConfComputeSystemCaps) nvml.NvmlReturn {
	return storeSystem(d, to, nvml.NvmlConfComputeSystemCaps{})
}

func (d *Driver) NvmlSystemGetConfComputeState(to *nvml.NvmlConfComputeSystemState) nvml.NvmlReturn {
	return storeSystem(d, to, nvml.NvmlConfComputeSystemState{})
}

func (d *Driver) NvmlSystemGetConfComputeGpusReadyState(to *uint32) nvml.NvmlReturn {
	return storeSystem(d, to, 0)
}

func (d *Driver) NvmlSystemGetConfComputeSettings(to *nvml.NvmlSystemConfComputeSettings) nvml.NvmlReturn {
	if to != nil && d.ready() == nvml.NVML_SUCCESS && to.Version != version(20) {
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return storeSystem(d, to, nvml.NvmlSystemConfComputeSettings{Version: version(20)})
}

func (d *Driver) NvmlDeviceGetConfComputeMemSizeInfo(dev nvml.NvmlDevice,
	to *nvml.NvmlConfComputeMemSizeInfo) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) nvml.NvmlConfComputeMemSizeInfo {
		return nvml.NvmlConfComputeMemSizeInfo{UnprotectedMemSizeKib: g.Memory >> 10}
	})
}

func (d *Driver) NvmlDeviceGetConfComputeProtectedMemoryUsage(dev nvml.NvmlDevice,
	to *nvml.NvmlMemory) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlMemory { return nvml.NvmlMemory{} })
}
