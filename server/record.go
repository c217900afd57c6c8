package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/usage"
)

// record is what a supervisor after this one has to know of a CUDA session, in memory that the spawner keeps and no
// worker sees. What changes is in its first page and is written by one call: whenever this process is killed, all of it
// is there or nothing.
type record struct {
	fd int

	mu  sync.Mutex
	now changing // what is in the memory
}

// recordPage is the room for what changes.
const recordPage = 4096

// maxRecord bounds a record.
const maxRecord = 1 << 20

// changing is what changes while a session runs.
type changing struct {
	Used   map[string]bool   // tickets
	Epochs map[uint32]uint64 // sockets that its connections have had
	// tickets to connect to other servers, and the connections that others have made
	Introduced introductions
	Peers      map[uint32]peerUse
	Meter      usage.State
	Spent      usage.Used // since its beginning

	// The client has heard that the session is open, or is just about to. Without that nobody has a session.
	Welcomed bool
}

// sessionRecord is what does not.
type sessionRecord struct {
	Contract   string // what the worker and its supervisor agree on
	ID, Secret string
	Host       string
	Address    string
	PID        int
	Command    string
	User       string
	Tenant     string
	Credential string
	Lease      string
	Place      placeRecord
	Terms      lease.Terms
	Quota      uint64
	Secure     bool
	Tickets    bool
	Grace      time.Duration
	Opened     time.Time
	Seat       int // in its tenant's common memory
	Profile    uint
	Ready      readyInfo
}

// newRecord writes a record.
func newRecord(r *sessionRecord, now changing) (*record, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fd, err := memfd.New("scuda-session", int64(recordPage+len(text)))
	if err != nil {
		return nil, err
	}
	of := &record{fd: fd, now: now}
	n, err := unix.Pwrite(fd, text, recordPage)
	if err == nil && n != len(text) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = of.write()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("note a session: %w", err), unix.Close(fd))
	}
	return of, nil
}

// update changes what is noted. A record of nobody's has nothing to change.
func (r *record) update(f func(*changing)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.now)
	_ = r.write() // memory of which there is enough
}

// write writes what changes. mu is held.
func (r *record) write() error {
	text, err := json.Marshal(&r.now)
	if err == nil && len(text) > recordPage {
		err = fmt.Errorf("%d bytes", len(text))
	}
	if err != nil {
		return err
	}
	page := make([]byte, recordPage)
	copy(page, text)
	_, err = unix.Pwrite(r.fd, page, 0)
	return err
}

// permitted notes which tickets of a session are used up. sessions.mu is held.
func (x *session) permitted() {
	x.record.update(func(c *changing) {
		c.Used, c.Epochs = maps.Clone(x.used), maps.Clone(x.epochs)
		c.Introduced, c.Peers = x.introduced, maps.Clone(x.peers)
	})
}

// close lets go of the record.
func (r *record) close() {
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		closeFD(r.fd)
		r.fd = -1
	}
}

// errContract is a worker of another release.
var errContract = errors.New("its worker is of another release, whose messages this one does not know")

// openRecord reads a record that a supervisor before this one has written. If that was of another release, what can be
// read of it comes with errContract: whose session it is says every release in the same way.
func openRecord(fd int) (*record, *sessionRecord, error) {
	size, err := memfd.Fixed(fd)
	if err == nil && (size <= recordPage || size > maxRecord) {
		err = fmt.Errorf("it has %d bytes", size)
	}
	var all []byte
	if err == nil {
		all = make([]byte, size)
		_, err = unix.Pread(fd, all, 0)
	}
	of, r := &record{fd: fd}, &sessionRecord{}
	if err == nil {
		changes := json.Unmarshal(bytes.TrimRight(all[:recordPage], "\x00"), &of.now)
		err = errors.Join(json.Unmarshal(all[recordPage:], r), changes)
		if r.Contract != contract && r.Contract != "" && r.ID != "" { // whatever else is of another form
			if changes != nil {
				of.now = changing{}
			}
			return of, r, errContract
		}
	}
	if err == nil && (r.Contract == "" || r.ID == "") {
		err = errors.New("it does not say of which session")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("what was noted of a session: %w", err)
	}
	return of, r, nil
}
