// Package dispatch carries out generic calls: it decodes a request, puts the driver's handles in the place of the client's, calls the
// driver and encodes the reply. One function for each operation is generated from the description; this file has what they share.
//
// Requests are untrusted: a payload that is malformed is an error (the session ends), a handle that does not exist is answered with
// CUDA_ERROR_INVALID_HANDLE, and arrays are never shorter than what the driver will touch.
package dispatch

import (
	"errors"
	"fmt"
	"unsafe"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
)

// Handles is the session's handle table as dispatch needs it; server/handle.Table has all but PerThread.
type Handles interface {
	// Real gives the driver's value of a client handle.
	Real(kind cuda.Kind, client uint64) (uint64, bool)
	// New enters an object that the driver has just created under the client's handle.
	New(kind cuda.Kind, client, real, parent uint64) error
	// Client finds or mints the client handle of a driver's value; 0 when there is no room.
	Client(kind cuda.Kind, real, parent uint64) uint64
	// Delete forgets a handle whose object has ended.
	Delete(kind cuda.Kind, client uint64)
	// PerThread is the driver's stream that stands for the calling thread's default stream.
	PerThread() uint64
}

// ErrOperation is returned for operations that have no generated form.
var ErrOperation = errors.New("unknown operation")

type method func(drv cuda.Driver, h Handles, r *codec.Reader, w *codec.Writer, perThread bool) cuda.CUresult

// Call carries out one generic operation. perThread says that the per-thread default-stream form was called. The reply is in w: empty
// unless the result is CUDA_SUCCESS or the operation gives outputs with failures too. An error means that the peer broke the protocol.
func Call(op uint16, perThread bool, drv cuda.Driver, h Handles, r *codec.Reader, w *codec.Writer) (cuda.CUresult, error) {
	if int(op) >= len(methods) || methods[op] == nil {
		return 0, fmt.Errorf("%w: %s; both sides must be built from the same description", ErrOperation, cuda.OpName(op))
	}
	w.Reset()
	result := methods[op](drv, h, r, w, perThread)
	if err := r.Err(); err != nil {
		w.Reset()
		return 0, fmt.Errorf("%s: %w", cuda.OpName(op), err)
	}
	return result, nil
}

// Has says whether an operation has a generated form.
func Has(op uint16) bool { return int(op) < len(methods) && methods[op] != nil }

// AsyncErrors says whether an operation may report the failure of an earlier unanswered call.
func AsyncErrors(op uint16) bool { return int(op) < len(asyncErrors) && asyncErrors[op] }

// Waits says whether the driver holds the caller of an operation until the work of the context is over.
func Waits(op uint16) bool { return int(op) < len(waits) && waits[op] }

// patch is a handle inside of a structure; when wants a 32-bit field of the same element to have one of the values.
type patch struct {
	offset uintptr
	kind   cuda.Kind
	when   *when
}

type when struct {
	offset uintptr
	values []int64
}

func (c *when) holds(element unsafe.Pointer) bool {
	if c == nil {
		return true
	}
	have := int64(*codec.Word32(element, c.offset))
	for _, v := range c.values {
		if v == have {
			return true
		}
	}
	return false
}

// real translates a handle; 0 stays 0, the driver knows what to say to it.
func real(h Handles, kind cuda.Kind, client uint64) (uint64, bool) {
	if client == 0 {
		return 0, true
	}
	return h.Real(kind, client)
}

// stream translates a stream; the special values depend on the form that was called.
func stream(h Handles, client uint64, perThread bool) (uint64, bool) {
	switch cuda.CUstream(client) {
	case 0:
		if perThread {
			return h.PerThread(), true
		}
		return 0, true
	case cuda.StreamLegacy:
		return client, true
	case cuda.StreamPerThread:
		return h.PerThread(), true
	}
	return h.Real(cuda.KindStream, client)
}

func one(h Handles, kind cuda.Kind, client uint64, perThread bool) (uint64, bool) {
	if kind == cuda.KindStream {
		return stream(h, client, perThread)
	}
	return real(h, kind, client)
}

// array translates handles in place.
func array(h Handles, kind cuda.Kind, p unsafe.Pointer, n uint64, perThread bool) bool {
	for i, client := range codec.Words(p, n) {
		v, ok := one(h, kind, client, perThread)
		if !ok {
			return false
		}
		codec.Words(p, n)[i] = v
	}
	return true
}

// patchIn translates the handles inside of n structures in place.
func patchIn(h Handles, p unsafe.Pointer, n, size uint64, patches []patch, perThread bool) bool {
	for i := range n {
		element := unsafe.Add(p, i*size)
		for _, c := range patches {
			if !c.when.holds(element) {
				continue
			}
			word := codec.Word64(element, c.offset)
			v, ok := one(h, c.kind, *word, perThread)
			if !ok {
				return false
			}
			*word = v
		}
	}
	return true
}

// patchOut puts client handles into n structures that the driver has filled.
func patchOut(h Handles, p unsafe.Pointer, n, size uint64, patches []patch, parent uint64) bool {
	if p == nil {
		return true
	}
	for i := range n {
		element := unsafe.Add(p, i*size)
		for _, c := range patches {
			if c.when.holds(element) && !back(h, c.kind, codec.Word64(element, c.offset), parent) {
				return false
			}
		}
	}
	return true
}

// returned puts client handles into an array that the driver has filled.
func returned(h Handles, kind cuda.Kind, p unsafe.Pointer, n, parent uint64) bool {
	words := codec.Words(p, n)
	for i := range words {
		if !back(h, kind, &words[i], parent) {
			return false
		}
	}
	return true
}

func back(h Handles, kind cuda.Kind, word *uint64, parent uint64) bool {
	if *word == 0 || kind == cuda.KindStream && *word <= uint64(cuda.StreamPerThread) {
		return true
	}
	*word = h.Client(kind, *word, parent)
	return *word != 0
}

// refused finds structures that name host memory of the client, which the driver must not be given.
func refused(p unsafe.Pointer, n, size uint64, conditions []when) bool {
	for i := range n {
		for j := range conditions {
			if conditions[j].holds(unsafe.Add(p, i*size)) {
				return true
			}
		}
	}
	return false
}

// create enters a new object under the client's handle.
func create(h Handles, r *codec.Reader, kind cuda.Kind, client, value, parent uint64) {
	if value == 0 {
		return
	}
	if err := h.New(kind, client, value, parent); err != nil {
		r.Fail(err.Error())
	}
}

// less is a count minus a constant, never below 0.
func less(count, minus uint64) uint64 {
	if count <= minus {
		return 0
	}
	return count - minus
}

// count reads an in/out count of 4 or 8 bytes; none is 0.
func count(p unsafe.Pointer, size uintptr) uint64 {
	switch {
	case p == nil:
		return 0
	case size == 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

// opaque makes the pointer that the driver takes a number for.
func opaque(v uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&v)) }
