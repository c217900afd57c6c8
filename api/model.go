// Package api describes the CUDA driver API and NVML: the facts read from NVIDIA's headers and libraries
// (facts/*.json), and for each function its semantics (cuda.semantics, nvml.semantics). Load resolves both into a Spec,
// from which everything repetitive is generated.
package api

// Class says where and how a function is carried out.
type Class int

const (
	Missing     Class = iota // not there yet: answers NOT_SUPPORTED, logged once by name
	Unsupported              // will not be there; Reason says why
	Refused                  // the driver answers nothing but an error, and so does the client; Reason says why
	Local                    // answered by the client, hand-written in C, never on the wire
	Async                    // encoded and forwarded, not answered
	Sync                     // encoded, forwarded, answered
	Hand                     // hand-written in the front; may use other operations
)

// Dir is how a parameter travels.
type Dir int

const (
	Value  Dir = iota // by value; handles are client handles on the wire
	In                // pointer to Count elements read by the call
	Out               // pointer to Count elements written by the call
	InOut             // both
	Str               // NUL-terminated string read by the call
	New               // pointer to one handle, chosen by the client, created by the call
	Ret               // pointer to Count handles, found or minted by the server
	Null              // pointer that must be NULL (or is ignored); not on the wire
	Opaque            // pointer that travels as a number (user data)
)

// Param is one parameter of a function.
type Param struct {
	Name   string // as in the prototype
	CType  string // as in the prototype
	Dir    Dir
	Elem   string // C type of the pointed-to element (pointer directions) or the value's type
	Size   int    // bytes of one element (values: 1, 2, 4 or 8; structs by value: their size)
	Signed bool
	Float  bool
	Struct bool   // the element is a struct or union (Patches lists the handles in it)
	Enum   bool   // the element is an enumeration
	Handle string // handle type name ("CUstream") when the value or element is a handle
	Object string // type name ("CUtexObject") when the value or element is a number that names an object of the driver
	Token  string // type name ("CUipcMemHandle") when the value or element is a structure for which the client has a token
	Device bool   // the value is a CUdevice (or NVML device handle) ordinal
	Stream bool   // a CUstream whose 0 means the default stream of the called form
	Delete bool   // the call destroys this handle
	// a number, or the name of the parameter that holds the count, or "*name" when it is an in/out pointer to it, or
	// "name-1", "name-2" (never below 0). Elements of void* are bytes.
	Count  string
	IfNull IfNull  // In and Out: what becomes of NULL where the count is not 0
	Select string  // the parameter that says which member of the union the element is
	GoType string  // type in the generated Go interface
	Patch  []Patch // handles and devices inside the element
	Words  []Word  // what else inside the element is no mere number
	Refuse []When  // elements that a client never sends: they would have the driver follow an address of the server's
}

// IfNull says what becomes of a NULL pointer whose count is not 0.
type IfNull int

const (
	NullDefault  IfNull = iota // inputs: CUDA_ERROR_INVALID_VALUE, as the driver says; outputs: the driver's to judge
	NullOptional               // the driver takes an input's NULL for "none"
	NullCrashes                // the driver does not look before it writes: CUDA_ERROR_INVALID_VALUE
)

// Patch is a handle at a byte offset inside a structure.
type Patch struct {
	Offset int
	Handle string // "CUdevice" for device ordinals
	When   *When  // nil: always
	Union  bool   // the place means something else when the condition does not hold; elsewhere it is made 0 then
}

// Is says what a number that travels means, and so what the server does with it before its driver gets it.
type Is int

const (
	Number  Is = iota // a size, a count, a flag: the driver judges it
	Object            // names an object of the driver: the session must have been given it
	Address           // device memory: the driver refuses what is not memory of a GPU (measured by perf/gpu/reach.c)
	Void              // an address in the client: means nothing to the server, which puts 0 in its place
	Enum              // 32 bits of an enumeration: the driver gets none above codec.UnknownEnum
)

// String names what it is.
func (i Is) String() string { return [...]string{"number", "object", "address", "void", "enum"}[i] }

// Word is a field of a structure, of 64 bits or an enumeration, that is no handle, and no mere number either.
type Word struct {
	Offset int
	Is     Is
	Object string // the type, of an Object
	When   *When
	Union  bool // as in Patch
}

// When is a condition on a 32-bit field of the same element, or on the value of the parameter that Select names: it has
// one of the values.
type When struct {
	Offset int // -1: Select's
	Values []int64
}

// Func is one exported function.
type Func struct {
	Name        string // exported symbol
	Base        string // for _ptsz/_ptds forms: the symbol without the suffix, whose operation is used; else ""
	Op          uint16 // operation number (facts/operations.tsv); 0 when not on the wire; a _ptsz form has its base's
	number      uint16 // the same, whether or not it is on the wire
	Class       Class
	Params      []Param
	Ret         string // C return type
	Reason      string // for Unsupported and Refused
	Answer      string // for Refused: the name of the result
	Group       string // the class by which its calls are counted and timed
	PTSZ        bool   // a _ptsz or _ptds form
	NoProto     bool   // exported without a known prototype: a stub that answers NOT_SUPPORTED
	Data        bool   // an exported object, not a function
	Pre, Post   bool   // the front has hooks scuda_pre_NAME(args, CUresult *r) / scuda_post_NAME(args)
	OutsOnError bool
	Generic     bool     // the generated encoding exists: Async, Sync, and Hand functions marked so
	Alias       string   // another function that this one is the old name of
	Unknown     string   // the answer to a number of an object that the session was not given, where it is not its type's
	Flags       []string // of the row, as they stand there
}

// Wire says whether the function has an operation.
func (f *Func) Wire() bool { return f.Op != 0 }

// Library is one of the two driver libraries.
type Library struct {
	Soname   string
	Funcs    []*Func // sorted by name, every exported symbol
	ByName   map[string]*Func
	Enums    map[string]map[string]int64
	Types    map[string]Type   // by typedef name
	Structs  []*Struct         // in dependency order
	enumTags map[string]string // typedef to key of Enums
	Groups   []string          // of functions: OtherGroup, then those of the semantics
	sem      *semantics
	Absent   []Absent          // device attributes that say 0 to clients
	Members  []Member          // of unions in structures that hand-written operations carry
	Parts    []Part            // what functions that work do not support
	Writes   []Writes          // outputs that are not written whole
	Handles  []string          // handle types, sorted; the kind of a handle is its index + 1
	Objects  []string          // integer types that name objects of the driver; their kinds follow those of the handles
	Tokens   []string          // types of structures for which clients get tokens; their kinds follow those of the objects
	NoToken  map[string]string // what a token answers that stands for nothing
	Unknown  map[string]string // what the driver answers to a number of such a type that it never gave out
}

// Member is what a structure's union holds when its first field has a value.
type Member struct {
	Struct, Const, Record string
	Value                 int64
	Size                  int
	Patch                 []Patch // as in Param, from the record's first byte
	Words                 []Word
	Refuse                []When
}

// Absent is a device attribute that promises something which clients do not have.
type Absent struct {
	Name   string // with its CU_DEVICE_ATTRIBUTE_
	Value  int
	Reason string
}

// Part is something that functions refuse (CUDA_ERROR_NOT_SUPPORTED, logged by name) though they work otherwise.
type Part struct {
	Key   string   // PART_KEY in C, PartKey in Go
	Funcs []string // base names
	Text  string
}

// Type is a typedef resolved to what it is.
type Type struct {
	Name, Underlying string
	Text             string // what the typedef says: another name, "enum X", "struct X", "struct X *", "T (*)(…)"
	Size, Align      int
	Kind             string // "int", "uint", "float", "enum", "handle", "pointer", "struct", "func"
}

// Counted says whether the parameter is an array whose length another parameter tells.
func (p *Param) Counted() bool { return p.Count != "" && (p.Count[0] < '0' || p.Count[0] > '9') }

// Struct is a record with its fields at their offsets.
type Struct struct {
	Name        string // typedef name
	tag         string // "struct X" behind the typedef
	Size, Align int
	Union       bool
	Fields      []Field
}

// Field is a member of a record.
type Field struct {
	Name, CType string
	Offset      int
	Array       []int   // dimensions
	Sub         *Struct // anonymous or nested record
}

// WireStruct is the payload of a hand-written operation, from wire.spec.
type WireStruct struct {
	Name   string
	Op     uint16 // 0 when only part of a reply
	Size   int
	Fields []Field
	Doc    string
	Then   []string // what follows the fields
	Reply  string
	Group  string // as in Func
	Flags  []Flag // of an operation
	// Carries are CUDA's records that lie in the fields or follow them.
	Carries []string
	line    int
}

// Spec is everything.
type Spec struct {
	CUDA, NVML *Library
	Wire       []WireStruct
	Removed    []WireStruct // operations that there are no more: name and number
	Consts     []WireConst
	Sets       []WireSet
	Operations []Operation // of both libraries, with those that the file does not have yet
	Digest     [32]byte    // of facts and semantics; both sides of a session compare it
}
