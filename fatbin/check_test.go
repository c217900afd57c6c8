package fatbin

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// elfOf makes an ELF file of one section of n bytes that says it has promised.
func elfOf(n int, promised uint64) []byte {
	b := make([]byte, elfHeaderSize+elfSectionSize+n)
	copy(b, magicELF)
	b[4], b[5] = 2, 1
	binary.LittleEndian.PutUint64(b[40:], elfHeaderSize)
	binary.LittleEndian.PutUint16(b[58:], elfSectionSize)
	binary.LittleEndian.PutUint16(b[60:], 1)
	s := b[elfHeaderSize:]
	binary.LittleEndian.PutUint32(s[4:], 1) // PROGBITS
	binary.LittleEndian.PutUint64(s[24:], elfHeaderSize+elfSectionSize)
	binary.LittleEndian.PutUint64(s[32:], promised)
	return b
}

// container makes a fatbin with one uncompressed member.
func container(payload []byte, more uint64) []byte {
	m := make([]byte, memberMinSize+len(payload))
	binary.LittleEndian.PutUint16(m, uint16(ELF))
	binary.LittleEndian.PutUint32(m[4:], memberMinSize)
	binary.LittleEndian.PutUint32(m[8:], uint32(len(payload)))
	copy(m[memberMinSize:], payload)
	h := make([]byte, headerSize)
	binary.LittleEndian.PutUint32(h, magicFatbin)
	binary.LittleEndian.PutUint16(h[6:], headerSize)
	binary.LittleEndian.PutUint64(h[8:], uint64(len(m))+more)
	return slices.Concat(h, m)
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		ok   bool
	}{
		{"nothing", nil, false},
		{"text", []byte("no PTX at all"), true},
		{"cubin", elfOf(64, 64), true},
		{"cubin, cut off", elfOf(64, 65), false},
		{"cubin, far away", elfOf(64, 1<<62), false},
		{"cubin, half a header", elfOf(64, 64)[:40], false},
		{"fatbin", container(elfOf(64, 64), 0), true},
		{"fatbin, cut off", container(elfOf(64, 64), 8), false},
		{"fatbin, without end", container(elfOf(64, 64), 1<<61), false},
		{"fatbin with a cubin that is cut off", container(elfOf(64, 128), 0), false},
	} {
		if err := Check(c.b); (err == nil) != c.ok ||
			err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
