package nvmldispatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/server/nvmldispatch/fakenvml"
	"scuda.dev/scuda/sim/smi"
)

func openBusy(t *testing.T, settings bool) (*Dispatcher, *fakenvml.Driver, *bytes.Buffer) {
	t.Helper()
	drv, err := smi.Open(smi.Config{
		DriverVersion: "580.00", CUDAVersion: 13000,
		Devices: []smi.Device{{Name: "first", Bus: 3, Memory: 1 << 30, Major: 9}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b, log := &fakenvml.Driver{Driver: drv}, &bytes.Buffer{}
	d := New(b, Options{Settings: settings, Log: slog.New(slog.NewTextHandler(log, nil)),
		Processes: func() []Process { return []Process{{Server: 100, Client: 4242, Program: "python3"}} }})
	if r, _, err := d.Call(nvml.OpNvmlInitWithFlags, request(0), nil); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	t.Cleanup(d.Close)
	return d, b, log
}

func TestSettings(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		d, b, log := openBusy(t, allowed)
		want, mode, lines := nvml.NVML_ERROR_NO_PERMISSION, nvml.NvmlComputeMode(0), 1
		if allowed {
			want, mode, lines = nvml.NVML_SUCCESS, nvml.NVML_COMPUTEMODE_PROHIBITED, 0
		}
		for range 2 {
			r, n, err := d.Call(nvml.OpNvmlDeviceSetComputeMode, request(1, int(nvml.NVML_COMPUTEMODE_PROHIBITED)),
				make([]byte, 64))
			if r != int32(want) || n != 0 || err != nil || b.Mode != mode {
				t.Errorf("allowed %v: result %d, %d bytes, %v, mode %d", allowed, r, n, err, b.Mode)
			}
		}
		if got := strings.Count(log.String(), "function=nvmlDeviceSetComputeMode"); got != lines {
			t.Errorf("allowed %v: %d lines in the log, want %d", allowed, got, lines)
		}
	}
}

// TestNamesOfProcesses: the client's own processes have names, and no other of the server's machine, whatever a list
// had room for.
func TestNamesOfProcesses(t *testing.T) {
	d, _, _ := openBusy(t, false)
	reply := make([]byte, 1<<12)
	name := func(pid int) string {
		r, n, err := d.Call(nvml.OpNvmlSystemGetProcessName, request(pid, 20, 20), reply)
		if err != nil {
			t.Fatal(err)
		}
		if r != 0 {
			return nvml.ResultName(nvml.NvmlReturn(r))
		}
		return textOf(reply[8:n])
	}
	const notFound = "NVML_ERROR_NOT_FOUND"
	want := map[int]string{4242: "python3", 100: notFound, 200: notFound, 300: notFound, 0: notFound, 1: notFound}
	for _, step := range []struct {
		name string
		op   uint16
		req  []byte
	}{
		{"before a list", 0, nil},
		{"a list that the client filled", nvml.OpNvmlDeviceGetProcessesUtilizationInfo, request(1, 24,
			append(u32(1<<24|24, 3), make([]byte, 16)...), 3, bytes.Repeat(u32(300), 30))},
		{"a list", nvml.OpNvmlDeviceGetComputeRunningProcesses_v3, request(1, 1, u32(2), 2)},
	} {
		if step.op != 0 {
			if r, _, err := d.Call(step.op, step.req, reply); r != 0 || err != nil {
				t.Fatal(step.name, r, err)
			}
		}
		for pid, text := range want {
			if got := name(pid); got != text {
				t.Errorf("%s: process %d is %q, want %q", step.name, pid, got, text)
			}
		}
	}
	if r, _, err := d.Call(nvml.OpNvmlSystemGetProcessName, request(300, 0, 0), reply); err != nil ||
		nvml.NvmlReturn(r) != nvml.NVML_ERROR_INVALID_ARGUMENT {
		t.Errorf("no room: %d, %v", r, err)
	}
}

func TestProcesses(t *testing.T) {
	process := func(pid uint32) []byte { return append(u32(pid), make([]byte, 20)...) }
	utilization := make([]byte, 40)
	binary.LittleEndian.PutUint32(utilization[8:], 4242)
	binary.LittleEndian.PutUint32(utilization[12:], 55)
	info := append(u32(1<<24|24, 2), make([]byte, 16)...)
	slot := func(n, room int) []byte { return request(16, smiTable[:], n, 1, room) }
	entry := func(pid uint32, memory byte, command string) []byte {
		b := append(u32(pid), make([]byte, 28)...)
		b[8] = memory
		return append(b, request(len(command), command)...)
	}
	samples := func(room int) []byte { return request(16, smiTable[:], 145, 1, room, 6) }
	sample := make([]byte, sampleBytes)
	sample[0], sample[8] = 7, 61
	binary.LittleEndian.PutUint32(sample[16:], 4242)
	tests := []struct {
		name   string
		op     uint16
		req    []byte
		result nvml.NvmlReturn
		reply  []byte
	}{
		{"list", nvml.OpNvmlDeviceGetComputeRunningProcesses_v3, request(1, 1, u32(2), 2), 0,
			request(1, u32(1), 1, process(4242))},
		{"list without room", nvml.OpNvmlDeviceGetComputeRunningProcesses_v3, request(1, 1, u32(0), 0),
			nvml.NVML_ERROR_INSUFFICIENT_SIZE, request(1, u32(2))},
		{"array in a structure", nvml.OpNvmlDeviceGetProcessesUtilizationInfo, request(1, 24, info, 2, make([]byte, 80)), 0,
			request(24, append(u32(1<<24|24, 1), make([]byte, 16)...), 1, utilization)},
		{"no array in a structure", nvml.OpNvmlDeviceGetProcessesUtilizationInfo, request(1, 24, info, 0),
			nvml.NVML_ERROR_INSUFFICIENT_SIZE, request(24, info, 0)},
		{"own name", nvml.OpNvmlSystemGetProcessName, request(4242, 20, 20), 0,
			request(20, "python3"+strings.Repeat("\x00", 13))},
		{"own name in a small buffer", nvml.OpNvmlSystemGetProcessName, request(4242, 7, 7),
			nvml.NVML_ERROR_INSUFFICIENT_SIZE, nil},
		{"nvidia-smi's list", nvml.OpNvmlInternalGetExportTable, slot(213, 500), 0,
			append(request(1), entry(4242, 1, "python3")...)},
		{"nvidia-smi's list, too long", nvml.OpNvmlInternalGetExportTable, slot(213, 1), nvml.NVML_ERROR_INSUFFICIENT_SIZE,
			request(2)},
		{"samples", nvml.OpNvmlInternalGetExportTable, samples(100), 0, request(1, 1, sample)},
		{"the number of samples", nvml.OpNvmlInternalGetExportTable, samples(0), nvml.NVML_ERROR_INSUFFICIENT_SIZE,
			request(1, 0)},
		{"value", nvml.OpNvmlInternalGetExportTable, slot(72, 4), 0, request(4, u32(7))},
		{"text", nvml.OpNvmlInternalGetExportTable, slot(231, 80), 0, request(5, "part\x00")},
		{"a slot that answers nothing", nvml.OpNvmlInternalGetExportTable, slot(249, 4), nvml.NVML_ERROR_NOT_SUPPORTED, nil},
		{"another table", nvml.OpNvmlInternalGetExportTable, request(16, make([]byte, 16), 72, 1, 4),
			nvml.NVML_ERROR_NOT_SUPPORTED, nil},
		{"no such device", nvml.OpNvmlInternalGetExportTable, request(16, smiTable[:], 72, 9, 4),
			nvml.NVML_ERROR_INVALID_ARGUMENT, nil},
		{"array as large as the GPU makes it", nvml.OpNvmlDeviceGetGpuInstances, request(1, 0, 128, 1, u32(0)), 0,
			request(2, 1, 2, 1, u32(2))},
	}
	d, b, _ := openBusy(t, false)
	reply := make([]byte, 1<<20)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n, err := d.Call(tt.op, tt.req, reply)
			if err != nil || r != int32(tt.result) || !bytes.Equal(reply[:n], tt.reply) {
				t.Errorf("result %d, reply %x, %v; want %d, %x", r, reply[:n], err, tt.result, tt.reply)
			}
		})
	}
	if _, _, err := d.Call(nvml.OpNvmlDeviceGetAccountingStats, request(1, 4242, 1), reply); err != nil || b.Asked != 100 {
		t.Errorf("the driver is asked about %d, %v; want the worker's pid 100", b.Asked, err)
	}
	for _, pid := range []int{100, 200, 1, nobody, 1<<32 | 200} { // 200 is of the server
		r, n, err := d.Call(nvml.OpNvmlDeviceGetAccountingStats, request(1, pid, 1), reply)
		if r != int32(nvml.NVML_ERROR_NOT_FOUND) || n != 0 || err != nil || b.Asked != nobody {
			t.Errorf("figures of pid %d, who is not the client's: %d, %d bytes, %v; the driver was asked about %d", pid, r, n,
				err, b.Asked)
		}
	}
	for _, req := range [][]byte{
		request(1, 24, info, 3), request(1, 24, info), request(1, 24, info, 1<<40), request(1, 16, u32(1<<24|16, 2, 0, 0), 2),
	} {
		if _, _, err := d.Call(nvml.OpNvmlDeviceGetProcessesUtilizationInfo, req, reply); !errors.Is(err, ErrMalformed) {
			t.Errorf("%x: error %v, want ErrMalformed", req, err)
		}
	}
	for _, req := range [][]byte{slot(26, 0), slot(213, maxSlotText+1), request(16, smiTable[:], 72), slot(145, 1),
		append(slot(72, 4), samples(4)[48:]...)} {
		if _, _, err := d.Call(nvml.OpNvmlInternalGetExportTable, req, reply); !errors.Is(err, ErrMalformed) {
			t.Errorf("%x: error %v, want ErrMalformed", req, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	d, _, _ := openBusy(t, false)
	reply := make([]byte, 1<<18)
	if r, n, err := d.Call(nvml.OpNvmlGpmSampleAlloc, request(1), reply); r != 0 || err != nil ||
		!bytes.Equal(reply[:n], request(1, 1)) {
		t.Fatal(r, n, err)
	}
	value := func(v float64) int { return int(math.Float64bits(v)) }
	tests := []struct {
		name   string
		req    []byte
		result nvml.NvmlReturn
		reply  []byte
		bad    bool
	}{
		{"two", request(1, 2, 1, 1, u32(10, 3)), 0,
			request(0, value(5), 0, 0, 2, fakenvml.Unit, int(nvml.NVML_ERROR_NOT_SUPPORTED), value(1.5), 0, 0, 0), false},
		{"none", request(1, 0, 1, 1), 0, nil, false},
		{"other version", request(9, 0, 1, 1), nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nil, false},
		{"no such sample", request(1, 0, 1, 2), nvml.NVML_ERROR_INVALID_ARGUMENT, nil, false},
		{"short", request(1, 1, 1), 0, nil, true},
		{"ids missing", request(1, 4, 1, 1, u32(1, 2)), 0, nil, true},
		{"too many", request(1, 1<<40, 1, 1), 0, nil, true},
	}
	texts := []struct {
		req, reply []byte
	}{{request(int(nvml.NVML_ERROR_IN_USE)), request(len(fakenvml.Text), fakenvml.Text)}, {request(999), request(0)},
		{nil, nil}, {request(1, 2), nil}}
	for _, tt := range texts {
		_, n, err := d.Call(nvml.OpNvmlErrorString, tt.req, reply)
		if errors.Is(err, ErrMalformed) != (tt.reply == nil) || !bytes.Equal(reply[:n], tt.reply) {
			t.Errorf("text of %x: %x, %v; want %x", tt.req, reply[:n], err, tt.reply)
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n, err := d.Call(nvml.OpNvmlGpmMetricsGet, tt.req, reply)
			if errors.Is(err, ErrMalformed) != tt.bad || r != int32(tt.result) || !bytes.Equal(reply[:n], tt.reply) {
				t.Errorf("result %d, reply %x, %v; want %d, %x", r, reply[:n], err, tt.result, tt.reply)
			}
		})
	}
}
