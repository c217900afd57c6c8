package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"scuda.dev/scuda/server/lease"
)

// Kinds of sessions.
const (
	KindCUDA = "cuda"
	KindNVML = "nvml"
)

// States of sessions.
const (
	StateBusy   = "busy"   // something was done for it in the last second, or waits to be done
	StateTurn   = "turn"   // it waits for its turn on a GPU
	StateIdle   = "idle"   // it has nothing to do
	StateOpen   = "open"   // of NVML's, of which is not known what they do
	StateAway   = "away"   // it has lost a connection, and waits for its client to come back
	StateEnding = "ending" // the server ends it
)

// Session is what a server knows of one. User, Host, Program and PID are what its client says.
type Session struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	State   string    `json:"state"`
	Tenant  string    `json:"tenant"`
	User    string    `json:"user"`
	Host    string    `json:"host"`
	Address string    `json:"address"` // where the client's connection comes from
	TLS     bool      `json:"tls"`
	Program string    `json:"program"`
	PID     int       `json:"pid"` // on the client's machine
	Worker  int       `json:"worker_pid"`
	Profile string    `json:"profile"`
	Opened  time.Time `json:"opened"`
	Age     float64   `json:"age_seconds"`
	Idle    float64   `json:"idle_seconds"` // since its last command; of NVML's: 0
	Calls   *uint64   `json:"calls"`        // null: nobody counts them
	Away    *Away     `json:"away"`         // null: it has its connections
	GPUs    []Use     `json:"gpus"`         // on which it has memory, as the driver says
	Counted *uint64   `json:"counted_bytes"`
	Quota   uint64    `json:"quota_bytes"` // of GPU memory; 0: none, and then nothing is counted
	Lease   string    `json:"lease"`       // the id of its lease; "": none
	Label   string    `json:"lease_label"`
	Share   uint32    `json:"share"`
	Class   string    `json:"class"`

	// As of the last second, of CUDA: how long it used GPUs, which is a guess but where turns were taken; the part of the
	// last five seconds; and what came of its turns: time of GPUs, and time that it waited.
	GPUSeconds float64 `json:"gpu_seconds"`
	GPUShare   float64 `json:"gpu_share"`
	Turn       float64 `json:"turn_seconds"`
	TurnWait   float64 `json:"turn_wait_seconds"`
}

// Away is a session that waits for its client.
type Away struct {
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"` // since then
	Until   time.Time `json:"until"`   // it waits, and then ends
}

// Use is what a session has of a GPU.
type Use struct {
	Index  int    `json:"index"`
	UUID   string `json:"uuid"`
	Memory uint64 `json:"memory_bytes"` // with what the driver needs for it
}

// Memory is what a session has of GPU memory: what counts against its quota, else what the driver says. It is not
// known where there is no quota and the driver does not say it.
func (s *Session) Memory() (bytes uint64, known bool) {
	if s.Counted != nil {
		return *s.Counted, true
	}
	for _, u := range s.GPUs {
		bytes += u.Memory
	}
	return bytes, len(s.GPUs) > 0
}

// Places says how many sessions of a kind there are and may be.
type Places struct {
	Taken int `json:"taken"` // with those that wait for a worker
	Limit int `json:"limit"` // 0: none
}

// Status is how a server is.
type Status struct {
	Version  string    `json:"version"`
	Address  string    `json:"address"` // where it listens
	PID      int       `json:"pid"`     // 0: it is not for whoever asks, as worker_pid of sessions
	Started  time.Time `json:"started"`
	Uptime   float64   `json:"uptime_seconds"`
	Draining bool      `json:"draining"` // it takes no new sessions
	Away     int       `json:"away"`     // sessions that wait for their clients
	CUDA     Places    `json:"cuda_sessions"`
	NVML     Places    `json:"nvml_sessions"`
	Waiting  int       `json:"waiting"` // programs in the queue for a CUDA session
	Tenant   string    `json:"tenant"`  // of whoever asks; "": a process of the server's machine
	Role     string    `json:"role"`    // of whoever asks: a Role constant; the figures are of what that may see

	Driver      string `json:"driver"`       // the release of the GPUs' driver; "simulated" where there is none
	CUDAVersion string `json:"cuda_version"` // that this driver has, such as "13.0"
	Fingerprint string `json:"fingerprint"`  // of the certificate that clients see; "": the server has none
	GPUs        []GPU  `json:"gpus"`         // those that it serves
}

// GPU is one of a server's.
type GPU struct {
	UUID       string `json:"uuid"`
	Name       string `json:"name"` // the product's
	Memory     uint64 `json:"memory_bytes"`
	Capability string `json:"compute_capability"` // such as "9.0"
}

// Server is what the interface shows and commands. Its methods are called by several goroutines at once. Each is told
// who asks, shows them what is theirs ([Who.May]), and answers of everything else as if there were none. The interface
// itself keeps from them what only administrators may do.
type Server interface {
	// Status counts what is theirs; an administrator learns the figures of all.
	Status(who Who) Status
	Sessions(who Who) []Session
	// End ends a session, whose program is told the reason, and returns when it is over. The error is [ErrNoSession]
	// where there is none.
	End(ctx context.Context, who Who, id, reason string) error
	// Drain says whether new sessions are refused.
	Drain(on bool) error
	// Usage is what sessions have used since a moment, by one of [usage.By]. The error is [ErrNoUsage] where it is not
	// written down.
	Usage(ctx context.Context, who Who, since time.Time, by string) (*Usage, error)
	// Leases are those that hold, the oldest first.
	Leases(who Who) []Lease
	// Grant makes a lease; a tenant's, within what the tenant may have itself. The error wraps [lease.ErrTerms],
	// [lease.ErrFull], [lease.ErrTaken], [lease.ErrKept] or [ErrBeyond].
	Grant(who Who, r LeaseRequest) (*Granted, error)
	// Renew has a lease last for so long from now, if it would end before; a tenant's, if it made that lease itself, with
	// the credential that it shows. The error is [lease.ErrNone], or wraps [lease.ErrTerms], [lease.ErrKept] or
	// [ErrBeyond].
	Renew(who Who, id string, lasts time.Duration) (*Lease, error)
	// Revoke ends a lease and its sessions, whose programs are told the reason, and returns when they are over. The error
	// is [lease.ErrNone] where there is none.
	Revoke(ctx context.Context, who Who, id, reason string) error
}

// Errors of this package.
var (
	ErrNoSession  = errors.New("there is no such session")
	ErrBeyond     = errors.New("a tenant gives away no more than it has")
	ErrAmbiguous  = errors.New("several sessions begin so")
	ErrAlike      = errors.New("several leases begin so, or have this label")
	ErrSeveral    = errors.New("it is not said which server")
	ErrNoServer   = errors.New("no server's admin interface answers")
	ErrForbidden  = errors.New("the server lets only root and its own user in")
	ErrTaken      = errors.New("the admin socket is taken")
	ErrSwitched   = errors.New("the admin interface is switched off")
	ErrShutdown   = errors.New("the server is shutting down")
	ErrUnexpected = errors.New("unexpected answer of the admin interface")
)

// Fault is an answer that something is wrong.
type Fault struct {
	Cause  string `json:"error"`
	Remedy string `json:"remedy"`

	status int  // of HTTP
	lease  bool // it is about one
}

// Unwrap says which of this package's errors it is.
func (f *Fault) Unwrap() error {
	switch {
	case f.status == http.StatusForbidden:
		return ErrForbidden
	case f.status == http.StatusNotFound && f.lease:
		return lease.ErrNone
	case f.status == http.StatusBadRequest && f.lease:
		return lease.ErrTerms
	case f.status == http.StatusNotFound:
		return ErrNoSession
	case f.status == http.StatusConflict && f.lease:
		return lease.ErrTaken
	case f.status == http.StatusConflict:
		return ErrShutdown
	}
	return nil
}

func (f *Fault) Error() string {
	if f.Remedy == "" {
		return f.Cause
	}
	return f.Cause + "; " + f.Remedy
}

// MaxReason is how long the reason of an end may be, in bytes.
const MaxReason = 400

// Find gives the session with an id, or the only one whose id begins so.
func Find(list []Session, id string) (*Session, error) {
	var found, other *Session
	for i := range list {
		s := &list[i]
		if s.ID == id {
			return s, nil
		}
		if id != "" && strings.HasPrefix(s.ID, id) {
			found, other = s, found
		}
	}
	if other != nil {
		return nil, fmt.Errorf("%w: %s and %s; write more of it", ErrAmbiguous, other.ID, found.ID)
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %.40q; it may have ended; scuda ps lists them", ErrNoSession, id)
	}
	return found, nil
}
