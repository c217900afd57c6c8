package server

import (
	"errors"
	"fmt"
	"net"
	"os"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/tlsrecord"
)

// join gives the session another connection.
func (w *worker) join(m *handoff.Message) error {
	var info joinInfo
	s, err := w.joined(m, &info)
	if err != nil {
		return err
	}
	c, err := connOf(m, info.TLS)
	if err != nil {
		return err
	}
	switch {
	case m.Type == msgRDMA && info.Line == 0: // it ends with its socket
		line, err := transport.NewLine(c)
		if err != nil {
			return err
		}
		return s.AttachRDMA(line)
	case w.lines == nil && m.Type == msgResume:
		return errors.Join(errors.New("another socket for a session that ends with the first"), c.Close())
	case w.lines == nil:
	case w.lines.has(info.Line) && m.Type == msgResume:
		go func() { // it may take a while until all is sent that the client lacks
			if err := w.lines.join(&info, c); err != nil && !errors.Is(err, transport.ErrOver) {
				w.log.Warn("cannot go on at another socket", "line", info.Line, "error", err)
			}
		}()
		return nil
	case w.lines.has(info.Line):
		w.log.Debug("a connection's first socket comes behind another one", "line", info.Line)
		return c.Close()
	case m.Type == msgResume: // the first socket did not get here
		if info.Received != 0 {
			return errors.Join(fmt.Errorf("the client has received %d bytes of a connection that begins", info.Received),
				c.Close())
		}
		if err := sayResumes(c, 0); err != nil {
			return c.Close() // the client will ask again
		}
	}
	line, err := w.newLine(c, &info)
	if err != nil {
		return err
	}
	switch {
	case info.Line >= transport.LineBulk:
		return s.AttachBulk(line, info.Count)
	case info.Line == transport.LineRDMA:
		return s.AttachRDMA(line)
	}
	return s.AttachCallback(line)
}

// newLine makes a line of one of the session's connections.
func (w *worker) newLine(c net.Conn, info *joinInfo) (*transport.Line, error) {
	if w.lines == nil {
		return transport.NewLine(c)
	}
	conn, err := transport.ConnOf(c)
	if err != nil {
		return nil, err
	}
	r, err := w.lines.resumable(info.Line, info.Epoch, conn, transport.LineWindows)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return transport.Resumed(r), nil
}

// joined gives the session that a message brings a connection for, and reads what it says of that. With an error the
// connection is closed.
func (w *worker) joined(m *handoff.Message, info any) (*executor.Session, error) {
	s, err := w.session.Load(), m.Decode(info)
	if s == nil || m.FD < 0 || err != nil {
		closeFD(m.FD)
		return nil, errors.Join(errors.New("a connection without a session"), err)
	}
	return s, nil
}

// connOf is the connection that came with a message.
func connOf(m *handoff.Message, state *tlsrecord.State) (net.Conn, error) {
	f := os.NewFile(uintptr(m.FD), m.Type)
	defer f.Close()
	plain, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	c, err := transport.ResumeTLS(plain, state)
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	return c, nil
}

// joinPeer takes a connection of another server of the session's program.
func (w *worker) joinPeer(m *handoff.Message) error {
	var info peerInfo
	s, err := w.joined(m, &info)
	if err != nil {
		return err
	}
	c, err := connOf(m, info.TLS)
	if err != nil {
		return err
	}
	line, err := transport.NewLine(c)
	if err != nil {
		return err
	}
	return executor.AttachPeer(s, line, info.Peering)
}
