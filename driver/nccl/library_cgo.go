// Package nccl carries collectives out by NVIDIA's NCCL in the worker's process. The library is opened when a client
// first asks for it, and not before: other sessions pay nothing for it.
//
// Its tests run against the simulation's NCCL (sim/nccl). It has not been tried on a GPU.
//
// Locks: mu guards the opening. Calls come from the threads of communicators (package executor), one a communicator.
package nccl

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
// #cgo LDFLAGS: -ldl
// #include "library.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"scuda.dev/scuda/api/nccl"
)

// Default is the library that is opened where none is named.
const Default = "libnccl.so.2"

// ErrNone is wrapped where this machine has no NCCL that can be used.
var ErrNone = errors.New("NCCL cannot be opened on the server")

// Library is an [nccl.Library].
type Library struct {
	path    string
	mu      sync.Mutex
	version uint32 // 0: it is not open
}

var _ nccl.Library = (*Library)(nil)

// New makes a library by its path; "" means the default. Nothing is opened yet.
func New(path string) *Library {
	if path == "" {
		path = Default
	}
	return &Library{path: path}
}

// Open opens it once. One that fails is tried again by the next call. What the operator set goes before a program's.
func (l *Library) Open(settings []string) (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version != 0 {
		return l.version, nil
	}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, value); err != nil { // C's environment, too, which the library reads
			return 0, err
		}
	}
	path := C.CString(l.path)
	defer C.free(unsafe.Pointer(path))
	var version C.int
	if reason := C.nccl_open(path, &version); reason != nil {
		return 0, fmt.Errorf("%w: %s: %s; install NVIDIA's NCCL there, or name it with --nccl FILE", ErrNone, l.path,
			C.GoString(reason))
	}
	l.version = uint32(version)
	return l.version, nil
}

// UniqueID is ncclGetUniqueId.
func (*Library) UniqueID(id *nccl.ID) nccl.Result {
	return nccl.Result(C.nccl_unique_id(unsafe.Pointer(id)))
}

// config is a configuration as the library's own; its strings are freed by the function.
func config(c *nccl.Config) (*C.struct_nccl_hints, func()) {
	if c == nil {
		return nil, func() {}
	}
	h := &C.struct_nccl_hints{cluster_size: C.int(c.Hints[nccl.ClusterSize]), min_ctas: C.int(c.Hints[nccl.MinCTAs]),
		max_ctas: C.int(c.Hints[nccl.MaxCTAs]), split_share: C.int(c.Hints[nccl.SplitShare]),
		collnet: C.int(c.Hints[nccl.Collnet]), cta_policy: C.int(c.Hints[nccl.CTAPolicy]),
		shrink_share: C.int(c.Hints[nccl.ShrinkShare]), nvls_ctas: C.int(c.Hints[nccl.NVLSCTAs])}
	if c.Net != "" {
		h.net = C.CString(c.Net)
	}
	if c.Name != "" {
		h.name = C.CString(c.Name)
	}
	return h, func() {
		C.free(unsafe.Pointer(h.net))
		C.free(unsafe.Pointer(h.name))
	}
}

// InitRank is ncclCommInitRankConfig, or ncclCommInitRankScalable.
func (*Library) InitRank(comm *nccl.Comm, ranks, rank int32, ids []nccl.ID, cfg *nccl.Config) nccl.Result {
	var made C.uint64_t
	h, free := config(cfg)
	defer free()
	r := C.nccl_init_rank(&made, C.int(ranks), C.int(rank), unsafe.Pointer(&ids[0]), C.int(len(ids)), h)
	*comm = nccl.Comm(made)
	return nccl.Result(r)
}

// Split is ncclCommSplit.
func (*Library) Split(parent nccl.Comm, made *nccl.Comm, color, key int32, cfg *nccl.Config) nccl.Result {
	var c C.uint64_t
	h, free := config(cfg)
	defer free()
	r := C.nccl_split(C.uint64_t(parent), &c, C.int(color), C.int(key), h)
	*made = nccl.Comm(c)
	return nccl.Result(r)
}

// Shrink is ncclCommShrink.
func (*Library) Shrink(
	parent nccl.Comm, made *nccl.Comm, excluded []int32, abort bool, cfg *nccl.Config,
) nccl.Result {
	var c C.uint64_t
	h, free := config(cfg)
	defer free()
	list := make([]C.int, len(excluded)+1)
	for i, rank := range excluded {
		list[i] = C.int(rank)
	}
	flags := C.int(0)
	if abort {
		flags = 1
	}
	r := C.nccl_shrink(C.uint64_t(parent), &c, &list[0], C.int(len(excluded)), flags, h)
	*made = nccl.Comm(c)
	return nccl.Result(r)
}

// Place is ncclCommUserRank and ncclCommCount.
func (*Library) Place(comm nccl.Comm) (rank, ranks int32, r nccl.Result) {
	var k, n C.int
	r = nccl.Result(C.nccl_place(C.uint64_t(comm), &k, &n))
	return int32(k), int32(n), r
}

// MakeReduction is ncclRedOpCreatePreMulSum.
func (*Library) MakeReduction(
	comm nccl.Comm, op *nccl.ReduceOp, scalar uint64, onDevice bool, of nccl.DataType,
) nccl.Result {
	var made C.int
	device := C.int(0)
	if onDevice {
		device = 1
	}
	r := C.nccl_make_reduction(C.uint64_t(comm), &made, C.uint64_t(scalar), device, C.int(of))
	*op = nccl.ReduceOp(made)
	return nccl.Result(r)
}

// EndReduction is ncclRedOpDestroy.
func (*Library) EndReduction(comm nccl.Comm, op nccl.ReduceOp) nccl.Result {
	return nccl.Result(C.nccl_end_reduction(C.uint64_t(comm), C.int(op)))
}

// Group enqueues operations.
func (*Library) Group(list []nccl.Operation) nccl.Result {
	operations := make([]C.struct_nccl_operation, len(list))
	for i, o := range list {
		operations[i] = C.struct_nccl_operation{comm: C.uint64_t(o.Comm), send: C.uint64_t(o.Send),
			recv: C.uint64_t(o.Recv), count: C.uint64_t(o.Count), stream: C.uint64_t(o.Stream),
			function: C.uint32_t(o.Function), _type: C.uint32_t(o.Type), op: C.uint32_t(o.Op), peer: C.int32_t(o.Peer)}
	}
	if len(list) == 0 {
		return nccl.Success
	}
	return nccl.Result(C.nccl_group(&operations[0], C.size_t(len(operations))))
}

// Finalize is ncclCommFinalize.
func (*Library) Finalize(comm nccl.Comm) nccl.Result {
	return nccl.Result(C.nccl_finalize(C.uint64_t(comm)))
}

// Destroy is ncclCommDestroy.
func (*Library) Destroy(comm nccl.Comm) nccl.Result {
	return nccl.Result(C.nccl_destroy(C.uint64_t(comm)))
}

// Abort is ncclCommAbort.
func (*Library) Abort(comm nccl.Comm) nccl.Result { return nccl.Result(C.nccl_abort(C.uint64_t(comm))) }

// AsyncError is ncclCommGetAsyncError.
func (*Library) AsyncError(comm nccl.Comm) (state, r nccl.Result) {
	var s C.int
	r = nccl.Result(C.nccl_async_error(C.uint64_t(comm), &s))
	return nccl.Result(s), r
}

// LastError is ncclGetLastError.
func (*Library) LastError() string { return C.GoString(C.nccl_last_error()) }
