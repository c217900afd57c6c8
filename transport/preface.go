package transport

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Hello is what a client says about itself when it opens a connection.
type Hello struct {
	Kind    string // a Kind constant
	Version string // of the scuda release, for messages
	Digest  string `json:",omitempty"` // of the API description, hex
	Host    string `json:",omitempty"`
	Program string `json:",omitempty"`
	Command string `json:",omitempty"` // by which the program was started: its argument 0
	PID     int    `json:",omitempty"`

	// Regions from which handles are made; see docs/architecture.md.
	ClientBase  uint64 `json:",omitempty"`
	ClientSlots uint64 `json:",omitempty"`
	ServerBase  uint64 `json:",omitempty"`
	ServerSlots uint64 `json:",omitempty"`

	// A side, bulk or RDMA control connection names the session that it belongs to.
	Session string `json:",omitempty"`
	Secret  string `json:",omitempty"`
	Count   int    `json:",omitempty"` // how many bulk connections there will be
}

// Welcome is the server's answer.
type Welcome struct {
	Status        Status   `json:"-"`
	Error         string   `json:"error,omitempty"`
	Session       string   `json:",omitempty"`
	Secret        string   `json:",omitempty"`
	Version       string   `json:",omitempty"` // of the server's scuda release
	Digest        string   `json:",omitempty"`
	Driver        string   `json:",omitempty"` // version of the kernel driver, as text
	DriverVersion int      `json:",omitempty"` // cuDriverGetVersion
	Bulk          int      `json:",omitempty"` // bulk connections that a session may have
	RDMA          bool     `json:",omitempty"` // the server can do RDMA
	NoRDMA        string   `json:",omitempty"` // why it cannot
	GPU           string   `json:",omitempty"` // "real" or "sim"
	Devices       []Device `json:",omitempty"`
}

// Device is a snapshot of one of the server's GPUs, the counterpart of struct scuda_device in shim/front/base/core.h.
type Device struct {
	Name             string
	UUID             [16]byte
	UUIDv1           [16]byte
	LUID             [8]byte
	PCIBusID         string
	TotalMem         uint64
	Attributes       [256]int32
	AttributeResult  [256]int32
	Limits           [16]uint64
	LimitResult      [16]int32
	PriorityLeast    int32
	PriorityGreatest int32
	CtxAPIVersion    uint32
	CtxFlags         uint32
	HasFP8           uint32 // 1: the driver says whether it runs kernels in fp8
	FP8              int32
	TPCMapBytes      uint64
	TPCInGPC         [256]uint8
	GPCOfTPC         [256]uint8
}

// Preface opens a connection.
type Preface struct {
	Version uint32
	Token   []byte
	Hello   Hello
}

// AppendPreface appends the bytes of a preface of this protocol version.
func AppendPreface(b, token []byte, h *Hello) ([]byte, error) {
	if len(token) > MaxToken {
		return nil, fmt.Errorf("the token has %d bytes, the limit is %d", len(token), MaxToken)
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxHello {
		return nil, fmt.Errorf("the hello has %d bytes, the limit is %d", len(text), MaxHello)
	}
	b = append(b, Magic...)
	b = le.AppendUint32(b, Version)
	b = le.AppendUint32(b, uint32(len(token)))
	b = append(b, token...)
	b = le.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// ParsePreface reads a preface whatever its token; [ReadPreface] is for servers.
func ParsePreface(b []byte) (*Preface, int, error) {
	r := &sliceReader{b: b}
	p, err := readPreface(r, nil)
	return p, r.n, err
}

// VersionError is a peer of another protocol version.
type VersionError struct{ Peer uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the client speaks protocol version %d, this server version %d; install the same scuda release on both machines", e.Peer, Version)
}
func (e *VersionError) Unwrap() error { return ErrVersion }

// ReadPreface reads exactly one preface from r. The token is compared in constant time before anything behind it is looked at; a nil
// want accepts every token. Errors wrap [ErrVersion], [ErrToken], [ErrMalformed] or are those of r; [StatusOf] gives the answer to each.
func ReadPreface(r io.Reader, want []byte) (*Hello, error) {
	p, err := readPreface(r, want)
	if err != nil {
		return nil, err
	}
	return &p.Hello, nil
}

func readPreface(r io.Reader, want []byte) (*Preface, error) {
	var fixed [len(Magic) + 8]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return nil, err
	}
	if string(fixed[:len(Magic)]) != Magic {
		return nil, malformed("the peer does not open with scuda's magic bytes")
	}
	p := &Preface{Version: le.Uint32(fixed[len(Magic):])}
	if p.Version != Version {
		return nil, &VersionError{Peer: p.Version}
	}
	n := le.Uint32(fixed[len(Magic)+4:])
	if n > MaxToken {
		return nil, malformed("token of %d bytes, the limit is %d", n, MaxToken)
	}
	p.Token = make([]byte, n)
	if _, err := io.ReadFull(r, p.Token); err != nil {
		return nil, err
	}
	if want != nil && !SameToken(p.Token, want) {
		return nil, ErrToken
	}
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	if n = le.Uint32(size[:]); n > MaxHello {
		return nil, malformed("hello of %d bytes, the limit is %d", n, MaxHello)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &p.Hello); err != nil {
		return nil, malformed("hello: %v", err)
	}
	return p, nil
}

// SameToken compares tokens in a time that depends on neither their contents nor the length of want.
func SameToken(got, want []byte) bool {
	a, b := sha256.Sum256(got), sha256.Sum256(want)
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// StatusOf gives the status with which a server answers an error of [ReadPreface].
func StatusOf(err error) Status {
	switch {
	case err == nil:
		return StatusOK
	case errors.Is(err, ErrVersion):
		return StatusVersion
	case errors.Is(err, ErrToken):
		return StatusToken
	case errors.Is(err, ErrMalformed):
		return StatusMalformed
	}
	return StatusFailed
}

// AppendWelcome appends the server's answer; w.Status says which.
func AppendWelcome(b []byte, w *Welcome) ([]byte, error) {
	text, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxWelcome {
		return nil, fmt.Errorf("the welcome has %d bytes, the limit is %d", len(text), MaxWelcome)
	}
	b = append(b, Magic...)
	b = le.AppendUint32(b, Version)
	b = le.AppendUint32(b, uint32(w.Status))
	b = le.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// ParseWelcome reads a welcome. One of another version comes with an error that wraps [ErrVersion].
func ParseWelcome(b []byte) (*Welcome, int, error) {
	r := &sliceReader{b: b}
	w, err := ReadWelcome(r)
	return w, r.n, err
}

// ReadWelcome reads exactly one welcome from r.
func ReadWelcome(r io.Reader) (*Welcome, error) {
	var fixed [len(Magic) + 12]byte
	if n, err := io.ReadFull(r, fixed[:]); err != nil {
		if n > 0 && string(fixed[:min(n, len(Magic))]) != Magic[:min(n, len(Magic))] {
			return nil, malformed("the peer answers with %q", fixed[:n])
		}
		return nil, err
	}
	if string(fixed[:len(Magic)]) != Magic {
		return nil, malformed("the peer answers with %q", fixed[:])
	}
	version := le.Uint32(fixed[len(Magic):])
	w := &Welcome{Status: Status(le.Uint32(fixed[len(Magic)+4:]))}
	n := le.Uint32(fixed[len(Magic)+8:])
	if n > MaxWelcome {
		return nil, malformed("welcome of %d bytes, the limit is %d", n, MaxWelcome)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	if version != Version {
		return nil, fmt.Errorf("%w: the server speaks version %d, this client version %d", ErrVersion, version, Version)
	}
	status := w.Status
	if err := json.Unmarshal(text, w); err != nil {
		return nil, malformed("welcome: %v", err)
	}
	w.Status = status
	if len(w.Devices) > MaxDevices {
		return nil, malformed("welcome with %d devices, the limit is %d", len(w.Devices), MaxDevices)
	}
	return w, nil
}

// sliceReader reads from a slice and turns its end into ErrShort.
type sliceReader struct {
	b []byte
	n int
}

func (r *sliceReader) Read(p []byte) (int, error) {
	if r.n == len(r.b) && len(p) > 0 {
		return 0, ErrShort
	}
	n := copy(p, r.b[r.n:])
	r.n += n
	return n, nil
}
