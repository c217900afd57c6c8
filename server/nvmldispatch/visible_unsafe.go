package nvmldispatch

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

// NVML shows all GPUs of a machine, whatever CUDA_VISIBLE_DEVICES says. A session that may see some of them alone gets
// indexes of its own, and no handle of another one. So no call can be about another one.

// limited says whether the session sees some of the GPUs only.
func (d *Dispatcher) limited() bool { return len(d.GPUs) > 0 }

// seen are the driver's handles of the GPUs that the session sees, in NVML's order.
func (d *Dispatcher) seen() []uint64 {
	if d.own != nil {
		return d.own
	}
	var count uint32
	if d.drv.NvmlDeviceGetCount_v2(&count) != nvml.NVML_SUCCESS {
		return nil
	}
	for i := range count {
		real, ok := d.onMachine(i)
		var text [96]byte
		if !ok || d.drv.NvmlDeviceGetUUID(nvml.NvmlDevice(real), unsafe.Pointer(&text), uint32(len(text))) !=
			nvml.NVML_SUCCESS {
			continue
		}
		uuid, _, _ := bytes.Cut(text[:], []byte{0})
		if slices.Contains(d.GPUs, string(uuid)) {
			d.own = append(d.own, real)
		}
	}
	return d.own
}

// indexToServer puts the machine's number in the place of the session's; false where there is no such GPU.
func (c *call) indexToServer(op uint16) bool {
	if !c.d.limited() || op != nvml.OpNvmlDeviceGetHandleByIndex && op != nvml.OpNvmlDeviceGetHandleByIndex_v2 {
		return true
	}
	own := c.d.seen()
	if uint64(uint32(c.args.word[0])) >= uint64(len(own)) {
		return len(own) == 0 // before nvmlInit the library says what is wrong
	}
	var index uint32
	if c.d.drv.NvmlDeviceGetIndex(nvml.NvmlDevice(own[uint32(c.args.word[0])]), &index) != nvml.NVML_SUCCESS {
		return false
	}
	c.args.word[0] = uint64(index)
	return true
}

// devicesToClient puts the session's numbers in the place of the machine's, and takes an answer back that names a GPU
// which the session does not see.
func (c *call) devicesToClient(op uint16, status nvml.NvmlReturn) nvml.NvmlReturn {
	if !c.d.limited() || status != nvml.NVML_SUCCESS {
		return status
	}
	own := c.d.seen()
	switch op {
	case nvml.OpNvmlDeviceGetCount, nvml.OpNvmlDeviceGetCount_v2:
		if len(c.buf[0]) >= 4 {
			binary.LittleEndian.PutUint32(c.buf[0], uint32(len(own)))
		}
	case nvml.OpNvmlDeviceGetIndex:
		if at := slices.Index(own, c.args.word[0]); at >= 0 && len(c.buf[1]) >= 4 {
			binary.LittleEndian.PutUint32(c.buf[1], uint32(at))
		}
	}
	for i := range c.f.params {
		p := &c.f.params[i]
		if p.dir != dirInOut && p.dir != dirOut {
			continue
		}
		n := c.n[i]
		if p.flags&countPointer != 0 {
			n = min(n, c.counted(p))
		}
		err := c.eachHandle(i, n, func(k nvml.Kind, b []byte) error {
			real := binary.LittleEndian.Uint64(b)
			if k == nvml.KindDevice && real != 0 && !slices.Contains(own, real) {
				return errHidden
			}
			return nil
		})
		if err != nil {
			return nvml.NVML_ERROR_NOT_FOUND
		}
	}
	return status
}
