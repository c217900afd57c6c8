package sim

import (
	"golang.org/x/sys/unix"
)

// stringArena keeps NUL-terminated strings whose addresses the driver hands out (names of functions): they live as long
// as the GPU.
type stringArena struct {
	blocks []span
	used   uint64
	known  map[string]pointer
}

const stringBlock = 64 << 10

// pointer gives the address of a C copy of s, or nil where there is no memory. The GPU's lock is held.
func (a *stringArena) pointer(s string) pointer {
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
		a.known = map[string]pointer{}
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
