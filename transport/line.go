package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport/tlsrecord"
)

const (
	lineSpin = 100 * time.Microsecond // how long a line that had bytes is looked at before its thread sleeps
	manyCPUs = 8                      // with fewer, looking takes the time of those who work
)

// Line is a stream socket whose calls block the thread that makes them: it carries the bytes of big copies and what a
// stream stands still for, where a thread that the kernel wakes by itself is sooner back at work than a goroutine for
// which the runtime's poller has to be woken first. One goroutine may read while another writes.
type Line struct {
	descriptor
	ends [2]net.Addr             // of the socket, here and there, where the line has one only
	head [MessageHeaderSize]byte // of the message that is being sent
	bufs [3][]byte
	last time.Time // when bytes were read last
	shut atomic.Bool
	tls  *tlsrecord.Stream // nil: the bytes travel as they are
	// what is sent of it
	sealed [1][]byte

	res *Resumable // carries the line, where it is not nil: it has the socket, which does not block then
}

// Resumed makes a Line of a stream that outlives its sockets.
func Resumed(r *Resumable) *Line {
	l := &Line{descriptor: descriptor{fd: r.FD()}, res: r}
	Unhurried(l.fd)
	r.blocks = true
	_ = unix.SetNonblock(l.fd, false) // as that of any line; what must not wait says so in its calls
	return l
}

// endsOf are the addresses of a socket, here and there.
func endsOf(fd int) (ends [2]net.Addr) {
	if a, err := unix.Getsockname(fd); err == nil {
		ends[0] = tcpAddr(a)
	}
	if a, err := unix.Getpeername(fd); err == nil {
		ends[1] = tcpAddr(a)
	}
	return ends
}

// tcpAddr is the address of an end of a socket.
func tcpAddr(a unix.Sockaddr) net.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: net.IP(a.Addr[:]), Port: a.Port}
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: net.IP(a.Addr[:]), Port: a.Port}
	}
	return nil
}

// NewLine makes a Line of a connection (with TLS where it is a [TLSConn]), which it closes: the descriptor is another
// one.
func NewLine(c net.Conn) (*Line, error) {
	var stream *tlsrecord.Stream
	if t, ok := c.(*TLSConn); ok {
		stream, c = t.take(), t.tcp
	}
	defer c.Close()
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T is no socket", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, own := -1, descriptor{}
	if cerr := raw.Control(func(f uintptr) {
		if fd, err = duplicate(int(f)); err == nil {
			err = unix.SetNonblock(fd, false)
		}
		if err == nil {
			own, err = describe(fd)
		}
	}); cerr != nil {
		err = cerr
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("a socket that blocks: %w", err)
	}
	Unhurried(fd)
	return &Line{descriptor: own, ends: [2]net.Addr{c.LocalAddr(), c.RemoteAddr()}, tls: stream}, nil
}

// FD is the line's descriptor.
func (l *Line) FD() int { return l.fd }

// LocalAddr is the address of this end, at present.
func (l *Line) LocalAddr() net.Addr { return l.addresses()[0] }

// RemoteAddr is the address of the peer's end, at present.
func (l *Line) RemoteAddr() net.Addr { return l.addresses()[1] }

func (l *Line) addresses() [2]net.Addr {
	if l.res != nil {
		return l.res.socket.Load().ends
	}
	return l.ends
}

// LimitSends lets a send fail that the peer does not take for so long. A line that may get another socket has no limit:
// others give a silent socket up.
func (l *Line) LimitSends(d time.Duration) error {
	if l.res != nil {
		return nil
	}
	t := unix.NsecToTimeval(int64(d))
	return os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t))
}

// ReadFull fills b. It returns [io.EOF] at the peer's end if nothing was read, and [io.ErrUnexpectedEOF] later.
func (l *Line) ReadFull(b []byte) error {
	for at := 0; at < len(b); {
		n, err := l.read(b[at:])
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("receive: %w", err)
		case n == 0 && at == 0:
			return io.EOF
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		at += n
	}
	return nil
}

func (l *Line) read(b []byte) (int, error) {
	if l.res != nil {
		return l.readResumed(b)
	}
	if l.tls == nil {
		return l.receive(b, len(b))
	}
	in := &l.tls.In
	for {
		n, err := in.Read(b)
		if !errors.Is(err, tlsrecord.ErrShort) {
			return n, err
		}
		room := in.Room()
		if n, err = l.receive(room, min(in.Missing(len(b)), len(room))); err != nil || n == 0 {
			return 0, err
		}
		in.Received(n)
	}
}

func (l *Line) readResumed(b []byte) (int, error) {
	for began := l.last; ; {
		n, err := l.res.RecvFull(b)
		if !errors.Is(err, ErrAgain) {
			l.last = time.Now()
			return n, err
		}
		if !FewCPUs() && time.Since(began) <= lineSpin {
			yield()
			continue
		}
		if _, err := l.res.Wait(Readable, -1); err != nil {
			return 0, err
		}
	}
}

// receive waits for bytes of the socket: any, or where it has to sleep for them, the least that is of use.
func (l *Line) receive(b []byte, least int) (int, error) {
	if !FewCPUs() {
		for began := l.last; ; yield() {
			n, err := recvmsg(l.fd, [][]byte{b})
			now := time.Now()
			if err == 0 {
				l.last = now
				return n, nil
			}
			if err != unix.EAGAIN && err != unix.EINTR {
				return 0, err
			}
			if now.Sub(began) > lineSpin {
				break
			}
		}
	}
	for {
		n, err := recvAll(l.fd, b[:least])
		if err == 0 {
			l.last = time.Now()
			return n, nil
		}
		if err != unix.EINTR {
			return 0, err
		}
	}
}

var padding [8]byte

// Send sends a message with its payload, whose length it puts into the header, padded.
func (l *Line) Send(h MessageHeader, payload []byte) error {
	h.Len = uint32(len(payload))
	l.bufs = [3][]byte{h.Append(l.head[:0]), payload, padding[:Pad(len(payload))-len(payload)]}
	return l.write(l.bufs[:])
}

// Post sends a message as Send does. Where the line has no socket for now, it does not wait for one
// ([Resumable.Post]).
func (l *Line) Post(h MessageHeader, payload []byte) error {
	if l.res == nil {
		return l.Send(h, payload)
	}
	h.Len = uint32(len(payload))
	l.bufs = [3][]byte{h.Append(l.head[:0]), payload, padding[:Pad(len(payload))-len(payload)]}
	return l.res.Post(l.bufs[:])
}

// Keeps says whether the line can keep data until the peer has received them ([Line.Keep]).
func (l *Line) Keeps() bool { return l.res != nil }

// Keep sends a message as Send does, with a payload that does not change until the loan is over ([Resumable.Keep]).
func (l *Line) Keep(h MessageHeader, payload []byte, loan Loan) error {
	h.Len = uint32(len(payload))
	return l.res.Keep(h.Append(l.head[:0]), payload, padding[:Pad(len(payload))-len(payload)], loan)
}

// Copy gives back early what is kept, where that is worth it ([Resumable.Copy]).
func (l *Line) Copy() { l.res.Copy() }

// Abandon gives back what is kept. The line has ended.
func (l *Line) Abandon() {
	if l.res != nil {
		l.res.Abandon()
	}
}

// Acknowledge tells the peer that everything was received that was read, where that is of use to it.
func (l *Line) Acknowledge() {
	if l.res != nil {
		l.res.tell()
	}
}

// Ready says whether a short message can be sent without waiting for the peer.
func (l *Line) Ready() bool {
	if l.res != nil {
		return l.res.Ready()
	}
	p := [1]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(p[:], 0)
	return err == nil && p[0].Revents == unix.POLLOUT
}

// write sends all of bufs, which it uses up.
func (l *Line) write(bufs [][]byte) error {
	for len(bufs) > 0 {
		if len(bufs[0]) == 0 {
			bufs = bufs[1:]
			continue
		}
		n, err := l.send(bufs)
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		for i := range bufs {
			k := min(n, len(bufs[i]))
			bufs[i] = bufs[i][k:]
			n -= k
		}
	}
	return nil
}

// send sends some of bufs.
func (l *Line) send(bufs [][]byte) (int, error) {
	if l.res != nil {
		return l.sendResumed(bufs)
	}
	if l.tls == nil {
		return l.sendPlain(bufs)
	}
	out := &l.tls.Out
	n, err := out.Fill(bufs)
	for err == nil && len(out.Pending()) > 0 {
		l.sealed[0] = out.Pending()
		k, serr := l.sendPlain(l.sealed[:])
		out.Sent(k)
		err = serr
	}
	return n, err
}

func (l *Line) sendResumed(bufs [][]byte) (int, error) {
	for {
		n, err := l.res.Send(bufs)
		if !errors.Is(err, ErrAgain) {
			return n, err
		}
		if _, err := l.res.Wait(Writable, -1); err != nil {
			return 0, err
		}
	}
}

func (l *Line) sendPlain(bufs [][]byte) (int, error) {
	for {
		n, err := sendmsgAll(l.fd, bufs)
		switch err {
		case 0:
			return n, nil
		case unix.EINTR:
			continue
		}
		return 0, err
	}
}

// Lose gives the line's socket up, which does not answer any more, where the line may get another one.
func (l *Line) Lose(why error) bool {
	if l.res != nil {
		l.res.Lose(why)
	}
	return l.res != nil
}

// Shutdown ends the line both ways and wakes those who use it.
func (l *Line) Shutdown() {
	if l.res != nil {
		l.res.Shutdown()
		return
	}
	l.shutdown()
}

// Close also releases the descriptor; no call may be in progress.
func (l *Line) Close() error {
	if l.shut.Swap(true) {
		return net.ErrClosed
	}
	if l.res != nil {
		return l.res.Close()
	}
	return l.close()
}

// FewCPUs says whether who looks for work all the time takes the processors of those who do it.
func FewCPUs() bool { return runtime.NumCPU() < manyCPUs }

func yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
