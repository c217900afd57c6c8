// Package cuda is the CUDA driver API in Go terms: its types, constants and operation numbers, and the interfaces
// that the machine's own driver (driver/real) and the simulated GPU (sim) implement. All but this file is generated
// from the description in package api.
//
// Names are the C names, functions with a capital first letter. Handles and device addresses are integers of their own
// types; pointers inside structures are uintptr. Memory that a pointer parameter points to holds no Go pointers.
package cuda

// Special streams (they are macros in C, so the facts do not have them).
const (
	StreamLegacy    CUstream = 1
	StreamPerThread CUstream = 2
)

// Words are the arguments of a call, one for each parameter: integers as they are, with 0 above a value of less than 8
// bytes, addresses, the bits of a float, a structure of at most 8 bytes that is passed by value; of a larger one its
// address. What an address leads to does not move and lives until the call has returned.
type Words = [16]uint64

// Caller is a driver that takes calls as words: any function, by the number of its operation. A Driver that is no
// Caller is called by its methods (driver/invoke).
type Caller interface {
	Call(op uint16, args *Words) CUresult
}

// GPU is a Driver with what C programs get by other means than its functions.
type GPU interface {
	Driver
	// HostFunc enqueues f as a host function of stream. f runs on a thread of the driver and may block; it must not call
	// the driver.
	HostFunc(stream CUstream, f func()) CUresult
	// LaunchNode enqueues what HostNode gave, as HostFunc does; captured, it becomes a node that has these parameters.
	LaunchNode(stream CUstream, p CUDA_HOST_NODE_PARAMS) CUresult
	// HostNode gives the parameters of graph nodes that run f, as HostFunc does; f may run until DropNode, or as long as
	// the GPU is open.
	HostNode(f func()) CUDA_HOST_NODE_PARAMS
	// DropNode forgets what HostNode gave. No graph has it any more.
	DropNode(p CUDA_HOST_NODE_PARAMS)
	// PrimaryContext gives the handle of a device's primary context without retaining it.
	PrimaryContext(dev CUdevice) (CUcontext, CUresult)
	// ThreadInit is called on each locked OS thread before its first other call.
	ThreadInit()
	// Close frees what Open took. Nothing may be called afterwards.
	Close() error
}

// TPCMapper is implemented by a GPU that knows where its texture processing clusters lie: for each its index within its
// graphics processing cluster, and the number of that.
type TPCMapper interface {
	TPCMap() (tpcInGPC, gpcOfTPC []byte, r CUresult)
}

// FP8Teller is implemented by a GPU whose driver says whether it runs kernels on matrices of 8-bit floating point
// numbers, in a private table that cuSPARSELt asks.
type FP8Teller interface {
	FP8() (answer int32, r CUresult)
}

// Launch is a plain kernel launch, as cuLaunchKernel takes it. Params is the address of the parameters' addresses and
// lies, as they do, outside of Go's heap.
type Launch struct {
	Function CUfunction
	Stream   CUstream
	Params   uintptr
	Grid     [3]uint32
	Block    [3]uint32
	Shared   uint32
	Result   CUresult
	Thread   uint32 // of the program; its launches are made in their order
	_        uint32
}

// Launcher is implemented by a GPU that can carry out several launches at once for less than they cost one by one.
// Those of one thread go in their order, those of different threads may be made at once where no stream has launches of
// two of them and none is a default stream. Each goes whether or not the ones before it failed, and leaves its result
// in the list, which lies outside of Go's heap.
type Launcher interface {
	LaunchAll(list []Launch)
}
