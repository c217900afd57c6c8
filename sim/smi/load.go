package smi

import (
	"math"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/sim/board"
)

// What a simulated GPU cannot measure follows from its load by this model, with an H200's figures: the power goes with
// the load of the last moments from Device.IdlePower to Device.PowerLimit, and the temperature with that of the last
// minute from coolest to hottest. Clocks stay at their maximum, as they do on an H200 that is free to choose.
const (
	coolest, hottest = 30.0, 75.0 // °C
	shutdownAt       = 95         // °C, which the model does not reach
)

// read asks the board about a device.
func (d *Driver) read(g *Device) board.Reading {
	if d.cfg.Board == nil {
		return board.Reading{}
	}
	parts := max(d.cfg.Instances, 1)
	sum := d.cfg.Board.Read(g.index * parts)
	for i := 1; i < parts; i++ { // a GPU is as busy as its instances are on average
		r := d.cfg.Board.Read(g.index*parts + i)
		sum.Used += r.Used
		sum.Kernels, sum.Copies, sum.Heat = sum.Kernels+r.Kernels, sum.Copies+r.Copies, sum.Heat+r.Heat
		sum.Users = append(sum.Users, r.Users...)
	}
	n := float64(parts)
	sum.Kernels, sum.Copies, sum.Heat = sum.Kernels/n, sum.Copies/n, sum.Heat/n
	return sum
}

func percent(part float64) uint32 { return uint32(math.Round(100 * part)) }

// used is the memory that all processes have together. The simulation gives each of them the whole of it, so there may
// be more.
func (d *Driver) used(g *Device) uint64 { return min(d.read(g).Used, g.Memory) }

func (d *Driver) temperature(g *Device) uint32 {
	return uint32(math.Round(coolest + (hottest-coolest)*d.read(g).Heat))
}

func (d *Driver) NvmlDeviceGetMemoryInfo(dev nvml.NvmlDevice, to *nvml.NvmlMemory) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) nvml.NvmlMemory {
		used := d.used(g)
		return nvml.NvmlMemory{Total: g.Memory, Free: g.Memory - used, Used: used}
	})
}

func (d *Driver) NvmlDeviceGetMemoryInfo_v2(dev nvml.NvmlDevice, to *nvml.NvmlMemory_v2) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	if to.Version != 2<<24|40 {
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	to.Total, to.Reserved, to.Used = g.Memory, 0, d.used(g)
	to.Free = g.Memory - to.Used
	return r
}

func (d *Driver) NvmlDeviceGetUtilizationRates(dev nvml.NvmlDevice, to *nvml.NvmlUtilization) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) nvml.NvmlUtilization {
		r := d.read(g)
		return nvml.NvmlUtilization{Gpu: percent(r.Kernels), Memory: percent(r.Copies)}
	})
}

func (d *Driver) NvmlDeviceGetTemperature(dev nvml.NvmlDevice, sensor nvml.NvmlTemperatureSensors,
	to *uint32) nvml.NvmlReturn {
	if _, r := d.find(dev, to != nil); r == nvml.NVML_SUCCESS && sensor != nvml.NVML_TEMPERATURE_GPU {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	return store(d, dev, to, d.temperature)
}

func (d *Driver) NvmlDeviceGetTemperatureV(dev nvml.NvmlDevice, to *nvml.NvmlTemperature) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	switch {
	case r != nvml.NVML_SUCCESS:
		return r
	case to.Version != 1<<24|12:
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	case to.SensorType != nvml.NVML_TEMPERATURE_GPU:
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	to.Temperature = int32(d.temperature(g))
	return r
}

func (d *Driver) NvmlDeviceGetTemperatureThreshold(dev nvml.NvmlDevice, kind nvml.NvmlTemperatureThresholds,
	to *uint32) nvml.NvmlReturn {
	switch _, r := d.find(dev, to != nil); {
	case r != nvml.NVML_SUCCESS:
		return r
	case kind >= nvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	case kind != nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	return store(d, dev, to, func(*Device) uint32 { return shutdownAt })
}

func (d *Driver) NvmlDeviceGetPowerUsage(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) uint32 {
		return g.IdlePower + uint32(math.Round(float64(g.PowerLimit-g.IdlePower)*d.read(g).Kernels))
	})
}

func (d *Driver) NvmlDeviceGetPowerManagementMode(dev nvml.NvmlDevice, to *nvml.NvmlEnableState) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlEnableState { return nvml.NVML_FEATURE_ENABLED })
}

func (d *Driver) NvmlDeviceGetPowerManagementLimit(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) uint32 { return g.PowerLimit })
}

func (d *Driver) NvmlDeviceGetPowerManagementDefaultLimit(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.NvmlDeviceGetPowerManagementLimit(dev, to)
}

func (d *Driver) NvmlDeviceGetEnforcedPowerLimit(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.NvmlDeviceGetPowerManagementLimit(dev, to)
}

func (d *Driver) NvmlDeviceGetPerformanceState(dev nvml.NvmlDevice, to *nvml.NvmlPstates) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlPstates { return nvml.NVML_PSTATE_0 })
}

func (d *Driver) NvmlDeviceGetPowerState(dev nvml.NvmlDevice, to *nvml.NvmlPstates) nvml.NvmlReturn {
	return d.NvmlDeviceGetPerformanceState(dev, to)
}

func (d *Driver) NvmlDeviceGetPowerManagementLimitConstraints(dev nvml.NvmlDevice, lowest,
	highest *uint32) nvml.NvmlReturn {
	return store2(d, dev, lowest, highest, func(g *Device) (uint32, uint32) { return g.LeastLimit, g.PowerLimit })
}

// NvmlDeviceGetDynamicPstatesInfo answers how busy the parts of a GPU are, of which there are two.
func (d *Driver) NvmlDeviceGetDynamicPstatesInfo(dev nvml.NvmlDevice,
	to *nvml.NvmlGpuDynamicPstatesInfo) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) (info nvml.NvmlGpuDynamicPstatesInfo) {
		r := d.read(g)
		for i, part := range []float64{r.Kernels, r.Copies} { // NVML_GPU_UTILIZATION_DOMAIN_GPU, _FB
			info.Utilization[i].BIsPresent, info.Utilization[i].Percentage = 1, percent(part)
		}
		return info
	})
}

// NvmlDeviceGetThermalSettings knows one sensor, and describes it where it is asked for.
func (d *Driver) NvmlDeviceGetThermalSettings(dev nvml.NvmlDevice, sensor uint32,
	to *nvml.NvmlGpuThermalSettings) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	to.Count = 0
	const all = 15 // NVML_THERMAL_TARGET_ALL
	if sensor == 0 || sensor == all {
		to.Count = 1
		s := &to.Sensor[0]
		s.Controller, s.Target = nvml.NVML_THERMAL_CONTROLLER_GPU_INTERNAL, nvml.NVML_THERMAL_TARGET_GPU
		s.DefaultMinTemp, s.DefaultMaxTemp, s.CurrentTemp = 0, shutdownAt, int32(d.temperature(g))
	}
	return r
}
