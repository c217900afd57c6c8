package smi

import (
	"time"

	"scuda.dev/scuda/api/nvml"
)

func (d *Driver) NvmlEventSetCreate(to *nvml.NvmlEventSet) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.sets[d.next] = true
	*to = d.next
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlEventSetFree(set nvml.NvmlEventSet) nvml.NvmlReturn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.sets[set] {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	delete(d.sets, set)
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlDeviceGetSupportedEventTypes(dev nvml.NvmlDevice, to *uint64) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint64 { return 0 })
}

// wait answers as for a GPU on which nothing happens.
func (d *Driver) wait(set nvml.NvmlEventSet, data *nvml.NvmlEventData, ms uint32) nvml.NvmlReturn {
	d.mu.Lock()
	known := d.sets[set]
	d.mu.Unlock()
	if !known || data == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	time.Sleep(time.Duration(ms) * time.Millisecond)
	return nvml.NVML_ERROR_TIMEOUT
}

func (d *Driver) NvmlEventSetWait(set nvml.NvmlEventSet, data *nvml.NvmlEventData, ms uint32) nvml.NvmlReturn {
	return d.wait(set, data, ms)
}

func (d *Driver) NvmlEventSetWait_v2(set nvml.NvmlEventSet, data *nvml.NvmlEventData, ms uint32) nvml.NvmlReturn {
	return d.wait(set, data, ms)
}
