package executor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/transport"
)

const (
	jitLogBytes    = 16 << 10
	maxLoadOptions = wire.MaxLoadOptions
	attributeCount = 16             // of wire.FuncInfo
	loadEager      = wire.LoadEager // wire.ModuleLoad.Flags, wire.LibraryLoad.Flags
)

// Kinds of wire.GetFunction, wire.GetGlobal and wire.FunctionNames.
const (
	ofModule         = wire.OfModule
	ofLibrary        = wire.OfLibrary
	managedOfLibrary = wire.OfManaged
	ofKernel         = wire.OfKernel
)

// modules is the engine of modules and libraries: their images, what was read of them, functions with the layouts of
// their parameters, and the linker.
//
// No locks: it belongs to the executor's thread alone. A goroutine that scans an image reads the image, which does
// not change, and writes its [scan] before it closes the scan's channel.
type modules struct {
	*base
	loop modulesLoop
	kept Images // nil: sessions keep what they are sent for themselves

	imageBytes  uint64 // of images, with those that arrive
	images      map[modcache.Hash]*modcache.Image
	checked     map[modcache.Hash]error // images that were looked at, see checkImage
	scans       map[modcache.Hash]*scan
	scanned     map[uint64]*scan                            // by module and library
	loaded      map[uint64]modcache.Hash                    // images of modules and libraries
	knownParams map[modcache.Hash]map[string][]fatbin.Param // read from images, for drivers that do not tell
	layouts     map[uint64]*layout                          // by function and kernel
	links       map[uint64]*link
}

// modulesLoop is what it asks of the loop.
type modulesLoop interface {
	noteLaunch(*scan) // a kernel of that image may run from now on
}

func newModules(s *Session, kept Images) modules {
	return modules{
		base: &s.base, loop: &s.printf, kept: kept,
		images:      make(map[modcache.Hash]*modcache.Image),
		checked:     make(map[modcache.Hash]error),
		scans:       make(map[modcache.Hash]*scan),
		scanned:     make(map[uint64]*scan),
		loaded:      make(map[uint64]modcache.Hash),
		knownParams: make(map[modcache.Hash]map[string][]fatbin.Param),
		layouts:     make(map[uint64]*layout),
		links:       make(map[uint64]*link),
	}
}

// code gives an image as the driver wants it. The driver is told no size, so what it reads must end by itself: the
// headers of containers and cubins lie within the image and promise nothing beyond, and text (PTX) ends with a NUL.
func (m *modules) code(h modcache.Hash) (unsafe.Pointer, cuda.CUresult) {
	img := m.image(h)
	if img == nil {
		return nil, cuda.CUDA_ERROR_NOT_FOUND
	}
	if err := m.checkImage(h, img.Data); err != nil {
		m.log.Info("an image is not given to the driver", "reason", err)
		return nil, cuda.CUDA_ERROR_INVALID_IMAGE
	}
	return pointerTo(img.Data), cuda.CUDA_SUCCESS
}

// checkImage looks at an image once.
func (m *modules) checkImage(h modcache.Hash, data []byte) error {
	err, known := m.checked[h]
	if !known {
		if err = fatbin.Check(data); err == nil && !fatbin.Binary(data) && data[len(data)-1] != 0 {
			err = errNoNUL
		}
		m.checked[h] = err
	}
	return err
}

var errNoNUL = errors.New("text without a NUL at its end")

// jitOptions are the options of a load: the client's that have plain values, and log buffers of our own.
type jitOptions struct {
	n                  uint32
	options            []cuda.CUjit_option
	values             []uint64
	info, errors       []byte
	infoSize, errsSize int // index of the sizes in values
}

func (m *modules) jit(pairs []byte, y symbols) (*jitOptions, cuda.CUresult) {
	n := len(pairs) / 16
	j := &jitOptions{options: allocN[cuda.CUjit_option](&m.arena, n+7), values: allocN[uint64](&m.arena, n+7)}
	for i := range n {
		option := cuda.CUjit_option(binary.LittleEndian.Uint64(pairs[i*16:]))
		switch option {
		case cuda.CU_JIT_INFO_LOG_BUFFER, cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
			cuda.CU_JIT_ERROR_LOG_BUFFER, cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			continue // the client's buffers; ours take their place
		case cuda.CU_JIT_GLOBAL_SYMBOL_NAMES, cuda.CU_JIT_GLOBAL_SYMBOL_ADDRESSES, cuda.CU_JIT_GLOBAL_SYMBOL_COUNT,
			cuda.CU_JIT_REFERENCED_KERNEL_NAMES, cuda.CU_JIT_REFERENCED_VARIABLE_NAMES,
			cuda.CU_JIT_REFERENCED_KERNEL_COUNT, cuda.CU_JIT_REFERENCED_VARIABLE_COUNT:
			return nil, noAddress // addresses in the client's memory, and how many
		}
		if uint32(option) >= uint32(cuda.CU_JIT_NUM_OPTIONS) { // of a later driver: it might take the value for an address
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
		j.add(option, binary.LittleEndian.Uint64(pairs[i*16+8:]))
	}
	if y.count > 0 {
		j.add(cuda.CU_JIT_GLOBAL_SYMBOL_NAMES, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(y.names)))))
		j.add(cuda.CU_JIT_GLOBAL_SYMBOL_ADDRESSES, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(y.addresses)))))
		j.add(cuda.CU_JIT_GLOBAL_SYMBOL_COUNT, uint64(y.count))
	}
	j.info, j.errors = m.arena.bytes(jitLogBytes), m.arena.bytes(jitLogBytes)
	j.add(cuda.CU_JIT_INFO_LOG_BUFFER, addressOf(j.info))
	j.infoSize = j.add(cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, jitLogBytes)
	j.add(cuda.CU_JIT_ERROR_LOG_BUFFER, addressOf(j.errors))
	j.errsSize = j.add(cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, jitLogBytes)
	return j, cuda.CUDA_SUCCESS
}

// symbols are variables of the client's that code refers to by name, with the addresses at which kernels find them.
type symbols struct {
	count     int
	addresses []uint64
	names     []uint64 // addresses of NUL-terminated names
}

const (
	maxSymbols     = 4096
	maxSymbolBytes = 1 << 19
)

// symbols reads those that end a command.
func (m *modules) symbols(rest []byte, count, nameBytes uint32) (symbols, error) {
	if count > maxSymbols || nameBytes > maxSymbolBytes ||
		uint64(len(rest)) != 8*uint64(count)+transport.Pad(uint64(nameBytes)) {
		return symbols{}, protocolError("%d variables with names of %d bytes in %d bytes", count, nameBytes, len(rest))
	}
	y := symbols{
		count:     int(count),
		addresses: allocN[uint64](&m.arena, int(count)+1),
		names:     allocN[uint64](&m.arena, int(count)+1),
	}
	text := rest[8*count:][:nameBytes]
	for i := range y.count {
		y.addresses[i] = binary.LittleEndian.Uint64(rest[8*i:])
		end := bytes.IndexByte(text, 0)
		if end < 0 {
			return symbols{}, protocolError("the name of variable %d has no end", i)
		}
		y.names[i] = addressOf(text)
		text = text[end+1:]
	}
	return y, nil
}

func (j *jitOptions) add(o cuda.CUjit_option, v uint64) int {
	i := j.n
	j.options[i], j.values[i] = o, v
	j.n++
	return int(i)
}

// logs makes the answer: what the just-in-time compiler wrote. The driver leaves the filled sizes in the values.
func (j *jitOptions) logs(a *arena, c *command) {
	info := j.info[:min(uint64(uint32(j.values[j.infoSize])), uint64(len(j.info)))]
	errs := j.errors[:min(uint64(uint32(j.values[j.errsSize])), uint64(len(j.errors)))]
	info, errs = untilNUL(info), untilNUL(errs)
	sizes := wire.LoadInfo{InfoBytes: uint32(len(info)), ErrorBytes: uint32(len(errs))}
	rest := answerWith(a, c, sizes, len(info)+len(errs))
	copy(rest[copy(rest, info):], errs)
	c.outs = true
}

func untilNUL(b []byte) []byte {
	if before, _, ok := bytes.Cut(b, []byte{0}); ok {
		return before
	}
	return b
}

func (m *modules) libraryLoad(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.LibraryLoad](c)
	if err != nil {
		return 0, err
	}
	if p.JITCount > maxLoadOptions || p.LibCount > maxLoadOptions || len(rest) < int(p.JITCount+p.LibCount)*16 {
		return 0, protocolError("library with %d and %d options in %d bytes", p.JITCount, p.LibCount, len(rest))
	}
	y, err := m.symbols(rest[(p.JITCount+p.LibCount)*16:], p.Symbols, p.SymbolBytes)
	if err != nil {
		return 0, err
	}
	code, r := m.code(p.Hash)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	j, r := m.jit(rest[:p.JITCount*16], y)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	options, values, n := m.libraryOptions(rest[p.JITCount*16:][:p.LibCount*16])
	lib := alloc[cuda.CUlibrary](&m.arena)
	r = m.gpu.CuLibraryLoadData(lib, code, &j.options[0], unsafe.Pointer(&j.values[0]), j.n, options, values, n)
	j.logs(&m.arena, c)
	if r != cuda.CUDA_SUCCESS {
		m.log.Info("the driver refused a library", "result", resultText(r), "log", string(untilNUL(j.errors)))
		return r, nil
	}
	if p.Flags&loadEager != 0 {
		if r := m.loadLibraryKernels(*lib); r != cuda.CUDA_SUCCESS {
			m.gpu.CuLibraryUnload(*lib)
			return r, nil
		}
	}
	m.scanned[p.Library], m.loaded[p.Library] = m.scanImage(p.Hash), p.Hash
	return r, m.table.New(cuda.KindLibrary, p.Library, uint64(*lib), 0)
}

// libraryOptions leaves out that the program keeps the image: it is the server's copy that counts, and that one is
// kept.
func (m *modules) libraryOptions(pairs []byte) (*cuda.CUlibraryOption, unsafe.Pointer, uint32) {
	options, values := allocN[cuda.CUlibraryOption](&m.arena, len(pairs)/16), allocN[uint64](&m.arena, len(pairs)/16)
	n := 0
	for i := 0; i < len(pairs); i += 16 {
		option := cuda.CUlibraryOption(binary.LittleEndian.Uint64(pairs[i:]))
		value := binary.LittleEndian.Uint64(pairs[i+8:])
		switch {
		case option == cuda.CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE:
			continue // a table of the client's functions, meant for registration on its side
		case uint32(option) >= uint32(cuda.CU_LIBRARY_NUM_OPTIONS):
			value = 0 // the driver refuses what it does not know, and must not follow what a later one might
		}
		options[n], values[n] = option, value
		n++
	}
	if n == 0 {
		return nil, nil, 0
	}
	return &options[0], unsafe.Pointer(&values[0]), uint32(n)
}

func (m *modules) moduleLoad(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.ModuleLoad](c)
	if err != nil {
		return 0, err
	}
	if p.JITCount > maxLoadOptions || len(rest) < int(p.JITCount)*16 {
		return 0, protocolError("module with %d options in %d bytes", p.JITCount, len(rest))
	}
	y, err := m.symbols(rest[p.JITCount*16:], p.Symbols, p.SymbolBytes)
	if err != nil {
		return 0, err
	}
	if m.entered == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	}
	code, r := m.code(p.Hash)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	j, r := m.jit(rest[:p.JITCount*16], y)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	mod := alloc[cuda.CUmodule](&m.arena)
	r = m.inThreadMode(func() cuda.CUresult {
		return m.gpu.CuModuleLoadDataEx(mod, code, j.n, &j.options[0], unsafe.Pointer(&j.values[0]))
	})
	j.logs(&m.arena, c)
	if r != cuda.CUDA_SUCCESS {
		m.log.Info("the driver refused a module", "result", resultText(r), "log", string(untilNUL(j.errors)))
		return r, nil
	}
	if p.Flags&loadEager != 0 {
		if r := m.loadModuleFunctions(*mod); r != cuda.CUDA_SUCCESS {
			m.gpu.CuModuleUnload(*mod)
			return r, nil
		}
	}
	m.scanned[p.Module], m.loaded[p.Module] = m.scanImage(p.Hash), p.Hash
	return r, m.table.New(cuda.KindModule, p.Module, uint64(*mod), m.entered.handle)
}

// name reads a NUL-terminated name of n bytes behind a structure.
func name(rest []byte, n uint32, op string) (unsafe.Pointer, error) {
	if n == 0 || uint64(len(rest)) < uint64(n) || rest[n-1] != 0 || uint64(len(rest)) != transport.Pad(uint64(n)) {
		return nil, protocolError("%s with a name of %d bytes in %d", op, n, len(rest))
	}
	return pointerTo(rest), nil
}

func (m *modules) getFunction(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GetFunction](c)
	if err != nil {
		return 0, err
	}
	var parent uint64
	var ok, kernel bool
	var text unsafe.Pointer
	kind := cuda.KindFunction
	switch p.Kind {
	case ofModule:
		parent, ok = m.table.Real(cuda.KindModule, p.Parent)
	case ofLibrary:
		parent, ok = m.table.Real(cuda.KindLibrary, p.Parent)
		kind, kernel = cuda.KindKernel, true
	case ofKernel:
		parent, ok = m.table.Real(cuda.KindKernel, p.Parent)
	default:
		return 0, protocolError("function of kind %d", p.Kind)
	}
	if p.Kind != ofKernel {
		if text, err = name(rest, p.NameBytes, "get_function"); err != nil {
			return 0, err
		}
	}
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	if kernel {
		defer m.borrowContext()()
	}
	var r cuda.CUresult
	var real uint64
	if kernel {
		k := alloc[cuda.CUkernel](&m.arena)
		r = m.gpu.CuLibraryGetKernel(k, cuda.CUlibrary(parent), text)
		real = uint64(*k)
	} else {
		f := alloc[cuda.CUfunction](&m.arena)
		if p.Kind == ofModule {
			r = m.gpu.CuModuleGetFunction(f, cuda.CUmodule(parent), text)
		} else {
			r = m.gpu.CuKernelGetFunction(f, cuda.CUkernel(parent))
		}
		real = uint64(*f)
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	symbol := ""
	if p.Kind != ofKernel {
		symbol = string(rest[:p.NameBytes-1])
	} else if k := m.layouts[p.Parent]; k != nil {
		symbol = k.name
	}
	l, r := m.layoutFor(real, kernel, p.Parent, symbol)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if err := m.table.New(kind, p.Handle, real, p.Parent); err != nil {
		return 0, err
	}
	if p.Kind == ofKernel && m.entered != nil {
		m.table.Tie(p.Handle, m.entered.handle)
	}
	l.scan = m.scanOf(p.Parent)
	m.layouts[p.Handle] = l
	info := wire.FuncInfo{ParamCount: uint32(len(l.offsets)), ParamBytes: l.bytes, Block: l.scan.block(symbol)}
	m.attributes(real, kernel, &info.Attributes)
	out := answerWith(&m.arena, c, info, len(l.offsets)*8)
	for i := range l.offsets {
		binary.LittleEndian.PutUint32(out[i*8:], l.offsets[i])
		binary.LittleEndian.PutUint32(out[i*8+4:], l.sizes[i])
	}
	return r, nil
}

// borrowContext makes some context current for what the driver tells only in one, though the client may ask without:
// a kernel's parameters and attributes.
func (m *modules) borrowContext() (giveBack func()) {
	m.enterAny()
	ctx := alloc[cuda.CUcontext](&m.arena)
	if m.entered != nil || m.gpu.CuDevicePrimaryCtxRetain(ctx, 0) != cuda.CUDA_SUCCESS {
		return func() {}
	}
	m.gpu.CuCtxSetCurrent(*ctx)
	return func() {
		m.gpu.CuCtxSetCurrent(0)
		m.gpu.CuDevicePrimaryCtxRelease_v2(0)
	}
}

// attributes reads a function's attributes, INT_MIN where the driver gives none.
func (m *modules) attributes(real uint64, kernel bool, out *[attributeCount]int32) {
	dev, v := alloc[cuda.CUdevice](&m.arena), alloc[int32](&m.arena)
	if m.entered != nil {
		m.gpu.CuCtxGetDevice(dev)
	}
	for i := range out {
		var r cuda.CUresult
		if kernel {
			r = m.gpu.CuKernelGetAttribute(v, cuda.CUfunction_attribute(i), cuda.CUkernel(real), *dev)
		} else {
			r = m.gpu.CuFuncGetAttribute(v, cuda.CUfunction_attribute(i), cuda.CUfunction(real))
		}
		out[i] = *v
		if r != cuda.CUDA_SUCCESS {
			out[i] = math.MinInt32
		}
	}
}

func (m *modules) getGlobal(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.GetGlobal](c)
	if err != nil {
		return 0, err
	}
	text, err := name(rest, p.NameBytes, "get_global")
	if err != nil {
		return 0, err
	}
	address, size := alloc[cuda.CUdeviceptr](&m.arena), alloc[uint64](&m.arena)
	var r cuda.CUresult
	switch p.Kind {
	case ofModule:
		parent, ok := m.table.Real(cuda.KindModule, p.Parent)
		if !ok {
			return cuda.CUDA_ERROR_INVALID_HANDLE, nil
		}
		r = m.gpu.CuModuleGetGlobal_v2(address, size, cuda.CUmodule(parent), text)
	case ofLibrary, managedOfLibrary:
		parent, ok := m.table.Real(cuda.KindLibrary, p.Parent)
		if !ok {
			return cuda.CUDA_ERROR_INVALID_HANDLE, nil
		}
		if p.Kind == ofLibrary {
			r = m.gpu.CuLibraryGetGlobal(address, size, cuda.CUlibrary(parent), text)
		} else {
			r = m.gpu.CuLibraryGetManaged(address, size, cuda.CUlibrary(parent), text)
		}
	default:
		return 0, protocolError("global of kind %d", p.Kind)
	}
	info := wire.GlobalInfo{Address: uint64(*address), Bytes: *size}
	if managed := alloc[uint64](&m.arena); r == cuda.CUDA_SUCCESS &&
		m.gpu.CuPointerGetAttribute(pointerOf(managed), cuda.CU_POINTER_ATTRIBUTE_IS_MANAGED, *address) == cuda.CUDA_SUCCESS {
		info.Managed = *managed & 1
	}
	answerWith(&m.arena, c, info, 0)
	return r, nil
}

// functionNames lists the functions of a module or the kernels of a library.
func (m *modules) functionNames(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.FunctionNames](c)
	if err != nil {
		return 0, err
	}
	kind := cuda.KindModule
	if p.Kind == ofLibrary {
		kind = cuda.KindLibrary
	} else if p.Kind != ofModule {
		return 0, protocolError("names of kind %d", p.Kind)
	}
	parent, ok := m.table.Real(kind, p.Parent)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	n := alloc[uint32](&m.arena)
	var r cuda.CUresult
	if kind == cuda.KindModule {
		r = m.gpu.CuModuleGetFunctionCount(n, cuda.CUmodule(parent))
	} else {
		r = m.gpu.CuLibraryGetKernelCount(n, cuda.CUlibrary(parent))
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	list := make([]uint64, *n) // more than the arena may hold
	if *n > 0 {
		if kind == cuda.KindModule {
			r = m.gpu.CuModuleEnumerateFunctions((*cuda.CUfunction)(unsafe.Pointer(&list[0])), *n, cuda.CUmodule(parent))
		} else {
			r = m.gpu.CuLibraryEnumerateKernels((*cuda.CUkernel)(unsafe.Pointer(&list[0])), *n, cuda.CUlibrary(parent))
		}
		if r != cuda.CUDA_SUCCESS {
			return r, nil
		}
	}
	const most = 256 << 10
	var names []byte
	sent := uint32(0)
	text := alloc[uintptr](&m.arena)
	for i := uint64(p.First); i < uint64(*n) && len(names) < most; i++ {
		if kind == cuda.KindModule {
			r = m.gpu.CuFuncGetName(unsafe.Pointer(text), cuda.CUfunction(list[i]))
		} else {
			r = m.gpu.CuKernelGetName(unsafe.Pointer(text), cuda.CUkernel(list[i]))
		}
		if r != cuda.CUDA_SUCCESS {
			return r, nil
		}
		names = append(append(names, cString(*text)...), 0)
		sent++
	}
	c.reply = append(append([]byte(nil), wire.Bytes(&wire.NameList{Count: *n, Sent: sent})...), names...)
	return r, nil
}
