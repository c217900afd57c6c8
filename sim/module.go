package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/sim/ptx"
)

// module is a program loaded into a context: its variables have memory.
type module struct {
	ctx       *cudaContext
	handle    cuda.CUmodule
	prog      *ptx.Module
	lib       *library // for the module that a library has in each context
	globals   map[string]uint64
	regions   []*region
	functions map[string]*function
}

func (m *module) owner() *cudaContext { return m.ctx }

// function is a kernel in a module.
type function struct {
	mod    *module
	handle cuda.CUfunction
	entry  *ptx.Entry
	attrs  *funcAttrs
	kernel *kernel // for functions of a library's kernel
	legacy *configuration
}

func (f *function) owner() *cudaContext { return f.mod.ctx }

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
		a = newFuncAttrs(k.entry)
		k.attrs[d] = a
	}
	return a
}

const newestArch = 129 // that a text may be for: the last of the 12.x family

const maxName = 64 << 10 // longest symbol name that is looked at

// program makes a program of a module image whose size nobody knows.
func (g *GPU) program(image unsafe.Pointer) (*ptx.Module, cuda.CUresult) {
	if image == nil {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	img, err := fatbin.FromMemory(image, 0)
	if err != nil {
		g.log.Warn("sim: module image", "error", err)
		return nil, cuda.CUDA_ERROR_INVALID_IMAGE
	}
	return g.compile(img)
}

func (g *GPU) compile(img *fatbin.Image) (*ptx.Module, cuda.CUresult) {
	text, err := img.PTX(computeCapability)
	if err != nil {
		g.log.Warn("sim: module image; only PTX can be run here", "error", err)
		if img.Format == fatbin.FormatPTX && img.Members[0].Arch > newestArch {
			return nil, cuda.CUDA_ERROR_INVALID_PTX
		}
		if errors.Is(err, fatbin.ErrNoMatch) {
			return nil, cuda.CUDA_ERROR_NO_BINARY_FOR_GPU
		}
		return nil, cuda.CUDA_ERROR_INVALID_IMAGE
	}
	prog, err := ptx.Parse(bytes.TrimRight(text, "\x00"))
	if err != nil {
		g.log.Warn("sim: module image", "error", err)
		if errors.Is(err, ptx.ErrVersion) {
			return nil, cuda.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
		}
		return nil, cuda.CUDA_ERROR_INVALID_PTX
	}
	return prog, ok
}

func (g *GPU) fileProgram(name unsafe.Pointer) (*ptx.Module, cuda.CUresult) {
	path, found := cString(name, maxName)
	if !found {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, cuda.CUDA_ERROR_FILE_NOT_FOUND
	}
	img, err := fatbin.Parse(data)
	if err != nil {
		g.log.Warn("sim: module image", "error", err)
		return nil, cuda.CUDA_ERROR_INVALID_IMAGE
	}
	return g.compile(img)
}

// load gives a program's variables memory in c. g.mu is held.
func (g *GPU) load(c *cudaContext, prog *ptx.Module, lib *library) (*module, cuda.CUresult) {
	m := &module{ctx: c, prog: prog, lib: lib, globals: map[string]uint64{}, functions: map[string]*function{}}
	for _, v := range prog.Globals {
		if v.Extern {
			g.log.Warn("sim: module image: variable defined elsewhere", "name", v.Name)
			g.freeModule(m)
			return nil, cuda.CUDA_ERROR_INVALID_PTX
		}
		allocate := g.allocate
		if v.Managed {
			allocate = g.allocateManaged
		}
		reg, r := allocate(c, regionGlobal, max(v.Size, 1))
		if r != ok {
			g.freeModule(m)
			return nil, r
		}
		reg.readOnly = v.Space == ptx.SpaceConst
		m.regions = append(m.regions, reg)
		m.globals[v.Name] = reg.base
		copy(bytesAt(reg.base, v.Size), v.Init)
	}
	for _, v := range prog.Globals {
		for _, rel := range v.Relocs {
			target, found := m.globals[rel.Symbol]
			at := bytesAt(m.globals[v.Name], v.Size)
			if !found || rel.Offset > v.Size || uint64(rel.Size) > v.Size-rel.Offset || rel.Size != 4 && rel.Size != 8 {
				g.log.Warn("sim: module image: relocation", "variable", v.Name, "symbol", rel.Symbol)
				g.freeModule(m)
				return nil, cuda.CUDA_ERROR_INVALID_PTX
			}
			value := target + uint64(rel.Addend)
			if rel.Size == 8 {
				binary.LittleEndian.PutUint64(at[rel.Offset:], value)
			} else {
				binary.LittleEndian.PutUint32(at[rel.Offset:], uint32(value))
			}
		}
	}
	m.handle = cuda.CUmodule(g.objects.add(m))
	c.modules[m] = struct{}{}
	return m, ok
}

func (g *GPU) freeModule(m *module) {
	for _, f := range m.functions {
		g.objects.drop(uint64(f.handle))
	}
	for _, r := range m.regions {
		if err := g.freeRegion(r); err != nil {
			g.log.Error("sim: free", "error", err)
		}
	}
	g.objects.drop(uint64(m.handle))
	delete(m.ctx.modules, m)
	if m.lib != nil {
		delete(m.lib.modules, m.ctx)
	}
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

func (m *module) function(g *GPU, name string) (*function, cuda.CUresult) {
	if f := m.functions[name]; f != nil {
		return f, ok
	}
	e := m.prog.Entry(name)
	if e == nil {
		return nil, cuda.CUDA_ERROR_NOT_FOUND
	}
	f := &function{mod: m, entry: e, attrs: newFuncAttrs(e)}
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

func (g *GPU) CuModuleLoad(ph *cuda.CUmodule, name unsafe.Pointer) cuda.CUresult {
	return g.loadModule(ph, func() (*ptx.Module, cuda.CUresult) { return g.fileProgram(name) })
}

func (g *GPU) CuModuleLoadData(ph *cuda.CUmodule, image unsafe.Pointer) cuda.CUresult {
	return g.loadModule(ph, func() (*ptx.Module, cuda.CUresult) { return g.program(image) })
}

func (g *GPU) CuModuleLoadFatBinary(ph *cuda.CUmodule, image unsafe.Pointer) cuda.CUresult {
	return g.CuModuleLoadData(ph, image)
}

// CuModuleLoadDataEx has no use for options: there is no compiler to steer. Log buffers that it is given become empty strings.
func (g *GPU) CuModuleLoadDataEx(ph *cuda.CUmodule, image unsafe.Pointer, n uint32, options *cuda.CUjit_option, values unsafe.Pointer) cuda.CUresult {
	if r := emptyLogs(n, options, values); r != ok {
		return r
	}
	return g.CuModuleLoadData(ph, image)
}

// emptyLogs says in a caller's options that the compiler wrote nothing.
func emptyLogs(n uint32, options *cuda.CUjit_option, values unsafe.Pointer) cuda.CUresult {
	if n == 0 {
		return ok
	}
	if options == nil || values == nil || n > uint32(cuda.CU_JIT_NUM_OPTIONS) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	vals := sliceOf((*uint64)(values), uint64(n))
	for i, o := range sliceOf(options, uint64(n)) {
		switch o {
		case cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			vals[i] = 0
		}
	}
	return ok
}

func (g *GPU) loadModule(ph *cuda.CUmodule, read func() (*ptx.Module, cuda.CUresult)) cuda.CUresult {
	if _, r := g.enter(); r != ok {
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
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := g.load(c, prog, nil)
	if r == ok {
		*ph = m.handle
	}
	return r
}

func (g *GPU) CuModuleUnload(h cuda.CUmodule) cuda.CUresult {
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := find[*module](g, h)
	if r != ok || m.lib != nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	r = g.waitContext(m.ctx)
	g.freeModule(m)
	return r
}

func (g *GPU) CuModuleGetFunction(pf *cuda.CUfunction, h cuda.CUmodule, name unsafe.Pointer) cuda.CUresult {
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	s, found := cString(name, maxName)
	if pf == nil || !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	m, r := find[*module](g, h)
	if r != ok {
		return r
	}
	f, r := m.function(g, s)
	if r == ok {
		*pf = f.handle
	}
	return r
}

func (g *GPU) CuModuleGetFunctionCount(n *uint32, h cuda.CUmodule) cuda.CUresult {
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := find[*module](g, h)
	if r == ok && n != nil {
		*n = uint32(len(m.prog.Entries))
	}
	return r
}

func (g *GPU) CuModuleEnumerateFunctions(out *cuda.CUfunction, n uint32, h cuda.CUmodule) cuda.CUresult {
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := find[*module](g, h)
	if r != ok {
		return r
	}
	if out == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for i := range sliceOf(out, min(uint64(n), uint64(len(m.prog.Entries)))) {
		f, r := m.function(g, m.prog.Entries[i].Name)
		if r != ok {
			return r
		}
		sliceOf(out, uint64(n))[i] = f.handle
	}
	return ok
}

func (m *module) global(dptr *cuda.CUdeviceptr, size *uint64, name unsafe.Pointer) cuda.CUresult {
	s, found := cString(name, maxName)
	if !found || dptr == nil && size == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	v := m.prog.Global(s)
	if v == nil {
		return cuda.CUDA_ERROR_NOT_FOUND
	}
	if dptr != nil {
		*dptr = cuda.CUdeviceptr(m.globals[s])
	}
	if size != nil {
		*size = v.Size
	}
	return ok
}

func (g *GPU) CuModuleGetGlobal_v2(dptr *cuda.CUdeviceptr, size *uint64, h cuda.CUmodule, name unsafe.Pointer) cuda.CUresult {
	if dptr != nil { // an H200's driver clears both before it looks at anything
		*dptr = 0
	}
	if size != nil {
		*size = 0
	}
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := find[*module](g, h)
	if r != ok {
		return r
	}
	return m.global(dptr, size, name)
}

func (g *GPU) CuLibraryLoadData(ph *cuda.CUlibrary, image unsafe.Pointer, jit *cuda.CUjit_option, jitValues unsafe.Pointer, jitCount uint32,
	_ *cuda.CUlibraryOption, _ unsafe.Pointer, _ uint32) cuda.CUresult {
	if r := emptyLogs(jitCount, jit, jitValues); r != ok {
		return r
	}
	return g.loadLibrary(ph, func() (*ptx.Module, cuda.CUresult) { return g.program(image) })
}

func (g *GPU) CuLibraryLoadFromFile(ph *cuda.CUlibrary, name unsafe.Pointer, jit *cuda.CUjit_option, jitValues unsafe.Pointer, jitCount uint32,
	_ *cuda.CUlibraryOption, _ unsafe.Pointer, _ uint32) cuda.CUresult {
	if r := emptyLogs(jitCount, jit, jitValues); r != ok {
		return r
	}
	return g.loadLibrary(ph, func() (*ptx.Module, cuda.CUresult) { return g.fileProgram(name) })
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
		g.waitContext(c)
		g.freeModule(m)
	}
	return ok
}

func (g *GPU) CuLibraryGetKernel(pk *cuda.CUkernel, h cuda.CUlibrary, name unsafe.Pointer) cuda.CUresult {
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

func (g *GPU) CuLibraryGetGlobal(dptr *cuda.CUdeviceptr, size *uint64, h cuda.CUlibrary, name unsafe.Pointer) cuda.CUresult {
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

func (g *GPU) CuKernelGetName(name unsafe.Pointer, h cuda.CUkernel) cuda.CUresult {
	k, r := g.enterKernel(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return g.giveName(name, k.entry.Name)
}

func (g *GPU) CuFuncGetName(name unsafe.Pointer, h cuda.CUfunction) cuda.CUresult {
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

func (g *GPU) giveName(out unsafe.Pointer, name string) cuda.CUresult {
	p := g.strings.pointer(name)
	switch {
	case out == nil:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case p == nil:
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	*(*unsafe.Pointer)(out) = p
	return ok
}
