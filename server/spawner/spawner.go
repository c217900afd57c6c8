// Package spawner starts worker processes and ends them. It is the one part of the server that may need privileges: a
// worker gets a user id of its tenant's, which takes CAP_SETUID and CAP_SETGID, and is ended with CAP_KILL.
//
// [Local] does it in the calling process. Where privileges are to be had, that process is the spawner, which does
// nothing else ([Serve]); the supervisor, which reads what strangers send, has a [Remote] and speaks a tiny protocol
// over a Unix socket (protocol.go). Both are a [Starter], so the supervisor does not care. The spawner starts nothing
// but its own program as a worker, with fixed arguments and an environment of its own making, as one of the users of
// its range, and ends nothing but what it has started.
//
// What a worker is born with (user, groups, folder, Landlock) is taken on by a thread of the spawner's that starts the
// worker and then ends: in Linux, all of this belongs to threads, and what a thread starts inherits it.
//
// Locks: Client.mu, Remote.mu and Local.making are leaves, but that Remote.mu is held while a spawner is started.
// keeper.mu is held while packets are sent.
package spawner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"scuda.dev/scuda/server/isolation"
)

// Key names a tenant where names would be awkward: a folder's name is made of it.
type Key [16]byte

// KeyOf gives the key of a tenant's name.
func KeyOf(tenant string) Key {
	sum := sha256.Sum256([]byte(tenant))
	return Key(sum[:16])
}

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Order says what a worker is to be.
type Order struct {
	Tenant   Key
	UID      uint32 // of the spawner's range; 0 where it has none: the spawner's own user
	Profile  isolation.Profile
	Enclosed bool // by Landlock
}

// folder is the name of the tenant's folder. It has the user in it, so that a server that gives tenants other users, or
// none, finds no folder of somebody else's in its place.
func (o Order) folder() string {
	uid := int(o.UID)
	if uid == 0 {
		uid = os.Geteuid()
	}
	return strconv.Itoa(uid) + "-" + o.Tenant.String()
}

// Facts are what a spawner gives every worker.
type Facts struct {
	UIDs    Range  // empty: workers have the spawner's user
	Limits  string // why there is no control group; "": there is one
	Files   string // why there is no Landlock; "": there is
	Folders bool   // tenants have folders of their own
	Keeps   bool   // workers may outlive their supervisor
}

// Range is a range of user ids, both ends included; the zero value is empty.
type Range struct{ First, Last uint32 }

// Empty says whether there is none.
func (r Range) Empty() bool { return r == Range{} }

// Has says whether the range has a user id.
func (r Range) Has(uid uint32) bool { return !r.Empty() && uid >= r.First && uid <= r.Last }

func (r Range) String() string {
	if r.Empty() {
		return "none"
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Bounds of user ids: those below belong to the system and to people; the highest ones mean "nobody" and "no change".
const (
	leastUID = 1000
	mostUID  = 1<<32 - 3
)

// ErrRange is an unusable range of user ids.
var ErrRange = errors.New("unusable range of user ids")

// ParseRange reads FIRST-LAST, or none.
func ParseRange(text string) (Range, error) {
	if text == "none" {
		return Range{}, nil
	}
	first, last, ok := strings.Cut(text, "-")
	a, err1 := strconv.ParseUint(first, 10, 32)
	b, err2 := strconv.ParseUint(last, 10, 32)
	r := Range{uint32(a), uint32(b)}
	if !ok || err1 != nil || err2 != nil || r.Empty() {
		return Range{}, fmt.Errorf("%w: %q; write FIRST-LAST, such as %v, or none", ErrRange, text, DefaultRange)
	}
	return r, r.check()
}

func (r Range) check() error {
	if r.Empty() || r.First >= leastUID && r.Last <= mostUID && r.First <= r.Last {
		return nil
	}
	return fmt.Errorf("%w: %v; it begins at %d or above, and ends at %d or below", ErrRange, r, leastUID, uint32(mostUID))
}

// Starter starts workers.
type Starter interface {
	// Facts says what it gives; an error says that it cannot start any worker for now.
	Facts() (Facts, error)
	// Start starts a worker that has line as its descriptor 3 and errs as its standard output and error.
	Start(o Order, line, errs *os.File) (*Worker, error)
}

// Worker is a worker process.
type Worker struct {
	PID    int
	id     uint64 // by which the spawner knows it
	exited chan struct{}
	err    error // valid once exited is closed; nil is exit status 0
	kill   func() error
	keep   func([]*os.File) error // nil: it ends with its supervisor
}

// Wait waits until the process is gone, and says how it ended. [ErrLost] says that nobody knows: it may go on.
func (w *Worker) Wait() error {
	<-w.exited
	return w.err
}

// Kill ends the process at once.
func (w *Worker) Kill() error { return w.kill() }

// Keeps says whether the worker may outlive its supervisor.
func (w *Worker) Keeps() bool { return w.keep != nil }

// Keep has the spawner hold what a supervisor after this one needs of the worker, in the place of what it held before:
// [KeptFiles] descriptors, which stay the caller's.
func (w *Worker) Keep(files []*os.File) error { return w.keep(files) }

// Errors of starters.
var (
	ErrLost    = errors.New("the spawner is gone")
	ErrRefused = errors.New("the spawner refuses")
)

// ExitError says how a worker ended.
type ExitError struct{ Text string }

func (e *ExitError) Error() string { return e.Text }
