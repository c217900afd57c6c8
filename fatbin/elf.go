package fatbin

import (
	"bytes"
	"strings"
)

// Offsets in the ELF64 header, sizes of its tables' entries, and what CUDA puts into e_flags.
const (
	elfHeaderSize  = 64
	elfSectionSize = 64
	elfProgramSize = 56

	abiV2       = 8 // EI_ABIVERSION from which the architecture lies in bits 8…15 of e_flags
	flagAccelV1 = 0x800
	flagAccelV2 = 0x8
)

// empty says whether a section of this type takes no bytes of the file.
func empty(sectionType uint32) bool {
	switch sectionType {
	case 8, // NOBITS
		0x70000007, 0x70000009, 0x7000000a, 0x70000015: // CUDA: global, local, shared, reserved shared memory
		return true
	}
	return false
}

// elfSize gives the size of the ELF file at b by its headers; b must hold the file header, and the tables as far as it
// goes. What the sections and segments promise is counted even where b is shorter.
func elfSize(b []byte) (uint64, error) {
	n, err := elfTablesSize(b)
	if err != nil {
		return 0, err
	}
	if n > uint64(len(b)) {
		return n, nil
	}
	shoff, phoff := le.Uint64(b[40:]), le.Uint64(b[32:])
	for i := range uint64(le.Uint16(b[60:])) {
		s := b[shoff+i*elfSectionSize:]
		if empty(le.Uint32(s[4:])) {
			continue
		}
		if n, err = extend(n, le.Uint64(s[24:]), le.Uint64(s[32:])); err != nil {
			return 0, err
		}
	}
	for i := range uint64(le.Uint16(b[56:])) {
		p := b[phoff+i*elfProgramSize:]
		if n, err = extend(n, le.Uint64(p[8:]), le.Uint64(p[32:])); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// elfTablesSize gives the end of the header tables, from the file header alone.
func elfTablesSize(b []byte) (uint64, error) {
	if len(b) < elfHeaderSize {
		return 0, broken(0, "ELF header of %d bytes, it needs %d", len(b), elfHeaderSize)
	}
	if !bytes.HasPrefix(b, []byte(magicELF)) || b[4] != 2 || b[5] != 1 {
		return 0, broken(4, "not a 64-bit little-endian ELF file")
	}
	n := uint64(elfHeaderSize)
	var err error
	if num := uint64(le.Uint16(b[60:])); num > 0 {
		if es := le.Uint16(b[58:]); es != elfSectionSize {
			return 0, broken(58, "section headers of %d bytes", es)
		}
		if n, err = extend(n, le.Uint64(b[40:]), num*elfSectionSize); err != nil {
			return 0, err
		}
	}
	if num := uint64(le.Uint16(b[56:])); num > 0 {
		if es := le.Uint16(b[54:]); es != elfProgramSize {
			return 0, broken(54, "program headers of %d bytes", es)
		}
		if n, err = extend(n, le.Uint64(b[32:]), num*elfProgramSize); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func extend(n, off, size uint64) (uint64, error) {
	if off > MaxImage || size > MaxImage {
		return 0, broken(0, "ELF part of %d bytes at %d, the limit is %d", size, off, MaxImage)
	}
	return max(n, off+size), nil
}

// elfArch gives the architecture of a cubin, 90 for sm_90.
func elfArch(b []byte) uint32 {
	flags := le.Uint32(b[48:])
	if b[8] >= abiV2 {
		return flags >> 8 & 0xff
	}
	return flags & 0xff
}

// elfExact says whether a cubin runs on exactly its architecture only (sm_90a).
func elfExact(b []byte) bool {
	flags := le.Uint32(b[48:])
	if b[8] >= abiV2 {
		return flags&flagAccelV2 != 0
	}
	return flags&flagAccelV1 != 0
}

// sections calls f for each section of a whole ELF file whose name has a prefix.
func sections(b []byte, prefix string, f func(name string, data []byte) error) error {
	n, err := elfSize(b)
	if err != nil {
		return err
	}
	if n > uint64(len(b)) {
		return broken(len(b), "the ELF file has %d bytes by its headers, there are %d", n, len(b))
	}
	shoff, num, strndx := le.Uint64(b[40:]), uint64(le.Uint16(b[60:])), uint64(le.Uint16(b[62:]))
	if strndx >= num {
		return broken(62, "section name table %d of %d", strndx, num)
	}
	data := func(i uint64) []byte {
		s := b[shoff+i*elfSectionSize:]
		if empty(le.Uint32(s[4:])) {
			return nil
		}
		off, size := le.Uint64(s[24:]), le.Uint64(s[32:])
		return b[off : off+size]
	}
	names := data(strndx)
	for i := range num {
		at := uint64(le.Uint32(b[shoff+i*elfSectionSize:]))
		if at >= uint64(len(names)) {
			return broken(int(shoff+i*elfSectionSize), "section name outside its table")
		}
		name, _, ok := bytes.Cut(names[at:], []byte{0})
		if !ok {
			return broken(int(shoff+i*elfSectionSize), "section name without an end")
		}
		if strings.HasPrefix(string(name), prefix) {
			if err := f(string(name), data(i)); err != nil {
				return err
			}
		}
	}
	return nil
}
