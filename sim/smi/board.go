package smi

import (
	"encoding/binary"

	"scuda.dev/scuda/api/nvml"
)

// What kind of board a simulated GPU sits on: constants of an H200's where the simulation has the same, and nothing
// where it has nothing.

const (
	linkGeneration = 5 // of PCI Express
	linkWidth      = 16
	linkMbps       = 32_000 // a lane

	deviceCode = 0x03 // PCI base class: display controller
	device3D   = 0x02 // PCI subclass
)

func (d *Driver) NvmlDeviceGetArchitecture(dev nvml.NvmlDevice, to *nvml.NvmlDeviceArchitecture) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) nvml.NvmlDeviceArchitecture {
		return nvml.NvmlDeviceArchitecture(g.Architecture)
	})
}

func (d *Driver) NvmlDeviceGetBrand(dev nvml.NvmlDevice, to *nvml.NvmlBrandType) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlBrandType { return nvml.NVML_BRAND_NVIDIA })
}

func (d *Driver) NvmlDeviceGetNumGpuCores(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) uint32 { return g.SMs * g.Cores })
}

func (d *Driver) NvmlDeviceGetMemoryBusWidth(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(g *Device) uint32 { return g.BusWidth })
}

func (d *Driver) NvmlDeviceGetNumFans(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return 0 })
}

func (d *Driver) NvmlDeviceGetPowerSource(dev nvml.NvmlDevice, to *nvml.NvmlPowerSource) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlPowerSource { return 0 }) // NVML_POWER_SOURCE_AC, a macro in C
}

// boardID is the same for GPUs on one board. Each is on its own.
func boardID(g *Device) uint32 { return g.Bus<<8 | g.Slot<<3 }

func (d *Driver) NvmlDeviceGetBoardId(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, boardID)
}

func (d *Driver) NvmlDeviceGetMultiGpuBoard(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return 0 })
}

// NvmlDeviceOnSameBoard has a word of its own for what is no device.
func (d *Driver) NvmlDeviceOnSameBoard(a, b nvml.NvmlDevice, to *int32) nvml.NvmlReturn {
	ga, ra := d.find(a, true)
	gb, rb := d.find(b, true)
	switch {
	case ra == nvml.NVML_ERROR_UNINITIALIZED:
		return ra
	case ra != nvml.NVML_SUCCESS || rb != nvml.NVML_SUCCESS:
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	return store(d, a, to, func(*Device) int32 {
		if boardID(ga) == boardID(gb) {
			return 1
		}
		return 0
	})
}

// The bus.

func (d *Driver) NvmlDeviceGetBusType(dev nvml.NvmlDevice, to *nvml.NvmlBusType) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlBusType { return 2 }) // NVML_BUS_TYPE_PCIE, a macro in C
}

func (d *Driver) linkGeneration(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return linkGeneration })
}

func (d *Driver) linkWidth(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return linkWidth })
}

func (d *Driver) NvmlDeviceGetCurrPcieLinkGeneration(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.linkGeneration(dev, to)
}

func (d *Driver) NvmlDeviceGetMaxPcieLinkGeneration(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.linkGeneration(dev, to)
}

func (d *Driver) NvmlDeviceGetGpuMaxPcieLinkGeneration(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.linkGeneration(dev, to)
}

func (d *Driver) NvmlDeviceGetCurrPcieLinkWidth(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.linkWidth(dev, to)
}

func (d *Driver) NvmlDeviceGetMaxPcieLinkWidth(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.linkWidth(dev, to)
}

// NvmlDeviceGetPcieLinkMaxSpeed answers with a number for each speed, which is that of the generation.
func (d *Driver) NvmlDeviceGetPcieLinkMaxSpeed(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.linkGeneration(dev, to)
}

func (d *Driver) NvmlDeviceGetPcieSpeed(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return linkMbps })
}

func (d *Driver) NvmlDeviceGetPcieReplayCounter(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return 0 })
}

func (d *Driver) NvmlDeviceGetPciInfoExt(dev nvml.NvmlDevice, to *nvml.NvmlPciInfoExt) nvml.NvmlReturn {
	return storeVersion(d, dev, to, version(64), func(g *Device) {
		info := d.pci(g)
		to.Domain, to.Bus, to.Device = info.Domain, info.Bus, info.Device
		to.PciDeviceId, to.PciSubSystemId = info.PciDeviceId, info.PciSubSystemId
		to.BaseClass, to.SubClass = deviceCode, device3D
		copy(to.BusId[:], info.BusId[:pciText])
	})
}

func (d *Driver) NvmlDeviceGetC2cModeInfoV(dev nvml.NvmlDevice, to *nvml.NvmlC2cModeInfo_v1) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlC2cModeInfo_v1 { return nvml.NvmlC2cModeInfo_v1{} })
}

// NvmlDeviceGetPdi gives a number of the device that no other has: a part of its UUID.
func (d *Driver) NvmlDeviceGetPdi(dev nvml.NvmlDevice, to *nvml.NvmlPdi) nvml.NvmlReturn {
	return storeVersion(d, dev, to, version(16), func(g *Device) { to.Value = binary.LittleEndian.Uint64(g.UUID[:8]) })
}

// Features that there are not.

func (d *Driver) NvmlDeviceGetMigMode(dev nvml.NvmlDevice, current, pending *uint32) nvml.NvmlReturn {
	return store2(d, dev, current, pending, func(*Device) (uint32, uint32) { return 0, 0 })
}

// NvmlDeviceGetAddressingMode says that kernels see no memory of the program but what CUDA gave it.
func (d *Driver) NvmlDeviceGetAddressingMode(dev nvml.NvmlDevice, to *nvml.NvmlDeviceAddressingMode) nvml.NvmlReturn {
	return storeVersion(d, dev, to, version(8), func(*Device) { to.Value = uint32(nvml.NVML_DEVICE_ADDRESSING_MODE_NONE) })
}

func (d *Driver) NvmlDeviceGetCapabilities(dev nvml.NvmlDevice, to *nvml.NvmlDeviceCapabilities) nvml.NvmlReturn {
	return storeVersion(d, dev, to, version(8), func(*Device) { to.CapMask = 0 })
}

func (d *Driver) NvmlDeviceGetVirtualizationMode(dev nvml.NvmlDevice,
	to *nvml.NvmlGpuVirtualizationMode) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlGpuVirtualizationMode {
		return nvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
	})
}

// Licences of virtual GPUs: the driver touches no feature where it supports none.

func (d *Driver) NvmlDeviceGetGridLicensableFeatures(dev nvml.NvmlDevice,
	to *nvml.NvmlGridLicensableFeatures_v1) nvml.NvmlReturn {
	return d.unlicensed(dev, to != nil, func() (*int32, *uint32) {
		return &to.IsGridLicenseSupported,
			&to.LicensableFeaturesCount
	})
}

func (d *Driver) NvmlDeviceGetGridLicensableFeatures_v2(dev nvml.NvmlDevice,
	to *nvml.NvmlGridLicensableFeatures_v2) nvml.NvmlReturn {
	return d.unlicensed(dev, to != nil, func() (*int32, *uint32) {
		return &to.IsGridLicenseSupported,
			&to.LicensableFeaturesCount
	})
}

func (d *Driver) NvmlDeviceGetGridLicensableFeatures_v3(dev nvml.NvmlDevice,
	to *nvml.NvmlGridLicensableFeatures_v3) nvml.NvmlReturn {
	return d.unlicensed(dev, to != nil, func() (*int32, *uint32) {
		return &to.IsGridLicenseSupported,
			&to.LicensableFeaturesCount
	})
}

func (d *Driver) NvmlDeviceGetGridLicensableFeatures_v4(dev nvml.NvmlDevice,
	to *nvml.NvmlGridLicensableFeatures) nvml.NvmlReturn {
	return d.unlicensed(dev, to != nil, func() (*int32, *uint32) {
		return &to.IsGridLicenseSupported,
			&to.LicensableFeaturesCount
	})
}

func (d *Driver) unlicensed(dev nvml.NvmlDevice, to bool, fields func() (*int32, *uint32)) nvml.NvmlReturn {
	_, r := d.find(dev, to)
	if r == nvml.NVML_SUCCESS {
		supported, count := fields()
		*supported, *count = 0, 0
	}
	return r
}
