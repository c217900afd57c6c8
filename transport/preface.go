package transport

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
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
	User    string `json:",omitempty"` // who runs the program

	// Regions from which handles are made; see docs/architecture.md.
	ClientBase  uint64 `json:",omitempty"`
	ClientSlots uint64 `json:",omitempty"`
	ServerBase  uint64 `json:",omitempty"`
	ServerSlots uint64 `json:",omitempty"`

	// A callback, bulk or RDMA control connection names the session that it belongs to.
	Session string `json:",omitempty"`
	Secret  string `json:",omitempty"`
	Count   int    `json:",omitempty"` // how many bulk connections there will be
	// Number is which connection of its purpose this is. With a purpose and a secret, the ticket is made of them, and the
	// secret is not said.
	Number int `json:"-"`

	// What the client can do. The newest version stands in front of the hello, so that every release finds it.
	MaxVersion   uint32   `json:"-"`          // 0: [Version]
	MinVersion   uint32   `json:",omitempty"` // 0: MaxVersion
	Capabilities []string `json:",omitempty"` // nil: [Offered]
	Requires     []string `json:",omitempty"` // capabilities of the server without which the client does not go on

	// Of a client that comes back to a line ([CapResume]).
	Line         uint32 `json:",omitempty"` // a Line constant, or one of the bulk connections from LineBulk on
	Epoch        uint64 `json:",omitempty"` // how many sockets the line has had
	Acknowledged uint64 `json:",omitempty"` // position of the server's stream up to which the client has everything

	// Of a further connection ([CapTickets]).
	Ticket  string `json:",omitempty"`
	Purpose string `json:",omitempty"`

	// Which of how many windows of addresses a session's memory has to keep to, from 0 ([CapWindows]; window.Of says where
	// they are); 0 of 0 or 1: any address.
	Window  int `json:",omitempty"`
	Windows int `json:",omitempty"`

	// With [KindIntroduce]: to which server. With [KindPeer] the token says who invites ([Invitation]).
	Introduction *Introduction `json:",omitempty"`
	Invitation   *Invitation   `json:"-"`

	// How long a client waits at most where the server has no place for it ([CapQueue]); 0: not at all. Waiting is called
	// with what the server says meanwhile; it may be nil.
	Wait    time.Duration `json:",omitempty"`
	Waiting func(Queued)  `json:"-"`
}

// Versions are the protocol versions that the client speaks.
func (h *Hello) Versions() Versions { return rangeOf(h.MinVersion, h.MaxVersion) }

// Needs are the capabilities that the server must have for this connection: those that the client requires, and those
// of which it makes use.
func (h *Hello) Needs() []string {
	needs := slices.Clone(h.Requires)
	if h.Line != 0 || h.Epoch != 0 || h.Acknowledged != 0 {
		needs = append(needs, CapResume)
	}
	if h.Ticket != "" || h.Purpose != "" {
		needs = append(needs, CapTickets)
	}
	if h.Kind == KindIntroduce || h.Kind == KindPeer {
		needs = append(needs, CapPeers)
	}
	if h.Window != 0 || h.Windows > 1 || h.Windows < 0 {
		needs = append(needs, CapWindows)
	}
	return needs
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
	Tenant        string   `json:",omitempty"` // in whose name the server sees the client
	Profile       string   `json:",omitempty"` // what the server lets the client's sessions do
	Admin         bool     `json:",omitempty"` // the tenant administers the server

	// What the server can do. In front of the welcome stands the version that is spoken from then on, in a refusal the
	// server's newest.
	Protocol     uint32   `json:"-"`          // 0: [Version]
	MinVersion   uint32   `json:",omitempty"` // 0: what stands in front
	MaxVersion   uint32   `json:",omitempty"` // 0: what stands in front
	Capabilities []string `json:",omitempty"`

	// Of a line that outlives its sockets ([CapResume]).
	Line         uint32 `json:",omitempty"`
	Epoch        uint64 `json:",omitempty"`
	Acknowledged uint64 `json:",omitempty"` // position of the client's stream up to which the server has everything
	// Grace is how long the server keeps a session that has lost its connections.
	Grace time.Duration `json:",omitempty"`
	Ended string        `json:",omitempty"` // why there is no such session any more

	Load *Load `json:",omitempty"` // of an information session

	Queue *Queued `json:",omitempty"` // of an answer with [StatusWaiting], behind which others come

	// Tickets for further connections ([CapTickets]), by purpose.
	Tickets map[string]string `json:",omitempty"`

	// Where the client found the server, for who is told of it.
	Found Found `json:"-"`
}

// Found is where a server was found, and who it was.
type Found struct {
	Address     string // IP:PORT
	Fingerprint string // of its key; "": without TLS
}

// Load is how much a server has to do.
type Load struct {
	Sessions int     // of CUDA, with those that wait for a worker
	Places   int     // for such; 0: no limit
	Mine     int     // those of the client's tenant
	Waiting  int     `json:",omitempty"` // in the queue for such a place
	Away     int     `json:",omitempty"` // sessions whose clients have lost their connections
	Uptime   float64 // seconds
	Draining bool    `json:",omitempty"` // it takes no new sessions
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
	Version uint32 // the newest that the client speaks
	Token   []byte
	Hello   Hello
}

// AppendPreface appends the bytes of a preface. Their form is the same in all versions of the protocol.
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
	b = le.AppendUint32(b, cmp.Or(h.MaxVersion, Version))
	b = le.AppendUint32(b, uint32(len(token)))
	b = append(b, token...)
	b = le.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// ReadPreface reads exactly one preface from r. The token is compared in constant time before anything behind it is
// looked at; a nil want accepts every token. Errors wrap [ErrVersion], [ErrToken], [ErrMalformed] or are those of r;
// [StatusOf] gives the answer to each.
func ReadPreface(r io.Reader, want []byte) (*Hello, error) {
	return ReadPrefaceOf(r, func(token []byte) bool { return want == nil || SameToken(token, want) })
}

// ReadPrefaceOf is [ReadPreface] where admit says which tokens are right.
func ReadPrefaceOf(r io.Reader, admit func(token []byte) bool) (*Hello, error) {
	p, err := readPreface(r, admit)
	if err != nil {
		return nil, err
	}
	return &p.Hello, nil
}

func readPreface(r io.Reader, admit func(token []byte) bool) (*Preface, error) {
	var fixed [len(Magic) + 8]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return nil, err
	}
	if string(fixed[:len(Magic)]) != Magic {
		return nil, malformed("the peer does not open with scuda's magic bytes")
	}
	p := &Preface{Version: le.Uint32(fixed[len(Magic):])}
	if p.Version < Spoken.Min {
		return nil, &VersionError{Client: Versions{p.Version, p.Version}, Server: Spoken}
	}
	n := le.Uint32(fixed[len(Magic)+4:])
	if n > MaxToken {
		return nil, malformed("token of %d bytes, the limit is %d", n, MaxToken)
	}
	p.Token = make([]byte, n)
	if _, err := io.ReadFull(r, p.Token); err != nil {
		return nil, err
	}
	if admit != nil && !admit(p.Token) {
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
	p.Hello.MaxVersion = p.Version
	if _, ok := Spoken.Common(p.Hello.Versions()); !ok {
		return nil, &VersionError{Client: p.Hello.Versions(), Server: Spoken, ClientRelease: p.Hello.Version}
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
	case errors.Is(err, ErrCapability):
		return StatusCapability
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
	b = le.AppendUint32(b, cmp.Or(w.Protocol, Version))
	b = le.AppendUint32(b, uint32(w.Status))
	b = le.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// ReadWelcome reads exactly one welcome from r, whose texts are then [Printable]. One of another version is an error
// that wraps [ErrVersion].
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
	most := uint32(MaxWelcome)
	if w.Status == StatusWaiting {
		most = MaxWaiting
	}
	if n > most {
		return nil, malformed("welcome of %d bytes, the limit is %d", n, most)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	status := w.Status
	err := json.Unmarshal(text, w)
	w.printable()
	if !Spoken.Has(version) { // what another version says behind its number may have any form
		v := rangeOf(w.MinVersion, cmp.Or(w.MaxVersion, version))
		return nil, fmt.Errorf("%w: the server%s speaks %s, this client %s", ErrVersion, inBrackets(w.Version), v, Spoken)
	}
	if err != nil {
		return nil, malformed("welcome: %s", Printable(err.Error()))
	}
	w.Status, w.Protocol = status, version
	if status == StatusWaiting {
		if err := w.Queue.check(); err != nil {
			return nil, err
		}
	}
	if len(w.Devices) > MaxDevices {
		return nil, malformed("welcome with %d devices, the limit is %d", len(w.Devices), MaxDevices)
	}
	return w, nil
}
