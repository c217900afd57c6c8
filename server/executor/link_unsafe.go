package executor

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unsafe"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// maxLinkInput bounds one input of the linker.
const maxLinkInput = 1 << 30

// link is a state of the driver's linker. The driver writes its logs into buffers given at the beginning.
type link struct {
	state      cuda.CUlinkState
	options    []cuda.CUjit_option
	values     []uint64
	info, errs []byte
	input      []byte // of the next cuLinkAddData, as far as it has come
	full       bool   // there was no memory for all of it
	inputs     [][]byte
	symbols    []symbols // the driver may look at them, too
	cubin      []byte    // the driver's; nil until complete
	bytes      uint64    // of logs and inputs
}

// linkOptions reads the options of a call: pairs of plain values, and then variables of the client's, which stay
// valid with the state. Others do not come from a client.
func (m *modules) linkOptions(
	l *link, rest []byte, pairs, count, nameBytes uint32,
) (options []cuda.CUjit_option, values []uint64, r cuda.CUresult, err error) {
	if pairs > maxLoadOptions || uint64(len(rest)) < uint64(pairs)*16 {
		return nil, nil, 0, protocolError("linker with %d options in %d bytes", pairs, len(rest))
	}
	y, err := m.symbols(bytes.Clone(rest[pairs*16:]), count, nameBytes)
	if err != nil {
		return nil, nil, 0, err
	}
	for i := range int(pairs) {
		option := cuda.CUjit_option(binary.LittleEndian.Uint64(rest[i*16:]))
		switch option {
		case cuda.CU_JIT_INFO_LOG_BUFFER, cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
			cuda.CU_JIT_ERROR_LOG_BUFFER, cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			continue // the client's buffers; ours take their place
		case cuda.CU_JIT_WALL_TIME,
			cuda.CU_JIT_GLOBAL_SYMBOL_NAMES, cuda.CU_JIT_GLOBAL_SYMBOL_ADDRESSES, cuda.CU_JIT_GLOBAL_SYMBOL_COUNT,
			cuda.CU_JIT_REFERENCED_KERNEL_NAMES, cuda.CU_JIT_REFERENCED_KERNEL_COUNT, cuda.CU_JIT_REFERENCED_VARIABLE_NAMES,
			cuda.CU_JIT_REFERENCED_VARIABLE_COUNT:
			return nil, nil, noAddress, nil // addresses in the client's memory
		}
		if uint32(option) >= uint32(cuda.CU_JIT_NUM_OPTIONS) { // as when modules are loaded
			return nil, nil, cuda.CUDA_ERROR_INVALID_VALUE, nil
		}
		options, values = append(options, option), append(values, binary.LittleEndian.Uint64(rest[i*16+8:]))
	}
	if y.count > 0 {
		y.addresses, y.names = slices.Clone(y.addresses), slices.Clone(y.names)
		l.symbols = append(l.symbols, y)
		options = append(options, cuda.CU_JIT_GLOBAL_SYMBOL_NAMES,
			cuda.CU_JIT_GLOBAL_SYMBOL_ADDRESSES, cuda.CU_JIT_GLOBAL_SYMBOL_COUNT)
		values = append(values, uint64(uintptr(unsafe.Pointer(&y.names[0]))),
			uint64(uintptr(unsafe.Pointer(&y.addresses[0]))), uint64(y.count))
	}
	return options, values, cuda.CUDA_SUCCESS, nil
}

func (m *modules) linkCreate(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.LinkCreate](c)
	if err != nil {
		return 0, err
	}
	if !m.host.take(2 * jitLogBytes) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY, nil
	}
	l := &link{bytes: 2 * jitLogBytes, info: make([]byte, jitLogBytes), errs: make([]byte, jitLogBytes)}
	options, values, r, err := m.linkOptions(l, rest, p.JITCount, p.Symbols, p.SymbolBytes)
	if err != nil || r != cuda.CUDA_SUCCESS {
		m.host.give(l.bytes)
		return r, err
	}
	l.options = append(options, cuda.CU_JIT_INFO_LOG_BUFFER, cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
		cuda.CU_JIT_ERROR_LOG_BUFFER, cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
	l.values = append(values, addressOf(l.info), jitLogBytes, addressOf(l.errs), jitLogBytes)
	state := alloc[cuda.CUlinkState](&m.arena)
	r = m.gpu.CuLinkCreate_v2(uint32(len(l.options)), &l.options[0], unsafe.Pointer(&l.values[0]), state)
	if r != cuda.CUDA_SUCCESS {
		m.host.give(l.bytes)
		return r, nil
	}
	l.state = *state
	m.links[p.Link] = l
	return r, m.table.New(cuda.KindLinkState, p.Link, uint64(*state), 0)
}

func (m *modules) linkData(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.LinkData](c)
	if err != nil {
		return 0, err
	}
	if uint64(len(rest)) != transport.Pad(p.Bytes) {
		return 0, protocolError("link_data of %d bytes in %d", p.Bytes, len(rest))
	}
	l := m.links[p.Link]
	if l == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	if uint64(len(l.input))+p.Bytes > maxLinkInput {
		return 0, protocolError("input of the linker above %d bytes", maxLinkInput)
	}
	if l.full = l.full || !m.host.take(p.Bytes); l.full {
		return cuda.CUDA_SUCCESS, nil // link_add has the answer
	}
	l.bytes += p.Bytes
	l.input = append(l.input, rest[:p.Bytes]...)
	return cuda.CUDA_SUCCESS, nil
}

func (m *modules) linkAdd(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.LinkAdd](c)
	if err != nil {
		return 0, err
	}
	named := transport.Pad(uint64(p.NameBytes))
	if uint64(len(rest)) < named {
		return 0, protocolError("link_add with a name of %d bytes in %d bytes", p.NameBytes, len(rest))
	}
	var text unsafe.Pointer
	if p.NameBytes > 0 {
		if text, err = name(rest[:named], p.NameBytes, "link_add"); err != nil {
			return 0, err
		}
	}
	l := m.links[p.Link]
	if l == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	input, full := l.input, l.full
	l.input, l.full = nil, false
	if full {
		m.giveInput(l, input)
		return cuda.CUDA_ERROR_OUT_OF_MEMORY, nil
	}
	options, values, r, err := m.linkOptions(l, rest[named:], p.JITCount, p.Symbols, p.SymbolBytes)
	if err != nil || r != cuda.CUDA_SUCCESS {
		m.giveInput(l, input)
		return r, err
	}
	if len(input) == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	l.inputs = append(l.inputs, input) // the driver may look at it until the state is destroyed
	var o *cuda.CUjit_option
	var v unsafe.Pointer
	if len(options) > 0 {
		o, v = &options[0], unsafe.Pointer(&values[0])
	}
	kind := cuda.CUjitInputType(codec.Enumerator(uint64(p.Type)))
	r = m.gpu.CuLinkAddData_v2(l.state, kind, pointerTo(input), uint64(len(input)),
		text, uint32(len(options)), o, v)
	info, errs := untilNUL(l.info), untilNUL(l.errs)
	sizes := wire.LoadInfo{InfoBytes: uint32(len(info)), ErrorBytes: uint32(len(errs))}
	out := answerWith(&m.arena, c, sizes, len(info)+len(errs))
	copy(out[copy(out, info):], errs)
	c.outs = true
	return r, nil
}

// giveInput forgets an input that the driver never saw.
func (m *modules) giveInput(l *link, input []byte) {
	l.bytes -= uint64(len(input))
	m.host.give(uint64(len(input)))
}

func (m *modules) linkComplete(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.LinkComplete](c)
	if err != nil {
		return 0, err
	}
	l := m.links[p.Link]
	if l == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	cubin, size := alloc[unsafe.Pointer](&m.arena), alloc[uint64](&m.arena)
	r := m.gpu.CuLinkComplete(l.state, unsafe.Pointer(cubin), size)
	if r == cuda.CUDA_SUCCESS {
		l.cubin = unsafe.Slice((*byte)(*cubin), *size)
	}
	info, errs := untilNUL(l.info), untilNUL(l.errs)
	sizes := wire.LinkResult{
		Bytes: uint64(len(l.cubin)), InfoBytes: uint32(len(info)), ErrorBytes: uint32(len(errs)),
	}
	out := answerWith(&m.arena, c, sizes, len(info)+len(errs))
	copy(out[copy(out, info):], errs)
	c.outs = true
	return r, nil
}

func (m *modules) linkRead(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.LinkRead](c)
	if err != nil {
		return 0, err
	}
	l := m.links[p.Link]
	if l == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	if p.Offset > uint64(len(l.cubin)) || p.Bytes > uint64(len(l.cubin))-p.Offset || p.Bytes > transport.MaxMessage {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	c.reply = append([]byte(nil), l.cubin[p.Offset:p.Offset+p.Bytes]...)
	return cuda.CUDA_SUCCESS, nil
}

func (m *modules) linkDestroy(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.LinkDestroy](c)
	if err != nil {
		return 0, err
	}
	l := m.links[p.Link]
	if l == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	delete(m.links, p.Link)
	m.host.give(l.bytes)
	m.table.Delete(cuda.KindLinkState, p.Link)
	return m.gpu.CuLinkDestroy(l.state), nil
}

// loadFunctions loads everything of a module or library now, as a program wants it that set CUDA_MODULE_LOADING=EAGER.
func (m *modules) loadFunctions(functions []cuda.CUfunction) cuda.CUresult {
	for _, f := range functions {
		if r := m.gpu.CuFuncLoad(f); r != cuda.CUDA_SUCCESS && r != cuda.CUDA_ERROR_NOT_SUPPORTED {
			return r
		}
	}
	return cuda.CUDA_SUCCESS
}

func (m *modules) loadModuleFunctions(mod cuda.CUmodule) cuda.CUresult {
	n := alloc[uint32](&m.arena)
	if r := m.gpu.CuModuleGetFunctionCount(n, mod); r != cuda.CUDA_SUCCESS || *n == 0 {
		return r
	}
	list := make([]cuda.CUfunction, *n)
	if r := m.gpu.CuModuleEnumerateFunctions(&list[0], *n, mod); r != cuda.CUDA_SUCCESS {
		return r
	}
	return m.loadFunctions(list)
}

func (m *modules) loadLibraryKernels(lib cuda.CUlibrary) cuda.CUresult {
	n := alloc[uint32](&m.arena)
	if r := m.gpu.CuLibraryGetKernelCount(n, lib); r != cuda.CUDA_SUCCESS || *n == 0 || m.entered == nil {
		return r // kernels are loaded into contexts; without one there is nothing to do yet
	}
	kernels := make([]cuda.CUkernel, *n)
	if r := m.gpu.CuLibraryEnumerateKernels(&kernels[0], *n, lib); r != cuda.CUDA_SUCCESS {
		return r
	}
	list := make([]cuda.CUfunction, *n)
	for i, k := range kernels {
		if r := m.gpu.CuKernelGetFunction(&list[i], k); r != cuda.CUDA_SUCCESS {
			return r
		}
	}
	return m.loadFunctions(list)
}
