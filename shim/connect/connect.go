// Package connect is the layout of what the C fronts and the program scuda-connect say to each other.
//
// A front that needs a connection to the server and must not load the Go core (NVML; the driver's version before
// cuInit) starts scuda-connect with one end of a socket pair as standard input. It sends one packet, a [Request] and
// what is to be said first. The program reads the settings, dials and shakes hands, and sends one packet back, an
// [Answer], to which the connected socket is attached. docs/decisions/0009-a-program-connects.md says why. The C side
// of the layout is generated from here (api/gen).
package connect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
)

// Request is what a front wants. Texts end in a NUL.
type Request struct {
	ABI     uint32 // [ABI] of the front's build
	PID     int32  // of the program
	First   uint32 // so many bytes follow, which are the first that the session says
	Keep    uint32 // 1: the connection is handed over; 0: only the answer is of interest
	Number  uint32 // of the configured servers the one that is meant, from 0 on
	Kind    [16]byte
	Digest  [72]byte  // of the description that the front was built from
	Program [256]byte // the program's name
}

// Answer is what came of it.
type Answer struct {
	ABI           uint32
	Code          Code
	DriverVersion int32      // cuDriverGetVersion of the server, 0 where it does not say
	Relay         uint32     // 1: scuda-connect goes on until the connection ends
	Servers       uint32     // so many are configured; 0 where that is not known
	Server        [320]byte  // HOST:PORT
	Error         [1024]byte // where Code is not OK: cause and remedy
}

// Code says whether there is a connection.
type Code int32

// Codes of an answer.
const (
	OK     Code = 0
	Failed Code = 1
	Busy   Code = 2 // the server has no room for another session
)

// MaxFirst bounds what may be said first.
const MaxFirst = 4 << 10

// MostServers bounds the numbers of servers, as package config does.
const MostServers = 16

// ErrMalformed is a packet that does not have the agreed form.
var ErrMalformed = errors.New("malformed packet")

// ErrBuild is a front and a program of two builds.
var ErrBuild = errors.New(
	"scuda-connect and the library that started it belong to different builds of scuda; install both from one")

// ABI changes with the layout.
var ABI = crc32.ChecksumIEEE([]byte(Header(0)))

// Header is the layout as C.
func Header(abi uint32) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#define SCUDA_CONNECT_ABI %#xu\n", abi)
	fmt.Fprintf(&b, "#define SCUDA_CONNECT_FIRST %d\n#define SCUDA_CONNECT_SERVERS %d\n", MaxFirst, MostServers)
	fmt.Fprintf(&b, "enum { SCUDA_CONNECT_OK = %d, SCUDA_CONNECT_FAILED = %d, SCUDA_CONNECT_BUSY = %d };\n", OK, Failed,
		Busy)
	for _, t := range []reflect.Type{reflect.TypeFor[Request](), reflect.TypeFor[Answer]()} {
		name := "scuda_connect_" + strings.ToLower(t.Name())
		fmt.Fprintf(&b, "struct %s {\n", name)
		for f := range t.Fields() {
			kind, dims := f.Type.Kind(), ""
			if kind == reflect.Array {
				kind, dims = reflect.Int8, fmt.Sprintf("[%d]", f.Type.Len())
			}
			c := map[reflect.Kind]string{reflect.Uint32: "uint32_t", reflect.Int32: "int32_t", reflect.Int8: "char"}[kind]
			fmt.Fprintf(&b, "  %s %s%s;\n", c, fieldName(f.Name), dims)
		}
		fmt.Fprintf(&b, "};\n_Static_assert(sizeof(struct %s) == %d, \"layout\");\n", name, t.Size())
	}
	return b.String()
}

// fieldName is a Go name as C has it: DriverVersion, driver_version.
func fieldName(name string) string {
	var b strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// ParseRequest reads a request and gives what follows it.
func ParseRequest(packet []byte) (*Request, []byte, error) {
	var r Request
	n, err := binary.Decode(packet, binary.NativeEndian, &r)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: a request of %d bytes", ErrMalformed, len(packet))
	}
	if r.ABI != ABI {
		return nil, nil, ErrBuild
	}
	if first := packet[n:]; uint64(len(first)) == uint64(r.First) && r.First <= MaxFirst {
		return &r, first, nil
	}
	return nil, nil, fmt.Errorf("%w: a request with %d bytes behind it, not %d", ErrMalformed, len(packet)-n, r.First)
}

// Append appends the bytes of an answer.
func (a *Answer) Append(b []byte) []byte {
	b, err := binary.Append(b, binary.NativeEndian, a)
	if err != nil {
		panic(err) // the type has a fixed size
	}
	return b
}

// Append appends the bytes of a request; what is said first follows it.
func (r *Request) Append(b []byte) []byte {
	b, err := binary.Append(b, binary.NativeEndian, r)
	if err != nil {
		panic(err) // the type has a fixed size
	}
	return b
}

// ParseAnswer reads an answer.
func ParseAnswer(packet []byte) (*Answer, error) {
	var a Answer
	if n, err := binary.Decode(packet, binary.NativeEndian, &a); err != nil || n != len(packet) {
		return nil, fmt.Errorf("%w: an answer of %d bytes", ErrMalformed, len(packet))
	}
	if a.ABI != ABI {
		return nil, ErrBuild
	}
	return &a, nil
}

// SetText puts text into a field, as much of it as fits before the NUL.
func SetText(field []byte, text string) {
	clear(field)
	copy(field[:len(field)-1], text)
}

// Text is the text of a field.
func Text(field []byte) string {
	text, _, _ := strings.Cut(string(field), "\x00")
	return text
}
