// Package nccl has what is known of NCCL, NVIDIA's library of collectives, in Go, and what the server asks of one. The
// constants are generated from the tables of api/facts, as are their C forms (shim/nccl).
package nccl

import (
	"fmt"
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

// Library carries calls out. Calls for one communicator come one at a time, but for Abort and AsyncError; each may come
// from another OS thread, on which the communicator's context is current. Calls may wait for other ranks.
type Library interface {
	// Open says which version the library has; it is opened by the first call.
	Open() (version uint32, err error)
	UniqueID(*ID) Result
	InitRank(comm *Comm, ranks int32, id *ID, rank int32) Result
	// Group enqueues operations, several as one group.
	Group([]Operation) Result
	Finalize(Comm) Result
	Destroy(Comm) Result
	Abort(Comm) Result
	AsyncError(Comm) (state, r Result)
	// LastError says more about the last failure, where the library can.
	LastError() string
}
