package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"scuda.dev/scuda/transport"
)

// Bounds of a client whose main connection broke off before the server's welcome had come.
const (
	openTries = 6                // handshakes that may break off
	openPlace = 10 * time.Second // so long it waits for a place, which a session may have of whose welcome it never heard
)

// dialMain opens the main connection. A session that may lose its connections later does not fail because the first one
// broke off in its handshake.
func dialMain(ctx context.Context, cfg *Config, hello *transport.Hello) (transport.Conn, *transport.Welcome, error) {
	began, broken := time.Now(), 0
	for pause := time.Duration(0); ; pause = longer(pause) {
		rest(ctx, pause, nil)
		c, w, err := transport.Dial(ctx, cfg.Server, hello)
		switch {
		case err == nil, !cfg.Resume:
			return c, w, err
		case isBrokenOff(err) && broken < openTries:
			broken++
		case broken > 0 && errors.Is(err, transport.ErrBusy) && time.Since(began) < openPlace:
		default:
			return nil, nil, err
		}
		cfg.Log.Debug("the handshake with the server is made again", "error", err)
	}
}

// isBrokenOff says whether a handshake ended because the connection did.
func isBrokenOff(err error) bool {
	for _, kind := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// open opens one of the session's further connections. If its handshake breaks off, the server may have the connection
// and the client does not. So the client goes on as if it had lost a socket of it; the server makes the connection then
// if it has none.
func (r *returns) open(hello *transport.Hello) (*transport.Line, error) {
	b := &returning{line: transport.LineCallback}
	switch hello.Kind {
	case transport.KindBulk:
		b.line = transport.LineBulk + uint32(hello.Number)
	case transport.KindRDMA:
		b.line, hello.Capabilities = transport.LineRDMA, transport.Resuming()
	}
	c, err := r.dialer.dial(hello)
	until := time.Now().Add(r.dialer.welcome.Grace)
	for pause := time.Duration(0); err != nil; pause = longer(pause) {
		if errors.Is(err, transport.ErrSession) || isFinal(err) || r.dialer.ctx.Err() != nil || time.Now().After(until) {
			return nil, err
		}
		rest(r.dialer.ctx, pause, nil)
		c, err = r.reopen(b, hello.Count)
	}
	conn, err := transport.ConnOf(c)
	if err != nil {
		return nil, err
	}
	res, err := r.adopt(b, conn, transport.LineWindows)
	if err != nil {
		return nil, err
	}
	return transport.Resumed(res), nil
}

// reopen makes another socket for a connection of which the client has heard nothing yet.
func (r *returns) reopen(b *returning, count int) (net.Conn, error) {
	c, there, err := r.reach(b, 0, count)
	if err == nil && there != 0 {
		err = errors.Join(fmt.Errorf("%w: the server has received %d bytes of a connection that begins",
			transport.ErrMalformed, there), c.Close())
	}
	return c, err
}
