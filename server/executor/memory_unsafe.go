package executor

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
)

// Memory that the driver is given lies outside the Go heap: it may be read or written by a device and must never move.

// mapMemory reserves anonymous memory.
func mapMemory(bytes int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes: %w", bytes, err)
	}
	return b, nil
}

func unmapMemory(b []byte) { _ = unix.Munmap(b) }

// addressOf gives the address of non-empty memory from mapMemory or the driver.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func pointerTo(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// markWords are those of page-locked memory that the GPU writes.
func markWords(b []byte) []atomic.Uint32 {
	return unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func addressOfWord(w *atomic.Uint32) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }

// hostMemory is memory that the driver gave (page-locked).
func hostMemory(p unsafe.Pointer, bytes int) []byte { return unsafe.Slice((*byte)(p), bytes) }

// as gives typed access to the front of b, which must be aligned; ok is false when b is too short.
func as[T any](b []byte) (*T, bool) {
	var t T
	if uintptr(len(b)) < unsafe.Sizeof(t) {
		return nil, false
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b))), true
}

// arena hands out zeroed, 16-aligned pieces of mapped memory for the arguments of one driver call; reset takes them all
// back.
type arena struct {
	mem  []byte
	used int
}

// errArena ends the session of a client whose one command needs more than there is, wherever that is noticed (see
// [Session.loop]).
var errArena = fmt.Errorf("%w: the arguments of one command take more than %d bytes", ErrProtocol, arenaBytes)

func (a *arena) reset() { a.used = 0 }

func (a *arena) bytes(n int) []byte {
	size := (n + 15) &^ 15
	if n < 0 || size < n || size > len(a.mem)-a.used {
		panic(errArena)
	}
	b := a.mem[a.used : a.used+n : a.used+size]
	a.used += size
	clear(b)
	return b
}

// room says how many bytes are left.
func (a *arena) room() int { return len(a.mem) - a.used - 64 }

// alloc gives zeroed memory for a T.
func alloc[T any](a *arena) *T {
	var t T
	return (*T)(unsafe.Pointer(unsafe.SliceData(a.bytes(max(1, int(unsafe.Sizeof(t)))))))
}

// allocN gives zeroed memory for n Ts.
func allocN[T any](a *arena, n int) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(a.bytes(max(1, n*int(unsafe.Sizeof(t))))))), n)
}

// cString reads a NUL-terminated string of the driver, at most 64 KiB of it.
func cString(address uintptr) []byte {
	const most = 64 << 10
	p := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	for n := range most {
		if *(*byte)(unsafe.Add(p, n)) == 0 {
			return unsafe.Slice((*byte)(p), n)
		}
	}
	return nil
}

func pointerOf[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// driverWords looks at n 64-bit values at an address of the driver's.
func driverWords(address uintptr, n int) []uint64 {
	return unsafe.Slice((*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), n)
}

const affinityBytes = uint64(unsafe.Sizeof(cuda.CUexecAffinityParam{}))

// copy3DOf reads the description of a copy.
func copy3DOf(words *[25]uint64) *cuda.CUDA_MEMCPY3D_PEER {
	return (*cuda.CUDA_MEMCPY3D_PEER)(unsafe.Pointer(words))
}

// asPeerCopy is a description seen as the one with contexts, which lie where it has words that must be 0.
func asPeerCopy(m *cuda.CUDA_MEMCPY3D) *cuda.CUDA_MEMCPY3D_PEER {
	return (*cuda.CUDA_MEMCPY3D_PEER)(unsafe.Pointer(m))
}

// asPlainCopy is a description without contexts: they lie where the plain structure has words that must be 0.
func asPlainCopy(m *cuda.CUDA_MEMCPY3D_PEER) *cuda.CUDA_MEMCPY3D {
	m.SrcContext, m.DstContext = 0, 0
	return (*cuda.CUDA_MEMCPY3D)(unsafe.Pointer(m))
}
