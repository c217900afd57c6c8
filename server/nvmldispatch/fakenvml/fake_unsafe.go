// Package fakenvml is an NVML for tests: the simulated one, and made-up answers of every shape that travels in a way of
// its own.
package fakenvml

import (
	"unsafe"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/sim/smi"
)

// Driver is a machine whose first device processes 100 and 200 use.
type Driver struct {
	*smi.Driver
	Table uint64               // bytes of the private table whose UUID begins with 1
	Mode  nvml.NvmlComputeMode // set by a client
	Asked uint32               // pid that a client asked about
}

// SMITable is nvidia-smi's table.
var SMITable = [16]byte{0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4}

// The table's size, an entry of its process lists, and a sample of what processes used.
const (
	SMITableSize = 2160
	EntryName    = 32
	EntryBytes   = EntryName + 4096
	SampleBytes  = 488
)

// Unit is a text that a result points at; Text is one of an error.
var (
	Unit = []byte("%\x00")
	Text = []byte("a text of the server's\x00")
)

func (f *Driver) ExportTableSize(uuid [16]byte) uint64 {
	switch {
	case uuid[0] == 1:
		return f.Table
	case uuid == SMITable:
		return SMITableSize
	}
	return 0
}

// CallTable knows a value, a text, a list of processes and one sample of what they used.
func (f *Driver) CallTable(_ [16]byte, slot int, args ...uint64) nvml.NvmlReturn {
	to := func(i int) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&args[i])) }
	switch slot {
	case 72:
		*(*uint32)(to(1)) = uint32(args[0]) + 6
	case 231:
		copy(unsafe.Slice((*byte)(to(1)), args[2]), "part\x00")
	case 213:
		count := (*uint32)(to(1))
		if *count < 2 {
			*count = 2
			return nvml.NVML_ERROR_INSUFFICIENT_SIZE
		}
		*count = 2
		entries := unsafe.Slice((*byte)(to(2)), 2*EntryBytes)
		entries[0], entries[8], entries[EntryBytes] = 100, 1, 200
		copy(entries[EntryName:], "/proc/self/exe")
		copy(entries[EntryBytes+EntryName:], "x")
	case 145:
		count := (*uint32)(to(3))
		if *count == 0 {
			*count = 1
			return nvml.NVML_ERROR_INSUFFICIENT_SIZE
		}
		*(*uint32)(to(2)), *count = 1, 1
		sample := unsafe.Slice((*byte)(to(4)), SampleBytes)
		sample[0], sample[8], sample[16], sample[96] = byte(args[1])+1, 61, 100, 200
	default:
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlDeviceGetSupportedMemoryClocks(_ nvml.NvmlDevice, count, clocks *uint32) nvml.NvmlReturn {
	if count == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	if *count < 3 || clocks == nil {
		*count = 3
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	*count = 3
	copy(unsafe.Slice(clocks, 3), []uint32{30, 20, 10})
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlDeviceGetTopologyNearestGpus(
	_ nvml.NvmlDevice, _ nvml.NvmlGpuTopologyLevel, count *uint32, devices *nvml.NvmlDevice,
) nvml.NvmlReturn {
	if count == nil || *count < 2 || devices == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*count = 2
	copy(unsafe.Slice(devices, 2), []nvml.NvmlDevice{2, 0x7f0000001000}) // the second answers to no index, as a MIG device
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlEventSetWait_v2(set nvml.NvmlEventSet, data *nvml.NvmlEventData, _ uint32) nvml.NvmlReturn {
	if set == 0 || data == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	data.Device, data.EventType = 2, 8
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlErrorString(r nvml.NvmlReturn) unsafe.Pointer {
	if r != nvml.NVML_ERROR_IN_USE {
		return nil
	}
	return unsafe.Pointer(&Text[0])
}

func (f *Driver) NvmlDeviceSetComputeMode(_ nvml.NvmlDevice, mode nvml.NvmlComputeMode) nvml.NvmlReturn {
	f.Mode = mode
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlDeviceGetComputeRunningProcesses_v3(
	_ nvml.NvmlDevice, count *uint32, infos *nvml.NvmlProcessInfo,
) nvml.NvmlReturn {
	if count == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	if *count < 2 {
		*count = 2
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	*count = 2
	list := unsafe.Slice(infos, 2)
	list[0].Pid, list[1].Pid = 100, 200
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlDeviceGetProcessesUtilizationInfo(
	_ nvml.NvmlDevice, info *nvml.NvmlProcessesUtilizationInfo,
) nvml.NvmlReturn {
	if info == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	if info.ProcessSamplesCount < 2 || info.ProcUtilArray == 0 {
		info.ProcessSamplesCount = 2
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	info.ProcessSamplesCount = 2
	list := unsafe.Slice((*nvml.NvmlProcessUtilizationInfo_v1)(*(*unsafe.Pointer)(unsafe.Pointer(&info.ProcUtilArray))), 2)
	list[0].Pid, list[1].Pid, list[1].SmUtil = 200, 100, 55
	return nvml.NVML_SUCCESS
}

// NvmlSystemGetProcessName knows a name for every pid.
func (f *Driver) NvmlSystemGetProcessName(_ uint32, to unsafe.Pointer, length uint32) nvml.NvmlReturn {
	copy(unsafe.Slice((*byte)(to), length), "of the server\x00")
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlDeviceGetAccountingStats(
	_ nvml.NvmlDevice, pid uint32, _ *nvml.NvmlAccountingStats,
) nvml.NvmlReturn {
	f.Asked = pid
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlDeviceGetGpuInstances(
	_ nvml.NvmlDevice, _ uint32, instances *nvml.NvmlGpuInstance, count *uint32,
) nvml.NvmlReturn {
	if count == nil || instances == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*count = 2
	list := unsafe.Slice(instances, 2)
	list[0], list[1] = 0x1000, 0x2000
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlGpmSampleAlloc(to *nvml.NvmlGpmSample) nvml.NvmlReturn {
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*to = 0x7000
	return nvml.NVML_SUCCESS
}

func (f *Driver) NvmlGpmMetricsGet(get *nvml.NvmlGpmMetricsGet) nvml.NvmlReturn {
	if get.Version != 1 || get.Sample1 != 0x7000 {
		return nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	for i := range get.NumMetrics {
		m := &get.Metrics[i]
		m.Value = float64(m.MetricId) / 2
		if i == 1 {
			m.NvmlReturn = nvml.NVML_ERROR_NOT_SUPPORTED
			continue
		}
		m.MetricInfo.Unit = uintptr(unsafe.Pointer(&Unit[0]))
	}
	return nvml.NVML_SUCCESS
}

// NvmlDeviceReadPRMCounters_v1 counts a hundred on each port.
func (f *Driver) NvmlDeviceReadPRMCounters_v1(_ nvml.NvmlDevice, list *nvml.NvmlPRMCounterList_v1) nvml.NvmlReturn {
	if list == nil || list.Counters == 0 {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	counters := unsafe.Slice((*nvml.NvmlPRMCounter_v1)(*(*unsafe.Pointer)(unsafe.Pointer(&list.Counters))),
		list.NumCounters)
	for i := range counters {
		c := &counters[i]
		*(*uint64)(unsafe.Pointer(&c.OutputValue)) = uint64(c.CounterId + 100*c.LocalPort)
	}
	return nvml.NVML_SUCCESS
}

const metadataBytes = 140 // of a GPU's metadata: 16 of data

func (f *Driver) NvmlDeviceGetVgpuMetadata(
	_ nvml.NvmlDevice, to *nvml.NvmlVgpuPgpuMetadata, room *uint32,
) nvml.NvmlReturn {
	if room == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	have := *room
	*room = metadataBytes
	if have < metadataBytes || to == nil {
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	to.OpaqueDataSize = 16
	data := unsafe.Slice((*byte)(unsafe.Pointer(to)), metadataBytes)
	data[metadataBytes-1] = 77
	return nvml.NVML_SUCCESS
}

// NvmlGetVgpuCompatibility tells the last byte of the GPU's data.
func (f *Driver) NvmlGetVgpuCompatibility(
	_ *nvml.NvmlVgpuMetadata, gpu *nvml.NvmlVgpuPgpuMetadata, to *nvml.NvmlVgpuPgpuCompatibility,
) nvml.NvmlReturn {
	if gpu == nil || to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	data := unsafe.Slice((*byte)(unsafe.Pointer(gpu)), int(unsafe.Sizeof(*gpu))-4+int(gpu.OpaqueDataSize))
	to.VgpuVmCompatibility = nvml.NvmlVgpuVmCompatibility(data[len(data)-1])
	return nvml.NVML_SUCCESS
}
