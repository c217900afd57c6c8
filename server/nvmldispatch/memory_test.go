package nvmldispatch

import (
	"encoding/binary"
	"testing"

	"scuda.dev/scuda/api/nvml"
)

// TestMemory asks a GPU of 2 GiB, of which the client may have less, as much, more, or all.
func TestMemory(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		memory            Memory
		total, free, used uint64
	}{
		{Memory{}, 2 * gib, 2 * gib, 0},
		{Memory{Limit: gib}, gib, gib, 0},
		{Memory{Limit: gib, Used: gib / 4}, gib, 3 * gib / 4, gib / 4},
		{Memory{Limit: gib, Used: 4 * gib}, gib, 0, gib}, // on several GPUs, or of several sessions
		{Memory{Limit: 2 * gib, Used: gib}, 2 * gib, 2 * gib, 0},
		{Memory{Limit: 3 * gib, Used: gib}, 2 * gib, 2 * gib, 0},
	} {
		d := open(t)
		d.Memory = func() Memory { return c.memory }
		d.Call(nvml.OpNvmlInitWithFlags, request(0), nil)
		d.Call(nvml.OpNvmlDeviceGetHandleByIndex_v2, request(1, 1), make([]byte, 64))
		ask := make([]byte, 40)
		copy(ask, u32(2<<24|40))
		for op, req := range map[uint16][]byte{
			nvml.OpNvmlDeviceGetMemoryInfo:    request(2, 1),
			nvml.OpNvmlDeviceGetMemoryInfo_v2: request(2, 40, ask),
		} {
			reply, at := make([]byte, 64), memoryInfos[op]
			if r, n, err := d.Call(op, req, reply); r != 0 || n < 32 || err != nil {
				t.Fatalf("operation %d: %d, %d bytes, %v", op, r, n, err)
			}
			figure := func(offset int) uint64 { return binary.LittleEndian.Uint64(reply[8+offset:]) }
			if figure(at.total) != c.total || figure(at.free) != c.free || figure(at.used) != c.used {
				t.Errorf("%+v, operation %d: %d in all, %d free, %d used; expected %d, %d, %d", c.memory, op,
					figure(at.total), figure(at.free), figure(at.used), c.total, c.free, c.used)
			}
		}
		d.Close()
	}
}
