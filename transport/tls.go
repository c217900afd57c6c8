package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport/certificate"
	"scuda.dev/scuda/transport/tlsrecord"
)

// tlsByte opens every TLS handshake: the content type of its first record. [Magic] begins with another.
const tlsByte = 22

// OpensTLS says whether a connection that begins with this byte is one with TLS.
func OpensTLS(first byte) bool { return first == tlsByte }

// TLSConn is a connection with TLS as a net.Conn. What becomes of it later (a [Line], a [Conn], a connection of another
// process) takes its keys along. One goroutine may read while another writes.
type TLSConn struct {
	tcp   *net.TCPConn
	state tls.ConnectionState // of the handshake, where this process made it

	reading, writing sync.Mutex // guard stream's halves
	stream           *tlsrecord.Stream
}

var _ net.Conn = (*TLSConn)(nil)

// ServeTLS makes the server's half of the handshake on c. first are bytes that were read from it before.
func ServeTLS(ctx context.Context, c *net.TCPConn, cfg *tls.Config, first []byte) (*TLSConn, error) {
	return shakeTLS(ctx, c, cfg, false, first)
}

func shakeTLS(
	ctx context.Context, c *net.TCPConn, cfg *tls.Config, client bool, first []byte,
) (*TLSConn, error) {
	s, state, err := tlsrecord.Handshake(ctx, c, cfg, client, first)
	if err != nil {
		return nil, err
	}
	return &TLSConn{tcp: c, stream: s, state: state}, nil
}

// ResumeTLS goes on with a connection whose handshake another process made; with a nil state it is one without TLS.
func ResumeTLS(c net.Conn, s *tlsrecord.State) (net.Conn, error) {
	if s == nil {
		return c, nil
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("TLS on a connection of type %T", c)
	}
	stream, err := tlsrecord.Resume(s)
	if err != nil {
		return nil, err
	}
	return &TLSConn{tcp: tcp, stream: stream}, nil
}

// Export gives what another process needs to go on with a connection, nil for one without TLS. The connection is not
// used any more.
func Export(c net.Conn) (*tlsrecord.State, error) {
	if t, ok := c.(*TLSConn); ok {
		return t.stream.Export()
	}
	return nil, nil
}

// Socket gives the TCP connection beneath a connection with or without TLS.
func Socket(c net.Conn) *net.TCPConn {
	if t, ok := c.(*TLSConn); ok {
		return t.tcp
	}
	return c.(*net.TCPConn)
}

// State is the handshake's.
func (c *TLSConn) State() tls.ConnectionState { return c.state }

// take gives up the keys.
func (c *TLSConn) take() *tlsrecord.Stream {
	s := c.stream
	c.stream = nil
	return s
}

func (c *TLSConn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, err := c.stream.In.Read(b)
		if !errors.Is(err, tlsrecord.ErrShort) {
			return n, err
		}
		if n, err = c.tcp.Read(c.stream.In.Room()); n == 0 {
			return 0, err
		}
		c.stream.In.Received(n)
	}
}

func (c *TLSConn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	bufs := [1][]byte{}
	for done := 0; done < len(b); {
		bufs[0] = b[done:]
		n, err := c.stream.Out.Fill(bufs[:])
		if err == nil {
			_, err = c.tcp.Write(c.stream.Out.Pending())
		}
		if err != nil {
			return done, err // the connection is of no use any more: part of a record may have been sent
		}
		c.stream.Out.Sent(len(c.stream.Out.Pending()))
		done += n
	}
	return len(b), nil
}

// Seal gives the bytes that have to be sent on the socket in the place of b, for who sends them later.
func (c *TLSConn) Seal(b []byte) (sealed []byte, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for len(b) > 0 {
		n, err := c.stream.Out.Fill([][]byte{b})
		if err != nil {
			return nil, err
		}
		b = b[n:]
		sealed = append(sealed, c.stream.Out.Pending()...)
		c.stream.Out.Sent(len(c.stream.Out.Pending()))
	}
	return sealed, nil
}

// CloseWrite takes leave and ends the sending side.
func (c *TLSConn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.stream.Out.Close()
	_, err := c.tcp.Write(c.stream.Out.Pending())
	c.stream.Out.Sent(len(c.stream.Out.Pending()))
	return errors.Join(err, c.tcp.CloseWrite())
}

// Close closes the socket.
func (c *TLSConn) Close() error { return c.tcp.Close() }

// LocalAddr is the socket's.
func (c *TLSConn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr is the socket's.
func (c *TLSConn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SetDeadline is the socket's.
func (c *TLSConn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

// SetReadDeadline is the socket's.
func (c *TLSConn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

// SetWriteDeadline is the socket's.
func (c *TLSConn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }

// tlsConn is a Conn with TLS.
type tlsConn struct {
	*tcpConn
	stream   *tlsrecord.Stream
	accepted int // bytes of the caller's that are sealed, and not all sent yet
	out, in  [1][]byte
}

// NewTLSConn is [NewConn] for a connection whose handshake has been made; with a nil state it is one without TLS.
func NewTLSConn(fd int, remote string, s *tlsrecord.State) (Conn, error) {
	if s == nil {
		return NewConn(fd, remote)
	}
	stream, err := tlsrecord.Resume(s)
	if err != nil {
		return nil, err
	}
	c, err := newConn(fd, remote)
	if err != nil {
		return nil, err
	}
	return &tlsConn{tcpConn: c, stream: stream}, nil
}

// Send seals a part of bufs, and says that it was sent when all of it has left. Until then the caller, who cannot send
// anything else first, offers the same bytes again.
func (c *tlsConn) Send(bufs [][]byte) (n int, err error) {
	out := &c.stream.Out
	if len(out.Pending()) == 0 {
		if c.accepted, err = out.Fill(bufs); err != nil {
			return 0, err
		}
	}
	for len(out.Pending()) > 0 {
		c.out[0] = out.Pending()
		k, err := c.tcpConn.Send(c.out[:])
		if err != nil {
			return 0, err
		}
		out.Sent(k)
	}
	n, c.accepted = c.accepted, 0
	return n, nil
}

// Recv takes no more from the socket than fits into bufs, but for a record that is larger: what was received and not
// given out would wake nobody who waits for the socket.
func (c *tlsConn) Recv(bufs [][]byte) (int, error) {
	if c.early.Load() {
		return c.takeBack(bufs), nil
	}
	room := 0
	for _, b := range bufs {
		room += len(b)
	}
	in := &c.stream.In
	for {
		n, err := 0, error(nil)
		for _, b := range bufs {
			var k int
			if k, err = in.Read(b); k < len(b) {
				n += k
				break
			}
			n += k
		}
		if n > 0 {
			return n, nil
		}
		if !errors.Is(err, tlsrecord.ErrShort) {
			return 0, err
		}
		c.in[0] = in.Room()
		if most := max(in.Missing(0), room-in.Buffered()); most < len(c.in[0]) {
			c.in[0] = c.in[0][:most]
		}
		if n, err = c.recv(c.in[:]); err != nil {
			return 0, err
		}
		in.Received(n)
	}
}

func (c *tlsConn) Wait(ev Events, timeout time.Duration) (Events, error) {
	return c.WaitOr(ev, timeout, nil)
}

func (c *tlsConn) WaitOr(ev Events, timeout time.Duration, w *Waker) (Events, error) {
	if ev&Readable != 0 && c.stream.In.Ready() {
		return Readable, nil
	}
	return c.tcpConn.WaitOr(ev, timeout, w)
}

// ConnOf makes a [Conn] of a connection, with or without TLS, which it closes: the descriptor is another one.
func ConnOf(c net.Conn) (Conn, error) {
	remote := "a client that has gone"
	if a := c.RemoteAddr(); a != nil { // the kernel forgets it when the peer has reset the connection
		remote = a.String()
	}
	d, err := newDialled(c, remote)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// newDialled makes a Conn of a connection that was just opened.
func newDialled(c net.Conn, remote string) (dialled, error) {
	var stream *tlsrecord.Stream
	if t, ok := c.(*TLSConn); ok {
		stream = t.take()
	}
	fd, err := Detach(Socket(c))
	if err != nil {
		return nil, err
	}
	conn, err := newConn(fd, remote)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if stream == nil {
		return conn, nil
	}
	return &tlsConn{tcpConn: conn, stream: stream}, nil
}

// dialled is a Conn on a socket. It takes back what was read of that.
type dialled interface {
	Conn
	putBack(b []byte)
	place() descriptor
	replace(other descriptor) error
	Timed
}

// secure makes the client's half of the handshake.
func secure(ctx context.Context, c *net.TCPConn, address string, cfg *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, PrefaceTimeout)
	defer cancel()
	t, err := shakeTLS(ctx, c, cfg, true, nil)
	if err != nil {
		return nil, tlsError(ctx, address, err)
	}
	return t, nil
}

// tlsError says why there is no TLS.
func tlsError(ctx context.Context, address string, err error) error {
	e := &Error{Address: address, Err: err}
	var header tls.RecordHeaderError
	var pin *certificate.PinError
	var verify *tls.CertificateVerificationError
	switch {
	case errors.As(err, &pin) && pin.Want == "":
		e.Kind, e.Detail = ErrUntrusted, pin.Error()
		e.Remedy = fmt.Sprintf("compare it with what the server printed when it started; then run scuda %s in a "+
			"terminal, or set SCUDA_FINGERPRINT", address)
		return e
	case errors.As(err, &pin):
		e.Kind, e.Detail = ErrUntrusted, pin.Error()
		e.Remedy = "somebody may be in between; if the server was really set up anew, correct SCUDA_FINGERPRINT or remove " +
			"the server's line from the file known_servers beside the host file"
		return e
	case errors.As(err, &verify):
		e.Kind, e.Detail = ErrUntrusted, Printable(verify.Err.Error()) // with names of the certificate
		e.Remedy = "use a name for which the server's certificate was made, or correct SCUDA_CA"
		return e
	case errors.As(err, &header), errors.Is(err, io.EOF):
		e.Kind, e.Detail = ErrTLS, "it does not answer to TLS"
		// To go on without TLS is just what somebody on the way would want to be recommended.
		e.Remedy = "start the server without --insecure, from a release that has TLS"
		return e
	}
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return shakeError(ctx, address, err)
	}
	e.Kind, e.Detail = ErrTLS, Printable(err.Error())
	return e
}
