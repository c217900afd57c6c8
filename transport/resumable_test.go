package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// network brings the two ends of a stream together, anew whenever a socket breaks. It breaks them itself: behind so
// many bytes of one direction, as often as it is told to.
type network struct {
	t                    *testing.T
	forServer, forClient *tls.Config // nil: without TLS
	next                 func() int  // bytes until the next break, negative: none
	near, far            *Resumable
	broken               chan struct{}
	stop                 chan struct{}
	cuts                 atomic.Int32
	all                  sync.WaitGroup
}

func newNetwork(t *testing.T, w Windows, secure bool, next func() int) *network {
	n := &network{t: t, next: next, broken: make(chan struct{}, 64), stop: make(chan struct{})}
	if secure {
		n.forServer, n.forClient = configs(t)
	}
	lost := func(error) { n.broken <- struct{}{} }
	ends := func(c net.Conn, w Windows) *Resumable {
		d, err := newDialled(c, "there")
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewResumable(d, w, lost)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	near, far := n.pair()
	n.near, n.far = ends(near, w), ends(far, w.Reversed())
	n.all.Go(n.mend)
	t.Cleanup(func() {
		close(n.stop)
		n.near.Shutdown()
		n.far.Shutdown()
		n.all.Wait()
		_ = n.near.Close()
		_ = n.far.Close()
	})
	return n
}

// pair gives two connections, with what breaks them in between.
func (n *network) pair() (near, far net.Conn) {
	connect := func() (a, b *net.TCPConn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			n.t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			n.t.Fatal(err)
		}
		d, err := l.Accept()
		if err != nil {
			n.t.Fatal(err)
		}
		return c.(*net.TCPConn), d.(*net.TCPConn)
	}
	a, left := connect()
	right, b := connect()
	most := n.next()
	first := rand.IntN(2) == 0
	n.all.Go(func() { n.carry(left, right, most, first) })
	n.all.Go(func() { n.carry(right, left, most, !first) })
	if n.forServer == nil {
		return a, b
	}
	var shaken sync.WaitGroup
	shake := func(to *net.Conn, c *net.TCPConn, cfg *tls.Config, client bool) {
		s, err := shakeTLS(context.Background(), c, cfg, client, nil)
		if err == nil {
			*to = s
			return
		}
		c.Close()
	}
	shaken.Go(func() { shake(&near, a, n.forClient, true) })
	shaken.Go(func() { shake(&far, b, n.forServer, false) })
	shaken.Wait()
	return near, far
}

// carry carries bytes, and breaks both sockets behind most of them if it is the one that does.
func (n *network) carry(from, to *net.TCPConn, most int, breaks bool) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 8<<10)
	for at := 0; ; {
		k, err := from.Read(b)
		if breaks && most >= 0 && at+k >= most {
			_, _ = to.Write(b[:most-at])
			if most%2 == 0 { // else in order, as far as the kernel sees it
				_ = from.SetLinger(0)
				_ = to.SetLinger(0)
			}
			return
		}
		at += k
		if k > 0 {
			if _, err := to.Write(b[:k]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// mend brings new sockets.
func (n *network) mend() {
	for {
		select {
		case <-n.stop:
			return
		case <-n.broken:
		}
		if n.near.Attached() && n.far.Attached() {
			continue // of a socket that was replaced since
		}
		n.cuts.Add(1)
		for {
			near, far := n.pair()
			if near == nil || far == nil {
				continue
			}
			got, err := n.near.Detach()
			their, ferr := n.far.Detach()
			if err != nil || ferr != nil {
				near.Close()
				far.Close()
				if err == nil {
					n.near.Fail(io.EOF)
				}
				if ferr == nil {
					n.far.Fail(io.EOF)
				}
				return
			}
			var both sync.WaitGroup
			both.Go(func() { _ = n.near.Attach(near, their) })
			both.Go(func() { _ = n.far.Attach(far, got) })
			both.Wait()
			break
		}
	}
}

// Whatever breaks, each side reads what the other wrote, with and without TLS.
func TestResumable(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			const total = 6 << 20
			random := rand.New(rand.NewPCG(1, 2))
			var mu sync.Mutex
			n := newNetwork(t, Windows{Own: 256 << 10, Peer: 128 << 10}, secure, func() int {
				mu.Lock()
				defer mu.Unlock()
				if random.IntN(4) == 0 {
					return 2000 + random.IntN(6000) // soon after the handshake
				}
				return 4000 + random.IntN(200_000)
			})
			a, b := Resumed(n.near), Resumed(n.far)
			var users sync.WaitGroup
			talk := func(l *Line, says, hears []byte, seed uint64) {
				users.Go(func() {
					random := rand.New(rand.NewPCG(seed, 1))
					for rest := says; len(rest) > 0; {
						k := min(len(rest), 1+random.IntN(1<<(1+random.IntN(17))))
						if err := l.write([][]byte{rest[:k/2], rest[k/2 : k]}); err != nil {
							t.Error(err)
							return
						}
						rest = rest[k:]
					}
				})
				users.Go(func() {
					random := rand.New(rand.NewPCG(seed, 2))
					got := make([]byte, len(hears))
					for rest := got; len(rest) > 0; {
						k := min(len(rest), 1+random.IntN(1<<(1+random.IntN(17))))
						if err := l.ReadFull(rest[:k]); err != nil {
							t.Error(err)
							return
						}
						rest = rest[k:]
					}
					if !bytes.Equal(got, hears) {
						t.Error("the bytes arrived changed")
					}
				})
			}
			one, other := noise(total, 3), noise(total, 4)
			talk(a, one, other, 5)
			talk(b, other, one, 6)
			users.Wait()
			if n.cuts.Load() < 20 {
				t.Errorf("only %d sockets broke", n.cuts.Load())
			}
			a.Shutdown()
			if err := b.ReadFull(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("behind the farewell: %v", err)
			}
		})
	}
}

func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// A side that does not read, and whose peer has filled its window, still sends as much as the peer reads.
func TestResumableFullWindow(t *testing.T) {
	n := newNetwork(t, Windows{Own: 64 << 10, Peer: 64 << 10}, false, func() int { return -1 })
	a, b := Resumed(n.near), Resumed(n.far)
	const total = 4 << 20
	var users sync.WaitGroup
	sent := make(chan struct{})
	users.Go(func() {
		defer close(sent)
		if err := a.write([][]byte{make([]byte, 1<<20)}); err != nil { // nobody reads it for now
			t.Error(err)
		}
	})
	users.Go(func() {
		if err := a.ReadFull(make([]byte, total)); err != nil {
			t.Error(err)
		}
	})
	if err := b.write([][]byte{make([]byte, total)}); err != nil {
		t.Error(err)
	}
	select {
	case <-sent:
		t.Error("more was taken than the window has room for")
	default:
	}
	if err := b.ReadFull(make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
	users.Wait()
}

// waits is a socket that counts how often the kernel was asked about it.
type waits struct {
	dialled
	n atomic.Int32
}

func (w *waits) Wait(ev Events, timeout time.Duration) (Events, error) {
	w.n.Add(1)
	return w.dialled.Wait(ev, timeout)
}

// Whoever has filled the window sleeps until a reader brings news of the peer. If it polled the socket itself, it would
// find those news again and again until the reader is given a processor, and keep that from the reader.
func TestResumableFullWindowSleeps(t *testing.T) {
	n := newNetwork(t, Windows{Own: 64 << 10, Peer: 64 << 10}, false, func() int { return -1 })
	r := n.near
	counted := &waits{dialled: r.socket.Load().dialled}
	r.socket.Store(&socket{dialled: counted})
	for { // until the window is full
		if _, err := r.Send([][]byte{make([]byte, 8<<10)}); errors.Is(err, ErrAgain) && r.isFull() {
			break
		} else if err != nil && !errors.Is(err, ErrAgain) {
			t.Fatal(err)
		}
	}
	r.readers.Add(1) // that has been woken, and is not running yet
	var far sync.WaitGroup
	far.Go(func() {
		b := Resumed(n.far)
		if err := b.ReadFull(make([]byte, 64<<10)); err != nil {
			t.Error(err)
		}
		b.Acknowledge()
	})
	far.Wait()
	if _, err := counted.dialled.Wait(Readable, -1); err != nil { // the news are there
		t.Fatal(err)
	}
	if ev, err := r.Wait(Writable, 3*stuckNap); ev != 0 || err != nil {
		t.Errorf("a full window: %v, %v", ev, err)
	}
	if k := counted.n.Load(); k != 0 {
		t.Errorf("the kernel was asked %d times", k)
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		if ev, err := r.Wait(Writable, -1); ev != Writable || err != nil {
			t.Errorf("when there is room: %v, %v", ev, err)
		}
	})
	if _, err := r.Recv([][]byte{make([]byte, 1)}); !errors.Is(err, ErrAgain) {
		t.Errorf("the reader: %v", err)
	}
	r.readers.Add(-1)
	sender.Wait()
}

// Bytes that nobody waits for go out when there is a socket again, and what a broken one still brought is read.
func TestResumableBetweenSockets(t *testing.T) {
	broken := make(chan error, 2)
	ends := func(c net.Conn) *Resumable {
		d, err := newDialled(c, "there")
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewResumable(d, Windows{Own: 4096, Peer: 4096}, func(err error) { broken <- err })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	n := &network{t: t, next: func() int { return -1 }}
	near, far := n.pair()
	a, b := ends(near), ends(far)
	send := func(r *Resumable, text string) error {
		k, err := r.Send([][]byte{[]byte(text)})
		if err == nil && k != len(text) {
			t.Errorf("%d bytes of %q were sent", k, text)
		}
		return err
	}
	recv := func(r *Resumable) string {
		into := make([]byte, 64)
		for {
			k, err := r.Recv([][]byte{into})
			if err == nil {
				return string(into[:k])
			}
			if !errors.Is(err, ErrAgain) {
				return err.Error()
			}
			if _, err := r.Wait(Readable, -1); err != nil {
				return err.Error()
			}
		}
	}
	if err := send(a, "one"); err != nil {
		t.Fatal(err)
	}
	if got := recv(b); got != "one" {
		t.Fatalf("%q came", got)
	}
	a.Lose(io.ErrUnexpectedEOF)
	if err := <-broken; !errors.Is(err, io.ErrUnexpectedEOF) || a.Attached() {
		t.Errorf("the loss is told as %v", err)
	}
	if err := send(a, "two"); !errors.Is(err, ErrAgain) {
		t.Errorf("without a socket: %v", err)
	}
	if _, err := a.Recv([][]byte{make([]byte, 1)}); !errors.Is(err, ErrAgain) || !a.Dry() {
		t.Errorf("the broken socket has brought more: %v", err)
	}
	if ev, err := a.Wait(Readable|Writable, time.Millisecond); ev != 0 || err != nil {
		t.Errorf("without a socket there is %v (%v)", ev, err)
	}
	got, err := a.Detach()
	their, ferr := b.Detach()
	if err != nil || ferr != nil || got != 0 || their != 3 {
		t.Fatalf("%d bytes (%v) and %d bytes (%v)", got, err, their, ferr)
	}
	near, far = n.pair()
	if err := errors.Join(a.Attach(near, their), b.Attach(far, got)); err != nil {
		t.Fatal(err)
	}
	if got := recv(b); got != "two" { // though nobody has offered it again
		t.Errorf("%q came", got)
	}
	if err := send(a, "two"); err != nil {
		t.Errorf("offered again: %v", err)
	}
	if err := send(b, "last words"); err != nil {
		t.Error(err)
	}
	b.Shutdown()
	if _, err := b.Detach(); !errors.Is(err, ErrOver) {
		t.Errorf("behind its end: %v", err)
	}
	if got := recv(a); got != "last words" {
		t.Errorf("%q came", got)
	}
	if got := recv(a); got != io.EOF.Error() {
		t.Errorf("at the end: %q", got)
	}
	if _, err := a.Detach(); !errors.Is(err, ErrOver) {
		t.Errorf("behind the peer's farewell: %v", err)
	}
	a.Fail(io.EOF)
	n.all.Wait()
}

// A peer that lies about what it has received ends the stream.
func TestResumableViolation(t *testing.T) {
	n := newNetwork(t, Windows{Own: 4096, Peer: 4096}, false, func() int { return -1 })
	if _, err := n.near.Send([][]byte{[]byte("hello")}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.near.Detach(); err != nil {
		t.Fatal(err)
	}
	near, far := n.pair()
	defer far.Close()
	if err := n.near.Attach(near, 6); err == nil {
		t.Error("more was received than was sent")
	}
	select {
	case <-n.near.Ended():
	default:
		t.Error("the stream goes on")
	}
}
