package sim

import (
	"strconv"
	"strings"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

// funcAttrs are the attributes of a kernel that callers may set.
type funcAttrs struct {
	maxDynamic  int32 // most dynamic shared memory of a block; -1: what the kernel itself leaves of the usual
	carveout    int32
	cache       cuda.CUfunc_cache
	shared      cuda.CUsharedconfig
	nonPortable int32
	scheduling  int32
	cluster     [3]uint32 // required, where the kernel itself says nothing
}

// portableCluster is the largest cluster that every GPU with clusters can run.
const portableCluster = 8

func (a *funcAttrs) largestCluster() uint64 {
	if a.nonPortable != 0 {
		return ptx.MaxCluster
	}
	return portableCluster
}

// required is the size of the clusters that the function must be launched with, or zero.
func (f *function) required() [3]uint32 {
	if f.entry.ClusterDim != [3]uint32{} {
		return f.entry.ClusterDim
	}
	return f.attrs.cluster
}

const (
	maxThreadsPerBlock = 1024
	sharedPerBlock     = 48 << 10
	registersPerSM     = 65536
	multiprocessors    = 132
	warpSize           = 32
)

func newFuncAttrs() *funcAttrs { return &funcAttrs{maxDynamic: -1, carveout: -1} }

// dynamic is the most dynamic shared memory of a block.
func (a *funcAttrs) dynamic(e *ptx.Entry) int32 {
	if a.maxDynamic >= 0 {
		return a.maxDynamic
	}
	return max(sharedPerBlock-int32(e.SharedSize()), 0)
}

// registers is what the kernel would need if it were compiled so that a block of any legal size fits, as compilers do.
func registers(e *ptx.Entry) int {
	most := registersPerSM / maxThreads(e)
	if e.MaxRegisters > 0 {
		most = min(most, e.MaxRegisters)
	}
	return min(max(e.Registers(), 1), most, 255)
}

// maxThreads is the size of the largest block that the kernel allows.
func maxThreads(e *ptx.Entry) int {
	return min(blockOf(e.ReqThreads), blockOf(e.MaxThreads))
}

// blockOf is the size of a block of shape d, of the largest where the kernel has none.
func blockOf(d [3]uint32) int {
	if d[0] == 0 {
		return maxThreadsPerBlock
	}
	return int(min(uint64(d[0])*uint64(max(d[1], 1))*uint64(max(d[2], 1)), maxThreadsPerBlock))
}

// target gives 75 for "sm_75".
func target(m *ptx.Module) int32 {
	digits := strings.TrimRight(strings.TrimPrefix(m.Target, "sm_"), "af")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return int32(n)
}

func (a *funcAttrs) get(l *capability, e *ptx.Entry, attr cuda.CUfunction_attribute) (int32, cuda.CUresult) {
	var v int32
	if e.Load() != nil {
		return 0, cuda.CUDA_ERROR_INVALID_PTX
	}
	switch attr {
	case cuda.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		v = int32(blockOf(e.MaxThreads)) // that the kernel takes one shape only is not told
	case cuda.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		v = int32(e.SharedSize())
	case cuda.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		for _, g := range e.Module().Globals {
			if g.Space == ptx.SpaceConst {
				v += int32(g.Size)
			}
		}
	case cuda.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		v = int32(e.LocalSize())
	case cuda.CU_FUNC_ATTRIBUTE_NUM_REGS:
		v = int32(registers(e))
	case cuda.CU_FUNC_ATTRIBUTE_PTX_VERSION:
		v = target(e.Module())
	case cuda.CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		v = int32(l.arch)
	case cuda.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
	case cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
		if e.ClusterDim != [3]uint32{} {
			v = 1
		}
	case cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		v = a.dynamic(e)
	case cuda.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		v = a.carveout
	case cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
		v = int32(max(e.ClusterDim[0], a.cluster[0]))
	case cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
		v = int32(max(e.ClusterDim[1], a.cluster[1]))
	case cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		v = int32(max(e.ClusterDim[2], a.cluster[2]))
	case cuda.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		v = a.nonPortable
	case cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		v = a.scheduling
	default:
		return 0, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return v, ok
}

func (a *funcAttrs) set(l *capability, e *ptx.Entry, attr cuda.CUfunction_attribute, v int32) cuda.CUresult {
	switch attr {
	case cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if v < 0 || int(v)+e.SharedSize() > int(l.sharedPerBlock) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		a.maxDynamic = v
	case cuda.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if v < -1 || v > 100 {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		a.carveout = v
	case cuda.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		a.nonPortable = v
	case cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
		cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		if v < 0 || e.ClusterDim != [3]uint32{} {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		a.cluster[attr-cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = uint32(v)
	case cuda.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		a.scheduling = v
	default:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

// withFunction runs a call about a function, which may be a kernel of a library.
func (g *GPU) withFunction(h cuda.CUfunction, use func(*function) cuda.CUresult) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	f, r := g.function(c, h)
	if r != ok {
		return r
	}
	return use(f)
}

func (g *GPU) CuFuncGetAttribute(v *int32, attr cuda.CUfunction_attribute, h cuda.CUfunction) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult { return give(v, g.capability, f.attrs, f.entry, attr) })
}

func give(v *int32, l *capability, a *funcAttrs, e *ptx.Entry, attr cuda.CUfunction_attribute) cuda.CUresult {
	if v == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	got, r := a.get(l, e, attr)
	if r == ok {
		*v = got
	}
	return r
}

func (g *GPU) CuFuncSetAttribute(h cuda.CUfunction, attr cuda.CUfunction_attribute, v int32) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult { return f.attrs.set(g.capability, f.entry, attr, v) })
}

func (g *GPU) CuKernelGetAttribute(v *int32, attr cuda.CUfunction_attribute, h cuda.CUkernel,
	dev cuda.CUdevice) cuda.CUresult {
	return g.withKernel(h, dev, func(k *kernel, a *funcAttrs) cuda.CUresult {
		return give(v, g.capability, a, k.entry, attr)
	})
}

func (g *GPU) CuKernelSetAttribute(attr cuda.CUfunction_attribute, v int32, h cuda.CUkernel,
	dev cuda.CUdevice) cuda.CUresult {
	return g.withKernel(h, dev, func(k *kernel, a *funcAttrs) cuda.CUresult {
		return a.set(g.capability, k.entry, attr, v)
	})
}

func (g *GPU) CuKernelSetCacheConfig(h cuda.CUkernel, config cuda.CUfunc_cache, dev cuda.CUdevice) cuda.CUresult {
	return g.withKernel(h, dev, func(_ *kernel, a *funcAttrs) cuda.CUresult { return a.setCache(config) })
}

func (g *GPU) withKernel(h cuda.CUkernel, dev cuda.CUdevice,
	use func(*kernel, *funcAttrs) cuda.CUresult) cuda.CUresult {
	k, r := g.enterKernel(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	d, r := g.device(dev)
	if r != ok {
		return r
	}
	return use(k, k.attrsOn(d))
}

func (a *funcAttrs) setCache(config cuda.CUfunc_cache) cuda.CUresult {
	if config < 0 || config > cuda.CU_FUNC_CACHE_PREFER_EQUAL {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	a.cache = config
	return ok
}

func (g *GPU) CuFuncSetCacheConfig(h cuda.CUfunction, config cuda.CUfunc_cache) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult { return f.attrs.setCache(config) })
}

func (g *GPU) CuFuncSetSharedMemConfig(h cuda.CUfunction, config cuda.CUsharedconfig) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if config < 0 || config > 2 {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		f.attrs.shared = config
		return ok
	})
}

func (g *GPU) CuFuncGetModule(pm *cuda.CUmodule, h cuda.CUfunction) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if pm == nil {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		*pm = f.mod.handle
		return ok
	})
}

func (g *GPU) CuFuncGetParamInfo(h cuda.CUfunction, i uint64, offset, size *uint64) cuda.CUresult {
	if g.cfg.Driver < tellsParams {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.withFunction(h, func(f *function) cuda.CUresult { return paramInfo(f.entry, i, offset, size) })
}

func (g *GPU) CuKernelGetParamInfo(h cuda.CUkernel, i uint64, offset, size *uint64) cuda.CUresult {
	if g.cfg.Driver < tellsParams {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	k, r := g.enterKernel(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return paramInfo(k.entry, i, offset, size)
}

func paramInfo(e *ptx.Entry, i uint64, offset, size *uint64) cuda.CUresult {
	if offset == nil || i >= uint64(len(e.Params)) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*offset = uint64(e.Params[i].Offset)
	if size != nil {
		*size = uint64(e.Params[i].Size)
	}
	return ok
}

func (g *GPU) CuFuncIsLoaded(state *cuda.CUfunctionLoadingState, h cuda.CUfunction) cuda.CUresult {
	return g.withFunction(h, func(*function) cuda.CUresult {
		if state == nil {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		*state = cuda.CU_FUNCTION_LOADING_STATE_LOADED
		return ok
	})
}

func (g *GPU) CuFuncLoad(h cuda.CUfunction) cuda.CUresult {
	return g.withFunction(h, func(*function) cuda.CUresult { return ok })
}

func (m *module) function(g *GPU, name string) (*function, cuda.CUresult) {
	if f := m.functions[name]; f != nil {
		return f, ok
	}
	e := m.prog.Entry(name)
	if e == nil {
		return nil, cuda.CUDA_ERROR_NOT_FOUND
	}
	f := &function{mod: m, entry: e, attrs: newFuncAttrs()}
	if m.lib != nil {
		f.kernel = m.lib.kernels[name]
		f.attrs = f.kernel.attrsOn(m.ctx.dev)
	}
	f.handle = cuda.CUfunction(g.objects.add(f))
	m.functions[name] = f
	return f, ok
}

// function finds what a CUfunction stands for: a function, or a library's kernel, which may be passed in its place.
func (g *GPU) function(c *cudaContext, h cuda.CUfunction) (*function, cuda.CUresult) {
	if k, found := lookup[*kernel](g, h); found {
		m, r := k.lib.in(g, c)
		if r != ok {
			return nil, r
		}
		return m.function(g, k.entry.Name)
	}
	return find[*function](g, h)
}

func (g *GPU) CuFuncGetName(name pointer, h cuda.CUfunction) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	f, r := g.function(c, h)
	if r != ok {
		return r
	}
	return g.giveName(name, f.entry.Name)
}

func (g *GPU) giveName(out pointer, name string) cuda.CUresult {
	p := g.strings.pointer(name)
	switch {
	case out == nil:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case p == nil:
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	*view[pointer](out) = p
	return ok
}
