package sim

import (
	"fmt"
	"strconv"
	"strings"

	"scuda.dev/scuda/api/cuda"
)

const defaultCapability = 90

// capability is what follows from a device's compute capability, as the programming guide's table has it. What that
// table does not tell is the preset's.
type capability struct {
	arch           uint32 // 90 for compute capability 9.0
	threadsPerSM   int32
	blocksPerSM    int32
	sharedPerSM    int32
	sharedPerBlock int32 // at most, for those who ask
	sharedReserved int32 // of every block, taken by the system
	clusters       bool
	cores          uint32 // of a multiprocessor
	generation     uint32 // NVML's number of the architecture
}

var allCapabilities = []capability{
	{75, 1024, 16, 64 << 10, 64 << 10, 0, false, 64, 6},
	{80, 2048, 32, 164 << 10, 163 << 10, 1 << 10, false, 64, 7},
	{86, 1536, 16, 100 << 10, 99 << 10, 1 << 10, false, 128, 7},
	{89, 1536, 24, 100 << 10, 99 << 10, 1 << 10, false, 128, 8},
	{90, 2048, 32, 228 << 10, 227 << 10, 1 << 10, true, 128, 9},
	{100, 2048, 32, 228 << 10, 227 << 10, 1 << 10, true, 128, 10},
	{103, 2048, 32, 228 << 10, 227 << 10, 1 << 10, true, 128, 10},
	{120, 1536, 24, 100 << 10, 99 << 10, 1 << 10, true, 128, 10},
	{121, 1536, 24, 100 << 10, 99 << 10, 1 << 10, true, 128, 10},
}

// capabilityOf gives what is known of a compute capability, nil where nothing is.
func capabilityOf(arch uint32) *capability {
	for i := range allCapabilities {
		if allCapabilities[i].arch == arch {
			return &allCapabilities[i]
		}
	}
	return nil
}

// capabilities lists those that there are, for messages.
func capabilities() string {
	var list []string
	for _, l := range allCapabilities {
		list = append(list, fmt.Sprintf("%d.%d", l.arch/10, l.arch%10))
	}
	return strings.Join(list, ", ")
}

// parseCapability reads 12.0.
func parseCapability(s string) (uint32, error) {
	major, minor, parted := strings.Cut(s, ".")
	a, errMajor := strconv.ParseUint(major, 10, 8)
	b, errMinor := strconv.ParseUint(minor, 10, 8)
	if arch := uint32(a*10 + b); parted && errMajor == nil && errMinor == nil && b < 10 && capabilityOf(arch) != nil {
		return arch, nil
	}
	return 0, fmt.Errorf("choose one of %s", capabilities())
}

// attribute is what a device of this capability answers.
func (l *capability) attribute(attr cuda.CUdevice_attribute) (int32, bool) {
	yes := func(is bool, then, otherwise int32) (int32, bool) {
		if is {
			return then, true
		}
		return otherwise, true
	}
	switch attr {
	case cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return int32(l.arch / 10), true
	case cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return int32(l.arch % 10), true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return l.threadsPerSM, true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
		return l.blocksPerSM, true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		return l.sharedPerSM, true
	case cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		return l.sharedPerBlock, true
	case cuda.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
		return l.sharedReserved, true
	case cuda.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
		return yes(l.clusters, 1, 0)
	case cuda.CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
		return yes(l.clusters, 4, 1)
	}
	return 0, false
}
