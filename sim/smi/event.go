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

// NvmlDeviceRegisterEvents takes an empty list of events, as there are none.
func (d *Driver) NvmlDeviceRegisterEvents(dev nvml.NvmlDevice, events uint64, set nvml.NvmlEventSet) nvml.NvmlReturn {
	_, r := d.find(dev, true)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.sets[set]:
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	case events != 0:
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	return nvml.NVML_SUCCESS
}

// wait answers as for a GPU on which nothing happens.
func (d *Driver) wait(set nvml.NvmlEventSet, data bool, ms uint32) nvml.NvmlReturn {
	d.mu.Lock()
	known := d.sets[set]
	d.mu.Unlock()
	if !known || !data {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	time.Sleep(time.Duration(ms) * time.Millisecond)
	return nvml.NVML_ERROR_TIMEOUT
}

func (d *Driver) NvmlEventSetWait(set nvml.NvmlEventSet, data *nvml.NvmlEventData_v1, ms uint32) nvml.NvmlReturn {
	return d.wait(set, data != nil, ms)
}

func (d *Driver) NvmlEventSetWait_v2(set nvml.NvmlEventSet, data *nvml.NvmlEventData, ms uint32) nvml.NvmlReturn {
	return d.wait(set, data != nil, ms)
}

// version of a request of the first form that has so many bytes.
func version(bytes uint32) uint32 { return 1<<24 | bytes }

// system judges a request about events of the system, such as GPUs that are plugged in: its version, and whether its
// set is one.
func (d *Driver) system(got, bytes uint32, set *nvml.NvmlSystemEventSet) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if got != version(bytes) {
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if set != nil && !d.systemSets[*set] {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlSystemEventSetCreate(q *nvml.NvmlSystemEventSetCreateRequest) nvml.NvmlReturn {
	if q == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	if r := d.system(q.Version, 16, nil); r != nvml.NVML_SUCCESS {
		return r
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	q.Set = nvml.NvmlSystemEventSet(d.next)
	d.systemSets[q.Set] = true
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlSystemEventSetFree(q *nvml.NvmlSystemEventSetFreeRequest) nvml.NvmlReturn {
	if q == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	r := d.system(q.Version, 16, &q.Set)
	if r == nvml.NVML_SUCCESS {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.systemSets, q.Set)
	}
	return r
}

func (d *Driver) NvmlSystemRegisterEvents(q *nvml.NvmlSystemRegisterEventRequest) nvml.NvmlReturn {
	if q == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	return d.system(q.Version, 24, &q.Set)
}

func (d *Driver) NvmlSystemEventSetWait(q *nvml.NvmlSystemEventSetWaitRequest) nvml.NvmlReturn {
	if q == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	r := d.system(q.Version, 32, &q.Set)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	time.Sleep(time.Duration(q.Timeoutms) * time.Millisecond)
	return nvml.NVML_ERROR_TIMEOUT
}
