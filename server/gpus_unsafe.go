package server

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/driver/invoke"
	"scuda.dev/scuda/server/metrics"
)

// readGPUs asks NVML for what the metrics tell of the GPUs. What a GPU does not support is left out.
func (w *worker) readGPUs() (list gpuList) {
	fail := func(what string, r nvml.NvmlReturn) gpuList {
		return gpuList{Error: fmt.Sprintf("%s: %s", what, nvml.ResultName(r))}
	}
	d := w.nvml
	if d == nil {
		return gpuList{Error: "a worker without NVML was asked about GPUs"}
	}
	if r := d.NvmlInit_v2(); r != nvml.NVML_SUCCESS {
		return fail("nvmlInit_v2", r)
	}
	var n uint32
	if r := d.NvmlDeviceGetCount_v2(&n); r != nvml.NVML_SUCCESS {
		return fail("nvmlDeviceGetCount_v2", r)
	}
	for i := range n {
		var h nvml.NvmlDevice
		if r := d.NvmlDeviceGetHandleByIndex_v2(i, &h); r != nvml.NVML_SUCCESS {
			return fail("nvmlDeviceGetHandleByIndex_v2", r)
		}
		list.GPUs = append(list.GPUs, readGPU(d, h, int(i)))
		list.Users = append(list.Users, readUsers(d, h, int(i))...)
	}
	return list
}

func readGPU(d nvml.Driver, h nvml.NvmlDevice, index int) metrics.GPU {
	g := metrics.GPU{Index: index, Device: fmt.Sprintf("nvidia%d", index)}
	g.UUID = text(func(p unsafe.Pointer, n uint32) nvml.NvmlReturn { return d.NvmlDeviceGetUUID(h, p, n) })
	g.Model = text(func(p unsafe.Pointer, n uint32) nvml.NvmlReturn { return d.NvmlDeviceGetName(h, p, n) })
	var minor uint32
	if d.NvmlDeviceGetMinorNumber(h, &minor) == nvml.NVML_SUCCESS {
		g.Device = fmt.Sprintf("nvidia%d", minor)
	}
	var pci nvml.NvmlPciInfo
	if d.NvmlDeviceGetPciInfo_v3(h, &pci) == nvml.NVML_SUCCESS {
		g.PCI = string(bytes.TrimRight(pci.BusId[:], "\x00"))
	}
	value := func(r nvml.NvmlReturn, v, scale float64) *float64 {
		if r != nvml.NVML_SUCCESS {
			return nil
		}
		return new(v * scale)
	}
	var mem nvml.NvmlMemory
	r := d.NvmlDeviceGetMemoryInfo(h, &mem)
	g.MemoryUsed, g.MemoryTotal = value(r, float64(mem.Used), 1), value(r, float64(mem.Total), 1)
	var util nvml.NvmlUtilization
	r = d.NvmlDeviceGetUtilizationRates(h, &util)
	g.Utilization, g.MemoryBusy = value(r, float64(util.Gpu), 0.01), value(r, float64(util.Memory), 0.01)
	var milliwatts, celsius uint32
	r = d.NvmlDeviceGetPowerUsage(h, &milliwatts)
	g.PowerWatts = value(r, float64(milliwatts), 1e-3)
	r = d.NvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU, &celsius)
	g.TemperatureC = value(r, float64(celsius), 1)
	return g
}

// mostUsers is how many processes of a GPU are asked for.
const mostUsers = 8192

// readUsers asks which processes have memory of a GPU, and how much. A driver that does not say it has none.
func readUsers(d nvml.Driver, h nvml.NvmlDevice, index int) (list []gpuUser) {
	for room := 64; room <= mostUsers; room *= 2 {
		// In the heap, where it does not move. The count stands in the first one.
		users := make([]nvml.NvmlProcessInfo, room+1)
		n := &users[0].Pid
		*n = uint32(room)
		r := invoke.NVML(d, nvml.OpNvmlDeviceGetComputeRunningProcesses_v3, &nvml.Words{
			uint64(h), uint64(uintptr(unsafe.Pointer(n))), uint64(uintptr(unsafe.Pointer(&users[1]))),
		})
		if r == nvml.NVML_ERROR_INSUFFICIENT_SIZE {
			continue
		}
		if r == nvml.NVML_SUCCESS {
			for _, u := range users[1:][:min(int(*n), room)] {
				if u.UsedGpuMemory != notAvailable {
					list = append(list, gpuUser{index, int(u.Pid), u.UsedGpuMemory})
				}
			}
		}
		runtime.KeepAlive(users)
		break
	}
	return list
}

// notAvailable is NVML's word for a figure that it does not have.
const notAvailable = ^uint64(0)

// text asks for a string of at most 95 bytes.
func text(ask func(unsafe.Pointer, uint32) nvml.NvmlReturn) string {
	var b [96]byte
	if ask(unsafe.Pointer(&b), uint32(len(b))) != nvml.NVML_SUCCESS {
		return ""
	}
	s, _, _ := bytes.Cut(b[:], []byte{0})
	return string(s)
}
