package real

import (
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

// NVML is the machine's management library.
type NVML struct {
	nvmlDriver
	lib *library
}

var (
	_ nvml.Driver = (*NVML)(nil)
	_ nvml.Caller = (*NVML)(nil)
)

// OpenNVML opens the management library; an empty path means DefaultNVML. It does not initialise it.
func OpenNVML(path string) (*NVML, error) {
	if path == "" {
		path = DefaultNVML
	}
	lib, err := open(path)
	if err != nil {
		return nil, err
	}
	if lib.symbol("nvmlInit_v2") == nil {
		return nil, &LibraryError{path, "it has no nvmlInit_v2, so it is no management library"}
	}
	n := &NVML{lib: lib}
	for op := range n.fns {
		n.fns[op] = lib.symbol(nvml.OpName(uint16(op)))
	}
	return n, nil
}

// nvmlDriver has the generated methods.
type nvmlDriver struct {
	fns [nvml.Ops]unsafe.Pointer
}

// Call calls the function of an operation. All parameters of NVML are integers and pointers.
func (d *nvmlDriver) Call(op uint16, a *nvml.Words) nvml.Return {
	if int(op) >= len(d.fns) {
		return nvml.NVML_ERROR_FUNCTION_NOT_FOUND
	}
	return d.invoke(op, a)
}

func (d *nvmlDriver) invoke(op uint16, a *words) nvml.Return {
	if d.fns[op] == nil {
		return nvml.NVML_ERROR_FUNCTION_NOT_FOUND
	}
	return nvml.Return(int32(call(d.fns[op], a)))
}

// CallTable calls the function in word slot of a private table, whose parameters the caller knows: up to six integers
// and pointers to memory that does not move.
func (n *NVML) CallTable(id [16]byte, slot int, args ...uint64) nvml.Return {
	table := n.table(id)
	if table == nil || slot < 1 || uint64(slot) >= *(*uint64)(table)/8 || len(args) > 6 {
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	fn := *(*unsafe.Pointer)(unsafe.Add(table, 8*slot))
	if fn == nil {
		return nvml.NVML_ERROR_NOT_SUPPORTED
	}
	var a words
	copy(a[:], args)
	return nvml.Return(int32(call(fn, &a)))
}

// ExportTableSize is the size of a private table of the library in bytes, its first word; 0 when the library does not
// have the table.
func (n *NVML) ExportTableSize(id [16]byte) uint64 {
	table := n.table(id)
	if table == nil {
		return 0
	}
	return *(*uint64)(table)
}

func (n *NVML) table(id [16]byte) unsafe.Pointer {
	fn := n.lib.symbol("nvmlInternalGetExportTable")
	if fn == nil {
		return nil
	}
	table := new(unsafe.Pointer)
	if nvml.Return(int32(call(fn, &words{address(table), address(&id)}))) != nvml.NVML_SUCCESS {
		return nil
	}
	return *table
}
