package nvmldispatch

import (
	"errors"
	"slices"

	"scuda.dev/scuda/api/nvml"
)

const (
	maxHandles   = 1 << 12          // numbers of a kind; the front's handle space has as many
	firstDynamic = maxHandles/2 + 1 // device numbers below are NVML index + 1
)

// errTableFull ends a session that holds more objects of a kind than its table has numbers.
var errTableFull = errors.New("more NVML handles of one kind than a session may have")

// errHidden says that a handle is that of a GPU which the session does not see.
var errHidden = errors.New("a GPU of others")

// handles is a session's table of one kind: number to the driver's handle and back.
type handles struct {
	real map[uint64]uint64
	id   map[uint64]uint64
	next uint64
}

func newHandles() *handles {
	return &handles{real: map[uint64]uint64{}, id: map[uint64]uint64{}, next: 1}
}

func (h *handles) set(id, real uint64) {
	h.real[id], h.id[real] = real, id
}

func (h *handles) remove(id uint64) {
	delete(h.id, h.real[id])
	delete(h.real, id)
}

// mint gives real a number from first on.
func (h *handles) mint(real, first uint64) (uint64, error) {
	for range maxHandles {
		id := max(h.next, first)
		if h.next = id + 1; h.next == maxHandles {
			h.next = 1
		}
		if _, taken := h.real[id]; !taken {
			h.set(id, real)
			return id, nil
		}
	}
	return 0, errTableFull
}

// forget takes the driver's handle out of the table.
func (d *Dispatcher) forget(k nvml.Kind, real uint64) {
	h := d.handles[k]
	h.remove(h.id[real])
}

// toReal gives the driver's handle; false when the client has none of that number.
func (d *Dispatcher) toReal(k nvml.Kind, id uint64) (uint64, bool) {
	if id == 0 {
		return 0, true
	}
	if real, ok := d.handles[k].real[id]; ok {
		return real, true
	}
	if k != nvml.KindDevice || id >= firstDynamic {
		return 0, false
	}
	real, ok := d.byIndex(uint32(id - 1))
	if ok {
		d.handles[k].set(id, real)
	}
	return real, ok
}

// toWire gives the number of the driver's handle, a new one where it has none.
func (d *Dispatcher) toWire(k nvml.Kind, real uint64) (uint64, error) {
	if real == 0 {
		return 0, nil
	}
	h := d.handles[k]
	if id, ok := h.id[real]; ok {
		return id, nil
	}
	if k != nvml.KindDevice {
		return h.mint(real, 1)
	}
	if d.limited() {
		at := slices.Index(d.seen(), real) // it is there: see devicesToClient
		h.set(uint64(at)+1, real)
		return uint64(at) + 1, nil
	}
	var index uint32
	if d.drv.NvmlDeviceGetIndex(nvml.NvmlDevice(real), &index) == nvml.NVML_SUCCESS && index < firstDynamic-1 {
		if same, ok := d.byIndex(index); ok && same == real {
			h.set(uint64(index)+1, real)
			return uint64(index) + 1, nil
		}
	}
	return h.mint(real, firstDynamic)
}

func (d *Dispatcher) byIndex(index uint32) (uint64, bool) {
	if !d.limited() {
		return d.onMachine(index)
	}
	own := d.seen()
	if int(index) >= len(own) {
		return 0, false
	}
	return own[index], true
}

// onMachine gives the driver's handle of a GPU of the machine.
func (d *Dispatcher) onMachine(index uint32) (uint64, bool) {
	var dev nvml.NvmlDevice
	ok := d.drv.NvmlDeviceGetHandleByIndex_v2(index, &dev) == nvml.NVML_SUCCESS
	return uint64(dev), ok
}
