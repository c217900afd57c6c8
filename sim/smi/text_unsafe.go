package smi

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

// put stores a C string into a buffer of length bytes.
func put(to unsafe.Pointer, length uint32, s string) nvml.NvmlReturn {
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	if uint64(length) < uint64(len(s))+1 {
		return nvml.NVML_ERROR_INSUFFICIENT_SIZE
	}
	b := unsafe.Slice((*byte)(to), len(s)+1)
	b[copy(b, s)] = 0
	return nvml.NVML_SUCCESS
}

func (d *Driver) putOf(dev nvml.NvmlDevice, to unsafe.Pointer, length uint32,
	text func(*Device) string) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	return put(to, length, text(g))
}

// text is the C string at p; the server has checked that it ends.
func text(p unsafe.Pointer) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return unsafe.String((*byte)(p), n)
}

func (d *Driver) NvmlDeviceGetName(dev nvml.NvmlDevice, to unsafe.Pointer, length uint32) nvml.NvmlReturn {
	return d.putOf(dev, to, length, func(g *Device) string { return g.Name })
}

func (d *Driver) NvmlDeviceGetUUID(dev nvml.NvmlDevice, to unsafe.Pointer, length uint32) nvml.NvmlReturn {
	return d.putOf(dev, to, length, func(g *Device) string { return UUIDText(g.UUID) })
}

func (d *Driver) NvmlDeviceGetHandleByUUID(uuid unsafe.Pointer, to *nvml.NvmlDevice) nvml.NvmlReturn {
	return d.by(text(uuid), to, func(g *Device) string { return UUIDText(g.UUID) })
}

func (d *Driver) NvmlDeviceGetHandleByPciBusId(id unsafe.Pointer, to *nvml.NvmlDevice) nvml.NvmlReturn {
	return d.NvmlDeviceGetHandleByPciBusId_v2(id, to)
}

func (d *Driver) NvmlDeviceGetHandleByPciBusId_v2(id unsafe.Pointer, to *nvml.NvmlDevice) nvml.NvmlReturn {
	s := text(id)
	form := "%08x:%02x:%02x.0"
	if len(s) == len("0000:00:00.0") {
		form = "%04x:%02x:%02x.0"
	}
	return d.by(s, to, func(g *Device) string { return fmt.Sprintf(form, 0, g.Bus, g.Slot) })
}

func (d *Driver) NvmlSystemGetDriverVersion(to unsafe.Pointer, length uint32) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	return put(to, length, d.cfg.DriverVersion)
}

func (d *Driver) NvmlSystemGetNVMLVersion(to unsafe.Pointer, length uint32) nvml.NvmlReturn {
	return put(to, length, fmt.Sprintf("%d.%s", d.cfg.CUDAVersion/1000, d.cfg.DriverVersion))
}

// pciText is how long the text of a PCI address is, with its end.
const pciText = len("00000000:00:00.0") + 1

func (d *Driver) pci(g *Device) (info nvml.NvmlPciInfo) {
	info.Bus, info.Device = g.Bus, g.Slot
	copy(info.BusIdLegacy[:15], fmt.Sprintf("0000:%02X:%02X.0", g.Bus, g.Slot))
	copy(info.BusId[:31], fmt.Sprintf("00000000:%02X:%02X.0", g.Bus, g.Slot))
	return info
}

func (d *Driver) NvmlDeviceGetPciInfo(dev nvml.NvmlDevice, to *nvml.NvmlPciInfo_v1) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) nvml.NvmlPciInfo_v1 {
		info := d.pci(g)
		return nvml.NvmlPciInfo_v1{BusId: info.BusIdLegacy, Bus: info.Bus, Device: info.Device, PciDeviceId: info.PciDeviceId}
	})
}

func (d *Driver) NvmlDeviceGetPciInfo_v2(dev nvml.NvmlDevice, to *nvml.NvmlPciInfo_v2) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) nvml.NvmlPciInfo_v2 {
		info := d.pci(g)
		return nvml.NvmlPciInfo_v2{BusId: info.BusIdLegacy, Bus: info.Bus, Device: info.Device, PciDeviceId: info.PciDeviceId,
			PciSubSystemId: info.PciSubSystemId}
	})
}

func (d *Driver) NvmlDeviceGetPciInfo_v3(dev nvml.NvmlDevice, to *nvml.NvmlPciInfo) nvml.NvmlReturn {
	return store(d, dev, to, d.pci)
}

// NvmlDeviceGetFieldValues answers every field as not supported, in its own status.
func (d *Driver) NvmlDeviceGetFieldValues(dev nvml.NvmlDevice, n int32, values *nvml.NvmlFieldValue) nvml.NvmlReturn {
	_, r := d.find(dev, values != nil && n > 0)
	if r != nvml.NVML_SUCCESS {
		return r
	}
	for i := range unsafe.Slice(values, n) {
		unsafe.Slice(values, n)[i].NvmlReturn = nvml.NVML_ERROR_NOT_SUPPORTED
	}
	return r
}

// NvmlSystemGetProcessName answers with the command of a process of the simulated machine.
func (d *Driver) NvmlSystemGetProcessName(pid uint32, to unsafe.Pointer, length uint32) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if to == nil || length == 0 {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	line, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/cmdline")
	if err != nil {
		return nvml.NVML_ERROR_NOT_FOUND
	}
	name, _, _ := bytes.Cut(line, []byte{0})
	return put(to, length, string(name[:min(len(name), int(length)-1)]))
}

// NvmlErrorString has no text: the stand-alone library has its own, and so has the client's.
func (d *Driver) NvmlErrorString(nvml.NvmlReturn) unsafe.Pointer { return nil }
