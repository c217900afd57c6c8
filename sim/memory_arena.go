package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
	"scuda.dev/scuda/internal/window"
	"scuda.dev/scuda/sim/board"
)

const (
	// far from where Linux maps a program's memory, so that a device address differs from host pointers
	arenaBase   = 0x4f0000000000
	arenaStride = 1 << 42
	arenaStep   = 1 << 40 // what is looked at next where something else lies there
	arenaEnd    = window.High
)

// newArena reserves addresses for a device: four times its memory, so that fragments do not make it run short of
// addresses.
//
// Where the contents are the machine's and the board has memory, it takes that of the process's seat, with what the
// process has left there that had the seat before. What lies far in is given back: the next allocations are in front.
func newArena(ordinal int, memory uint64, seat *board.Seat, contents Contents) (arena, error) {
	size := min(4*memory, board.Room)
	fd, offset, given := seat.Memory(ordinal)
	var err error
	if given = given && contents == ContentsMachine; !given {
		if fd, err = memfd.New("scuda-sim-device", int64(size)); err != nil {
			return arena{}, fmt.Errorf("sim: memory file for device %d: %w", ordinal, err)
		}
		offset = 0
	} else if size > keptBytes {
		const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		if err := unix.Fallocate(fd, punch, offset+keptBytes, int64(size-keptBytes)); err != nil {
			return arena{}, fmt.Errorf("sim: memory of device %d: %w", ordinal, err)
		}
	}
	base, err := arenaMemory(fd, offset, size, arenaBase+uint64(ordinal)*arenaStride)
	if err != nil {
		if !given {
			err = errors.Join(err, unix.Close(fd))
		}
		return arena{}, fmt.Errorf("sim: reserving %d GiB of addresses for device %d: %w; "+
			"allow more virtual memory (ulimit -v)", size>>30, ordinal, err)
	}
	return arena{
		base: base, size: size, fd: fd, offset: offset, given: given, keep: contents != ContentsClear,
		free: []span{{base, size}},
	}, nil
}

// arenaMemory maps a device's memory: where it is wanted, or at the first place above 1 TiB that is free, as NVIDIA's
// driver looks for big ones, where another GPU of this process is there or the process may not use that.
func arenaMemory(fd int, offset int64, size, wanted uint64) (uint64, error) {
	const flags = unix.MAP_SHARED | unix.MAP_NORESERVE | unix.MAP_FIXED_NOREPLACE
	try := func(place uint64) (uint64, error) {
		p, err := unix.MmapPtr(fd, offset, at(place), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags)
		return addressOf(p), err
	}
	base, err := try(wanted)
	for place := uint64(arenaStep); errors.Is(err, unix.EEXIST) && place < arenaEnd; place += arenaStep {
		base, err = try(place)
	}
	return base, err
}

func (a *arena) close() error {
	if a.size == 0 {
		return nil
	}
	err := unmap(a.base, a.size)
	if !a.given {
		err = errors.Join(err, unix.Close(a.fd))
	}
	return err
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
	_, err := unix.MmapPtr(fd, offset, at(addr), uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// unmapFile makes the range reserved again.
func unmapFile(addr, size uint64) error {
	_, err := unix.MmapPtr(-1, 0, at(addr), uintptr(size), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

func unmap(addr, size uint64) error { return unix.MunmapPtr(at(addr), uintptr(size)) }

// keptBytes is up to which size contents are kept; more is the system's to use.
const keptBytes = 64 << 20

// discard gives the pages that lie wholly in the range back to the system, unless contents are kept.
func (a *arena) discard(addr, size uint64) error {
	if a.keep && size <= keptBytes {
		return nil
	}
	lo, hi := roundUp(addr, page), (addr+size)&^(page-1)
	if lo >= hi {
		return nil
	}
	return unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, a.offset+int64(lo-a.base),
		int64(hi-lo))
}

// span is a range of addresses.
type span struct{ base, size uint64 }

// arena hands out ranges of a device's reserved addresses, first fit. free is sorted and has no adjacent spans.
type arena struct {
	base, size uint64
	fd         int // of the memory
	offset     int64
	given      bool // the file is the board's
	keep       bool // what was freed stays as it was
	free       []span
}

func (a *arena) alloc(n, align uint64) (uint64, bool) {
	for i, s := range a.free {
		base := roundUp(s.base, align)
		if base+n < base || base+n > s.base+s.size {
			continue
		}
		var rest []span
		if base > s.base {
			rest = append(rest, span{s.base, base - s.base})
		}
		if end := base + n; end < s.base+s.size {
			rest = append(rest, span{end, s.base + s.size - end})
		}
		a.free = slices.Replace(a.free, i, i+1, rest...)
		return base, true
	}
	return 0, false
}

func (a *arena) release(base, n uint64) {
	i, _ := slices.BinarySearchFunc(a.free, base, func(s span, b uint64) int { return cmp.Compare(s.base, b) })
	s := span{base, n}
	if i < len(a.free) && s.base+s.size == a.free[i].base {
		s.size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
	if i > 0 && a.free[i-1].base+a.free[i-1].size == s.base {
		a.free[i-1].size += s.size
		return
	}
	a.free = slices.Insert(a.free, i, s)
}

func roundUp(n, align uint64) uint64 { return (n + align - 1) / align * align }
