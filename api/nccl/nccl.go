// Package nccl has what is known of NCCL, NVIDIA's library of collectives, in Go, and what the server asks of one. The
// constants are generated from the tables of api/facts, as are their C forms (shim/nccl).
package nccl

import (
	"fmt"
	"math"
	"math/bits"
)

// Result is what a call of NCCL answers.
type Result int32

// DataType is the type of the elements.
type DataType uint32

// ReduceOp is what is done to them.
type ReduceOp uint32

func (r Result) Error() string {
	if r >= 0 && int(r) < len(resultNames) {
		return resultNames[r]
	}
	return fmt.Sprintf("ncclResult_t %d", int32(r))
}

// IDBytes is the size of what ranks find each other by.
const IDBytes = 128

// ID is what ranks find each other by. Nobody but NCCL looks into it.
type ID [IDBytes]byte

// Comm is a communicator of a library.
type Comm uintptr

// Function is what an operation does; wire.spec's nccl_function.
type Function uint32

// Functions.
const (
	AllReduce Function = iota
	Broadcast
	Reduce
	AllGather
	ReduceScatter
	Send
	Recv
	functions
)

// Operation is a collective, or one end of a transfer between two ranks.
type Operation struct {
	Comm       Comm
	Send, Recv uint64 // addresses of device memory
	Count      uint64 // of elements, as the function takes it
	Stream     uint64 // CUstream
	Function   Function
	Type       DataType
	Op         ReduceOp
	Peer       int32 // root, or the other rank
}

// Ends are how many bytes an operation reads at Send and writes at Recv, by a rank of so many; 0: nothing there. ok:
// the operation is one that exists, its peer is a rank, and no size overflows.
func (o *Operation) Ends(rank, ranks int32) (send, recv uint64, ok bool) {
	if o.Function >= functions || int(o.Type) >= len(elementBytes) || o.Op >= operators {
		return 0, 0, false
	}
	hi, bytes := bits.Mul64(o.Count, elementBytes[o.Type])
	hi2, all := bits.Mul64(bytes, uint64(ranks))
	if hi != 0 || hi2 != 0 {
		return 0, 0, false
	}
	switch o.Function {
	case AllReduce:
		return bytes, bytes, true
	case AllGather:
		return bytes, all, true
	case ReduceScatter:
		return all, bytes, true
	}
	if o.Peer < 0 || o.Peer >= ranks {
		return 0, 0, false
	}
	switch o.Function {
	case Broadcast:
		if rank == o.Peer {
			return bytes, bytes, true
		}
		return 0, bytes, true
	case Reduce:
		if rank == o.Peer {
			return bytes, bytes, true
		}
		return bytes, 0, true
	case Send:
		return bytes, 0, true
	}
	return 0, bytes, true
}

// Hints of a configuration, places in Config.Hints; wire.spec's nccl_hint.
const (
	ClusterSize = iota
	MinCTAs
	MaxCTAs
	SplitShare
	Collnet
	CTAPolicy
	ShrinkShare
	NVLSCTAs
	Hints
)

// Undefined is a hint that is not given.
const Undefined = math.MinInt32

// NoColor is the colour of a rank that gets no communicator from a split.
const NoColor = -1

// hintRanges are what hints may be. NCCL has bounds of its own, which are not wider.
var hintRanges = [Hints][2]int32{ClusterSize: {0, 16}, MinCTAs: {1, 64}, MaxCTAs: {1, 64}, SplitShare: {0, 1},
	Collnet: {0, 1}, CTAPolicy: {0, 3}, ShrinkShare: {0, 1}, NVLSCTAs: {1, 64}}

// Config is what a program says of a communicator that it begins.
type Config struct {
	Hints [Hints]int32
	Net   string // "": any
	Name  string // for the library's own messages
}

// Check says which hint is none that the library takes; "": all can be given to it.
func (c *Config) Check() string {
	names := [Hints]string{"cgaClusterSize", "minCTAs", "maxCTAs", "splitShare", "collnetEnable", "CTAPolicy",
		"shrinkShare", "nvlsCTAs"}
	for i, v := range c.Hints {
		if v != Undefined && (v < hintRanges[i][0] || v > hintRanges[i][1]) {
			return fmt.Sprintf("the configuration's %s is %d", names[i], v)
		}
	}
	if least, most := c.Hints[MinCTAs], c.Hints[MaxCTAs]; least != Undefined && most != Undefined && least > most {
		return fmt.Sprintf("the configuration's minCTAs are %d, and maxCTAs %d", least, most)
	}
	for _, r := range []byte(c.Name) {
		if r < ' ' || r > '~' {
			return "the communicator's name is no plain text"
		}
	}
	return ""
}

// Made says whether a reduction is none of NCCL's own: a program made it.
func (r ReduceOp) Made() bool { return r >= operators }

// FirstReduction is the number that the first reduction of a program's can have.
const FirstReduction = uint32(operators)

// ElementBytes is the size of an element; 0: there is no such type.
func (t DataType) ElementBytes() uint64 {
	if int(t) >= len(elementBytes) {
		return 0
	}
	return elementBytes[t]
}

// Library carries calls out. Calls for one communicator come one at a time, but for Abort and AsyncError; each may come
// from another OS thread, on which the communicator's context is current. Calls may wait for other ranks.
type Library interface {
	// Open says which version the library has. It is opened by the first call, in an environment to which these settings,
	// NAME=VALUE, have been added, but for what stands there.
	Open(settings []string) (version uint32, err error)
	UniqueID(*ID) Result
	// InitRank makes a rank of a communicator; its ranks find each other by one id or by several.
	InitRank(comm *Comm, ranks, rank int32, ids []ID, cfg *Config) Result
	// Split makes a communicator of those ranks of a parent that name the same colour; 0 for [NoColor]. Without a
	// configuration it has the parent's.
	Split(parent Comm, made *Comm, color, key int32, cfg *Config) Result
	// Shrink makes one of a parent's ranks without some; abort: what is under way in the parent ends with an error.
	Shrink(parent Comm, made *Comm, excluded []int32, abort bool, cfg *Config) Result
	// Place says which rank this one is, and of how many.
	Place(Comm) (rank, ranks int32, r Result)
	// MakeReduction makes a sum whose terms are multiplied before, by what scalar is or, on the device, points to.
	MakeReduction(comm Comm, op *ReduceOp, scalar uint64, onDevice bool, of DataType) Result
	EndReduction(Comm, ReduceOp) Result
	// Group enqueues operations, several as one group.
	Group([]Operation) Result
	Finalize(Comm) Result
	Destroy(Comm) Result
	Abort(Comm) Result
	AsyncError(Comm) (state, r Result)
	// LastError says more about the last failure, where the library can.
	LastError() string
}
