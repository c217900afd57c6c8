package nvmldispatch

import (
	"encoding/binary"

	"scuda.dev/scuda/api/nvml"
)

// memoryFields says where the answers about a GPU's memory have their figures: bytes from the structure's begin; -1
// where there is no such figure.
type memoryFields struct{ total, free, used, reserved int }

var memoryInfos = map[uint16]memoryFields{
	nvml.OpNvmlDeviceGetMemoryInfo:    {0, 8, 16, -1},
	nvml.OpNvmlDeviceGetMemoryInfo_v2: {8, 24, 32, 16},
}

// limitMemory answers as a GPU that has only what the client may have, as cuDeviceTotalMem and cuMemGetInfo do. A limit
// above what the GPU has changes nothing. The driver's own reserve lies outside of a smaller limit.
func (c *call) limitMemory(op uint16, status nvml.NvmlReturn) {
	at, ok := memoryInfos[op]
	if !ok || status != nvml.NVML_SUCCESS || c.d.Memory == nil || c.args.at[1] == nil {
		return
	}
	b, m := c.buf[1], c.d.Memory()
	if len(b) < at.used+8 {
		return // of a version without these figures
	}
	total := binary.LittleEndian.Uint64(b[at.total:])
	if m.Limit == 0 || m.Limit >= total {
		return
	}
	used := min(m.Used, m.Limit)
	free := min(m.Limit-used, binary.LittleEndian.Uint64(b[at.free:]))
	binary.LittleEndian.PutUint64(b[at.total:], m.Limit)
	binary.LittleEndian.PutUint64(b[at.free:], free)
	binary.LittleEndian.PutUint64(b[at.used:], m.Limit-free)
	if at.reserved >= 0 {
		binary.LittleEndian.PutUint64(b[at.reserved:], 0)
	}
}
