package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport/resume"
)

// Lose gives the socket up: it does not answer any more.
func (r *Resumable) Lose(why error) { r.lose(why) }

// lose notes that the socket is broken. What it brought may still be read.
func (r *Resumable) lose(why error) { r.giveUp(func() { r.lost(why) }) }

// giveUp shuts the socket down, which wakes those who wait for it. Whoever is told has been before another socket can
// take its place. A number that stands for the socket no longer has no place for another: the stream ends.
func (r *Resumable) giveUp(told func()) {
	r.replacing.Lock()
	defer r.replacing.Unlock()
	if r.state.Load() != resumeAttached {
		return
	}
	if !r.socket.Load().place().isOurs() {
		r.end(ErrTaken)
		return
	}
	if !r.state.CompareAndSwap(resumeAttached, resumeLost) {
		return
	}
	r.socket.Load().Shutdown()
	r.changed.Ring()
	told()
}

// Replayed is how many bytes were sent again, on other sockets than the first.
func (r *Resumable) Replayed() uint64 { return r.replayed.Load() }

// Detach gives the socket up, and says how many bytes were received: from there on the peer has to send again. It fails
// with [ErrOver] where the stream has ended, also by a farewell that came at last.
func (r *Resumable) Detach() (received uint64, err error) {
	r.giveUp(func() {}) // before the locks, which somebody may hold who waits for the socket
	received, err = r.detach()
	r.awaitPollers()
	return received, err
}

func (r *Resumable) detach() (received uint64, err error) {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.receiving.Lock()
	defer r.receiving.Unlock()
	if r.state.Load() == resumeLost {
		r.readAheadLocked()
		r.noteLocked()
		if r.in.Parting() {
			r.end(io.EOF)
		}
	}
	if !r.state.CompareAndSwap(resumeLost, resumeDetached) && r.state.Load() != resumeDetached {
		return 0, ErrOver
	}
	r.in.Resume()
	r.noteLocked()
	return r.in.Count(), nil
}

// Attach goes on at another socket, whose peer has received so many bytes: a connection as [DialNet] gives it or
// [ResumeTLS], which it closes. It returns when what the peer lacks has been sent, or the socket has broken as well.
func (r *Resumable) Attach(c net.Conn, received uint64) error {
	next, err := newDialled(c, r.remote)
	if err != nil {
		return err
	}
	if err := r.exchange(next, received); err != nil {
		if next.FD() != r.fd {
			_ = next.Close()
		}
		return err
	}
	for {
		r.sending.Lock()
		done := r.pump(true)
		r.sent()
		if done || r.state.Load() != resumeAttached {
			return nil
		}
		if _, err := r.poll(Writable, time.Second, nil); err != nil {
			return nil // whoever uses it finds the same
		}
	}
}

func (r *Resumable) exchange(next dialled, received uint64) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.receiving.Lock()
	defer r.receiving.Unlock()
	if r.state.Load() != resumeDetached {
		return ErrOver
	}
	if err := r.out.Resume(received); err != nil {
		r.end(err)
		return err
	}
	r.replayed.Store(r.out.Replayed())
	r.replacing.Lock()
	defer r.replacing.Unlock()
	if err := next.replace(r.socket.Load().place()); err != nil {
		if errors.Is(err, ErrTaken) {
			r.end(err)
		}
		return err
	}
	Unhurried(r.fd)
	if r.blocks {
		_ = unix.SetNonblock(r.fd, false)
	}
	r.socket.Store(&socket{next, endsOf(r.fd)})
	r.in.Heard(received)
	r.noteLocked()
	r.told.Store(0)
	r.owes.Store(false)
	r.dry.Store(false)
	if !r.state.CompareAndSwap(resumeDetached, resumeAttached) {
		next.Shutdown() // the stream has ended meanwhile
		return ErrOver
	}
	r.changed.Ring()
	return nil
}

// Resumes is what this side says first on another socket: how many bytes it has received.
func Resumes(received uint64) []byte {
	return resume.AppendHeader(nil, resume.Header{Kind: resume.Received, Received: received})
}

// ReadResumes reads what the peer says first on another socket.
func ReadResumes(r io.Reader) (received uint64, err error) {
	var b [resume.HeaderSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	h, err := resume.ParseHeader(b[:])
	if err == nil && h.Kind != resume.Received {
		err = fmt.Errorf("%w: a record of kind %d comes first", resume.ErrProtocol, h.Kind)
	}
	return h.Received, err
}

// Fail ends the stream: there will be no other socket.
func (r *Resumable) Fail(why error) { r.end(why) }

func (r *Resumable) end(why error) {
	if !r.why.CompareAndSwap(nil, &why) {
		return
	}
	r.state.Store(resumeEnded)
	r.socket.Load().Shutdown()
	close(r.ended)
	r.changed.Ring()
}

// reason is why the stream has ended.
func (r *Resumable) reason() error { return *r.why.Load() }

// Shutdown takes leave of the peer, and ends the stream.
func (r *Resumable) Shutdown() {
	r.sending.Lock()
	if r.state.Load() == resumeAttached {
		r.out.End()
		r.pump(false)
	}
	r.sending.Unlock()
	r.end(io.EOF)
}

// Close also releases the descriptor; no call may be in progress.
func (r *Resumable) Close() error {
	r.end(net.ErrClosed)
	return r.socket.Load().Close()
}
