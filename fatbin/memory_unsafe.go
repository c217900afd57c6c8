package fatbin

import "unsafe"

// wrapper is what the CUDA runtime passes: it points to the fatbin.
type wrapper struct {
	magic   uint32
	version uint32
	data    unsafe.Pointer
	// version 1: file name; version 2: array of fatbins that still have to be linked, ends with NULL
	extra unsafe.Pointer
}

const wrapperSize = uint64(unsafe.Sizeof(wrapper{}))

// FromMemory parses the image at an address of this process whose size nobody knows. It reads no more than the headers
// promise, and no further than one container. size is the number of bytes where the caller knows it, else 0. The
// image's bytes are the program's own memory.
func FromMemory(p unsafe.Pointer, size uint64) (*Image, error) {
	if p == nil {
		return nil, broken(0, "the image's address is NULL")
	}
	if (size == 0 || size >= wrapperSize) && uintptr(p)%unsafe.Alignof(wrapper{}) == 0 && magicAt(p) == magicWrapper {
		w := (*wrapper)(p)
		if w.version != 1 && w.version != 2 {
			return nil, broken(4, "wrapper of version %d", w.version)
		}
		if w.data == nil {
			return nil, broken(8, "the wrapper points to no data")
		}
		p, size = w.data, 0
		if magicAt(p) == magicWrapper {
			return nil, broken(8, "the wrapper points to a wrapper")
		}
	}
	b, err := extent(p, size)
	if err != nil {
		return nil, err
	}
	return Parse(b)
}

// magicAt reads four bytes one at a time and stops at a NUL: the image may be a short text at the end of a page.
func magicAt(p unsafe.Pointer) uint32 {
	var m uint32
	for i := range 4 {
		c := *(*byte)(unsafe.Add(p, i))
		m |= uint32(c) << (8 * i)
		if c == 0 {
			break
		}
	}
	return m
}

func extent(p unsafe.Pointer, size uint64) ([]byte, error) {
	if size > MaxImage {
		return nil, ErrTooLarge
	}
	if size != 0 {
		return unsafe.Slice((*byte)(p), size), nil
	}
	view := func(n uint64) []byte { return unsafe.Slice((*byte)(p), n) }
	switch magicAt(p) {
	case magicFatbin:
		n, err := fatbinSize(view(headerSize))
		if err != nil {
			return nil, err
		}
		return view(n), nil
	case le.Uint32([]byte(magicELF)):
		n, err := elfTablesSize(view(elfHeaderSize))
		if err != nil {
			return nil, err
		}
		// Now that the tables may be read, they tell the rest.
		if n, err = elfSize(view(n)); err != nil {
			return nil, err
		}
		return view(n), nil
	}
	var n uint64
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		if n++; n == 4096 && !looksLikePTX(view(n)) {
			return nil, broken(0, "neither fatbin, ELF nor PTX text")
		}
		if n > MaxImage {
			return nil, ErrTooLarge
		}
	}
	if !looksLikePTX(view(n)) {
		return nil, broken(0, "neither fatbin, ELF nor PTX text")
	}
	return view(n + 1), nil
}
