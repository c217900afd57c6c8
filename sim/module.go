package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"

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

const maxName = 64 << 10 // longest symbol name that is looked at

// program makes a program of a module image whose size nobody knows.
func (g *GPU) program(image pointer, l jitLog) (*ptx.Module, cuda.CUresult) {
	if image == nil {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	img, err := fatbin.FromMemory(image, 0)
	if err != nil {
		return nil, l.refuse(g.log, cuda.CUDA_ERROR_INVALID_IMAGE, err)
	}
	return g.compile(img, l)
}

func (g *GPU) compile(img *fatbin.Image, l jitLog) (*ptx.Module, cuda.CUresult) {
	text, err := img.PTX(g.capability.arch)
	switch {
	case errors.Is(err, fatbin.ErrNoMatch) && img.Format == fatbin.FormatPTX:
		return nil, l.refuse(g.log, foreignText(&img.Members[0]), noPTX(img, g.capability.arch))
	case errors.Is(err, fatbin.ErrNoMatch):
		return nil, l.refuse(g.log, cuda.CUDA_ERROR_NO_BINARY_FOR_GPU, noPTX(img, g.capability.arch))
	case err != nil:
		return nil, l.refuse(g.log, cuda.CUDA_ERROR_INVALID_IMAGE, err)
	}
	prog, err := ptx.Parse(bytes.TrimRight(text, "\x00"))
	if errors.Is(err, ptx.ErrVersion) {
		return nil, l.refuse(g.log, cuda.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, err)
	}
	if err != nil {
		return nil, l.refuse(g.log, cuda.CUDA_ERROR_INVALID_PTX, err)
	}
	return prog, ok
}

// foreignText says what a text gives that is for other GPUs alone: the driver compiles it and so looks at its version
// first, where among the members of a fatbin it would choose none.
func foreignText(m *fatbin.Member) cuda.CUresult {
	text, err := m.Data()
	if err == nil {
		_, err = ptx.Parse(text)
	}
	if errors.Is(err, ptx.ErrVersion) {
		return cuda.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
	}
	return cuda.CUDA_ERROR_INVALID_PTX
}

func (g *GPU) fileProgram(name pointer, l jitLog) (*ptx.Module, cuda.CUresult) {
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
		return nil, l.refuse(g.log, cuda.CUDA_ERROR_INVALID_IMAGE, err)
	}
	return g.compile(img, l)
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
		m.regions = append(m.regions, reg)
		m.globals[v.Name] = reg.base
		clear(bytesAt(reg.base, v.Size)[copy(bytesAt(reg.base, v.Size), v.Init):])
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
		g.freeOwned(r)
	}
	g.objects.drop(uint64(m.handle))
	delete(m.ctx.modules, m)
	if m.lib != nil {
		delete(m.lib.modules, m.ctx)
	}
}

func (g *GPU) CuModuleLoad(ph *cuda.CUmodule, name pointer) cuda.CUresult {
	return g.loadModule(ph, func() (*ptx.Module, cuda.CUresult) { return g.fileProgram(name, jitLog{}) })
}

func (g *GPU) CuModuleLoadData(ph *cuda.CUmodule, image pointer) cuda.CUresult {
	return g.CuModuleLoadDataEx(ph, image, 0, nil, nil)
}

func (g *GPU) CuModuleLoadFatBinary(ph *cuda.CUmodule, image pointer) cuda.CUresult {
	return g.CuModuleLoadData(ph, image)
}

// CuModuleLoadDataEx has no use for options, as there is no compiler to steer, but for the place where it says why it
// refuses an image.
func (g *GPU) CuModuleLoadDataEx(ph *cuda.CUmodule, image pointer, n uint32, options *cuda.CUjit_option,
	values pointer) cuda.CUresult {
	l, r := jitLogOf(n, options, values)
	if r != ok {
		return r
	}
	return g.loadModule(ph, func() (*ptx.Module, cuda.CUresult) { return g.program(image, l) })
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
	r = g.work.waitContext(m.ctx)
	g.freeModule(m)
	return r
}

func (g *GPU) CuModuleGetFunction(pf *cuda.CUfunction, h cuda.CUmodule, name pointer) cuda.CUresult {
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

func (m *module) global(dptr *cuda.CUdeviceptr, size *uint64, name pointer) cuda.CUresult {
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

func (g *GPU) CuModuleGetGlobal_v2(dptr *cuda.CUdeviceptr, size *uint64, h cuda.CUmodule, name pointer) cuda.CUresult {
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
