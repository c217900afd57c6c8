package codec

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"unsafe"
)

// aligned gives n bytes that are aligned to 8, as a payload is.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:n]
}

func newReader(payload []byte) *Reader {
	r := &Reader{}
	r.Reset(payload)
	return r
}

// build makes an aligned payload of words and byte strings (padded to 8).
func build(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch v := p.(type) {
		case int:
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		case string:
			b = append(b, v...)
			b = append(b, make([]byte, -len(b)&7)...)
		}
	}
	out := aligned(len(b))
	copy(out, b)
	return out
}

func TestReader(t *testing.T) {
	r := newReader(build(7, 3, "abc", 0, 5, "name\x00", 2, "0123456789abcdef"))
	if v := r.U64(); v != 7 {
		t.Error(v)
	}
	if p, n := r.In(1); n != 3 || string(unsafe.Slice((*byte)(p), n)) != "abc" {
		t.Error("array", n)
	}
	if p, n := r.In(8); p != nil || n != 0 {
		t.Error("NULL", p, n)
	}
	if p := r.Str(); p == nil || *(*byte)(p) != 'n' {
		t.Error("string")
	}
	if p, n := r.In(8); n != 2 || *Word32(p, 8) != 0x62613938 { // "89ab"
		t.Error("words", n)
	}
	if err := r.End(); err != nil {
		t.Error(err)
	}
}

func TestReaderRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		payload []byte
		read    func(*Reader)
	}{
		{"value beyond the end", build(), func(r *Reader) { r.U64() }},
		{"half a value", build(1)[:7], func(r *Reader) { r.U64() }},
		{"array beyond the end", build(2, 1), func(r *Reader) { r.In(8) }},
		{"padding beyond the end", build(1, "a")[:9], func(r *Reader) { r.In(1) }},
		{"array whose size overflows", build(1<<61, 1), func(r *Reader) { r.In(8) }},
		{"array whose padding overflows", build(-1, 1), func(r *Reader) { r.In(1) }},
		{"string without NUL", build(3, "abc"), func(r *Reader) { r.Str() }},
		{"structure beyond the end", build(1), func(r *Reader) { r.Struct(64) }},
		{"huge structure", build(1), func(r *Reader) { r.Struct(1 << 20) }},
		{"bytes left over", build(1, 2), func(r *Reader) { r.U64() }},
		{"array shorter than its count", build(1, 2), func(r *Reader) { _, n := r.In(8); r.Need(n, 2) }},
	} {
		r := newReader(c.payload)
		c.read(r)
		if err := r.End(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestWriter(t *testing.T) {
	buf := aligned(64)
	for i := range buf {
		buf[i] = 0xee
	}
	w, r := NewWriter(buf), newReader(nil)
	p := w.Out(r, 3, 1)
	copy(unsafe.Slice((*byte)(p), 3), "xyz")
	if q := w.Out(r, 0, 8); q != nil {
		t.Error("memory for NULL")
	}
	src := []uint64{8, 9}
	Copy(w.Out(r, 2, 8), unsafe.Pointer(&src[0]), 2, 8)
	if !w.U64(5) {
		t.Error("no room")
	}
	if want := build(3, "xyz", 0, 2, 8, 9, 5); !slices.Equal(w.Bytes(), want) || r.Err() != nil {
		t.Errorf("%x, %v", w.Bytes(), r.Err())
	}
	if w.Out(r, 1, 1); !errors.Is(r.Err(), ErrMalformed) {
		t.Error("one element too many:", r.Err())
	}
	w.Reset()
	if len(w.Bytes()) != 0 {
		t.Error("not empty after Reset")
	}
	for _, n := range []uint64{1 << 61, 1<<64 - 1, 8} {
		r := newReader(nil)
		if w.Out(r, n, 8); r.Err() == nil {
			t.Errorf("%d elements fit", n)
		}
	}
	*w.Word() = 3
	if *w.Word() != 0 {
		t.Error("the word is not cleared")
	}
}

// FuzzCodec reads and writes by a script: nothing may lie outside of the buffers.
func FuzzCodec(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5}, build(1, 2, "ab", 3))
	f.Fuzz(func(t *testing.T, script, payload []byte) {
		in := aligned(len(payload))
		copy(in, payload)
		out := aligned(256)
		r, w := newReader(in), NewWriter(out)
		inside := func(p unsafe.Pointer, n uint64, b []byte) {
			if p == nil || n == 0 {
				return
			}
			start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
			if uintptr(p) < start || uintptr(p)+uintptr(n) > start+uintptr(len(b)) || uintptr(p)%8 != 0 {
				t.Fatalf("%d bytes at %d of %d", n, uintptr(p)-start, len(b))
			}
		}
		for _, c := range script {
			size := uint64(c>>3) + 1
			switch c & 7 {
			case 0:
				r.U64()
			case 1:
				p, n := r.In(size)
				inside(p, n*size, in)
			case 2:
				if p := r.Str(); p != nil {
					inside(p, 1, in)
				}
			case 3:
				p := r.Struct(size)
				if r.Err() == nil {
					inside(p, size, in)
				}
			case 4:
				n := r.U64()
				p := w.Out(r, n, size)
				inside(p, n*size, out)
			case 5:
				r.Need(uint64(c), size)
			case 6:
				w.U64(size)
			case 7:
				w.Reset()
			}
			if len(w.Bytes()) > len(out) || len(w.Bytes())%8 != 0 {
				t.Fatal("reply of", len(w.Bytes()))
			}
		}
		if r.End() == nil && r.Err() != nil {
			t.Fatal("error forgotten")
		}
	})
}

func TestEnumerator(t *testing.T) {
	for v, want := range map[uint64]uint64{
		0: 0, 998: 998, 999: 999, 1000: 999, 0x69800040: 999, math.MaxInt32: math.MaxInt32, math.MaxUint32: 999,
		1<<32 | 5: 5, 1 << 63: 0,
	} {
		if got := Enumerator(v); got != want {
			t.Errorf("%#x: %d, want %d", v, got, want)
		}
	}
}
