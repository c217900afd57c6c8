package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is an established connection of a session: its ordered stream of bytes. Send and Recv never block: where nothing
// can be done they return [ErrAgain], and Wait waits until something can. One goroutine may send while another
// receives. Recv returns [io.EOF] at the peer's orderly end.
//
// The bytes of big copies do not come this way; package bulk carries them.
type Conn interface {
	Transport() string // "tcp"
	Remote() string
	Send(bufs [][]byte) (int, error)
	Recv(bufs [][]byte) (int, error)
	// Wait waits for any of the events, at most timeout (negative: without limit), and says which came. A failed
	// connection counts as both.
	Wait(ev Events, timeout time.Duration) (Events, error)
	// WaitOr is Wait, which also ends when w was rung since its last look; w may be nil.
	WaitOr(ev Events, timeout time.Duration, w *Waker) (Events, error)
	// Shutdown ends the stream both ways and wakes all that wait; Close also releases the descriptor, after which no call
	// may be in progress.
	Shutdown()
	Close() error
	// FD is the descriptor of the control stream.
	FD() int
}

// Timed is a Conn that knows when bytes came to this machine, however much later somebody took them.
type Timed interface {
	// KeepTimes has the kernel note that from now on. It may be called again and again.
	KeepTimes()
	// Since is how long ago the last of the bytes came that were received last; 0: that is not known.
	Since() time.Duration
}

// Events are what [Conn.Wait] waits for.
type Events uint8

// Events of a connection.
const (
	Readable Events = 1 << iota
	Writable
)

// tcpConn is a Conn on a stream socket that no poller of the Go runtime knows.
type tcpConn struct {
	descriptor
	remote string
	closed atomic.Bool

	ahead []byte      // what was read with the welcome; whoever receives owns it
	early atomic.Bool // there is some

	timed atomic.Bool  // the kernel notes when bytes come
	came  atomic.Int64 // when those came that were received last, in ns since 1970; 0: it did not say
}

// KeepTimes is part of [Timed].
func (c *tcpConn) KeepTimes() {
	if !c.timed.Load() && unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) == nil {
		c.timed.Store(true)
	}
}

// Since is part of [Timed]. A clock that is set meanwhile says nothing.
func (c *tcpConn) Since() time.Duration {
	came := c.came.Load()
	if came == 0 {
		return 0
	}
	if d := time.Duration(time.Now().UnixNano() - came); d < mostSince {
		return max(d, 0)
	}
	return 0
}

// mostSince is how long received bytes may have waited, for [Timed] to say so.
const mostSince = time.Second

// putBack gives b, which was read from the socket, to the next Recv.
func (c *tcpConn) putBack(b []byte) {
	c.ahead = b
	c.early.Store(len(b) > 0)
}

// replace puts the socket behind the number of another one, which that still has.
func (c *tcpConn) replace(other descriptor) (err error) {
	if c.descriptor, err = c.moveTo(other); err != nil {
		return fmt.Errorf("connection to %s: %w", c.remote, err)
	}
	return nil
}

func (c *tcpConn) place() descriptor { return c.descriptor }

func (c *tcpConn) takeBack(bufs [][]byte) (n int) {
	for _, b := range bufs {
		k := copy(b, c.ahead)
		c.ahead, n = c.ahead[k:], n+k
	}
	c.early.Store(len(c.ahead) > 0)
	return n
}

// NewConn makes a Conn of a connected stream socket, which it owns from then on.
func NewConn(fd int, remote string) (Conn, error) {
	c, err := newConn(fd, remote)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func newConn(fd int, remote string) (*tcpConn, error) {
	d, err := describe(fd)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("connection to %s: %w", remote, err)
	}
	return &tcpConn{descriptor: d, remote: remote}, nil
}

// Detach takes the socket out of the Go runtime's poller: it closes c and gives a duplicate of its descriptor.
func Detach(c *net.TCPConn) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	dup, derr := -1, error(nil)
	if err := raw.Control(func(fd uintptr) { dup, derr = duplicate(int(fd)) }); err != nil {
		return -1, err
	}
	return dup, derr
}

func (c *tcpConn) Transport() string { return "tcp" }
func (c *tcpConn) Remote() string    { return c.remote }
func (c *tcpConn) FD() int           { return c.fd }

func (c *tcpConn) Send(bufs [][]byte) (int, error) {
	for {
		n, err := sendmsg(c.fd, bufs)
		switch err {
		case 0:
			return n, nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0, ErrAgain
		}
		return 0, fmt.Errorf("send to %s: %w", c.remote, err)
	}
}

func (c *tcpConn) Recv(bufs [][]byte) (int, error) {
	if c.early.Load() {
		return c.takeBack(bufs), nil
	}
	return c.recv(bufs)
}

// recv takes bytes from the socket.
func (c *tcpConn) recv(bufs [][]byte) (int, error) {
	for {
		n, err := c.recvmsg(bufs)
		switch {
		case err == 0 && n == 0:
			return 0, io.EOF
		case err == 0:
			return n, nil
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, ErrAgain
		}
		return 0, fmt.Errorf("receive from %s: %w", c.remote, err)
	}
}

func (c *tcpConn) recvmsg(bufs [][]byte) (int, unix.Errno) {
	if !c.timed.Load() {
		return recvmsg(c.fd, bufs)
	}
	n, came, err := recvmsgTimed(c.fd, bufs)
	if err == 0 {
		c.came.Store(came)
	}
	return n, err
}

func (c *tcpConn) Wait(ev Events, timeout time.Duration) (Events, error) {
	return c.WaitOr(ev, timeout, nil)
}

func (c *tcpConn) WaitOr(ev Events, timeout time.Duration, w *Waker) (Events, error) {
	var want int16
	if ev&Readable != 0 {
		if c.early.Load() {
			return Readable, nil
		}
		want |= unix.POLLIN | unix.POLLRDHUP
	}
	if ev&Writable != 0 {
		want |= unix.POLLOUT
	}
	ts := (*unix.Timespec)(nil)
	deadline := time.Time{}
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	both := [2]unix.PollFd{{Fd: int32(c.fd), Events: want}}
	fds := both[:1]
	if w != nil {
		defer w.asleep.Store(false)
		if !w.sleeps() {
			return 0, nil
		}
		both[1] = unix.PollFd{Fd: int32(w.fd), Events: unix.POLLIN}
		fds = both[:]
	}
	for {
		n, err := unix.Ppoll(fds, ts, nil)
		if errors.Is(err, unix.EINTR) {
			if ts != nil {
				*ts = unix.NsecToTimespec(int64(max(0, time.Until(deadline))))
			}
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("poll of the connection to %s: %w", c.remote, err)
		}
		if n == 0 {
			return 0, nil
		}
		if both[1].Revents != 0 {
			w.take()
		}
		var got Events
		re := both[0].Revents
		if re&(unix.POLLIN|unix.POLLRDHUP) != 0 {
			got |= Readable
		}
		if re&unix.POLLOUT != 0 {
			got |= Writable
		}
		if re&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			got |= Readable | Writable
		}
		return got & (Readable | Writable), nil
	}
}

// Shutdown ends the stream, where the number still stands for the socket.
func (c *tcpConn) Shutdown() { c.shutdown() }

func (c *tcpConn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	return c.close()
}
