// Package real is the machine's own CUDA driver and management library behind the interfaces of api/cuda and api/nvml.
// The libraries are opened at run time, so that this program builds and starts on machines without a driver; functions
// that the installed driver does not have answer that they are not supported. All calls go through one C function that
// takes words: the server's generic calls come as words, and methods of the functions that Go code calls by name, which
// are generated, put their arguments into words.
package real

/*
#cgo CFLAGS: -O2
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "launch.h"
#include "trampoline.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// ErrNoLibrary is returned when the machine has no such driver library.
var ErrNoLibrary = errors.New("driver library cannot be opened")

// LibraryError says which library and what the loader said.
type LibraryError struct{ Path, Why string }

func (e *LibraryError) Error() string {
	return fmt.Sprintf(
		"%s cannot be opened: %s; install NVIDIA's driver on this machine, or serve the simulated GPU with --gpu sim", e.Path,
		e.Why)
}

// Unwrap makes errors.Is(err, ErrNoLibrary) true.
func (e *LibraryError) Unwrap() error { return ErrNoLibrary }

// words are a call's integer arguments.
type words = cuda.Words

// library is an opened driver library. It stays open: drivers do not survive being unloaded.
type library struct {
	path   string
	handle unsafe.Pointer
}

func open(path string) (*library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	h := C.scuda_real_open(name, &why)
	if h == nil {
		return nil, &LibraryError{path, C.GoString(why)}
	}
	return &library{path, h}, nil
}

// symbol is the address of a function; nil when this driver does not have it.
func (l *library) symbol(name string) unsafe.Pointer {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return C.scuda_real_symbol(l.handle, n)
}

func call(fn unsafe.Pointer, a *words) uint64 {
	return uint64(C.scuda_real_call(fn, C.uint64_t(a[0]), C.uint64_t(a[1]), C.uint64_t(a[2]), C.uint64_t(a[3]),
		C.uint64_t(a[4]), C.uint64_t(a[5]), C.uint64_t(a[6]), C.uint64_t(a[7]),
		C.uint64_t(a[8]), C.uint64_t(a[9]), C.uint64_t(a[10]), C.uint64_t(a[11]), C.uint64_t(a[12]), C.uint64_t(a[13]),
		C.uint64_t(a[14]), C.uint64_t(a[15])))
}

// form says which arguments are no words; a call by words has then: for a float its bits in the lower half of its word,
// for a structure of more than 8 bytes its address.
type form struct {
	tensor bool     // the first points to memory that must be aligned to 128 bytes
	blob   bool     // the second is a structure of 64 bytes
	floats [2]uint8 // these are floats; 0: none
}

// callForm calls a function in the way that its arguments travel.
func callForm(fn unsafe.Pointer, f *form, a *words) uint64 {
	switch {
	case f.tensor:
		return callTensor(fn, a)
	case f.blob:
		return callBlob64(fn, a[0], pointerOf(a[1]), a[2])
	case f.floats[0] != 0:
		var plain words
		n := 0
		for i, w := range a {
			if i != int(f.floats[0]) && (i != int(f.floats[1]) || f.floats[1] == 0) {
				plain[n] = w
				n++
			}
		}
		second := float32(0)
		if f.floats[1] != 0 {
			second = math.Float32frombits(uint32(a[f.floats[1]]))
		}
		return callFloat(fn, &plain, math.Float32frombits(uint32(a[f.floats[0]])), second)
	}
	return call(fn, a)
}

func callFloat(fn unsafe.Pointer, a *words, f0, f1 float32) uint64 {
	return uint64(C.scuda_real_call_float(fn, C.uint64_t(a[0]), C.uint64_t(a[1]), C.uint64_t(a[2]), C.uint64_t(a[3]),
		C.float(f0), C.float(f1)))
}

func callBlob64(fn unsafe.Pointer, out uint64, blob unsafe.Pointer, flags uint64) uint64 {
	return uint64(C.scuda_real_call_blob64(fn, C.uint64_t(out), blob, C.uint64_t(flags)))
}

func callTensor(fn unsafe.Pointer, a *words) uint64 {
	return uint64(C.scuda_real_call_tensor(fn, C.uint64_t(a[0]), C.uint64_t(a[1]), C.uint64_t(a[2]), C.uint64_t(a[3]),
		C.uint64_t(a[4]), C.uint64_t(a[5]), C.uint64_t(a[6]), C.uint64_t(a[7]),
		C.uint64_t(a[8]), C.uint64_t(a[9]), C.uint64_t(a[10]), C.uint64_t(a[11]), C.uint64_t(a[12]), C.uint64_t(a[13]),
		C.uint64_t(a[14]), C.uint64_t(a[15])))
}

func launchHost(fn unsafe.Pointer, stream uint64, handle uintptr) uint64 {
	return uint64(C.scuda_real_launch_host(fn, C.uint64_t(stream), C.uintptr_t(handle)))
}

func launchAll(launch, get, set unsafe.Pointer, list uint64, n, lanes int) {
	C.scuda_real_launch_all(C.uintptr_t(uintptr(launch)), C.uintptr_t(uintptr(get)), C.uintptr_t(uintptr(set)),
		C.uintptr_t(list), C.uint64_t(n), C.uint32_t(lanes))
}

// mostLanes are the threads that make launches at once: one for each four processors, since the client's threads may be
// on the same machine.
func mostLanes(processors int) int { return max(1, min(processors/4, int(C.SCUDA_REAL_LANES))) }

func hostEntry() uintptr { return uintptr(C.scuda_real_host_entry()) }

// escape makes the compiler put what p points to on the heap, where it does not move: as a word, an address of the
// stack would be wrong once the stack grows. The store never happens.
func escape(p unsafe.Pointer) {
	if never {
		sink = p
	}
}

var (
	never bool
	sink  unsafe.Pointer
)

// address is a pointer argument as a word. The pointers are to memory outside of Go's heap, or to Go memory that the
// caller keeps.
func address[T any](p *T) uint64 { return raw(unsafe.Pointer(p)) }

// raw is an untyped pointer argument as a word.
func raw(p unsafe.Pointer) uint64 {
	escape(p)
	return uint64(uintptr(p))
}

// small is a structure of at most 8 bytes that is passed by value: it travels in one register.
func small[T any](v T) (w uint64) {
	if unsafe.Sizeof(v) > 8 {
		return math.MaxUint64 // the generator never emits this; such structures have calls of their own
	}
	*(*T)(unsafe.Pointer(&w)) = v
	return w
}

// pointer calls a function that returns a pointer.
func pointer(fn unsafe.Pointer, a *words) unsafe.Pointer {
	if fn == nil {
		return nil
	}
	return pointerOf(call(fn, a))
}

func pointerOf(word uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&word)) }

// keep gives a call's result and keeps what its words point to until then.
func keep[R any](result R, pointers ...unsafe.Pointer) R {
	runtime.KeepAlive(pointers)
	return result
}
