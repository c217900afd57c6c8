package smi

import "scuda.dev/scuda/api/nvml"

// The engines for video and pictures, which do nothing: nothing here reaches them.

const samplingPeriod = 100_000 // µs

func (d *Driver) idleEngine(dev nvml.NvmlDevice, utilization, period *uint32) nvml.NvmlReturn {
	return store2(d, dev, utilization, period, func(*Device) (uint32, uint32) { return 0, samplingPeriod })
}

func (d *Driver) NvmlDeviceGetEncoderUtilization(dev nvml.NvmlDevice, utilization, period *uint32) nvml.NvmlReturn {
	return d.idleEngine(dev, utilization, period)
}

func (d *Driver) NvmlDeviceGetDecoderUtilization(dev nvml.NvmlDevice, utilization, period *uint32) nvml.NvmlReturn {
	return d.idleEngine(dev, utilization, period)
}

func (d *Driver) NvmlDeviceGetJpgUtilization(dev nvml.NvmlDevice, utilization, period *uint32) nvml.NvmlReturn {
	return d.idleEngine(dev, utilization, period)
}

func (d *Driver) NvmlDeviceGetOfaUtilization(dev nvml.NvmlDevice, utilization, period *uint32) nvml.NvmlReturn {
	return d.idleEngine(dev, utilization, period)
}

func (d *Driver) NvmlDeviceGetEncoderStats(dev nvml.NvmlDevice, sessions, fps, latency *uint32) nvml.NvmlReturn {
	if _, r := d.find(dev, latency != nil); r != nvml.NVML_SUCCESS {
		return r
	}
	r := store2(d, dev, sessions, fps, func(*Device) (uint32, uint32) { return 0, 0 })
	if r == nvml.NVML_SUCCESS {
		*latency = 0
	}
	return r
}

func (d *Driver) NvmlDeviceGetEncoderSessions(dev nvml.NvmlDevice, count *uint32,
	to *nvml.NvmlEncoderSessionInfo) nvml.NvmlReturn {
	return d.none(dev, count, to != nil || count != nil && *count == 0)
}

func (d *Driver) NvmlDeviceGetFBCSessions(dev nvml.NvmlDevice, count *uint32,
	to *nvml.NvmlFBCSessionInfo) nvml.NvmlReturn {
	return d.none(dev, count, to != nil || count != nil && *count == 0)
}

func (d *Driver) NvmlDeviceGetFBCStats(dev nvml.NvmlDevice, to *nvml.NvmlFBCStats) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlFBCStats { return nvml.NvmlFBCStats{} })
}
