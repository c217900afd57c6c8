// Package codec reads the payloads of generic calls and builds their replies (docs/protocol.md, "Generic calls"). Both
// work in place: pointers handed to the driver point into the request and into the reply's buffer, so nothing is copied
// and nothing is allocated per call.
//
// Everything read is untrusted. A Reader remembers its first error and from then on gives zeros, so that generated code
// checks once.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// MaxPayload bounds a request and a reply.
const MaxPayload = 1 << 20

// ErrMalformed is the cause of every decoding error: the peer does not speak the protocol.
var ErrMalformed = errors.New("malformed call")

// MalformedError says what is wrong with a payload.
type MalformedError struct {
	At  int // offset in the payload
	Why string
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed call: %s at byte %d; both sides must be built from the same description", e.Why, e.At)
}

// Unwrap makes errors.Is(err, ErrMalformed) true.
func (e *MalformedError) Unwrap() error { return ErrMalformed }

// Reader takes a request apart.
type Reader struct {
	buf []byte
	at  int
	err error
}

// Reset makes r read payload, which should be 8-byte aligned and lie outside of Go's heap when its pointers go to C
// code that keeps them.
func (r *Reader) Reset(payload []byte) { *r = Reader{buf: payload} }

// Err is the first error.
func (r *Reader) Err() error { return r.err }

// Fail records an error that the caller found.
func (r *Reader) Fail(why string) {
	if r.err == nil {
		r.err = &MalformedError{r.at, why}
	}
}

// U64 reads a value parameter, a capacity or a client-chosen handle.
func (r *Reader) U64() uint64 {
	if r.err != nil || len(r.buf)-r.at < 8 {
		r.Fail("value beyond the end")
		return 0
	}
	v := binary.LittleEndian.Uint64(r.buf[r.at:])
	r.at += 8
	return v
}

// take gives n elements of size bytes; nil for none.
func (r *Reader) take(n, size uint64) unsafe.Pointer {
	left := uint64(len(r.buf) - r.at)
	if size != 0 && n > left/size {
		r.Fail("array beyond the end")
		return nil
	}
	bytes := n * size
	padded := (bytes + 7) &^ 7
	if padded > left {
		r.Fail("array beyond the end")
		return nil
	}
	if bytes == 0 {
		return nil
	}
	p := unsafe.Pointer(&r.buf[r.at])
	r.at += int(padded)
	return p
}

// Struct reads a structure that is passed by value.
func (r *Reader) Struct(size uint64) unsafe.Pointer {
	p := r.take(1, size)
	if p == nil {
		p = unsafe.Pointer(&zeros[0])
		if size > uint64(len(zeros)*8) {
			r.Fail("structure by value too large")
		}
	}
	return p
}

// zeros stands for structures that could not be read; nobody calls the driver with it.
var zeros [64]uint64

// In reads an input array: NULL is (nil, 0).
func (r *Reader) In(size uint64) (unsafe.Pointer, uint64) {
	n := r.U64()
	if r.err != nil {
		return nil, 0
	}
	p := r.take(n, size)
	if p == nil {
		n = 0
	}
	return p, n
}

// Empty as a number of elements says that there is a place for an array, of which the program says that it holds
// nothing; 0 is NULL.
const Empty = 1 << 63

// nothing is the place of an array without elements.
var nothing [8]uint64

// Array is In for arrays whose place the driver tells from NULL though it holds nothing: their number is Empty until
// [Elements] makes it 0.
func (r *Reader) Array(size uint64) (unsafe.Pointer, uint64) {
	if r.err == nil && len(r.buf)-r.at >= 8 && binary.LittleEndian.Uint64(r.buf[r.at:]) == Empty {
		r.at += 8
		return unsafe.Pointer(&nothing), Empty
	}
	return r.In(size)
}

// Elements is how many elements an array holds.
func Elements(n uint64) uint64 {
	if n == Empty {
		return 0
	}
	return n
}

// Str reads a string with its NUL.
func (r *Reader) Str() unsafe.Pointer {
	p, n := r.In(1)
	if p != nil && *(*byte)(unsafe.Add(p, n-1)) != 0 {
		r.Fail("string without its NUL")
		return nil
	}
	return p
}

// Need fails unless an array that is there has at least want elements: the driver will read or write so many.
func (r *Reader) Need(n, want uint64) {
	if n != 0 && Elements(n) < want {
		r.Fail("array shorter than its count")
	}
}

// End fails unless everything was read.
func (r *Reader) End() error {
	if r.err == nil && r.at != len(r.buf) {
		r.Fail("bytes left over")
	}
	return r.err
}

// Writer builds a reply in a fixed buffer.
type Writer struct {
	buf     []byte
	at      int
	created uint64

	// Args are the words of the call under way. They are part of the writer because a driver's words must not move.
	Args [16]uint64
}

// NewWriter builds replies in buf, which must be 8-byte aligned.
func NewWriter(buf []byte) *Writer { return &Writer{buf: buf} }

// Reset starts a new reply.
func (w *Writer) Reset() { w.at = 0 }

// Bytes is the reply so far.
func (w *Writer) Bytes() []byte { return w.buf[:w.at] }

// Word gives a word, set to 0, for the handle that the driver creates during the call.
func (w *Writer) Word() *uint64 {
	w.created = 0
	return &w.created
}

// Created is the handle in the word of the last Word.
func (w *Writer) Created() uint64 { return w.created }

// Out reserves n zeroed elements behind their count; nil for none. r takes the error when the buffer is too small.
func (w *Writer) Out(r *Reader, n, size uint64) unsafe.Pointer {
	if n == Empty {
		w.Out(r, 0, size)
		return unsafe.Pointer(&nothing)
	}
	left := uint64(len(w.buf) - w.at)
	if left < 8 || size != 0 && n > (left-8)/size || (n*size+7)&^7 > left-8 {
		r.Fail("reply would be too large")
		return nil
	}
	binary.LittleEndian.PutUint64(w.buf[w.at:], n)
	w.at += 8
	bytes := int(n*size+7) &^ 7
	if n*size == 0 {
		return nil
	}
	clear(w.buf[w.at : w.at+bytes])
	p := unsafe.Pointer(&w.buf[w.at])
	w.at += bytes
	return p
}

// U64 appends a word.
func (w *Writer) U64(v uint64) bool {
	if len(w.buf)-w.at < 8 {
		return false
	}
	binary.LittleEndian.PutUint64(w.buf[w.at:], v)
	w.at += 8
	return true
}

// Copy fills a place from Out with n elements of size bytes from src.
func Copy(dst, src unsafe.Pointer, n, size uint64) {
	if dst != nil && src != nil {
		copy(unsafe.Slice((*byte)(dst), n*size), unsafe.Slice((*byte)(src), n*size))
	}
}

// Address is a pointer as a word. What it leads to is never on a stack, which could move; the caller keeps it.
func Address(p unsafe.Pointer) uint64 {
	if never {
		sink = p
	}
	return uint64(uintptr(p))
}

var (
	never bool
	sink  unsafe.Pointer //nolint:unused // written only: that keeps what goes into it from a stack
)

// UnknownEnum is what a value of an enumeration becomes that is above all constants: the drivers' answers to it are
// recorded for every function.
const UnknownEnum = 999

// Enumerator is the low half of v as a value of an enumeration that a driver may look up in a table without comparing
// it with the table's end. The constant with which enumerations mark their own end stays, for it is in no table.
func Enumerator(v uint64) uint64 {
	if v &= math.MaxUint32; v > UnknownEnum && v != math.MaxInt32 {
		return UnknownEnum
	}
	return v
}

// Words looks at n 64-bit values at p; p must be aligned to 8.
func Words(p unsafe.Pointer, n uint64) []uint64 {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*uint64)(p), n)
}

// Word64 and Word32 are a field inside of an element.
func Word64(p unsafe.Pointer, offset uintptr) *uint64 { return (*uint64)(unsafe.Add(p, offset)) }

// Word32 is a 32-bit field inside of an element.
func Word32(p unsafe.Pointer, offset uintptr) *int32 { return (*int32)(unsafe.Add(p, offset)) }
