// Package dispatch carries out generic calls: it decodes a request, puts the driver's handles in the place of the
// client's, calls the driver and encodes the reply. What it does to each parameter says a table that is generated from
// the description; one interpreter (call) serves all operations, and what it has checked goes to the driver as words.
// The executor calls it from its own thread; nothing here has a lock.
//
// Requests are untrusted: a payload that is malformed is an error (the session ends), a handle that does not exist is
// answered with CUDA_ERROR_INVALID_HANDLE, and arrays are never shorter than what the driver will touch.
package dispatch

import (
	"errors"
	"fmt"
	"slices"
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
	// Holds says whether the session was given a number that names an object of the driver, and has not given it back.
	Holds(kind cuda.Kind, number uint64) bool
	// Give notes a number that the driver gave to the session; it ends with its parent, if that is a handle.
	Give(kind cuda.Kind, number, parent uint64)
	// Take notes that the session gave a number back.
	Take(kind cuda.Kind, number uint64)
	// Hide puts a token for the client in the place of what the driver gave; it says whether there was room for one.
	Hide(kind cuda.Kind, value *[tokenBytes]byte) bool
	// Mean puts what a token of the client's stands for in its place; it says whether it stands for anything.
	Mean(kind cuda.Kind, value *[tokenBytes]byte) bool
	// PerThread is the driver's stream that stands for the calling thread's default stream.
	PerThread() uint64
}

// tokenBytes is the size of every structure that a token stands for.
const tokenBytes = int(unsafe.Sizeof(cuda.CUipcMemHandle{}))

// ErrOperation is returned for operations that have no generated form.
var ErrOperation = errors.New("unknown operation")

// Call carries out one generic operation. perThread says that the per-thread default-stream form was called. The reply
// is in w: empty unless the result is CUDA_SUCCESS or the operation gives outputs with failures too. An error means
// that the peer broke the protocol.
func Call(
	op uint16, perThread bool, drv cuda.Driver, h Handles, r *codec.Reader, w *codec.Writer,
) (cuda.CUresult, error) {
	if int(op) >= len(methods) || methods[op] == nil {
		return 0, fmt.Errorf("%w: %s; both sides must be built from the same description", ErrOperation, cuda.OpName(op))
	}
	w.Reset()
	f := methods[op]
	var result cuda.CUresult
	if f.words {
		result = f.plain(op, perThread, drv, h, r, &w.Args)
	} else {
		c := call{function: f, h: h, r: r, w: w, perThread: perThread}
		result = c.carryOut(op, drv)
	}
	if err := r.Err(); err != nil {
		w.Reset()
		return 0, fmt.Errorf("%s: %w", cuda.OpName(op), err)
	}
	return result, nil
}

// patch is a handle inside of a structure.
type patch struct {
	offset uintptr
	kind   cuda.Kind
	when   *when
	union  bool // where the condition does not hold, the place means something else; elsewhere it is unused then
}

// word is a field of a structure that is no handle and must not reach the driver unseen: a number that names an object
// of a kind, (void) an address that means nothing here, or (enum) 32 bits of an enumeration.
type word struct {
	offset  uintptr
	void    bool
	enum    bool
	kind    cuda.Kind
	unknown cuda.CUresult // the answer to a number that the session was not given
	when    *when
	union   bool
}

// when wants a 32-bit field of the same element, or what is selected beside it, to have one of the values.
type when struct {
	offset int
	values []int64
}

func (c *when) holds(element unsafe.Pointer, selected int64) bool {
	if c == nil {
		return true
	}
	if c.offset >= 0 {
		selected = int64(*codec.Word32(element, uintptr(c.offset)))
	}
	return slices.Contains(c.values, selected)
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

// patchIn translates the handles inside of n structures in place. What their conditions say is unused becomes 0.
func patchIn(h Handles, p unsafe.Pointer, n, size uint64, patches []patch, selected int64, perThread bool) bool {
	for i := range n {
		element := unsafe.Add(p, i*size)
		for _, c := range patches {
			word := codec.Word64(element, c.offset)
			if !c.when.holds(element, selected) {
				if !c.union {
					*word = 0
				}
				continue
			}
			v, ok := one(h, c.kind, *word, perThread)
			if !ok {
				return false
			}
			*word = v
		}
	}
	return true
}

// checkWords makes the numbers inside of n structures those of the session.
func checkWords(h Handles, p unsafe.Pointer, n, size uint64, words []word, selected int64) cuda.CUresult {
	for i := range n {
		element := unsafe.Add(p, i*size)
		for j := range words {
			c := &words[j]
			there := c.when.holds(element, selected)
			if c.enum {
				if value := codec.Word32(element, c.offset); there {
					*value = int32(codec.Enumerator(uint64(uint32(*value))))
				}
				continue
			}
			word := codec.Word64(element, c.offset)
			switch {
			case there && c.void, !there && !c.void && !c.union:
				*word = 0
			case there && c.kind != cuda.KindNone && !h.Holds(c.kind, *word):
				return c.unknown
			}
		}
	}
	return cuda.CUDA_SUCCESS
}

// translate makes one structure that a hand-written operation carries the driver's.
func translate(h Handles, p unsafe.Pointer, size uint64, patches []patch, words []word, selected int64) cuda.CUresult {
	if !patchIn(h, p, 1, size, patches, selected, false) {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	return checkWords(h, p, 1, size, words, selected)
}

// given notes the numbers that the driver gave to the session.
func given(h Handles, kind cuda.Kind, p unsafe.Pointer, n, parent uint64) {
	for _, number := range codec.Words(p, n) {
		h.Give(kind, number, parent)
	}
}

// hidden puts tokens in the place of n structures that the driver gave.
func hidden(h Handles, kind cuda.Kind, p unsafe.Pointer, n uint64) bool {
	for i := range tokens(p, n) {
		if !h.Hide(kind, &tokens(p, n)[i]) {
			return false
		}
	}
	return true
}

// meant puts what they stand for in the place of n tokens.
func meant(h Handles, kind cuda.Kind, p unsafe.Pointer, n uint64) bool {
	for i := range tokens(p, n) {
		if !h.Mean(kind, &tokens(p, n)[i]) {
			return false
		}
	}
	return true
}

func tokens(p unsafe.Pointer, n uint64) [][tokenBytes]byte {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*[tokenBytes]byte)(p), n)
}

// known says whether a 32-bit value is among those of an enumeration.
func known(values []int64, v uint64) bool {
	_, found := slices.BinarySearch(values, int64(int32(v)))
	return found
}

// member is what a union holds: its size, and what is in it.
type member struct {
	size    uint64
	patches []patch
	words   []word
	refuse  []when
}

// ErrHostMemory is the cause of the error about a structure in which the driver would take an address for one of this
// process's memory.
var ErrHostMemory = errors.New("memory of the client where the server's would be taken")

// NodeParams makes the parameters of a graph node, of any type, the driver's: handles are translated, numbers are those
// of the session, and what points into memory is 0, for the caller to fill in. A type that is not known is
// CUDA_ERROR_NOT_SUPPORTED.
func NodeParams(h Handles, p *cuda.CUgraphNodeParams) (cuda.CUresult, error) {
	if p.Type == cuda.CU_GRAPH_NODE_TYPE_EMPTY {
		p.U = [29]uint64{}
		return cuda.CUDA_SUCCESS, nil
	}
	m, ok := membersCUgraphNodeParams[int32(p.Type)]
	if !ok {
		return cuda.CUDA_ERROR_NOT_SUPPORTED, nil
	}
	u := unsafe.Pointer(&p.U)
	for i := range m.refuse {
		if m.refuse[i].holds(u, 0) {
			return 0, ErrHostMemory
		}
	}
	r := translate(h, u, m.size, m.patches, m.words, 0)
	clear(unsafe.Slice((*byte)(u), unsafe.Sizeof(p.U))[m.size:])
	return r, nil
}

// Copy3DEnd makes the end of a copy that is not the client's memory the driver's: an array or device memory. The other
// end is the caller's to fill in; src says that the GPU's end is the source. The plain form of the structure has no
// contexts.
func Copy3DEnd(h Handles, m *cuda.CUDA_MEMCPY3D_PEER, src bool) (cuda.CUresult, error) {
	kind := m.DstMemoryType
	if src {
		kind = m.SrcMemoryType
	}
	if kind == cuda.CU_MEMORYTYPE_HOST || kind == cuda.CU_MEMORYTYPE_UNIFIED {
		return 0, ErrHostMemory
	}
	return translate(h, unsafe.Pointer(m), uint64(unsafe.Sizeof(*m)), patchesCUDA_MEMCPY3D_PEER_v1,
		wordsCUDA_MEMCPY3D_PEER_v1, 0), nil
}

// LaunchAttribute makes the value of an attribute of a launch the driver's; value is a CUlaunchAttributeValue.
func LaunchAttribute(h Handles, id cuda.CUlaunchAttributeID, value unsafe.Pointer) cuda.CUresult {
	selected := int64(id)
	if !known(knownCUlaunchAttributeID, uint64(uint32(id))) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return translate(h, value, launchAttributeBytes, patchesCUlaunchAttributeValue, wordsCUlaunchAttributeValue, selected)
}

const launchAttributeBytes = uint64(unsafe.Sizeof(cuda.CUlaunchAttributeValue{}))

// patchOut puts client handles into n structures that the driver has filled.
func patchOut(h Handles, p unsafe.Pointer, n, size uint64, patches []patch, selected int64, parent uint64) bool {
	if p == nil {
		return true
	}
	for i := range n {
		element := unsafe.Add(p, i*size)
		for _, c := range patches {
			if c.when.holds(element, selected) && !back(h, c.kind, codec.Word64(element, c.offset), parent) {
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

// refused finds structures that no client sends: the driver would take an address in them for one of this process.
func refused(r *codec.Reader, p unsafe.Pointer, n, size uint64, conditions []when) bool {
	for i := range n {
		for j := range conditions {
			if conditions[j].holds(unsafe.Add(p, i*size), 0) {
				r.Fail("memory of the client where the server's would be taken")
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
