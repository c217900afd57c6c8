// Package handoff is the line between the supervisor and a worker process: JSON messages over a Unix socket pair, each
// with at most one file descriptor (a client's connection) beside it.
//
// A message is a packet, so that whoever reads it has all of it or nothing, whenever either process is killed. What
// does not fit a packet lies in memory whose descriptor the packet brings.
package handoff

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

// MaxBytes bounds one message.
const MaxBytes = 8 << 20

// packetBytes bounds a packet: several fit what a socket holds in Linux unless somebody says otherwise (208 KiB).
const packetBytes = 32 << 10

// What a packet begins with.
const (
	inPacket byte = iota // the message follows
	inMemory             // it lies in the memory behind the first descriptor
)

// ErrMalformed says that the peer does not speak this protocol.
var ErrMalformed = errors.New("malformed message between supervisor and worker")

// SendLimit is how long the supervisor waits for room in a worker's line. A worker reads its line on a goroutine of its
// own, so one that leaves it full for so long is stuck or was taken over.
const SendLimit = 5 * time.Second

// ErrStuck says that the peer does not read; the line is closed.
var ErrStuck = errors.New("the other process does not read its messages")

// Conn is one end of the line. Send may be called by several goroutines, Receive by one.
type Conn struct {
	sock  *net.UnixConn
	limit time.Duration // of a Send; 0: none
	mu    sync.Mutex    // one Send at a time
}

type envelope struct {
	Type string          `json:"type"`
	Body json.RawMessage `json:"body,omitempty"`
}

// Message is what Receive returns. FD is -1 or a descriptor that the receiver now owns.
type Message struct {
	Type string
	FD   int
	body json.RawMessage
}

// Decode reads the message's body into v.
func (m *Message) Decode(v any) error {
	if err := json.Unmarshal(m.body, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMalformed, m.Type, err)
	}
	return nil
}

// Pair makes a line: the supervisor's end and the file that a worker process inherits.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair for a worker: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "worker-control")
	ours, err := FromFile(os.NewFile(uintptr(fds[0]), "supervisor-control"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	ours.limit = SendLimit
	return ours, theirs, nil
}

// FromFile takes over an end of the line.
func FromFile(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("control line of a worker: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok || sock.LocalAddr().Network() != "unixpacket" {
		c.Close()
		return nil, fmt.Errorf("control line of a worker is a socket of another kind: %w", ErrMalformed)
	}
	return &Conn{sock: sock}, nil
}

// Inherit takes over the supervisor's end of a line that another supervisor had.
func Inherit(f *os.File) (*Conn, error) {
	c, err := FromFile(f)
	if err == nil {
		c.limit = SendLimit
	}
	return c, err
}

// File gives a copy of this end of the line, for whoever keeps it.
func (c *Conn) File() (*os.File, error) { return c.sock.File() }

// Within bounds how long Receive waits from now on; 0: for ever.
func (c *Conn) Within(d time.Duration) {
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	_ = c.sock.SetReadDeadline(until) // it fails on a closed line, which waits for nothing
}

// Close ends the line, whoever else has this end of it; the peer's Receive returns io.EOF.
func (c *Conn) Close() error {
	_ = c.sock.CloseWrite() // it fails where the peer is gone
	return c.sock.Close()
}

// Send writes a message; fd goes with it unless it is -1. The sender keeps its own copy of fd. The supervisor's end
// waits at most [SendLimit]; then the line is closed.
func (c *Conn) Send(kind string, body any, fd int) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	data, err := json.Marshal(envelope{kind, raw})
	if err != nil {
		return err
	}
	if len(data) > MaxBytes {
		return fmt.Errorf("%w: %s has %d bytes", ErrMalformed, kind, len(data))
	}
	var fds []int
	if fd >= 0 {
		fds = []int{fd}
	}
	packet := append([]byte{inPacket}, data...)
	if len(packet) > packetBytes {
		memory, err := memoryOf(data)
		if err != nil {
			return err
		}
		defer unix.Close(memory)
		packet, fds = []byte{inMemory}, append([]int{memory}, fds...)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit > 0 {
		if err := c.sock.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			return err
		}
	}
	_, _, err = c.sock.WriteMsgUnix(packet, oob, nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(ErrStuck, c.Close())
	}
	return err
}

// memoryOf gives the descriptor of memory with a message, which the caller closes.
func memoryOf(data []byte) (int, error) {
	fd, err := memfd.New("scuda-message", int64(len(data)))
	if err != nil {
		return -1, err
	}
	if n, err := unix.Pwrite(fd, data, 0); n != len(data) {
		unix.Close(fd)
		return -1, fmt.Errorf("memory of a message: %w", cmp.Or(err, io.ErrShortWrite))
	}
	return fd, nil
}

// Receive waits for a message. io.EOF says that the peer is gone.
func (c *Conn) Receive() (*Message, error) {
	packet, oob := make([]byte, packetBytes+1), make([]byte, unix.CmsgSpace(2*4))
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(packet, oob)
	if errors.Is(err, unix.ECONNRESET) { // the peer ended without reading all; what it sent before is still to be read
		n, oobn, flags, _, err = c.sock.ReadMsgUnix(packet, oob)
	}
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	fds, err := descriptors(oob[:oobn])
	if err == nil && (n > packetBytes || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		err = fmt.Errorf("%w: cut short", ErrMalformed)
	}
	var m *Message
	if err == nil {
		m, err = parse(packet[:n], &fds)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	return m, nil
}

// parse reads a message. What it takes of the descriptors is not among them any more.
func parse(packet []byte, fds *[]int) (*Message, error) {
	data := packet[1:]
	switch packet[0] {
	case inPacket:
	case inMemory:
		if len(*fds) == 0 || len(data) > 0 {
			return nil, fmt.Errorf("%w: no memory with it", ErrMalformed)
		}
		memory := (*fds)[0]
		defer unix.Close(memory)
		*fds = slices.Delete(*fds, 0, 1)
		var err error
		if data, err = readMemory(memory); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%w: it begins with %d", ErrMalformed, packet[0])
	}
	if len(*fds) > 1 {
		return nil, fmt.Errorf("%w: %d descriptors", ErrMalformed, len(*fds))
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	m := &Message{Type: e.Type, FD: -1, body: e.Body}
	if len(*fds) == 1 {
		m.FD, *fds = (*fds)[0], nil
	}
	return m, nil
}

// readMemory reads a message that lies in memory. It is read and not mapped: the peer may be a worker that was taken
// over. Reading a file of another kind could wait for somebody, so it has to have the seals of memory.
func readMemory(fd int) ([]byte, error) {
	size, err := memfd.Fixed(fd)
	if err == nil && size > MaxBytes {
		err = fmt.Errorf("%d bytes announced", size)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	data := make([]byte, size)
	if n, err := unix.Pread(fd, data, 0); n != len(data) {
		return nil, fmt.Errorf("memory of a message: %w", cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return data, nil
}

// descriptors are those that came with a packet.
func descriptors(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	for i := range parts {
		some, err := unix.ParseUnixRights(&parts[i])
		if err != nil {
			continue
		}
		for _, fd := range some {
			unix.CloseOnExec(fd)
			fds = append(fds, fd)
		}
	}
	return fds, nil
}
