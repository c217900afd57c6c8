package executor

import (
	"os"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// olderDriver is a driver from before CUDA 12.4, which does not tell the parameters of kernels.
type olderDriver struct{ cuda.GPU }

func (olderDriver) CuKernelGetParamInfo(cuda.CUkernel, uint64, *uint64, *uint64) cuda.CUresult {
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}

func (olderDriver) CuFuncGetParamInfo(cuda.CUfunction, uint64, *uint64, *uint64) cuda.CUresult {
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}

// What an older driver does not tell is read from the image's cubins, and is the same.
func TestOlderDriver(t *testing.T) {
	image, err := os.ReadFile("../../testdata/kernels/kernels.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	newer, older := connect(t), connect(t, func(cfg *Config) { cfg.GPU = olderDriver{openSim(t)} })
	layouts := func(c *client) map[string][]uint32 {
		h := c.putImage(image)
		lib, mod := c.newHandle(), c.loadModule(image)
		c.must(wire.OpLibraryLoad, wire.Bytes(&wire.LibraryLoad{Library: lib, Hash: h}))
		all := make(map[string][]uint32)
		for _, name := range []string{"vector_add", "saxpy", "reduce_sum", "struct_arg"} {
			_, all["function "+name] = c.function(mod, name, ofModule)
			k, offsets := c.function(lib, name, ofLibrary)
			all["kernel "+name] = offsets
			f := c.newHandle()
			c.must(wire.OpGetFunction, wire.Bytes(&wire.GetFunction{Parent: k, Handle: f, Kind: ofKernel}))
		}
		return all
	}
	want, got := layouts(newer), layouts(older)
	for name := range want {
		if len(want[name]) == 0 {
			t.Errorf("%s has no parameters", name)
		}
		for i := range want[name] {
			if len(got[name]) != len(want[name]) || got[name][i] != want[name][i] {
				t.Errorf("%s: parameters at %v, read from the image %v", name, want[name], got[name])
				break
			}
		}
	}

	// The simulated linker's cubins are PTX, so there is nothing to read for a module of PTX alone: no guess is made.
	name := "vector_add\x00\x00\x00\x00\x00\x00"
	mod := older.loadModule(kernels(t))
	get := wire.GetFunction{Parent: mod, Handle: older.newHandle(), NameBytes: 11, Kind: ofModule}
	older.expect(cuda.CUDA_ERROR_NOT_SUPPORTED, wire.OpGetFunction, append(wire.Bytes(&get), name...))
}
