package smi

import "scuda.dev/scuda/api/nvml"

// none answers with an empty list of something that a device never has.
func (d *Driver) none(dev nvml.NvmlDevice, count *uint32, right bool) nvml.NvmlReturn {
	_, r := d.find(dev, count != nil && right)
	if r == nvml.NVML_SUCCESS {
		*count = 0
	}
	return r
}

// No process draws with a simulated GPU, and none shares it through MPS.

func (d *Driver) NvmlDeviceGetGraphicsRunningProcesses(dev nvml.NvmlDevice, count *uint32,
	_ *nvml.NvmlProcessInfo_v1) nvml.NvmlReturn {
	return d.none(dev, count, true)
}

func (d *Driver) NvmlDeviceGetGraphicsRunningProcesses_v2(dev nvml.NvmlDevice, count *uint32,
	_ *nvml.NvmlProcessInfo_v2) nvml.NvmlReturn {
	return d.none(dev, count, true)
}

func (d *Driver) NvmlDeviceGetGraphicsRunningProcesses_v3(dev nvml.NvmlDevice, count *uint32,
	_ *nvml.NvmlProcessInfo) nvml.NvmlReturn {
	return d.none(dev, count, true)
}

func (d *Driver) NvmlDeviceGetMPSComputeRunningProcesses(dev nvml.NvmlDevice, count *uint32,
	_ *nvml.NvmlProcessInfo_v1) nvml.NvmlReturn {
	return d.none(dev, count, true)
}

func (d *Driver) NvmlDeviceGetMPSComputeRunningProcesses_v2(dev nvml.NvmlDevice, count *uint32,
	_ *nvml.NvmlProcessInfo_v2) nvml.NvmlReturn {
	return d.none(dev, count, true)
}

func (d *Driver) NvmlDeviceGetMPSComputeRunningProcesses_v3(dev nvml.NvmlDevice, count *uint32,
	_ *nvml.NvmlProcessInfo) nvml.NvmlReturn {
	return d.none(dev, count, true)
}

// Accounting of processes is off, and cannot be switched on.

func (d *Driver) NvmlDeviceGetAccountingMode(dev nvml.NvmlDevice, to *nvml.NvmlEnableState) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlEnableState { return nvml.NVML_FEATURE_DISABLED })
}

func (d *Driver) NvmlDeviceGetAccountingBufferSize(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return 4000 })
}

func (d *Driver) NvmlDeviceGetAccountingPids(dev nvml.NvmlDevice, count *uint32, to *uint32) nvml.NvmlReturn {
	if _, r := d.find(dev, count != nil); r == nvml.NVML_SUCCESS && *count > 0 && to == nil {
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	return d.none(dev, count, true)
}
