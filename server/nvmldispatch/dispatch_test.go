package nvmldispatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand"
	"slices"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/server/nvmldispatch/fakenvml"
	"scuda.dev/scuda/sim/smi"
)

func open(t testing.TB) *Dispatcher {
	t.Helper()
	d, err := smi.Open(smi.Config{DriverVersion: "580.00", CUDAVersion: 13000, Devices: []smi.Device{
		{Name: "first", Bus: 3, Memory: 1 << 30, Major: 9}, {Name: "second", Bus: 4, Memory: 2 << 30, Major: 9}}})
	if err != nil {
		t.Fatal(err)
	}
	return New(&fakenvml.Driver{Driver: d, Table: 2400}, Options{})
}

// request builds payloads: numbers are words, byte slices padded data.
func request(parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = binary.LittleEndian.AppendUint64(b, uint64(p))
		case []byte:
			b = append(b, p...)
			b = append(b, make([]byte, -len(p)&7)...)
		case string:
			b = append(b, p...)
			b = append(b, make([]byte, -len(p)&7)...)
		}
	}
	return b
}

func u32(v ...uint32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func TestCall(t *testing.T) {
	memory := make([]byte, 40)
	copy(memory, u32(2<<24|40))
	told := slices.Clone(memory)
	binary.LittleEndian.PutUint64(told[8:], 2<<30)
	binary.LittleEndian.PutUint64(told[24:], 2<<30)
	event := make([]byte, 32)
	event[0], event[8] = 2, 8
	tests := []struct {
		name   string
		op     uint16
		req    []byte
		result nvml.NvmlReturn
		reply  []byte
	}{
		{"count", nvml.OpNvmlDeviceGetCount_v2, request(1), 0, request(1, u32(2))},
		{"count to nowhere", nvml.OpNvmlDeviceGetCount_v2, request(0), nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"handle", nvml.OpNvmlDeviceGetHandleByIndex_v2, request(1, 1), 0, request(1, 2)},
		{"name ends at its NUL", nvml.OpNvmlDeviceGetName, request(1, 64, 64), 0, request(6, "first\x00")},
		{"device number without asking for the handle", nvml.OpNvmlDeviceGetName, request(2, 64, 64), 0,
			request(7, "second\x00")},
		{"unknown device", nvml.OpNvmlDeviceGetName, request(3, 64, 64), nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"no room", nvml.OpNvmlDeviceGetName, request(1, -1<<63, 0), nvml.NVML_ERROR_INSUFFICIENT_SIZE, nil},
		{"nowhere", nvml.OpNvmlDeviceGetName, request(1, 0, 0), nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"short buffer", nvml.OpNvmlDeviceGetName, request(1, 3, 3), nvml.NVML_ERROR_INSUFFICIENT_SIZE, nil},
		{"string", nvml.OpNvmlDeviceGetHandleByPciBusId_v2, request(17, "00000000:04:00.0\x00", 1), 0, request(1, 2)},
		{"versioned", nvml.OpNvmlDeviceGetMemoryInfo_v2, request(2, 40, memory), 0, request(40, told)},
		{"version without a size", nvml.OpNvmlDeviceGetMemoryInfo_v2, request(2, 4, u32(7<<24|1)),
			nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nil},
		{"array", nvml.OpNvmlDeviceGetSupportedMemoryClocks, request(1, 1, u32(5), 5), 0,
			request(1, u32(3), 3, u32(30, 20, 10))},
		{"how long the array is", nvml.OpNvmlDeviceGetSupportedMemoryClocks, request(1, 1, u32(0), 0),
			nvml.NVML_ERROR_INSUFFICIENT_SIZE, request(1, u32(3))},
		{"array of handles", nvml.OpNvmlDeviceGetTopologyNearestGpus, request(1, 10, 1, u32(2), 2), 0,
			request(1, u32(2), 2, 2, firstDynamic)},
		{"event set", nvml.OpNvmlEventSetCreate, request(1), 0, request(1, 1)},
		{"handle in a structure", nvml.OpNvmlEventSetWait_v2, request(1, 1, 0), 0, request(1, event)},
		{"free", nvml.OpNvmlEventSetFree, request(1), 0, nil},
		{"freed", nvml.OpNvmlEventSetFree, request(1), nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"system's event set", nvml.OpNvmlSystemEventSetCreate, request(16, u32(1<<24|16, 0, 0, 0)), 0,
			request(16, u32(1<<24|16, 0, 1, 0))},
		{"free within a structure", nvml.OpNvmlSystemEventSetFree, request(16, u32(1<<24|16, 0, 1, 0)), 0, nil},
		{"freed within a structure", nvml.OpNvmlSystemEventSetFree, request(16, u32(1<<24|16, 0, 1, 0)),
			nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"array behind a structure goes there and back", nvml.OpNvmlDeviceReadPRMCounters_v1,
			request(1, 16, u32(1, 0, 0, 0), 1, u32(7, 2, 0, 0, 0, 0)), 0,
			request(16, u32(1, 0, 0, 0), 1, u32(7, 2, 0, 0, 207, 0))},
		{"no array", nvml.OpNvmlDeviceReadPRMCounters_v1, request(1, 16, u32(1, 0, 0, 0), 0),
			nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"table size", nvml.OpNvmlInternalGetExportTable, request(16, append([]byte{1}, make([]byte, 15)...)), 0,
			request(2400)},
		{"unknown table", nvml.OpNvmlInternalGetExportTable, request(16, make([]byte, 16)), nvml.NVML_ERROR_NOT_FOUND, nil},
	}
	d := open(t)
	defer d.Close()
	if r, _, err := d.Call(nvml.OpNvmlInitWithFlags, request(0), nil); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	reply := make([]byte, 1<<20)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n, err := d.Call(tt.op, tt.req, reply)
			if err != nil || r != int32(tt.result) || !bytes.Equal(reply[:n], tt.reply) {
				t.Errorf("result %d, reply %x, %v; want %d, %x", r, reply[:n], err, tt.result, tt.reply)
			}
		})
	}
}

// A session that may see one GPU finds that alone, under a number of its own, whatever it asks by.
func TestVisible(t *testing.T) {
	drv, err := smi.Open(smi.Config{DriverVersion: "580.00", CUDAVersion: 13000, Devices: []smi.Device{
		{Name: "first", Bus: 3, UUID: [16]byte{1}}, {Name: "second", Bus: 4, UUID: [16]byte{2}},
		{Name: "third", Bus: 5, UUID: [16]byte{3}}}})
	if err != nil {
		t.Fatal(err)
	}
	uuid := func(n string) string { return "GPU-" + n + "000000-0000-0000-0000-000000000000" }
	d := New(&fakenvml.Driver{Driver: drv, Table: 2400}, Options{GPUs: []string{uuid("03"), uuid("02")}})
	defer d.Close()
	reply := make([]byte, 1<<16)
	if r, _, err := d.Call(nvml.OpNvmlDeviceGetCount_v2, request(1), reply); err != nil ||
		r != int32(nvml.NVML_ERROR_UNINITIALIZED) {
		t.Errorf("before nvmlInit: %d, %v", r, err)
	}
	if r, _, err := d.Call(nvml.OpNvmlInitWithFlags, request(0), nil); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	text := func(s string) []byte { return request(len(s)+1, append([]byte(s), 0), 1) }
	for name, c := range map[string]struct {
		op     uint16
		req    []byte
		result nvml.NvmlReturn
		reply  []byte
	}{
		"count":            {nvml.OpNvmlDeviceGetCount_v2, request(1), 0, request(1, u32(2))},
		"first":            {nvml.OpNvmlDeviceGetHandleByIndex_v2, request(0, 1), 0, request(1, 1)},
		"second":           {nvml.OpNvmlDeviceGetHandleByIndex_v2, request(1, 1), 0, request(1, 2)},
		"beyond":           {nvml.OpNvmlDeviceGetHandleByIndex_v2, request(2, 1), nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		"name":             {nvml.OpNvmlDeviceGetName, request(1, 64, 64), 0, request(7, "second\x00")},
		"name of the last": {nvml.OpNvmlDeviceGetName, request(2, 64, 64), 0, request(6, "third\x00")},
		"no third":         {nvml.OpNvmlDeviceGetName, request(3, 64, 64), nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		"index":            {nvml.OpNvmlDeviceGetIndex, request(2, 1), 0, request(1, u32(1))},
		"by UUID":          {nvml.OpNvmlDeviceGetHandleByUUID, text(uuid("03")), 0, request(1, 2)},
		"other's UUID":     {nvml.OpNvmlDeviceGetHandleByUUID, text(uuid("01")), nvml.NVML_ERROR_NOT_FOUND, nil},
		"by address":       {nvml.OpNvmlDeviceGetHandleByPciBusId_v2, text("00000000:04:00.0"), 0, request(1, 1)},
		"other's address": {nvml.OpNvmlDeviceGetHandleByPciBusId_v2, text("00000000:03:00.0"),
			nvml.NVML_ERROR_NOT_FOUND, nil},
		"list with others": {nvml.OpNvmlDeviceGetTopologyNearestGpus, request(1, 10, 1, u32(2), 2),
			nvml.NVML_ERROR_NOT_FOUND, nil},
	} {
		r, n, err := d.Call(c.op, c.req, reply)
		if err != nil || r != int32(c.result) || !bytes.Equal(reply[:n], c.reply) {
			t.Errorf("%s: result %d, reply %x, %v; want %d, %x", name, r, reply[:n], err, c.result, c.reply)
		}
	}
}

func TestMalformed(t *testing.T) {
	tests := []struct {
		name string
		op   uint16
		req  []byte
	}{
		{"operation 0", 0, nil},
		{"operation beyond", 60000, nil},
		{"setter", nvml.OpNvmlInternalGetExportTable + 1, nil},
		{"empty", nvml.OpNvmlDeviceGetName, nil},
		{"too long", nvml.OpNvmlDeviceGetCount_v2, request(1, 1)},
		{"more room claimed than counted", nvml.OpNvmlDeviceGetName, request(1, 64, 65)},
		{"less room than counted", nvml.OpNvmlDeviceGetName, request(1, 64, 1024)},
		{"less room than counted through a pointer", nvml.OpNvmlDeviceGetSupportedMemoryClocks, request(1, 1, u32(1000), 1)},
		{"two structures", nvml.OpNvmlDeviceGetMemoryInfo, request(1, 2)},
		{"huge array", nvml.OpNvmlDeviceGetSupportedMemoryClocks, request(1, 1, u32(0xffffffff), 1<<40)},
		{"structure shorter than its version", nvml.OpNvmlDeviceGetMemoryInfo_v2, request(1, 8, u32(2<<24|40, 0))},
		{"string without end", nvml.OpNvmlDeviceGetHandleByPciBusId_v2, request(3, "abc", 1)},
		{"data missing", nvml.OpNvmlDeviceGetHandleByPciBusId_v2, request(300, "abc")},
		{"array behind a structure missing", nvml.OpNvmlDeviceReadPRMCounters_v1,
			request(1, 16, u32(2, 0, 0, 0), 2, u32(7, 2, 0, 0, 0, 0))},
		{"array behind a structure of another length", nvml.OpNvmlDeviceReadPRMCounters_v1,
			request(1, 16, u32(2, 0, 0, 0), 1, u32(7, 2, 0, 0, 0, 0))},
		{"array behind half a structure", nvml.OpNvmlDeviceReadPRMCounters_v1,
			request(1, 8, u32(1, 0), 1, u32(7, 2, 0, 0, 0, 0))},
		{"shorter than its data", nvml.OpNvmlGetVgpuCompatibility,
			request(212, slices.Concat(make([]byte, 204), u32(64, 0)), 128, make([]byte, 128), 1)},
		{"half a UUID", nvml.OpNvmlInternalGetExportTable, request(8, "12345678")},
	}
	d := open(t)
	defer d.Close()
	d.Call(nvml.OpNvmlInitWithFlags, request(0), nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := d.Call(tt.op, tt.req, make([]byte, 4096)); !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v, want ErrMalformed", err)
			}
		})
	}
}

func TestCloseShutsDown(t *testing.T) {
	d := open(t)
	for range 3 {
		d.Call(nvml.OpNvmlInitWithFlags, request(0), nil)
	}
	d.Close()
	if r := d.drv.NvmlShutdown(); r != nvml.NVML_ERROR_UNINITIALIZED {
		t.Errorf("after Close the driver answers %v to nvmlShutdown", r)
	}
}

func TestHandleTableIsBounded(t *testing.T) {
	h := newHandles()
	seen := map[uint64]bool{}
	for real := uint64(1); ; real++ {
		id, err := h.mint(real<<12, 1)
		if err != nil {
			break
		}
		if id == 0 || id >= maxHandles || seen[id] {
			t.Fatalf("number %d is out of range or taken", id)
		}
		seen[id] = true
	}
	if len(seen) != maxHandles-1 {
		t.Errorf("%d numbers, want %d", len(seen), maxHandles-1)
	}
	h.remove(77)
	if id, err := h.mint(1, 1); id != 77 || err != nil {
		t.Errorf("the freed number is not used again: %d, %v", id, err)
	}
}

// TestEveryOperation calls each with NULL for every pointer and with random bytes; none may crash.
func TestEveryOperation(t *testing.T) {
	d := open(t)
	defer d.Close()
	rnd := rand.New(rand.NewSource(1))
	calls := 0
	for op, f := range functions {
		if f.name == "" {
			continue
		}
		calls++
		var req []byte
		for range f.params {
			req = append(req, make([]byte, 8)...)
		}
		if _, _, err := d.Call(uint16(op), req, make([]byte, 1<<16)); err != nil {
			t.Errorf("%s with zeros: %v", f.name, err)
		}
		noise := make([]byte, rnd.Intn(256))
		rnd.Read(noise)
		d.Call(uint16(op), noise, make([]byte, 1<<16))
	}
	if calls < 230 {
		t.Errorf("only %d operations are in the table", calls)
	}
}

func FuzzCall(f *testing.F) {
	f.Add(nvml.OpNvmlDeviceGetName, request(1, 64, 64))
	f.Add(nvml.OpNvmlDeviceGetFieldValues, request(1, 1, 1, make([]byte, 40)))
	f.Add(nvml.OpNvmlDeviceGetMemoryInfo_v2, request(1, 40, make([]byte, 40)))
	d := open(f)
	d.Call(nvml.OpNvmlInitWithFlags, request(0), nil)
	reply := make([]byte, 1<<20)
	f.Fuzz(func(t *testing.T, op uint16, req []byte) {
		op %= uint16(len(functions))
		if op == nvml.OpNvmlEventSetWait {
			return // waits as long as it is told
		}
		_, n, err := d.Call(op, req, reply)
		if err == nil && n > len(reply) {
			t.Errorf("reply of %d bytes", n)
		}
	})
}
