// Package handoff is the line between the supervisor and a worker process: JSON messages over a Unix socket pair, each
// with at most one file descriptor (a client's connection) beside it.
package handoff

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxBytes bounds one message.
const MaxBytes = 8 << 20

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
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
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
	if !ok {
		c.Close()
		return nil, fmt.Errorf("control line of a worker is %T: %w", c, ErrMalformed)
	}
	return &Conn{sock: sock}, nil
}

// Close ends the line; the peer's Receive returns io.EOF.
func (c *Conn) Close() error { return c.sock.Close() }

// Send writes a message; fd goes with it unless it is -1. The sender keeps its own copy of fd. The supervisor's end
// waits at most [SendLimit]; a line with half a message in it is closed.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if c.limit > 0 {
		if err := c.sock.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			return err
		}
	}
	// The descriptor travels with the length, so that the receiver, who reads that on its own, gets both together.
	_, _, err = c.sock.WriteMsgUnix(binary.LittleEndian.AppendUint32(nil, uint32(len(data))), oob, nil)
	if err == nil {
		_, err = c.sock.Write(data)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(ErrStuck, c.sock.Close())
	}
	return err
}

// Receive waits for a message. io.EOF says that the peer is gone.
func (c *Conn) Receive() (*Message, error) {
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.sock.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	fd, err := descriptor(oob[:oobn])
	if err != nil {
		return nil, err
	}
	m, err := c.receive(head, n)
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	m.FD = fd
	return m, nil
}

func (c *Conn) receive(head [4]byte, n int) (*Message, error) {
	if _, err := io.ReadFull(c.sock, head[n:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes announced", ErrMalformed, size)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(c.sock, data); err != nil {
		return nil, err
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return &Message{Type: e.Type, FD: -1, body: e.Body}, nil
}

func descriptor(oob []byte) (int, error) {
	if len(oob) == 0 {
		return -1, nil
	}
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	fd := -1
	for i := range parts {
		fds, err := unix.ParseUnixRights(&parts[i])
		if err != nil {
			continue
		}
		for _, f := range fds {
			if fd >= 0 {
				unix.Close(fd)
			}
			fd = f
			unix.CloseOnExec(fd)
		}
	}
	return fd, nil
}
