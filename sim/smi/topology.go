package smi

import (
	"runtime"

	"scuda.dev/scuda/api/nvml"
)

// Where a GPU is: near all processors and the one memory node of its machine, and as far from every other GPU as they
// are apart.

// mask sets the lowest bits of a set of words, and clears the others.
func mask(to []uint64, bits int) {
	for i := range to {
		left := min(64, max(0, bits-64*i))
		to[i] = 1<<left - 1
	}
}

// near answers with a set of so many processors or memory nodes.
func (d *Driver) near(dev nvml.NvmlDevice, size uint32, to *uint64, scope nvml.NvmlAffinityScope,
	bits int) nvml.NvmlReturn {
	_, r := d.find(dev, to != nil && size > 0 && scope <= 1) // of the node or the socket
	if r == nvml.NVML_SUCCESS {
		mask(array(to, size), bits)
	}
	return r
}

func (d *Driver) NvmlDeviceGetCpuAffinity(dev nvml.NvmlDevice, size uint32, to *uint64) nvml.NvmlReturn {
	return d.near(dev, size, to, 0, runtime.NumCPU())
}

func (d *Driver) NvmlDeviceGetCpuAffinityWithinScope(dev nvml.NvmlDevice, size uint32, to *uint64,
	scope nvml.NvmlAffinityScope) nvml.NvmlReturn {
	return d.near(dev, size, to, scope, runtime.NumCPU())
}

func (d *Driver) NvmlDeviceGetMemoryAffinity(dev nvml.NvmlDevice, size uint32, to *uint64,
	scope nvml.NvmlAffinityScope) nvml.NvmlReturn {
	return d.near(dev, size, to, scope, 1)
}

// NvmlDeviceGetP2PStatus: kernels of one GPU reach the memory of another, through no NVLink.
func (d *Driver) NvmlDeviceGetP2PStatus(a, b nvml.NvmlDevice, what nvml.NvmlGpuP2PCapsIndex,
	to *nvml.NvmlGpuP2PStatus) nvml.NvmlReturn {
	if _, r := d.find(b, true); r != nvml.NVML_SUCCESS {
		return r
	}
	return store(d, a, to, func(*Device) nvml.NvmlGpuP2PStatus {
		switch what {
		case nvml.NVML_P2P_CAPS_INDEX_READ, nvml.NVML_P2P_CAPS_INDEX_WRITE, nvml.NVML_P2P_CAPS_INDEX_ATOMICS:
			if a != b {
				return nvml.NVML_P2P_STATUS_OK
			}
		case nvml.NVML_P2P_CAPS_INDEX_NVLINK, nvml.NVML_P2P_CAPS_INDEX_PCI, nvml.NVML_P2P_CAPS_INDEX_UNKNOWN:
		default:
			return 0 // as an H200's driver, which has no word for it
		}
		return nvml.NVML_P2P_STATUS_NOT_SUPPORTED
	})
}

// NvmlDeviceGetGpuFabricInfo says that the GPU is on no NVLink fabric.
func (d *Driver) NvmlDeviceGetGpuFabricInfo(dev nvml.NvmlDevice, to *nvml.NvmlGpuFabricInfo) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r == nvml.NVML_SUCCESS && g != nil {
		to.ClusterUuid, to.Status, to.CliqueId, to.State = [16]uint8{}, nvml.NVML_SUCCESS, 0, 0
	}
	return r
}

func (d *Driver) NvmlDeviceGetGpuFabricInfoV(dev nvml.NvmlDevice, to *nvml.NvmlGpuFabricInfoV) nvml.NvmlReturn {
	return storeVersion(d, dev, to, 3<<24|40, func(*Device) { to.State = 0 })
}
