package transport

import (
	"errors"
	"fmt"
	"strings"

	"scuda.dev/scuda/api/wire"
)

// What can go wrong while a connection is opened; an [*Error] wraps exactly one of these.
var (
	ErrUnknownHost = errors.New("unknown host")
	ErrRefused     = errors.New("connection refused")
	ErrTimeout     = errors.New("timeout")
	ErrUnreachable = errors.New("unreachable")
	ErrAddress     = errors.New("bad address")
	ErrNotScuda    = errors.New("not a scuda server")
	ErrClosed      = errors.New("connection closed early")
	ErrVersion     = errors.New("protocol version mismatch")
	ErrDigest      = errors.New("API description mismatch")
	ErrCapability  = errors.New("missing capability")
	ErrToken       = errors.New("wrong token")
	ErrBusy        = errors.New("server full")
	ErrDraining    = errors.New("server draining")
	ErrSession     = errors.New("unknown session")
	ErrServer      = errors.New("server failure")
	ErrTLS         = errors.New("TLS failure")
	ErrUntrusted   = errors.New("untrusted server")
)

// ErrShort says that more bytes are needed; nothing is wrong with those there are.
var ErrShort = errors.New("more bytes needed")

// ErrMalformed is wrapped by every parser's complaint about bytes that can never be right.
var ErrMalformed = errors.New("malformed")

// ErrAgain is returned by a [Conn] that cannot take or give a byte without blocking.
var ErrAgain = errors.New("would block")

// MalformedError says what a parser did not accept.
type MalformedError struct{ Detail string }

func (e *MalformedError) Error() string { return "malformed: " + e.Detail }
func (e *MalformedError) Unwrap() error { return ErrMalformed }

func malformed(format string, args ...any) error {
	return &MalformedError{Detail: fmt.Sprintf(format, args...)}
}

// Error is a connection that could not be opened: to where, why, and what helps.
type Error struct {
	Address string
	Kind    error  // one of the sentinels
	Detail  string // what was seen
	Remedy  string
	Err     error // underlying error, may be nil
}

func (e *Error) Error() string {
	s := "scuda server " + e.Address + ": "
	if e.Detail != "" {
		s += e.Detail
	} else {
		s += e.Kind.Error()
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// SessionEnded says why there is no session any more to which a client wanted to come back.
type SessionEnded struct{ Reason string }

func (e *SessionEnded) Error() string { return e.Reason }

// Status is the server's answer to a preface.
type Status uint32

// Status codes of the welcome.
const (
	StatusOK        Status = wire.StatusOk
	StatusVersion   Status = wire.StatusVersion // protocol versions differ
	StatusDigest    Status = wire.StatusDigest  // API descriptions differ
	StatusToken     Status = wire.StatusToken
	StatusBusy      Status = wire.StatusBusy // no room for another session
	StatusDraining  Status = wire.StatusDraining
	StatusSession   Status = wire.StatusSession   // callback connection to an unknown session, or wrong secret
	StatusMalformed Status = wire.StatusMalformed // the preface cannot be parsed
	StatusFailed    Status = wire.StatusFailed    // the server could not start a session (driver, worker)
	// StatusCapability: one side lacks what the other cannot do without.
	StatusCapability Status = wire.StatusCapability
	StatusTLS        Status = wire.StatusTls // the server wants TLS

	// StatusWaiting is of an answer that is not the last: the client is in the queue. It is not in the description: an
	// older client, which cannot get it, would be refused because of another digest.
	StatusWaiting Status = 64
)

// String is the status in a word, as the server's metrics name it.
func (s Status) String() string {
	if names := [...]string{"ok", "version", "digest", "token", "busy", "draining", "session", "malformed", "failed",
		"capability", "tls"}; int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

var statuses = map[Status]struct {
	kind           error
	detail, remedy string
}{
	StatusVersion: {ErrVersion, "speaks another protocol version", "install the same scuda release on both machines"},
	StatusDigest: {ErrDigest, "was built from another API description",
		"install the same scuda release on both machines"},
	StatusToken: {ErrToken, "refused the token", ""}, // see refusal
	StatusBusy: {ErrBusy, "has no room for another session",
		"wait until a session ends, or raise the limit that is named (else --max-sessions)"},
	StatusDraining: {ErrDraining, "is shutting down and takes no new sessions",
		"wait until it runs again, or choose another server"},
	StatusSession:    {ErrSession, "does not know this session", "start the program again"},
	StatusMalformed:  {ErrNotScuda, "did not understand the handshake", "install the same scuda release on both machines"},
	StatusCapability: {ErrCapability, "lacks what this client needs", "install the same scuda release on both machines"},
	StatusTLS: {ErrTLS, "wants TLS",
		"run scuda login HOST:PORT once, which shows the server's fingerprint and keeps it, or set SCUDA_FINGERPRINT"},
	StatusFailed: {ErrServer, "could not start a session", "look into the server's log"},
}

// noToken says what a server wants that refused a client without a token.
func noToken(to Target) *Error {
	e := &Error{Address: to.Address, Kind: ErrToken, Detail: "wants a token, and none was given",
		Remedy: "run scuda login " + to.Address + ", or set SCUDA_TOKEN or SCUDA_TOKEN_FILE"}
	if to.TLS != nil && len(to.TLS.Certificates) > 0 {
		e.Detail = "does not know the certificate that was shown"
		e.Remedy = "ask for one of the server's authority (--client-ca), or run scuda login " + to.Address + " with a token"
	}
	return e
}

// refusal turns a welcome that is not OK into an error.
func refusal(to Target, w *Welcome) *Error {
	address := to.Address
	if w.Status == StatusToken && len(to.Token) == 0 {
		return noToken(to)
	}
	s, ok := statuses[w.Status]
	if !ok {
		return &Error{
			Address: address, Kind: ErrServer, Detail: fmt.Sprintf("refused the session with status %d: %s", w.Status, w.Error),
		}
	}
	e := &Error{Address: address, Kind: s.kind, Detail: s.detail, Remedy: s.remedy}
	if w.Status == StatusToken {
		if to.TokenOf != "" {
			e.Detail += " of " + to.TokenOf
		}
	}
	if w.Status == StatusToken && (w.Error == "" || w.Error == ErrToken.Error()) { // else it says what is wrong and helps
		e.Remedy = "run scuda login " + address + " with the one that the server was started with, or correct " +
			"SCUDA_TOKEN or SCUDA_TOKEN_FILE"
	}
	if w.Status == StatusSession && w.Ended != "" {
		e.Err = &SessionEnded{w.Ended}
	}
	if w.Error != "" {
		e.Detail += ": " + w.Error
	}
	if strings.Contains(w.Error, e.Remedy) {
		e.Remedy = "" // the server has said it
	}
	return e
}
