package smi

import (
	"time"

	"scuda.dev/scuda/api/nvml"
)

// clockOf is the one value that a clock of the model has, 0 for a clock that it does not have.
func clockOf(g *Device, kind nvml.NvmlClockType) uint32 {
	switch kind {
	case nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_SM:
		return g.Clock
	case nvml.NVML_CLOCK_MEM:
		return g.MemoryClock
	}
	return 0
}

// clock answers for one of the clocks, and with wrong for what is none.
func (d *Driver) clock(dev nvml.NvmlDevice, kind nvml.NvmlClockType, to *uint32,
	wrong nvml.NvmlReturn) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	if kind == nvml.NVML_CLOCK_VIDEO {
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	mhz := clockOf(g, kind)
	if mhz == 0 {
		return wrong
	}
	*to = mhz
	return nvml.NVML_SUCCESS
}

// The driver calls a clock that there is not by two names.

func (d *Driver) NvmlDeviceGetClockInfo(dev nvml.NvmlDevice, kind nvml.NvmlClockType, to *uint32) nvml.NvmlReturn {
	return d.clock(dev, kind, to, nvml.NVML_ERROR_NOT_SUPPORTED)
}

func (d *Driver) NvmlDeviceGetMaxClockInfo(dev nvml.NvmlDevice, kind nvml.NvmlClockType, to *uint32) nvml.NvmlReturn {
	return d.clock(dev, kind, to, nvml.NVML_ERROR_INVALID_ARGUMENT)
}

// Programs may ask for the clocks that they chose, but cannot choose any: those are the clocks of the model.

func (d *Driver) NvmlDeviceGetApplicationsClock(dev nvml.NvmlDevice, kind nvml.NvmlClockType,
	to *uint32) nvml.NvmlReturn {
	return d.clock(dev, kind, to, nvml.NVML_ERROR_INVALID_ARGUMENT)
}

func (d *Driver) NvmlDeviceGetDefaultApplicationsClock(dev nvml.NvmlDevice, kind nvml.NvmlClockType,
	to *uint32) nvml.NvmlReturn {
	return d.clock(dev, kind, to, nvml.NVML_ERROR_INVALID_ARGUMENT)
}

func (d *Driver) NvmlDeviceGetMaxCustomerBoostClock(dev nvml.NvmlDevice, kind nvml.NvmlClockType,
	to *uint32) nvml.NvmlReturn {
	return d.clock(dev, kind, to, nvml.NVML_ERROR_INVALID_ARGUMENT)
}

func (d *Driver) NvmlDeviceGetClock(dev nvml.NvmlDevice, kind nvml.NvmlClockType, id nvml.NvmlClockId,
	to *uint32) nvml.NvmlReturn {
	if _, r := d.find(dev, to != nil); r == nvml.NVML_SUCCESS && (id < 0 || id >= nvml.NVML_CLOCK_ID_COUNT) {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	return d.clock(dev, kind, to, nvml.NVML_ERROR_NOT_SUPPORTED)
}

// No clock can be shifted: all offsets are 0, and so are their bounds.

func (d *Driver) NvmlDeviceGetGpcClkVfOffset(dev nvml.NvmlDevice, to *int32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) int32 { return 0 })
}

func (d *Driver) NvmlDeviceGetMemClkVfOffset(dev nvml.NvmlDevice, to *int32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) int32 { return 0 })
}

func (d *Driver) NvmlDeviceGetGpcClkMinMaxVfOffset(dev nvml.NvmlDevice, lowest, highest *int32) nvml.NvmlReturn {
	return store2(d, dev, lowest, highest, func(*Device) (int32, int32) { return 0, 0 })
}

func (d *Driver) NvmlDeviceGetMemClkMinMaxVfOffset(dev nvml.NvmlDevice, lowest, highest *int32) nvml.NvmlReturn {
	return store2(d, dev, lowest, highest, func(*Device) (int32, int32) { return 0, 0 })
}

func (d *Driver) NvmlDeviceGetClockOffsets(dev nvml.NvmlDevice, to *nvml.NvmlClockOffset) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	switch {
	case r != nvml.NVML_SUCCESS:
		return r
	case to.Version != version(24):
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	case clockOf(g, to.Type) == 0 || to.Pstate != nvml.NVML_PSTATE_0:
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	to.ClockOffsetMHz, to.MinClockOffsetMHz, to.MaxClockOffsetMHz = 0, 0, 0
	return r
}

// Nothing slows the clocks down: no reason for it holds, though a program may know all that an H200 names.

const clockReasons = 0x1ff // nvmlClocksEventReason…, one bit each

func (d *Driver) NvmlDeviceGetCurrentClocksEventReasons(dev nvml.NvmlDevice, to *uint64) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint64 { return 0 })
}

func (d *Driver) NvmlDeviceGetCurrentClocksThrottleReasons(dev nvml.NvmlDevice, to *uint64) nvml.NvmlReturn {
	return d.NvmlDeviceGetCurrentClocksEventReasons(dev, to)
}

func (d *Driver) NvmlDeviceGetSupportedClocksEventReasons(dev nvml.NvmlDevice, to *uint64) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint64 { return clockReasons })
}

func (d *Driver) NvmlDeviceGetSupportedClocksThrottleReasons(dev nvml.NvmlDevice, to *uint64) nvml.NvmlReturn {
	return d.NvmlDeviceGetSupportedClocksEventReasons(dev, to)
}

// NvmlDeviceGetViolationStatus answers for how long the clocks were held down: never.
func (d *Driver) NvmlDeviceGetViolationStatus(dev nvml.NvmlDevice, policy nvml.NvmlPerfPolicyType,
	to *nvml.NvmlViolationTime) nvml.NvmlReturn {
	if _, r := d.find(dev, to != nil); r == nvml.NVML_SUCCESS && (policy < 0 || policy >= nvml.NVML_PERF_POLICY_COUNT) {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	return store(d, dev, to, func(*Device) nvml.NvmlViolationTime {
		return nvml.NvmlViolationTime{ReferenceTime: uint64(time.Now().UnixMicro())}
	})
}
