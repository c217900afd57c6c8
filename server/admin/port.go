package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"scuda.dev/scuda/server/door"
)

// Bounds of what one may ask.
const (
	maxBody     = 64 << 10
	maxHeader   = 16 << 10
	connections = 64 // at the socket; over the network: of administrators, and of all others
	perTenant   = 8  // connections over the network of one that is no administrator
	headerTime  = 5 * time.Second
	readTime    = 10 * time.Second
	writeTime   = 30 * time.Second
	idleTime    = 30 * time.Second
)

// ErrBusy says that somebody has as many connections as they may.
var ErrBusy = errors.New("no room for another connection to the admin interface")

// Port is an admin interface. Those who ask come by a socket of its own machine, and by connections that the supervisor
// hands over. One server answers both.
type Port struct {
	server *http.Server
	asked  *handler
	inbox  *inbox
	done   sync.WaitGroup

	mu    sync.Mutex // guards taken
	taken map[string]int
}

// New gives an interface, at which nobody asks yet.
func New(s Server, o Options) *Port {
	h := newHandler(s, o)
	p := &Port{asked: h, inbox: newInbox(), taken: make(map[string]int), server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.RemoteAddr())
		},
	}}
	p.done.Go(func() { _ = p.server.Serve(p.inbox) })
	return p
}

// Open offers the interface at a socket.
func (p *Port) Open(ctx context.Context, path string) error {
	l, err := Listen(ctx, path)
	if err != nil {
		return err
	}
	p.done.Go(func() { _ = p.server.Serve(door.Listen(knowing{l}, connections)) })
	return nil
}

// Close ends the interface, takes its socket away, and waits for what is being answered. It may be called again.
func (p *Port) Close() {
	_ = p.server.Close() // the contexts of requests end with it
	_ = p.inbox.Close()
	p.done.Wait()
	p.asked.close()
}

// peerKey is where a connection's context has the address of the other end.
type peerKey struct{}

// Caller is who asks over a connection of the network, as its address.
type Caller struct {
	Address string
	// Now says who that is at the moment of a request; the error, why it is nobody any more.
	Now func() (Who, error)
}

// Network and String make it a [net.Addr].
func (Caller) Network() string { return "tcp" }

func (c Caller) String() string { return c.Address }

// Enter takes a place for a connection, which leave gives back. The error wraps [ErrBusy]. Nobody but administrators
// takes theirs, and one tenant cannot take those of all others.
func (p *Port) Enter(who Who) (leave func(), err error) {
	const all = "" // no tenant's name
	type place struct {
		of   string
		most int
	}
	places := []place{{all, connections}, {who.Tenant, perTenant}}
	if who.Role() == RoleAdmin {
		places = []place{{RoleAdmin + " ", connections}} // no tenant's name has a blank
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range places {
		if p.taken[at.of] >= at.most {
			return nil, fmt.Errorf("%w: %d are open", ErrBusy, p.taken[at.of])
		}
	}
	for _, at := range places {
		p.taken[at.of]++
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, at := range places {
			if p.taken[at.of]--; p.taken[at.of] == 0 {
				delete(p.taken, at.of)
			}
		}
	}), nil
}

// Serve answers what is asked on a connection until that ends; then it is closed.
func (p *Port) Serve(c net.Conn, who Caller) {
	h := &handed{Conn: c, who: who, gone: make(chan struct{})}
	defer h.Close()
	if !p.inbox.put(h) {
		return
	}
	select {
	case <-h.gone:
	case <-p.inbox.closed:
	}
}

// handed is a connection that knows who is at its other end, and says when it has been closed.
type handed struct {
	net.Conn
	who  Caller
	once sync.Once
	gone chan struct{}
}

func (h *handed) RemoteAddr() net.Addr { return h.who }

func (h *handed) Close() error {
	h.once.Do(func() { close(h.gone) })
	return h.Conn.Close()
}

// CloseWrite lets an answer arrive that is followed by the end of the connection.
func (h *handed) CloseWrite() error {
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// inbox is a listener for connections that were accepted elsewhere.
type inbox struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newInbox() *inbox { return &inbox{conns: make(chan net.Conn), closed: make(chan struct{})} }

// put gives a connection to who accepts; false if nobody does any more.
func (i *inbox) put(c net.Conn) bool {
	select {
	case i.conns <- c:
		return true
	case <-i.closed:
		return false
	}
}

func (i *inbox) Accept() (net.Conn, error) {
	select {
	case c := <-i.conns:
		return c, nil
	case <-i.closed:
		return nil, net.ErrClosed
	}
}

func (i *inbox) Close() error {
	i.once.Do(func() { close(i.closed) })
	return nil
}

// Addr is asked for by nobody; the connections have theirs.
func (i *inbox) Addr() net.Addr { return Caller{} }
