package smi

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

func open(t *testing.T) *Driver {
	t.Helper()
	d, err := Open(Config{DriverVersion: "580.00", CUDAVersion: 13000, Devices: []Device{
		{Name: "first", UUID: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Bus: 3, Memory: 1 << 30,
			Major: 9},
		{Name: "second", UUID: [16]byte{2}, Bus: 0x4b, Memory: 2 << 30, Major: 9},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNeedsInit(t *testing.T) {
	d := open(t)
	var n uint32
	if r := d.NvmlDeviceGetCount_v2(&n); r != nvml.NVML_ERROR_UNINITIALIZED {
		t.Errorf("before init: %v", r)
	}
	if r := d.NvmlInit_v2(); r != nvml.NVML_SUCCESS {
		t.Fatal(r)
	}
	if r := d.NvmlDeviceGetCount_v2(&n); r != nvml.NVML_SUCCESS || n != 2 {
		t.Errorf("count %d, %v", n, r)
	}
	if r := d.NvmlShutdown(); r != nvml.NVML_SUCCESS {
		t.Error(r)
	}
	if r := d.NvmlShutdown(); r != nvml.NVML_ERROR_UNINITIALIZED {
		t.Errorf("second shutdown: %v", r)
	}
}

func TestText(t *testing.T) {
	d := open(t)
	d.NvmlInit_v2()
	tests := []struct {
		name   string
		dev    nvml.NvmlDevice
		length uint32
		call   func(nvml.NvmlDevice, unsafe.Pointer, uint32) nvml.NvmlReturn
		want   string
		result nvml.NvmlReturn
	}{
		{"name", 1, 96, d.NvmlDeviceGetName, "first", 0},
		{"name that just fits", 2, 7, d.NvmlDeviceGetName, "second", 0},
		{"name too long", 2, 6, d.NvmlDeviceGetName, "", nvml.NVML_ERROR_INSUFFICIENT_SIZE},
		{"no such device", 3, 96, d.NvmlDeviceGetName, "", nvml.NVML_ERROR_INVALID_ARGUMENT},
		{"uuid", 1, 96, d.NvmlDeviceGetUUID, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := make([]byte, 96)
			r := tt.call(tt.dev, unsafe.Pointer(&b[0]), tt.length)
			got, _, _ := strings.Cut(string(b), "\x00")
			if r != tt.result || got != tt.want {
				t.Errorf("%q, %v; want %q, %v", got, r, tt.want, tt.result)
			}
		})
	}
}

func TestByText(t *testing.T) {
	d := open(t)
	d.NvmlInit_v2()
	tests := []struct {
		call func(unsafe.Pointer, *nvml.NvmlDevice) nvml.NvmlReturn
		text string
		want nvml.NvmlDevice
	}{
		{d.NvmlDeviceGetHandleByPciBusId_v2, "00000000:4B:00.0", 2},
		{d.NvmlDeviceGetHandleByPciBusId_v2, "0000:03:00.0", 1},
		{d.NvmlDeviceGetHandleByPciBusId_v2, "0000:05:00.0", 0},
		{d.NvmlDeviceGetHandleByUUID, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", 1},
		{d.NvmlDeviceGetHandleByUUID, "GPU-none", 0},
	}
	for _, tt := range tests {
		var dev nvml.NvmlDevice
		b := append([]byte(tt.text), 0)
		r := tt.call(unsafe.Pointer(&b[0]), &dev)
		if dev != tt.want || (r == nvml.NVML_SUCCESS) != (tt.want != 0) {
			t.Errorf("%s: device %d, %v", tt.text, dev, r)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{{Devices: make([]Device, maxDevices+1)}, {Devices: []Device{{}}}} {
		if _, err := Open(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%d devices: %v", len(cfg.Devices), err)
		}
	}
}
