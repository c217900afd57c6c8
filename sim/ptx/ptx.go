// Package ptx loads programs written in NVIDIA's PTX assembly and runs them on the CPU.
//
// [Parse] reads a PTX text and checks it; whatever it does not know is refused there, by name and position. A function
// is compiled into a compact form when it is first used. A [Grid] is one launch of an [Entry]: its Run method executes
// all blocks on the calling machine's cores and returns nil or a typed [Fault].
//
// Execution follows the hardware's model: threads run in warps of 32 lanes, a warp whose lanes part is divided and its
// parts are joined again where they meet, blocks run independently of each other, and shared memory belongs to a block.
//
// Addresses: what [Memory] knows is "global" and is named by its own addresses; shared, local and parameter memory
// appear in the generic address space at windows of their own ([SharedWindow], [LocalWindow], [ParamWindow]).
package ptx

import (
	"fmt"
	"sync"
)

// Windows of the generic address space. Memory must not hand out regions at or above SharedWindow.
const (
	SharedWindow uint64 = 1 << 56
	LocalWindow  uint64 = 1 << 57
	ParamWindow  uint64 = 1 << 58
	funcWindow   uint64 = 1 << 59 // values of function pointers
)

// Space is a state space of a module-scope variable.
type Space uint8

// State spaces of [Global].
const (
	SpaceGlobal Space = iota + 1
	SpaceConst
)

func (s Space) String() string {
	switch s {
	case SpaceGlobal:
		return ".global"
	case SpaceConst:
		return ".const"
	}
	return fmt.Sprintf("Space(%d)", uint8(s))
}

// Module is a PTX text that was read. It does not change for its users and may be used by any number of grids at once.
type Module struct {
	Version     string // of the PTX language, "9.0"
	Target      string // "sm_90"
	AddressSize int    // 64
	Entries     []*Entry
	Globals     []*Global // the loader gives each an address and passes them in Grid.Globals

	funcs []*function
	late  bool // functions are read when they are first used
	lazy  compiler
}

// Entry returns the kernel of that name, or nil.
func (m *Module) Entry(name string) *Entry {
	for _, e := range m.Entries {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// Global returns the variable of that name, or nil.
func (m *Module) Global(name string) *Global {
	for _, g := range m.Globals {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// Param is one kernel parameter.
type Param struct {
	Name                string
	Offset, Size, Align int
}

// Entry is a kernel.
type Entry struct {
	Name      string
	Params    []Param
	ParamSize int // bytes that Grid.Params must have at least
	// MaxThreads is .maxntid, ReqThreads .reqntid, ClusterDim .reqnctapercluster, each zero where absent.
	MaxThreads, ReqThreads, ClusterDim [3]uint32
	MinBlocks                          int // .minnctapersm
	MaxRegisters                       int // .maxnreg

	module *Module
	fn     *function
	shared map[*variable]uint32 // offsets of the shared variables it reaches
	dynOff uint32               // where dynamic shared memory begins
	reach  []*function

	placed     bool // its shared variables, and what it may reach, are known: guarded by the module's compiler
	sharedSize int
	localSize  int

	once      sync.Once // for compiled, which sets these:
	registers int
	failed    error
}

// Module the entry belongs to.
func (e *Entry) Module() *Module { return e.module }

// Global is a variable in global or constant memory.
type Global struct {
	Name    string
	Space   Space
	Size    uint64
	Align   uint64
	Managed bool   // .attribute(.managed)
	Extern  bool   // declared, not defined: another module has it
	Visible bool   // .visible, .weak or .common
	Init    []byte // the first bytes; the rest, up to Size, is zero
	Relocs  []Reloc
}

// Reloc says that the address of Symbol (a Global of the same module) plus Addend belongs at Offset of the variable,
// Size bytes.
type Reloc struct {
	Offset uint64
	Size   int
	Symbol string
	Addend int64
}

// Memory is what a grid's threads reach outside their block.
type Memory interface {
	// Region returns the region of accessible memory that holds addr. A grid remembers regions while it runs,
	// so they must stay mapped until Run returns. It is called from several goroutines.
	Region(addr uint64) (Region, bool)
}

// Region is accessible memory: Bytes[0] is at address Start. Bytes must be 16-aligned with Start and lie outside the Go
// heap where the race detector is on, because kernels are entitled to races.
type Region struct {
	Start uint64
	Bytes []byte
	// ReadOnly refuses stores and atomics.
	ReadOnly bool
}

// FaultKind says what ended a grid.
type FaultKind uint8

// Kinds of faults; the CUDA driver's errors for them are 700, 716, 719 (trap), 710, 718, 702, 715 and 702.
const (
	IllegalAddress FaultKind = iota + 1
	Misaligned
	Trap
	Assert
	InvalidPC          // a call through a pointer that is no function
	Timeout            // the instruction budget is spent
	IllegalInstruction // shared memory of a block that the cluster does not have
	Deadlock           // every thread of a block waits for another one
)

func (k FaultKind) String() string {
	switch k {
	case IllegalAddress:
		return "illegal address"
	case Misaligned:
		return "misaligned address"
	case Trap:
		return "trap"
	case Assert:
		return "assertion failed"
	case InvalidPC:
		return "invalid program counter"
	case Timeout:
		return "instruction budget spent"
	case IllegalInstruction:
		return "illegal instruction"
	case Deadlock:
		return "deadlock"
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// Fault is the error of a grid whose kernel did what a GPU would stop it for.
type Fault struct {
	Kind          FaultKind
	Kernel        string
	Block, Thread [3]uint32
	Line          int // in the PTX text
	Addr          uint64
	Size          int // of the access, bytes
	Write         bool
	Message       string
}

func (f *Fault) Error() string {
	s := fmt.Sprintf("kernel %s: %s at line %d, block (%d,%d,%d) thread (%d,%d,%d)", f.Kernel, f.Kind, f.Line,
		f.Block[0], f.Block[1], f.Block[2], f.Thread[0], f.Thread[1], f.Thread[2])
	if f.Size != 0 {
		how := "read"
		if f.Write {
			how = "write"
		}
		s += fmt.Sprintf(": %s of %d bytes at %#x", how, f.Size, f.Addr)
	}
	if f.Message != "" {
		s += ": " + f.Message
	}
	return s
}
