// Package delay is a TCP proxy that makes a link longer: every byte leaves a fixed time after it came, in its order,
// and as many bytes may be on their way at once as the two ends care to send. Measurements over a far link need nothing
// else, no other machine and no network namespace.
package delay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pieceBytes = 256 << 10
	// pieces of one direction of a connection on their way; what comes beyond waits in the sender's socket
	inFlight = 1024
	coarse   = 2 * time.Millisecond // the Go runtime's timers may be late by a millisecond
)

// Proxy forwards the connections to one address. New makes it, Serve carries it out.
type Proxy struct {
	listener net.Listener
	to       string
	oneWay   time.Duration
	dial     func(ctx context.Context) (net.Conn, error)
	rest     func(time.Duration) // sleeps
}

// Listen makes a proxy that listens on address and forwards to another one. Each direction takes oneWay longer.
func Listen(address, to string, oneWay time.Duration) (*Proxy, error) {
	if oneWay < 0 {
		return nil, fmt.Errorf("a link cannot be shorter by %v; give a positive delay", -oneWay)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	dial := func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", to) }
	return &Proxy{listener: l, to: to, oneWay: oneWay, dial: dial, rest: rest}, nil
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Serve forwards connections until ctx ends, and returns once all of them have ended.
func (p *Proxy) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { p.listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for {
		c, err := p.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		all.Go(func() { p.forward(ctx, c) })
	}
}

// forward serves one connection. A connection that cannot be made ends the other one.
func (p *Proxy) forward(ctx context.Context, near net.Conn) {
	defer near.Close()
	far, err := p.dial(ctx)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() {
		near.Close()
		far.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { p.carry(far, near) })
	both.Go(func() { p.carry(near, far) })
	both.Wait()
}

// piece is what one read gave, or the end of what is to come.
type piece struct {
	data []byte
	due  time.Time
	err  error
}

// carry copies one direction.
func (p *Proxy) carry(to, from net.Conn) {
	way := make(chan piece, inFlight)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(way)
		spare := sync.Pool{}
		for {
			b, _ := spare.Get().(*[pieceBytes]byte)
			if b == nil {
				b = new([pieceBytes]byte)
			}
			n, err := from.Read(b[:])
			data := b[:n]
			if n < pieceBytes/4 { // small pieces do not hold big buffers
				data = append([]byte(nil), data...)
				spare.Put(b)
			}
			way <- piece{data, time.Now().Add(p.oneWay), err}
			if err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	var broken error
	for x := range way {
		if broken != nil {
			continue // the reader must not be stuck
		}
		if d := time.Until(x.due); d > 0 {
			p.rest(d)
		}
		if len(x.data) > 0 {
			if _, broken = to.Write(x.data); broken != nil {
				from.Close()
				continue
			}
		}
		if x.err == nil {
			continue
		}
		if half, ok := to.(interface{ CloseWrite() error }); ok && errors.Is(x.err, io.EOF) {
			_ = half.CloseWrite()
		} else {
			to.Close()
		}
	}
}

// rest sleeps exactly: the end of the time is left to the kernel.
func rest(d time.Duration) {
	until := time.Now().Add(d)
	if d > coarse {
		time.Sleep(d - coarse)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for d = time.Until(until); d > 0; d = time.Until(until) {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil)
	}
}
