package smi

import (
	"runtime"
	"testing"

	"scuda.dev/scuda/api/nvml"
)

// TestBoard asks for what a program reads of the board: it must follow from the description of the device.
func TestBoard(t *testing.T) {
	d, err := Open(Config{DriverVersion: "580.00", CUDAVersion: 13000, Devices: []Device{
		{Name: "first", Bus: 1, Memory: 1 << 30, Major: 9, SMs: 132, Cores: 128, Architecture: 9,
			BusWidth: 6016, Clock: 1980, MemoryClock: 3201},
		{Name: "second", Bus: 2, Memory: 1 << 30, Major: 9, SMs: 4, Cores: 128, Architecture: 9,
			BusWidth: 128, Clock: 1980, MemoryClock: 1000},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d.NvmlInit_v2()
	for _, c := range []struct {
		name string
		ask  func(nvml.NvmlDevice, *uint32) nvml.NvmlReturn
		want [2]uint32
	}{
		{"cores", d.NvmlDeviceGetNumGpuCores, [2]uint32{16896, 512}},
		{"bus width", d.NvmlDeviceGetMemoryBusWidth, [2]uint32{6016, 128}},
		{"architecture", func(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
			var a nvml.NvmlDeviceArchitecture
			r := d.NvmlDeviceGetArchitecture(dev, &a)
			*to = uint32(a)
			return r
		}, [2]uint32{9, 9}},
		{"memory clock", func(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
			return d.NvmlDeviceGetClock(dev, nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_ID_CURRENT, to)
		}, [2]uint32{3201, 1000}},
		{"peers", func(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
			var status nvml.NvmlGpuP2PStatus
			r := d.NvmlDeviceGetP2PStatus(1, dev, nvml.NVML_P2P_CAPS_INDEX_READ, &status)
			*to = uint32(status)
			return r
		}, [2]uint32{uint32(nvml.NVML_P2P_STATUS_NOT_SUPPORTED), uint32(nvml.NVML_P2P_STATUS_OK)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, want := range c.want {
				var got uint32
				if r := c.ask(nvml.NvmlDevice(i+1), &got); r != nvml.NVML_SUCCESS || got != want {
					t.Errorf("device %d: %d (%v), want %d", i, got, r, want)
				}
			}
		})
	}
	set := make([]uint64, 4)
	if r := d.NvmlDeviceGetCpuAffinity(1, 4, &set[0]); r != nvml.NVML_SUCCESS {
		t.Error(r)
	}
	for cpu := range 256 {
		if got := set[cpu/64]>>(cpu%64)&1 == 1; got != (cpu < runtime.NumCPU()) {
			t.Errorf("processor %d is near: %v", cpu, got)
		}
	}
	pci := nvml.NvmlPciInfoExt{Version: version(64)}
	if r := d.NvmlDeviceGetPciInfoExt(2, &pci); r != nvml.NVML_SUCCESS || pci.Bus != 2 || pci.BaseClass != deviceCode {
		t.Errorf("%v, %+v", r, pci)
	}
	pci.Version++
	if r := d.NvmlDeviceGetPciInfoExt(2, &pci); r != nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH {
		t.Errorf("another version: %v", r)
	}
}
