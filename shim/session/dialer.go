package session

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"scuda.dev/scuda/transport"
)

// dialer opens the session's further connections. It is set when the session is opened and never changes.
type dialer struct {
	ctx     context.Context // ends with the session
	server  transport.Target
	first   transport.Hello // of the main connection
	welcome *transport.Welcome
	told    func(fd int) // of each socket; may be nil
	returns *returns     // nil: the session ends with its connections
}

// hello is what a further connection says about itself: it presents a ticket, unless the server knows none.
func (d *dialer) hello(kind string) transport.Hello {
	hello := d.first
	hello.Kind, hello.Session, hello.Secret = kind, d.welcome.Session, d.welcome.Secret
	hello.Wait, hello.Waiting = 0, nil
	if slices.Contains(d.welcome.Capabilities, transport.CapTickets) {
		hello.Purpose = kind
	}
	return hello
}

func (d *dialer) dial(hello *transport.Hello) (net.Conn, error) {
	c, _, err := transport.DialNet(d.ctx, d.server, hello)
	return c, err
}

// line dials a connection on which messages are exchanged.
func (d *dialer) line(hello *transport.Hello) (*transport.Line, error) {
	mayReturn := d.returns != nil
	if hello.Kind == transport.KindRDMA {
		mayReturn = mayReturn && slices.Contains(d.welcome.Capabilities, transport.CapResumeRDMA)
	}
	if mayReturn {
		return d.returns.open(hello)
	}
	c, err := d.dial(hello)
	if err != nil {
		return nil, err
	}
	return transport.NewLine(c)
}

// lines dials the hello's count of connections, at once: each takes as many round trips as all of them together. With
// an error it gives those that are open.
func (d *dialer) lines(hello transport.Hello) (lines []*transport.Line, err error) {
	var wg sync.WaitGroup
	all, errs := make([]*transport.Line, hello.Count), make([]error, hello.Count)
	for i := range all {
		one := hello
		one.Number = i
		wg.Go(func() { all[i], errs[i] = d.line(&one) })
	}
	wg.Wait()
	return slices.DeleteFunc(all, func(l *transport.Line) bool { return l == nil }), errors.Join(errs...)
}

// opened says that a socket is in use, which a forked child has to close.
func (d *dialer) opened(fd int) {
	if d.told != nil {
		d.told(fd)
	}
}
