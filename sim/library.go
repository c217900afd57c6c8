package sim

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

// library is a program that is loaded into each context when it is first used there.
type library struct {
	handle  cuda.CUlibrary
	prog    *ptx.Module
	kernels map[string]*kernel
	modules map[*cudaContext]*module
}

// kernel is a library's kernel, independent of contexts. Attributes are per device.
type kernel struct {
	lib    *library
	handle cuda.CUkernel
	entry  *ptx.Entry
	attrs  map[*device]*funcAttrs
}

func (k *kernel) attrsOn(d *device) *funcAttrs {
	a := k.attrs[d]
	if a == nil {
		a = newFuncAttrs()
		k.attrs[d] = a
	}
	return a
}

// in gives the library's module in c, loading it on first use. g.mu is held.
func (l *library) in(g *GPU, c *cudaContext) (*module, cuda.CUresult) {
	if m := l.modules[c]; m != nil {
		return m, ok
	}
	m, r := g.load(c, l.prog, l)
	if r == ok {
		l.modules[c] = m
	}
	return m, r
}

func (g *GPU) CuLibraryLoadData(ph *cuda.CUlibrary, image pointer, jit *cuda.CUjit_option, jitValues pointer,
	jitCount uint32,
	_ *cuda.CUlibraryOption, _ pointer, _ uint32) cuda.CUresult {
	l, r := jitLogOf(jitCount, jit, jitValues)
	if r != ok {
		return r
	}
	return g.loadLibrary(ph, func() (*ptx.Module, cuda.CUresult) { return g.program(image, l) })
}

func (g *GPU) CuLibraryLoadFromFile(ph *cuda.CUlibrary, name pointer, jit *cuda.CUjit_option, jitValues pointer,
	jitCount uint32,
	_ *cuda.CUlibraryOption, _ pointer, _ uint32) cuda.CUresult {
	l, r := jitLogOf(jitCount, jit, jitValues)
	if r != ok {
		return r
	}
	return g.loadLibrary(ph, func() (*ptx.Module, cuda.CUresult) { return g.fileProgram(name, l) })
}

func (g *GPU) loadLibrary(ph *cuda.CUlibrary, read func() (*ptx.Module, cuda.CUresult)) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	g.mu.Unlock() // compiling takes long
	if ph == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	prog, r := read()
	if r != ok {
		return r
	}
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	l := &library{prog: prog, kernels: map[string]*kernel{}, modules: map[*cudaContext]*module{}}
	for _, e := range prog.Entries {
		k := &kernel{lib: l, entry: e, attrs: map[*device]*funcAttrs{}}
		k.handle = cuda.CUkernel(g.objects.add(k))
		l.kernels[e.Name] = k
	}
	l.handle = cuda.CUlibrary(g.objects.add(l))
	*ph = l.handle
	return ok
}

func (g *GPU) enterLibrary(h cuda.CUlibrary) (*library, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	l, r := find[*library](g, h)
	if r != ok {
		g.mu.Unlock()
	}
	return l, r
}

func (g *GPU) CuLibraryUnload(h cuda.CUlibrary) cuda.CUresult {
	l, r := g.enterLibrary(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	g.objects.drop(uint64(h))
	for _, k := range l.kernels {
		g.objects.drop(uint64(k.handle))
	}
	for c, m := range l.modules {
		g.work.waitContext(c)
		g.freeModule(m)
	}
	return ok
}

func (g *GPU) CuLibraryGetKernel(pk *cuda.CUkernel, h cuda.CUlibrary, name pointer) cuda.CUresult {
	l, r := g.enterLibrary(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	s, found := cString(name, maxName)
	if pk == nil || !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	k := l.kernels[s]
	if k == nil {
		return cuda.CUDA_ERROR_NOT_FOUND
	}
	*pk = k.handle
	return ok
}

func (g *GPU) CuLibraryGetKernelCount(n *uint32, h cuda.CUlibrary) cuda.CUresult {
	l, r := g.enterLibrary(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if n == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*n = uint32(len(l.kernels))
	return ok
}

func (g *GPU) CuLibraryEnumerateKernels(out *cuda.CUkernel, n uint32, h cuda.CUlibrary) cuda.CUresult {
	l, r := g.enterLibrary(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if out == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	array := sliceOf(out, min(uint64(n), uint64(len(l.prog.Entries))))
	for i := range array {
		array[i] = l.kernels[l.prog.Entries[i].Name].handle
	}
	return ok
}

func (g *GPU) CuLibraryGetModule(pm *cuda.CUmodule, h cuda.CUlibrary) cuda.CUresult {
	return g.libraryModule(h, pm == nil, func(m *module) cuda.CUresult { *pm = m.handle; return ok })
}

func (g *GPU) CuLibraryGetGlobal(dptr *cuda.CUdeviceptr, size *uint64, h cuda.CUlibrary, name pointer) cuda.CUresult {
	return g.libraryModule(h, false, func(m *module) cuda.CUresult { return m.global(dptr, size, name) })
}

func (g *GPU) libraryModule(h cuda.CUlibrary, null bool, use func(*module) cuda.CUresult) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	l, r := find[*library](g, h)
	if r != ok {
		return r
	}
	if null {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	m, r := l.in(g, c)
	if r != ok {
		return r
	}
	return use(m)
}

func (g *GPU) enterKernel(h cuda.CUkernel) (*kernel, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	k, r := find[*kernel](g, h)
	if r != ok {
		g.mu.Unlock()
	}
	return k, r
}

func (g *GPU) CuKernelGetFunction(pf *cuda.CUfunction, h cuda.CUkernel) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if pf == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	f, r := g.function(c, cuda.CUfunction(h))
	if r == ok {
		*pf = f.handle
	}
	return r
}

func (g *GPU) CuKernelGetLibrary(pl *cuda.CUlibrary, h cuda.CUkernel) cuda.CUresult {
	k, r := g.enterKernel(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if pl == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*pl = k.lib.handle
	return ok
}

func (g *GPU) CuKernelGetName(name pointer, h cuda.CUkernel) cuda.CUresult {
	k, r := g.enterKernel(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return g.giveName(name, k.entry.Name)
}
