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

var _ nvml.Driver = (*NVML)(nil)

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
	for i, name := range nvmlSymbols {
		n.fns[i] = lib.symbol(name)
	}
	return n, nil
}

// nvmlDriver has the generated methods.
type nvmlDriver struct {
	fns [len(nvmlSymbols)]unsafe.Pointer
}

func (d *nvmlDriver) invoke(i int, a *words) nvml.Return {
	if d.fns[i] == nil {
		return nvml.NVML_ERROR_FUNCTION_NOT_FOUND
	}
	return nvml.Return(int32(call(d.fns[i], a)))
}

// ExportTableSize is the size of a private table of the library in bytes, its first word; 0 when the library does not have the table.
func (n *NVML) ExportTableSize(id [16]byte) uint64 {
	fn := n.lib.symbol("nvmlInternalGetExportTable")
	if fn == nil {
		return 0
	}
	table := new(unsafe.Pointer)
	if nvml.Return(int32(call(fn, &words{address(table), address(&id)}))) != nvml.NVML_SUCCESS || *table == nil {
		return 0
	}
	return *(*uint64)(*table)
}
