package sim

import (
	"fmt"
	"strings"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
)

// TestCapabilities: the driver and NVML agree on the compute capability, and a device has its limits.
func TestCapabilities(t *testing.T) {
	for spec, want := range map[string]struct {
		major, minor, threads, blocks, sharedSM, sharedBlock, clusters int32
		generation                                                     nvml.NvmlDeviceArchitecture
	}{
		"1":       {9, 0, 2048, 32, 233472, 232448, 1, 9},
		"cc=9.0":  {9, 0, 2048, 32, 233472, 232448, 1, 9},
		"cc=7.5":  {7, 5, 1024, 16, 65536, 65536, 0, 6},
		"cc=8.0":  {8, 0, 2048, 32, 167936, 166912, 0, 7},
		"cc=8.9":  {8, 9, 1536, 24, 102400, 101376, 0, 8},
		"cc=10.3": {10, 3, 2048, 32, 233472, 232448, 1, 10},
		"cc=12.0": {12, 0, 1536, 24, 102400, 101376, 1, 10},
	} {
		cfg, err := ParseSpec(Config{MemoryBytes: testMemory}, spec)
		if err != nil {
			t.Fatal(spec, err)
		}
		m := open(t, cfg)
		got := want
		m.must(m.CuDeviceComputeCapability(&got.major, &got.minor, 0))
		for attr, at := range map[cuda.CUdevice_attribute]*int32{
			cuda.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:       &got.threads,
			cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:        &got.blocks,
			cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: &got.sharedSM,
			cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:    &got.sharedBlock,
			cuda.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:                       &got.clusters,
		} {
			m.must(m.CuDeviceGetAttribute(at, attr, 0))
		}
		smi, err := OpenNVML(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var dev nvml.NvmlDevice
		var major, minor int32
		for _, r := range []nvml.NvmlReturn{
			smi.NvmlInit_v2(), smi.NvmlDeviceGetHandleByIndex_v2(0, &dev),
			smi.NvmlDeviceGetCudaComputeCapability(dev, &major, &minor),
			smi.NvmlDeviceGetArchitecture(dev, &got.generation),
		} {
			if r != nvml.NVML_SUCCESS {
				t.Fatal(spec, r)
			}
		}
		if got != want || major != want.major || minor != want.minor {
			t.Errorf("%s: %+v, NVML says %d.%d; want %+v", spec, got, major, minor, want)
		}
		var a, b int32
		m.must(m.CuDeviceGetAttribute(&a, cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0))
		m.must(m.CuDeviceGetAttribute(&b, cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0))
		if a != want.major || b != want.minor {
			t.Errorf("%s: the attributes say %d.%d", spec, a, b)
		}
	}
}

// TestTargets: which PTX a device takes, by the target that it names. An H200 answered 218 for all targets but its own
// and older ones, and 222 for a version that it does not know, whatever the target.
func TestTargets(t *testing.T) {
	for spec, targets := range map[string]map[string]cuda.CUresult{
		"9.0": {"sm_80": ok, "sm_90": ok, "sm_90a": ok, "sm_100": cuda.CUDA_ERROR_INVALID_PTX,
			"sm_80a": cuda.CUDA_ERROR_INVALID_PTX, "sm_999": cuda.CUDA_ERROR_INVALID_PTX},
		"8.0": {"sm_80": ok, "sm_75": ok, "sm_86": cuda.CUDA_ERROR_INVALID_PTX,
			"sm_90a": cuda.CUDA_ERROR_INVALID_PTX},
		"10.3": {"sm_100f": ok, "sm_103a": ok, "sm_100a": cuda.CUDA_ERROR_INVALID_PTX},
		"12.0": {"sm_90": ok, "sm_120": ok, "sm_120a": ok, "sm_90a": cuda.CUDA_ERROR_INVALID_PTX,
			"sm_100f": cuda.CUDA_ERROR_INVALID_PTX, "sm_121": cuda.CUDA_ERROR_INVALID_PTX},
	} {
		cfg, err := ParseSpec(Config{}, "cc="+spec)
		if err != nil {
			t.Fatal(err)
		}
		m := open(t, cfg)
		for target, want := range targets {
			var mod cuda.CUmodule
			text := fmt.Sprintf(".version 99.0\n.target %s\n.address_size 64\n", target)
			m.want(cuda.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, m.CuModuleLoadData(&mod, m.image([]byte(text))))
			text = fmt.Sprintf(".version 8.0\n.target %s\n.address_size 64\n.entry k() { ret; }\n", target)
			r := m.CuModuleLoadData(&mod, m.image([]byte(text)))
			if r != want {
				t.Errorf("%s on %s: %v, want %v", target, spec, r, want)
				continue
			}
			if r != ok {
				continue
			}
			var version int32
			f := m.kernel(mod, "k")
			m.must(m.CuFuncGetAttribute(&version, cuda.CU_FUNC_ATTRIBUTE_BINARY_VERSION, f))
			if int(version) != int(m.capability.arch) {
				t.Errorf("%s on %s: the function is for %d", target, spec, version)
			}
		}
	}
}

// TestNoClusters: a device from before 9.0 has none.
func TestNoClusters(t *testing.T) {
	m := open(t, Config{Capability: 80})
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod,
		m.image([]byte(".version 7.8\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n"))))
	f := m.kernel(mod, "k")
	m.must(m.CuLaunchKernel(f, 2, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	for i := range cuda.CUfunction_attribute(3) {
		m.must(m.CuFuncSetAttribute(f, cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH+i, 1))
	}
	m.want(cuda.CUDA_ERROR_NOT_SUPPORTED, m.CuLaunchKernel(f, 2, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	m.must(m.CuCtxSynchronize())
}

// TestTargetsAreExplained: why a text for another GPU alone is refused.
func TestTargetsAreExplained(t *testing.T) {
	var said strings.Builder
	m := open(t, Config{Capability: 120, Log: textLog(&said)})
	var mod cuda.CUmodule
	m.want(cuda.CUDA_ERROR_INVALID_PTX,
		m.CuModuleLoadData(&mod, m.image([]byte(".version 8.0\n.target sm_90a\n.address_size 64\n"))))
	if want := "is sm_120; this image has PTX for sm_90 alone"; !strings.Contains(said.String(), want) {
		t.Errorf("%q is missing in %s", want, said.String())
	}
}
