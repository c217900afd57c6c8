package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport/certificate"
)

// ParseAddress completes "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address to "host:port".
func ParseAddress(s string) (string, error) {
	bad := func(why string) error {
		return &Error{
			Address: strconv.Quote(s), Kind: ErrAddress, Detail: why, Remedy: "write HOST, HOST:PORT or [IPV6]:PORT",
		}
	}
	host, port := s, ""
	switch {
	case s == "":
		return "", bad("the address is empty")
	case strings.ContainsAny(s, " \t\r\n/"):
		return "", bad("the address has characters that no host name has")
	case strings.HasPrefix(s, "["):
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", bad("the bracket is not closed")
		}
		host = s[1:end]
		if rest := s[end+1:]; rest != "" {
			if rest[0] != ':' {
				return "", bad("text follows the bracket")
			}
			port = rest[1:]
			if port == "" {
				return "", bad("the port is empty")
			}
		}
	case strings.Count(s, ":") == 1:
		i := strings.IndexByte(s, ':')
		if host, port = s[:i], s[i+1:]; port == "" {
			return "", bad("the port is empty")
		}
	case strings.Contains(s, ":") && net.ParseIP(s) == nil:
		return "", bad("neither an IPv6 address nor HOST:PORT")
	}
	if strings.ContainsAny(host, "[]") {
		return "", bad("stray bracket")
	}
	if port == "" {
		port = strconv.Itoa(DefaultPort)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return "", bad(fmt.Sprintf("port %q is not a number from 0 to 65535", port))
	}
	return net.JoinHostPort(host, port), nil
}

// Target is a server as its clients know it.
type Target struct {
	Address string
	Token   []byte      // to be presented; nil: none
	TokenOf string      // what said the token, for people
	TLS     *tls.Config // says who the server has to be, and who the client is; nil: the bytes travel as they are
}

// at is the target with its address in full.
func (to Target) at(full string) Target {
	to.Address = full
	return to
}

// Dial connects to a server and shakes hands. The welcome's status is always [StatusOK]; anything else is an [*Error].
func Dial(ctx context.Context, to Target, hello *Hello) (Conn, *Welcome, error) {
	c, full, preface, err := connect(ctx, to, hello)
	if err != nil {
		return nil, nil, err
	}
	found := foundAt(c)
	conn, err := newDialled(c, full)
	if err != nil {
		return nil, nil, &Error{Address: full, Kind: ErrClosed, Detail: err.Error(), Err: err}
	}
	p := &patient{conn: conn}
	w, err := shake(ctx, p, to.at(full), hello, preface)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	conn.putBack(p.rest)
	w.Found = found
	return conn, w, nil
}

func foundAt(c net.Conn) (f Found) {
	if a := c.RemoteAddr(); a != nil { // the kernel forgets it when the peer has reset the connection
		f.Address = a.String()
	}
	if t, ok := c.(*TLSConn); ok && len(t.state.PeerCertificates) > 0 {
		f.Fingerprint = certificate.Fingerprint(t.state.PeerCertificates[0])
	}
	return f
}

// DialNet is [Dial] for those who want an ordinary Go connection (callback connections, information): a [*net.TCPConn]
// or a [*TLSConn].
func DialNet(ctx context.Context, to Target, hello *Hello) (net.Conn, *Welcome, error) {
	return DialNetFirst(ctx, to, hello, nil)
}

// DialNetFirst is [DialNet] for those who know already what they will say first: it goes with the greeting, so that its
// answer costs no further round trip. Of what the server says behind the welcome nothing is read.
func DialNetFirst(ctx context.Context, to Target, hello *Hello, first []byte) (net.Conn, *Welcome, error) {
	c, full, preface, err := connect(ctx, to, hello)
	if err != nil {
		return nil, nil, err
	}
	w, err := shake(ctx, c, to.at(full), hello, append(preface, first...))
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, w, nil
}

// connect connects to the server and prepares what is said first. It gives the address in full.
func connect(ctx context.Context, to Target, hello *Hello) (net.Conn, string, []byte, error) {
	full, err := ParseAddress(to.Address)
	if err != nil {
		return nil, "", nil, err
	}
	says := *hello
	if says.Capabilities == nil {
		says.Capabilities = Offered()
	}
	d := net.Dialer{Timeout: ConnectTimeout, KeepAliveConfig: keepAlive()}
	d.SetMultipathTCP(false)
	nc, err := d.DialContext(ctx, "tcp", full)
	if err != nil {
		return nil, "", nil, dialError(full, err)
	}
	c := nc.(*net.TCPConn)
	if err := Tune(c); err != nil {
		c.Close()
		return nil, "", nil, &Error{Address: full, Kind: ErrServer, Detail: err.Error(), Err: err}
	}
	conn := net.Conn(c)
	if to.TLS != nil {
		if conn, err = secure(ctx, c, full, to.TLS); err != nil {
			c.Close()
			return nil, "", nil, err
		}
	}
	preface, err := says.preface(conn, to.Token)
	if err != nil {
		c.Close()
		return nil, "", nil, &Error{Address: full, Kind: ErrToken, Detail: err.Error(), Err: err}
	}
	return conn, full, preface, nil
}

// preface is what is said first on a connection.
func (h *Hello) preface(c net.Conn, token []byte) (b []byte, err error) {
	if h.Invitation != nil {
		if token, err = h.Invitation.Token(h.Number, c); err != nil {
			return nil, err
		}
	}
	if h.Purpose != "" && h.Secret != "" {
		if h.Ticket, err = Ticket(h.Secret, h.Session, h.Purpose, h.Number, c); err != nil {
			return nil, err
		}
		h.Secret = ""
	}
	return AppendPreface(nil, token, h)
}

const welcomeAhead = 16 << 10 // holds the welcome of a server with two GPUs

// patient lets a connection be read and written as a net.Conn is. It reads only where there is something, and all that
// there is: mostly a session's handshake costs one read.
type patient struct {
	conn  Conn
	rest  []byte                    // read and not yet asked for
	until atomic.Pointer[time.Time] // nil: no deadline
}

// SetDeadline also ends what waits already when t has passed.
func (p *patient) SetDeadline(t time.Time) error {
	if t.IsZero() {
		p.until.Store(nil)
		return nil
	}
	p.until.Store(&t)
	if !t.After(time.Now()) {
		p.conn.Shutdown()
	}
	return nil
}

func (p *patient) wait(ev Events) error {
	left := time.Duration(-1)
	if until := p.until.Load(); until != nil {
		left = max(0, time.Until(*until))
	}
	got, err := p.conn.Wait(ev, left)
	switch until := p.until.Load(); {
	case err != nil:
		return err
	case got == 0, until != nil && !time.Now().Before(*until):
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (p *patient) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if err := p.wait(Readable); err != nil {
			return 0, err
		}
		more := make([]byte, welcomeAhead)
		n, err := p.conn.Recv([][]byte{more})
		if err != nil && !errors.Is(err, ErrAgain) {
			return 0, err
		}
		p.rest = more[:n]
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *patient) Write(b []byte) (done int, err error) {
	for done < len(b) {
		n, err := p.conn.Send([][]byte{b[done:]})
		if errors.Is(err, ErrAgain) {
			err = p.wait(Writable)
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// newcomer is a connection on which a handshake is made.
type newcomer interface {
	io.ReadWriter
	SetDeadline(t time.Time) error
}

func shake(ctx context.Context, c newcomer, to Target, hello *Hello, preface []byte) (*Welcome, error) {
	address := to.Address
	deadline := time.Now().Add(HandshakeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = c.SetDeadline(deadline) // before what a cancelled context sets, which must stay
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// A server that refuses may answer and close before it has read everything; its answer counts more than the failed
	// write.
	_, werr := c.Write(preface)
	w, err := ReadWelcome(c)
	if err == nil && w.Status == StatusWaiting {
		w, err = await(ctx, c, hello, w)
	}
	if err != nil {
		if werr != nil && !errors.Is(err, ErrMalformed) {
			err = werr
		}
		return nil, shakeError(ctx, address, err)
	}
	if w.Status != StatusOK {
		return nil, refusal(to, w)
	}
	// a server of before there were capabilities does not look
	if _, missing := Agree(nil, hello.Needs(), w.Capabilities); missing != nil {
		err := &CapabilityError{Missing: missing, Peer: "the server", Release: w.Version}
		return nil, &Error{Address: address, Kind: ErrCapability, Detail: err.Error(), Err: err}
	}
	if !stop() && ctx.Err() != nil {
		return nil, shakeError(ctx, address, ctx.Err())
	}
	_ = c.SetDeadline(time.Time{})
	return w, nil
}

// await reads what a server says to a client in its queue, up to the answer that is the last. It waits a little longer
// than the server lets it.
func await(ctx context.Context, c newcomer, hello *Hello, w *Welcome) (*Welcome, error) {
	if hello.Wait <= 0 {
		return nil, malformed("the server lets a client wait that did not offer it")
	}
	end := time.Now().Add(min(hello.Wait, LongestWait) + HandshakeTimeout)
	for w.Status == StatusWaiting {
		if hello.Waiting != nil {
			hello.Waiting(*w.Queue)
		}
		deadline := time.Now().Add(HandshakeTimeout)
		if deadline.After(end) {
			deadline = end
		}
		if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
			deadline = d
		}
		_ = c.SetDeadline(deadline)
		if err := ctx.Err(); err != nil { // what it has set is gone
			return nil, err
		}
		var err error
		if w, err = ReadWelcome(c); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func dialError(address string, err error) error {
	e := &Error{Address: address, Err: err}
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		e.Kind, e.Detail = ErrUnknownHost, fmt.Sprintf("the host name %q is unknown", dns.Name)
		e.Remedy = "check its spelling (where it comes from: scuda servers, SCUDA_SERVER), or use the IP address"
	case errors.As(err, &dns):
		e.Kind, e.Detail = ErrUnknownHost, fmt.Sprintf("the host name %q could not be resolved (%s)", dns.Name, dns.Err)
		e.Remedy = "check this machine's name service, or use the IP address"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Kind, e.Detail = ErrRefused, "the connection was refused: nothing listens there"
		e.Remedy = "start the server with 'scuda serve ADDRESS', or check host and port"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		e.Kind, e.Detail = ErrTimeout, fmt.Sprintf("no answer within %s", ConnectTimeout)
		e.Remedy = "check that the machine is up and that no firewall drops the port"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		e.Kind, e.Detail = ErrUnreachable, "there is no route to the host"
		e.Remedy = "check the address and this machine's network"
	default:
		e.Kind, e.Detail = ErrUnreachable, err.Error()
		e.Remedy = "check the address and this machine's network"
	}
	return e
}

func shakeError(ctx context.Context, address string, err error) error {
	e := &Error{Address: address, Err: err}
	var bad *MalformedError
	switch {
	case errors.As(err, &bad):
		e.Kind, e.Detail = ErrNotScuda, "this is not a scuda server: "+bad.Detail
		e.Remedy = "check host and port"
	case errors.Is(err, ErrVersion):
		e.Kind, e.Detail, e.Remedy = ErrVersion, err.Error(), "install the same scuda release on both machines"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Kind, e.Detail = ErrTimeout, "it accepted the connection but does not answer"
		e.Remedy = "check that a scuda server listens on that port and look into its log"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		e.Kind, e.Detail = ErrClosed, "it closed the connection during the handshake"
		e.Remedy = "check that a scuda server listens on that port and look into its log"
	default:
		e.Kind, e.Detail = ErrClosed, err.Error()
	}
	return e
}

// Listen opens a listener on address ("host:port", default port where none is named).
func Listen(ctx context.Context, address string) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive()}
	lc.SetMultipathTCP(false) // plain TCP: the options of Tune and raw descriptors are meant for it
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// Tune sets the socket options of scuda's connections: no delay, and a dead peer is noticed within [Unanswered].
func Tune(c *net.TCPConn) error {
	if err := c.SetNoDelay(true); err != nil {
		return err
	}
	if err := c.SetKeepAliveConfig(keepAlive()); err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	return errors.Join(err, serr)
}

func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount}
}
