package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"scuda.dev/scuda/transport"
)

// Times of a client that comes back to its server.
const (
	comeBackFirst   = 50 * time.Millisecond // behind the first try, which is made at once
	comeBackMost    = 2 * time.Second
	comeBackTimeout = 10 * time.Second // of a try
	comeBackQuiet   = 2 * time.Second  // so long nobody is told of it
)

// returns brings a session's connections other sockets when theirs break. While one has none, those who use it wait.
//
// Locks: mu guards what stands behind it.
type returns struct {
	dialer *dialer
	reader *reader
	owner  *Session

	mu      sync.Mutex
	lines   map[uint32]*returning
	lost    int       // lines without a socket
	since   time.Time // the first of them was lost
	telling *time.Timer
	said    bool // that the connection is lost
}

// returning is one connection.
type returning struct {
	line    uint32
	conn    *transport.Resumable
	epoch   uint64
	renewed uint64 // messages that had come when it was given up for its silence
}

func newReturns(s *Session) *returns {
	return &returns{dialer: &s.dialer, reader: &s.reader, owner: s, lines: make(map[uint32]*returning)}
}

// main makes the main connection one that may get other sockets.
func (r *returns) main(c transport.Conn) (transport.Conn, error) {
	return r.adopt(&returning{line: transport.LineMain}, c, transport.MainWindows)
}

// adopt makes a connection one that may get other sockets.
func (r *returns) adopt(b *returning, c transport.Conn, w transport.Windows) (*transport.Resumable, error) {
	var err error
	b.conn, err = transport.NewResumable(c, w, func(why error) { r.isLost(b, why) })
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines[b.line] = b
	return b.conn, nil
}

// away says whether a connection has no socket for now.
func (r *returns) away() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost > 0
}

// renew gives a connection up that is silent, and all others with the main one. It says no if nothing has been heard
// since it did so before: another socket does not help.
func (r *returns) renew(line uint32, heard uint64, why error) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	b := r.lines[line]
	if b == nil || b.renewed == heard+1 {
		r.mu.Unlock()
		return false
	}
	b.renewed = heard + 1
	var lose []*returning
	for _, other := range r.lines {
		if other == b || line == transport.LineMain {
			lose = append(lose, other)
		}
	}
	r.mu.Unlock()
	for _, b := range lose {
		b.conn.Lose(why)
	}
	return true
}

// isLost begins to come back.
func (r *returns) isLost(b *returning, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost++; r.lost == 1 {
		r.since = time.Now()
		r.telling = time.AfterFunc(comeBackQuiet, r.tellLost)
	}
	until := time.Now().Add(r.dialer.welcome.Grace)
	r.owner.start(func() {
		err := r.comeBack(b, why, until)
		r.isOver(err == nil && !b.conn.IsOver())
		if err != nil {
			b.conn.Fail(err)
			r.owner.fail(err)
		}
	})
}

// isOver notes that a connection has a socket again, or never will.
func (r *returns) isOver(back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost--; r.lost > 0 {
		return
	}
	r.owner.shared.Outages.note(time.Since(r.since))
	r.telling.Stop()
	if r.said && back {
		r.owner.log.Warn(fmt.Sprintf("back at the scuda server %s after %d s", r.owner.conn.Remote(),
			int(time.Since(r.since).Round(time.Second).Seconds())))
	}
	r.said = false
}

func (r *returns) tellLost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == 0 || r.owner.lost() != 0 {
		return
	}
	r.said = true
	r.owner.log.Warn(fmt.Sprintf("the connection to the scuda server %s is lost; trying again for %v",
		r.owner.conn.Remote(), r.dialer.welcome.Grace))
}

// comeBack tries until there is another socket, the session is gone, or the server has given it up. Its error says why
// there is none.
func (r *returns) comeBack(b *returning, why error, until time.Time) error {
	if b.line == transport.LineMain {
		r.reader.takeRest(b.conn) // the server may have said why it breaks off
	}
	var over *transport.SessionEnded
	for pause := time.Duration(0); ; pause = longer(pause) {
		rest(r.dialer.ctx, pause, b.conn.Ended())
		received, err := b.conn.Detach()
		if err != nil {
			return nil // it has ended, and who uses it knows
		}
		err = r.try(b, received)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &over):
			return over
		case errors.Is(err, transport.ErrSession):
			return &goneError{why}
		case r.dialer.ctx.Err() != nil:
			return why
		case isFinal(err):
			return err
		case time.Now().After(until):
			return &awayError{r.dialer.welcome.Grace, err}
		}
	}
}

// longer is the pause behind the next try.
func longer(pause time.Duration) time.Duration { return min(max(2*pause, comeBackFirst), comeBackMost) }

// rest waits for about so long, or until there is no reason any more.
func rest(ctx context.Context, pause time.Duration, over <-chan struct{}) {
	if pause == 0 {
		return
	}
	t := time.NewTimer(pause/2 + rand.N(pause/2+1))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-over:
	}
}

// awayError is a connection that could not be made again in time. It and goneError wrap nothing: whoever reads from the
// connection takes an io.EOF for a peer that has taken leave.
type awayError struct {
	grace time.Duration
	err   error // of the last try
}

func (e *awayError) Error() string {
	return fmt.Sprintf("the connection was lost and could not be made again within %v (%v)", e.grace, e.err)
}

// goneError is a session that the server has ended before the client came back.
type goneError struct{ err error } // by which the connection was lost

func (e *goneError) Error() string {
	return reason(e.err) + "; when the client came back, the server said that it does not have the session any more"
}

// isFinal says whether a server that was reached will not take the client back. Whatever else answers may be something
// on the way.
func isFinal(err error) bool {
	for _, kind := range []error{transport.ErrToken, transport.ErrVersion, transport.ErrCapability, transport.ErrDigest} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// try makes another socket.
func (r *returns) try(b *returning, received uint64) error {
	c, there, err := r.reach(b, received, 0)
	if err != nil {
		return err
	}
	before := b.conn.Replayed()
	err = b.conn.Attach(c, there)
	r.owner.shared.Outages.add(b.conn.Replayed() - before)
	return err
}

// reach makes a connection that is to be another socket, and says how much the server has received. count is that of
// the bulk connections, where the server may not have had the first socket.
func (r *returns) reach(b *returning, received uint64, count int) (c net.Conn, there uint64, err error) {
	b.epoch++
	hello := r.dialer.hello(transport.KindResume)
	hello.Capabilities = transport.Resuming()
	hello.Line, hello.Epoch, hello.Acknowledged, hello.Count = b.line, b.epoch, received, count
	hello.Number = transport.ResumeNumber(b.line, b.epoch)
	ctx, cancel := context.WithTimeout(r.dialer.ctx, comeBackTimeout)
	defer cancel()
	if c, _, err = transport.DialNet(ctx, r.dialer.server, &hello); err != nil {
		return nil, 0, err
	}
	_ = c.SetReadDeadline(time.Now().Add(comeBackTimeout))
	if there, err = transport.ReadResumes(c); err != nil {
		return nil, 0, errors.Join(err, c.Close())
	}
	return c, there, nil
}
