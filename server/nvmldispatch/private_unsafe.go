package nvmldispatch

import (
	"encoding/binary"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

// PrivateTable is implemented by drivers that have the table of functions without names which nvidia-smi uses.
type PrivateTable interface {
	// ExportTableSize gives the bytes of the private table with that UUID, 0 where there is none.
	ExportTableSize(uuid [16]byte) uint64
	// CallTable calls the function in word slot of the table. The caller knows its parameters.
	CallTable(uuid [16]byte, slot int, args ...uint64) nvml.NvmlReturn
}

// smiTable is nvidia-smi's table. What its slots are was measured on a driver whose table has smiTableSize bytes; where
// it has another size nothing of it is called.
var smiTable = [16]byte{0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4}

const smiTableSize = 2160

// slotForm says what the parameters of a slot are.
type slotForm uint8

const (
	slotValue     slotForm = iota + 1 // device, uint32 *
	slotText                          // device, char *, length
	slotIndexText                     // index, char *, length
	slotProcesses                     // device, uint32 *count, entries
	slotSamples                       // device, uint64 since, uint32 *type, uint32 *count, samples
)

var slots = map[uint64]slotForm{72: slotValue, 81: slotIndexText, 145: slotSamples, 213: slotProcesses,
	214: slotProcesses, 215: slotProcesses,
	230: slotValue, 231: slotText, 232: slotValue, 237: slotText, 249: slotValue}

const (
	maxSlotText = 4096
	maxEntries  = 1024

	// An entry of a process list: pid at 0, numbers up to entryName, then the command line.
	entryName  = 32
	entryBytes = entryName + 4096

	// A sample of what processes used: its time in microseconds, then for each engine (multiprocessors, memory, encoder,
	// decoder and others) how much and, at samplePID, by whom.
	maxSamples    = 1024
	sampleEngines = 6
	sampleEngine  = 80
	samplePID     = 8
	sampleBytes   = 8 + sampleEngines*sampleEngine
)

// table answers what the front asks of private tables: (16, UUID) for the size of one, (16, UUID, slot, device or
// index, room, further numbers) for a call.
func (d *Dispatcher) table(req, reply []byte) (int32, int, error) {
	const name = "nvmlInternalGetExportTable"
	if len(req) != 24 && len(req) != 48 && len(req) != 56 || binary.LittleEndian.Uint64(req) != 16 || len(reply) < 8 {
		return 0, 0, malformed(name, "a request of %d bytes", len(req))
	}
	id := [16]byte(req[8:])
	size, table := uint64(0), PrivateTable(nil)
	if t, ok := d.drv.(PrivateTable); ok {
		size, table = t.ExportTableSize(id), t
	}
	if len(req) == 24 {
		if size == 0 {
			return int32(nvml.NVML_ERROR_NOT_FOUND), 0, nil
		}
		binary.LittleEndian.PutUint64(reply, size)
		return 0, 8, nil
	}
	slot, which, room := binary.LittleEndian.Uint64(req[24:]), binary.LittleEndian.Uint64(req[32:]),
		binary.LittleEndian.Uint64(req[40:])
	form := slots[slot]
	if form == 0 || room > maxSlotText || (form == slotSamples) != (len(req) == 56) {
		return 0, 0, malformed(name, "slot %d with room for %d", slot, room)
	}
	if size != smiTableSize || id != smiTable {
		return int32(nvml.NVML_ERROR_NOT_SUPPORTED), 0, nil
	}
	if form != slotIndexText {
		real, ok := d.toReal(nvml.KindDevice, which)
		if !ok {
			return int32(nvml.NVML_ERROR_INVALID_ARGUMENT), 0, nil
		}
		which = real
	}
	call := func(args ...uint64) nvml.NvmlReturn { return table.CallTable(id, int(slot), args...) }
	switch form {
	case slotValue:
		b, at := d.bytes(8)
		r := call(which, at)
		return slotReply(r, reply, b[:4])
	case slotProcesses:
		return d.slotProcesses(call, which, room, reply)
	case slotSamples:
		return d.slotSamples(call, which, binary.LittleEndian.Uint64(req[48:]), room, reply)
	default:
		b, at := d.bytes(int(room) + 1)
		r := call(which, at, room)
		return slotReply(r, reply, append([]byte(textOf(b[:room])), 0))
	}
}

// bytes gives n bytes for the driver, and their address.
func (d *Dispatcher) bytes(n int) ([]byte, uint64) {
	words := d.room((n + 7) / 8)
	p := unsafe.Pointer(&words[0])
	return unsafe.Slice((*byte)(p), n), uint64(uintptr(p))
}

func slotReply(r nvml.NvmlReturn, reply, data []byte) (int32, int, error) {
	if r != nvml.NVML_SUCCESS {
		return int32(r), 0, nil
	}
	n := 8 + (len(data)+7)&^7
	if n > len(reply) {
		return 0, 0, malformed("nvmlInternalGetExportTable", "the results need more than the %d bytes of a reply", len(reply))
	}
	clear(reply[8:n])
	binary.LittleEndian.PutUint64(reply, uint64(len(data)))
	copy(reply[8:], data)
	return 0, n, nil
}

// slotProcesses answers a list of processes: the count, then for each the numbers, the length of its command, and that.
func (d *Dispatcher) slotProcesses(
	call func(...uint64) nvml.NvmlReturn, device, room uint64, reply []byte,
) (int32, int, error) {
	room = min(room, maxEntries)
	b, address := d.bytes(8 + int(room)*entryBytes)
	count, entries := b[:4], b[8:]
	binary.LittleEndian.PutUint32(count, uint32(room))
	r := call(device, address, address+8)
	if r != nvml.NVML_SUCCESS && r != nvml.NVML_ERROR_INSUFFICIENT_SIZE {
		return int32(r), 0, nil
	}
	found := uint64(binary.LittleEndian.Uint32(count))
	at := 8
	if r != nvml.NVML_SUCCESS {
		binary.LittleEndian.PutUint64(reply, found)
		return int32(r), at, nil
	}
	entries = entries[:min(found, room)*entryBytes]
	processes := d.processes()
	kept := ownProcesses(processes, entries, entryBytes, 0)
	for e := range kept {
		entry := entries[e*entryBytes:]
		command := ""
		for _, p := range processes {
			if binary.LittleEndian.Uint32(entry) == p.Client {
				command = p.Program[:min(len(p.Program), entryBytes-entryName-1)]
			}
		}
		n := entryName + 8 + (len(command)+7)&^7
		if at+n > len(reply) {
			kept = e
			break
		}
		clear(reply[at : at+n])
		copy(reply[at:], entry[:entryName])
		binary.LittleEndian.PutUint64(reply[at+entryName:], uint64(len(command)))
		copy(reply[at+entryName+8:], command)
		at += n
	}
	binary.LittleEndian.PutUint64(reply, uint64(kept))
	return 0, at, nil
}

// slotSamples answers what processes used since a time: the count, the type of the values, the samples. Without room
// there is only the count.
func (d *Dispatcher) slotSamples(
	call func(...uint64) nvml.NvmlReturn, device, since, room uint64, reply []byte,
) (int32, int, error) {
	room = min(room, maxSamples)
	if len(reply) < 16+int(room)*sampleBytes {
		return 0, 0, malformed("nvmlInternalGetExportTable", "%d samples need more than the %d bytes of a reply", room,
			len(reply))
	}
	b, at := d.bytes(16 + int(room)*sampleBytes)
	kind, count, samples, to := b[:4], b[8:12], b[16:], at+16
	if room == 0 {
		to = 0
	}
	binary.LittleEndian.PutUint32(count, uint32(room))
	r := call(device, since, at, at+8, to)
	if r != nvml.NVML_SUCCESS && r != nvml.NVML_ERROR_INSUFFICIENT_SIZE {
		return int32(r), 0, nil
	}
	clear(reply[:16])
	copy(reply[8:], kind)
	copy(reply, count)
	if r != nvml.NVML_SUCCESS || room == 0 {
		return int32(r), 16, nil
	}
	found := min(uint64(binary.LittleEndian.Uint32(count)), room)
	samples = samples[:found*sampleBytes]
	processes := d.processes()
	for s := samples; len(s) != 0; s = s[sampleBytes:] {
		for engines := s[8:sampleBytes]; len(engines) != 0; engines = engines[sampleEngine:] { // each has its place
			ownProcesses(processes, engines[:sampleEngine], sampleEngine, samplePID)
		}
	}
	return int32(r), 16 + copy(reply[16:], samples), nil
}
