// Package chaos is a TCP proxy that breaks what it carries: connections are cut, at times or behind so many bytes, held
// up, or lead nowhere for a while. It shows what a program makes of a bad network; scuda chaos and the tests use it.
//
// It owns the connections of both sides. Its lock guards which there are, and how they are treated.
package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Config says what goes wrong. The zero value forwards everything.
type Config struct {
	// Bytes is asked for each connection: behind how many bytes of either direction it is cut. Negative: never.
	Bytes func() int
	// Corrupt changes a byte there instead of cutting.
	Corrupt bool
	// Every is how often all connections are cut; 0: never.
	Every time.Duration
	// Away is how long nothing can be reached behind each such cut.
	Away time.Duration
	// Stall holds up what comes behind each such cut, instead of cutting.
	Stall bool
}

// Proxy forwards connections to one address. Listen makes it, Serve carries it out.
type Proxy struct {
	listener net.Listener
	to       string
	cfg      Config

	mu    sync.Mutex
	links map[*link]struct{}
	away  bool          // nothing can be reached
	open  chan struct{} // closed when bytes may pass
	cuts  int
}

// link is a connection and its other half.
type link struct{ near, far *net.TCPConn }

// cut breaks the connection off, without a word or with one.
func (l *link) cut(reset bool) {
	for _, c := range []*net.TCPConn{l.near, l.far} {
		if reset {
			_ = c.SetLinger(0)
		}
		c.Close()
	}
}

// Listen makes a proxy that listens on address and forwards to another one.
func Listen(address, to string, cfg Config) (*Proxy, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, to: to, cfg: cfg, links: make(map[*link]struct{}), open: make(chan struct{})}
	close(p.open)
	return p, nil
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Cuts says how many connections were cut, or had a byte changed.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Cut cuts all connections that there are. Every other time the ends are told by a reset.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.cuts++
		l.cut(p.cuts%2 == 0)
	}
}

// Reach says whether the address can be reached from now on. Where it cannot, connections that are made end at once.
func (p *Proxy) Reach(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = !yes
}

// Hold lets no byte pass from now on, or lets them pass again.
func (p *Proxy) Hold(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		if yes {
			p.open = make(chan struct{})
		}
	default:
		if !yes {
			close(p.open)
		}
	}
}

// Serve forwards connections until ctx ends, and returns once all of them have ended.
func (p *Proxy) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() {
		p.listener.Close()
		p.Hold(false)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.away = true
		for l := range p.links {
			l.cut(false)
		}
	})
	defer stop()
	defer cancel()
	if p.cfg.Every > 0 {
		all.Go(func() { p.disturb(ctx) })
	}
	for {
		c, err := p.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		all.Go(func() { p.forward(ctx, c.(*net.TCPConn)) })
	}
}

// disturb does what the configuration wants to happen again and again.
func (p *Proxy) disturb(ctx context.Context) {
	wait := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for wait(p.cfg.Every) {
		if p.cfg.Stall {
			p.Hold(true)
			wait(p.cfg.Away)
			p.Hold(false)
			continue
		}
		if p.cfg.Away > 0 {
			p.Reach(false)
		}
		p.Cut()
		if p.cfg.Away > 0 {
			wait(p.cfg.Away)
			p.Reach(true)
		}
	}
}

var errAway = errors.New("nothing can be reached")

// join notes a connection.
func (p *Proxy) join(l *link) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return errAway
	}
	p.links[l] = struct{}{}
	return nil
}

// forward serves one connection.
func (p *Proxy) forward(ctx context.Context, near *net.TCPConn) {
	defer near.Close()
	p.mu.Lock()
	away := p.away
	p.mu.Unlock()
	if away {
		_ = near.SetLinger(0)
		return
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.to)
	if err != nil {
		return
	}
	l := &link{near, c.(*net.TCPConn)}
	defer l.far.Close()
	if p.join(l) != nil {
		_ = near.SetLinger(0)
		return
	}
	most := -1
	if p.cfg.Bytes != nil {
		most = p.cfg.Bytes()
	}
	first := rand.IntN(2) == 0
	var both sync.WaitGroup
	both.Go(func() { p.carry(l, l.near, l.far, most, first) })
	both.Go(func() { p.carry(l, l.far, l.near, most, !first) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// carry carries one direction, and cuts behind most bytes of it if it is the one that does.
func (p *Proxy) carry(l *link, from, to *net.TCPConn, most int, cuts bool) {
	b := make([]byte, 64<<10)
	for at := 0; ; {
		n, err := from.Read(b)
		if most >= 0 && cuts && at+n > most && p.cfg.Corrupt {
			b[most-at] ^= 1 << rand.IntN(8)
			p.mu.Lock()
			p.cuts++
			p.mu.Unlock()
			most = -1
		}
		if most >= 0 && cuts && at+n >= most {
			_, _ = to.Write(b[:max(most-at, 0)])
			p.mu.Lock()
			p.cuts++
			l.cut(p.cuts%2 == 0)
			p.mu.Unlock()
			return
		}
		at += n
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		<-open
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				l.cut(true)
				return
			}
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}
