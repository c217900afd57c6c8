package sim

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
	"scuda.dev/scuda/sim/ptx"
)

// at makes a pointer of an address that is not Go memory.
func at(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// bytesAt is the memory [addr, addr+n), which the caller has found in the table of regions or vouches for.
func bytesAt(addr uint64, n uint64) []byte { return unsafe.Slice((*byte)(at(addr)), n) }

func bytesOf(p unsafe.Pointer, n uint64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

func addressOf(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }

// Region gives the interpreter the memory around a device address, if kernels may touch it.
func (m *memory) Region(addr uint64) (ptx.Region, bool) {
	r := m.find(addr)
	if r == nil {
		return ptx.Region{}, false
	}
	const align = 16 // what the interpreter needs; only registered host memory can begin in between
	base := r.base &^ (align - 1)
	return ptx.Region{Start: base, Bytes: bytesAt(base, r.end()-base), ReadOnly: r.readOnly}, true
}

const (
	arenaBase   = 0x4f0000000000 // far from where Linux maps a program's memory, so that a device address differs from host pointers
	arenaStride = 1 << 42
)

// newArena reserves addresses for a device: four times its memory, so that fragments do not make it run short of addresses.
func newArena(ordinal int, memory uint64) (arena, error) {
	size := 4 * memory
	fd, err := memfd.New("scuda-sim-device", int64(size))
	if err != nil {
		return arena{}, fmt.Errorf("sim: memory file for device %d: %w", ordinal, err)
	}
	const flags = unix.MAP_SHARED | unix.MAP_NORESERVE
	hint := arenaBase + uint64(ordinal)*arenaStride
	p, err := unix.MmapPtr(fd, 0, at(hint), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED_NOREPLACE)
	if err != nil { // taken by another GPU of this process
		p, err = unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags)
	}
	if err != nil {
		err = errors.Join(err, unix.Close(fd))
		return arena{}, fmt.Errorf("sim: reserving %d GiB of addresses for device %d: %w; allow more virtual memory (ulimit -v)", size>>30, ordinal, err)
	}
	base := addressOf(p)
	return arena{base: base, size: size, fd: fd, free: []span{{base, size}}}, nil
}

func (a *arena) close() error {
	if a.size == 0 {
		return nil
	}
	return errors.Join(unmap(a.base, a.size), unix.Close(a.fd))
}

// reserve maps memory that is not backed until touched, at hint if that is free.
func reserve(hint, size uint64, prot int) (uint64, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if hint != 0 {
		if p, err := unix.MmapPtr(-1, 0, at(hint), uintptr(size), prot, flags|unix.MAP_FIXED_NOREPLACE); err == nil {
			if addressOf(p) == hint {
				return hint, nil
			}
			if err := unix.MunmapPtr(p, uintptr(size)); err != nil {
				return 0, err
			}
		}
	}
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size), prot, flags)
	if err != nil {
		return 0, err
	}
	return addressOf(p), nil
}

// mapFile puts a memory file at an address inside a reserved range.
func mapFile(fd int, offset int64, addr, size uint64) error {
	_, err := unix.MmapPtr(fd, offset, at(addr), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// unmapFile makes the range reserved again.
func unmapFile(addr, size uint64) error {
	_, err := unix.MmapPtr(-1, 0, at(addr), uintptr(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

func unmap(addr, size uint64) error { return unix.MunmapPtr(at(addr), uintptr(size)) }

// discard gives the pages that lie wholly in the range back to the system.
func (a *arena) discard(addr, size uint64) error {
	lo, hi := roundUp(addr, page), (addr+size)&^(page-1)
	if lo >= hi {
		return nil
	}
	return unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(lo-a.base), int64(hi-lo))
}

// stringArena keeps NUL-terminated strings whose addresses the driver hands out (names of functions): they live as long as the GPU.
type stringArena struct {
	blocks []span
	used   uint64
	known  map[string]unsafe.Pointer
}

const stringBlock = 64 << 10

// pointer gives the address of a C copy of s, or nil where there is no memory. The GPU's lock is held.
func (a *stringArena) pointer(s string) unsafe.Pointer {
	if p, found := a.known[s]; found {
		return p
	}
	n := uint64(len(s)) + 1
	if len(a.blocks) == 0 || a.used+n > a.blocks[len(a.blocks)-1].size {
		size := roundUp(n, stringBlock)
		base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return nil
		}
		a.blocks, a.used = append(a.blocks, span{base, size}), 0
	}
	base := a.blocks[len(a.blocks)-1].base + a.used
	copy(bytesAt(base, n), s)
	a.used += n
	if a.known == nil {
		a.known = map[string]unsafe.Pointer{}
	}
	a.known[s] = at(base)
	return at(base)
}

func (a *stringArena) close() error {
	for _, b := range a.blocks {
		if err := unmap(b.base, b.size); err != nil {
			return err
		}
	}
	a.blocks, a.known = nil, nil
	return nil
}

// cString reads a NUL-terminated string of at most limit bytes.
func cString(p unsafe.Pointer, limit uint64) (string, bool) {
	if p == nil {
		return "", false
	}
	for n := uint64(0); n < limit; n++ {
		if *(*byte)(unsafe.Add(p, n)) == 0 {
			return string(bytesOf(p, n)), true
		}
	}
	return "", false
}

// sliceOf is the array of n elements at p.
func sliceOf[T any](p *T, n uint64) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(p, n)
}
