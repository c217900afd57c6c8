package nvmldispatch

import (
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

type direction uint8

const (
	dirValue direction = iota
	dirIn
	dirOut
	dirInOut
	dirStr
)

type paramFlags uint8

const (
	versioned    paramFlags = 1 << iota // the first word says the size (low 24 bits) and version (high 8 bits)
	countPointer                        // the counting argument points to the count
	text                                // characters: the reply ends at the NUL
	deletes                             // the handle is gone after success
	fills                               // the array has room for what the GPU has, whatever its count says
	enum                                // of an enumeration
)

// patch is a handle inside an element.
type patch struct {
	offset uint16
	kind   nvml.Kind
}

// array is one that a structure points at: where its pointer and its count lie, and the bytes of an element.
type array struct{ pointer, count, size uint16 }

// param mirrors struct nvml_param of shim/front/nvml/nvml.h.
type param struct {
	dir      direction
	kind     nvml.Kind
	flags    paramFlags
	countArg uint8  // 1 + index of the argument that counts the elements; 0: count elements
	size     uint32 // bytes of an element, or of a value that has less than 8
	count    uint32
	patches  []patch
	array    *array
	tail     uint16 // where the structure says how many bytes it ends in, for which it has tailRoom; 0: it does not
}

const tailRoom = 4

type function struct {
	name     string
	denied   bool // changes a setting
	optional bool // its places for single results may be NULL
	params   []param
}

const maxParams = 8

// arguments are a call's: word for values, at for pointers.
type arguments struct {
	word [maxParams]uint64
	at   [maxParams]unsafe.Pointer
}
