// Package chaos is a TCP proxy that breaks what it carries: connections are cut, at times or behind so many bytes, held
// up in one direction or both, or lead nowhere. It shows what a program makes of a bad network; scuda chaos and the
// tests use it.
//
// It owns the connections of both sides. Its lock guards which there are, and how they are treated.
package chaos

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Config says what goes wrong. The zero value forwards everything.
type Config struct {
	// Harm is asked for each connection, in the order in which they come (from 0), what happens to it.
	Harm func(n int) Harm
	// Every is how often something happens to all connections at once; 0: never.
	Every time.Duration
	// Kind is what that is: Cut where it says nothing, else Half, Stall or Swallow; Way which bytes it is about, those of
	// both where it says nothing.
	Kind Kind
	Way  Way
	// Away is how long nothing can be reached behind each such cut, and how long a stall is.
	Away time.Duration
}

// Proxy forwards connections to one address. Listen makes it, Serve carries it out.
type Proxy struct {
	listener net.Listener
	to       string
	cfg      Config

	mu      sync.Mutex
	links   map[*link]struct{}
	carried []Traffic     // of each connection so far
	away    bool          // nothing can be reached
	held    Way           // bytes that go there wait
	change  chan struct{} // closed and replaced when bytes may pass
	harmed  int
}

// Traffic is what a connection has carried, up to now.
type Traffic struct{ Up, Down int }

// link is a connection and its other half. What changes is guarded by the proxy's lock.
type link struct {
	near, far *net.TCPConn
	number    int
	gone      Way // bytes that go there vanish
	stalled   Way // they wait
}

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
	cfg.Kind, cfg.Way = cmp.Or(cfg.Kind, Cut), cmp.Or(cfg.Way, Both)
	return &Proxy{listener: l, to: to, cfg: cfg, links: make(map[*link]struct{}), change: make(chan struct{})}, nil
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Cuts says how many connections were cut, or harmed in another way.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.harmed
}

// Carried says what each connection has carried, in the order in which they came.
func (p *Proxy) Carried() []Traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.carried)
}

// Cut cuts all connections that there are. Every other time the ends are told by a reset.
func (p *Proxy) Cut() { p.Break(Cut, Both) }

// Break does something to all connections that there are: Cut, Half, or Swallow of what goes a way.
func (p *Proxy) Break(k Kind, w Way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.harmed++
		p.harm(l, Harm{Kind: k, Way: w})
	}
}

// harm does it; it has been counted. mu is held.
func (p *Proxy) harm(l *link, h Harm) {
	switch h.Kind {
	case Cut:
		l.cut(p.harmed%2 == 0)
	case Half: // nobody is told on the other side, though its bytes are taken
		l.gone = Both
		c := l.near
		if h.Way == Down {
			c = l.far
		}
		_ = c.SetLinger(0)
		c.Close()
	case Swallow:
		l.gone |= h.Way
	case Stall:
		l.stalled |= h.Way
		if h.For > 0 {
			time.AfterFunc(h.For, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				l.stalled &^= h.Way
				p.changed()
			})
		}
	}
}

// Reach says whether the address can be reached from now on. Where it cannot, connections that are made end at once.
func (p *Proxy) Reach(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = !yes
}

// Hold lets no byte pass that goes a way, from now on; with 0 all pass again.
func (p *Proxy) Hold(w Way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = w
	p.changed()
}

// changed lets those who wait look again. mu is held.
func (p *Proxy) changed() {
	close(p.change)
	p.change = make(chan struct{})
}

// Serve forwards connections until ctx ends, and returns once all of them have ended.
func (p *Proxy) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() {
		p.listener.Close()
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
		if p.cfg.Kind == Stall {
			p.mu.Lock()
			p.harmed += len(p.links)
			p.mu.Unlock()
			p.Hold(p.cfg.Way)
			wait(p.cfg.Away)
			p.Hold(0)
			continue
		}
		if p.cfg.Away > 0 {
			p.Reach(false)
		}
		p.Break(p.cfg.Kind, p.cfg.Way)
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

// next is the number of a connection that has come; false: it leads nowhere.
func (p *Proxy) next() (n int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return 0, false
	}
	p.carried = append(p.carried, Traffic{})
	return len(p.carried) - 1, true
}

// forward serves one connection.
func (p *Proxy) forward(ctx context.Context, near *net.TCPConn) {
	defer near.Close()
	n, ok := p.next()
	if !ok {
		_ = near.SetLinger(0)
		return
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.to)
	if err != nil {
		return
	}
	l := &link{near: near, far: c.(*net.TCPConn), number: n}
	defer l.far.Close()
	if p.join(l) != nil {
		_ = near.SetLinger(0)
		return
	}
	var h Harm
	if p.cfg.Harm != nil {
		h = p.cfg.Harm(n)
	}
	var both sync.WaitGroup
	var once sync.Once // of the two ways only one does the harm
	both.Go(func() { p.carry(ctx, l, Up, h, &once) })
	both.Go(func() { p.carry(ctx, l, Down, h, &once) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// carry carries one direction.
func (p *Proxy) carry(ctx context.Context, l *link, w Way, h Harm, once *sync.Once) {
	from, to := l.near, l.far
	if w == Down {
		from, to = l.far, l.near
	}
	b := make([]byte, 64<<10)
	for at := 0; ; {
		n, err := from.Read(b)
		rest := b[:n]
		if h.Kind != None && h.Way&w != 0 && at+n >= h.Bytes+more(h.Kind) {
			due, k := p.due(once), max(h.Bytes-at, 0)
			switch {
			case due && h.Kind == Corrupt:
				b[k] ^= 1 << rand.IntN(8)
			case due:
				if k > 0 && !p.pass(ctx, l, w, to, b[:k]) {
					return
				}
				rest = b[k:n]
				p.mu.Lock()
				p.harm(l, h)
				p.mu.Unlock()
			}
			h.Kind = None
		}
		at += n
		p.count(l, w, n)
		if n > 0 && !p.pass(ctx, l, w, to, rest) {
			return
		}
		if err != nil {
			if p.wait(ctx, l, w) {
				_ = to.CloseWrite()
			}
			return
		}
	}
}

// more is how many bytes behind those of the harm have to have come.
func more(k Kind) int {
	if k == Corrupt {
		return 1
	}
	return 0
}

// pass passes bytes on, once they may pass. It says no at the connection's end.
func (p *Proxy) pass(ctx context.Context, l *link, w Way, to *net.TCPConn, b []byte) bool {
	if !p.wait(ctx, l, w) {
		return true // it is read to the end, and leads nowhere
	}
	if _, err := to.Write(b); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.gone&w == 0 {
			l.cut(true)
			return false
		}
	}
	return true
}

// wait waits until bytes may pass, and says whether they do.
func (p *Proxy) wait(ctx context.Context, l *link, w Way) bool {
	for {
		p.mu.Lock()
		gone, waits, change := l.gone&w != 0, (p.held|l.stalled)&w != 0, p.change
		p.mu.Unlock()
		if gone || !waits {
			return !gone
		}
		select {
		case <-change:
		case <-ctx.Done():
			return false
		}
	}
}

// due says whether the harm of a connection is this direction's, and counts it.
func (p *Proxy) due(once *sync.Once) (yes bool) {
	once.Do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.harmed++
		yes = true
	})
	return yes
}

func (p *Proxy) count(l *link, w Way, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w == Up {
		p.carried[l.number].Up += n
	} else {
		p.carried[l.number].Down += n
	}
}
