package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// ordered is a connection of a session whose client brings new sockets, and what is needed to try their order.
type ordered struct {
	*testing.T
	lines     *lines
	near, far *transport.Resumable // the server's end and the client's

	here, there *transport.Line // the same
}

const orderedLine = transport.LineBulk

func newOrdered(t *testing.T) *ordered {
	o := &ordered{T: t, lines: newLines(time.Minute, slog.New(slog.DiscardHandler), &metrics.Page{})}
	near, far := o.socket()
	conn := func(c net.Conn) transport.Conn {
		d, err := transport.ConnOf(c)
		o.check(err)
		return d
	}
	var err error
	o.near, err = o.lines.resumable(orderedLine, 0, conn(near), transport.LineWindows)
	o.check(err)
	o.far, err = transport.NewResumable(conn(far), transport.LineWindows, func(error) {})
	o.check(err)
	o.here, o.there = transport.Resumed(o.near), transport.Resumed(o.far)
	t.Cleanup(func() {
		o.far.Shutdown()
		o.near.Shutdown()
		o.check(errors.Join(o.far.Close(), o.near.Close()))
		o.lines.mu.Lock()
		defer o.lines.mu.Unlock()
		if o.lines.timer != nil {
			o.lines.timer.Stop()
		}
	})
	return o
}

func (o *ordered) check(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// socket gives the ends of one: the server's, and the client's.
func (o *ordered) socket() (near, far net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	o.check(err)
	defer l.Close()
	far, err = net.Dial("tcp", l.Addr().String())
	o.check(err)
	near, err = l.Accept()
	o.check(err)
	return near, far
}

// send sends a message from the server to the client.
func (o *ordered) send() {
	o.Helper()
	o.check(o.here.Send(transport.MessageHeader{Type: transport.MsgPathCredit}, make([]byte, 64)))
	o.check(o.there.ReadFull(make([]byte, transport.MessageHeaderSize+64)))
}

// leave has the client give its socket up, and says how much it has received.
func (o *ordered) leave() uint64 {
	o.Helper()
	received, err := o.far.Detach()
	o.check(err)
	return received
}

// attach is the client's part of going on at a socket.
func (o *ordered) attach(c net.Conn) {
	o.Helper()
	there, err := transport.ReadResumes(c)
	o.check(err)
	o.check(o.far.Attach(c, there))
}

// refused says that the server has closed a socket of which it has made no use.
func (o *ordered) refused(c net.Conn) {
	o.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		o.Errorf("an old socket brought %d bytes, and then: %v", n, err)
	}
	o.check(c.Close())
}

// A socket that the client has given up may come behind the one that it made next. It takes nobody's place then: the
// server would send again from where the client was once, and the client would have received more than that.
func TestOldSocketsComeLate(t *testing.T) {
	o := newOrdered(t)
	o.send()
	received := o.leave()
	oldHere, oldThere := o.socket()
	here, there := o.socket()
	o.check(o.lines.join(&joinInfo{Line: orderedLine, Epoch: 2, Received: received}, here))
	o.attach(there)
	o.send()
	o.check(o.lines.join(&joinInfo{Line: orderedLine, Epoch: 1, Received: received}, oldHere))
	o.refused(oldThere)
	if !o.near.Attached() {
		t.Error("the present socket was given up for an older one")
	}
	o.send()
}

// Of two sockets that wait for their turn the client uses the later one.
func TestNewestSocketIsUsed(t *testing.T) {
	o := newOrdered(t)
	o.send()
	received := o.leave()
	order := o.lines.joined[orderedLine]
	order.turn.Lock()
	joined := make(chan error, 2)
	var theirs [2]net.Conn
	for i := range theirs {
		here, there := o.socket()
		theirs[i] = there
		epoch := uint64(i + 1)
		go func() {
			joined <- o.lines.join(&joinInfo{Line: orderedLine, Epoch: epoch, Received: received}, here)
		}()
		for newest := uint64(0); newest != epoch; runtime.Gosched() {
			o.lines.mu.Lock()
			newest = order.newest
			o.lines.mu.Unlock()
		}
	}
	order.turn.Unlock()
	o.attach(theirs[1])
	o.refused(theirs[0])
	o.check(errors.Join(<-joined, <-joined))
	o.send()
}
