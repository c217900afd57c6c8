package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// closedGrace is how long a session outlives connections that were all closed without a farewell: a program that was
// killed looks so, and a proxy that gives up. As long it outlives a main connection on which nothing has come yet: a
// client that did not hear the welcome opens another session.
const closedGrace = 5 * time.Second

// youth is the age of a session from which on a client that calls has more connections than the main one ("soon" in
// shim/session/heart.go, and time for the connection itself). Before that a killed program looks like a lost network
// where it left an answer unread. It is taken for one: whoever lives is back within closedGrace, or has lost a moment's
// work.
const youth = time.Second

// attachTimeout is how long another socket may take for the first words.
const attachTimeout = 10 * time.Second

// lines are the connections of a worker's session where they may lose their sockets and get others. They keep the
// account of who is lost, and end all when the client has had its time.
//
// Locks: mu guards what stands behind it. A Resumable's own are not taken under it.
type lines struct {
	grace time.Duration
	log   *slog.Logger
	page  *metrics.Page
	began time.Time

	mu     sync.Mutex
	all    map[uint32]*transport.Resumable
	lost   map[uint32]error // why, of those that have no socket
	since  time.Time        // the first of them was lost
	last   time.Time        // ... and the last
	until  time.Time        // the session waits for its client
	waits  bool             // ... which has been counted
	timer  *time.Timer
	joined map[uint32]*succession // of each
	over   bool                   // the client has had its time
	gaveUp error                  // ... and it was no client that had gone
}

// succession is the order of a connection's sockets.
type succession struct {
	turn   sync.Mutex // held while one is attached
	newest uint64     // the epoch of the last one that the client made, of those that have come; lines.mu guards it
}

func newLines(grace time.Duration, log *slog.Logger, page *metrics.Page) *lines {
	return &lines{grace: grace, log: log, page: page, began: time.Now(), all: make(map[uint32]*transport.Resumable),
		lost: make(map[uint32]error), joined: make(map[uint32]*succession)}
}

// resumable makes a connection one that may get other sockets, which the client has made after so many.
func (l *lines) resumable(line uint32, epoch uint64, c transport.Conn, w transport.Windows) (
	*transport.Resumable, error,
) {
	r, err := transport.NewResumable(c, w.Reversed(), func(err error) { l.isLost(line, err) })
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all[line] != nil {
		return nil, fmt.Errorf("the session has a connection %d already", line)
	}
	l.all[line], l.joined[line] = r, &succession{newest: epoch}
	return r, nil
}

// has says whether there is such a connection.
func (l *lines) has(line uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[line] != nil
}

// isLost notes that a connection has lost its socket.
func (l *lines) isLost(line uint32, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
	if len(l.lost) == 0 {
		l.since = l.last
		l.waits = !l.over
	}
	l.lost[line] = why
	l.log.Debug("a connection is lost", "line", line, "error", why)
	l.setTimer()
}

// isBack notes that a connection has a socket again.
func (l *lines) isBack(line uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lost, line)
	l.setTimer()
	if len(l.lost) == 0 {
		l.endOutage()
	}
}

// endOutage counts that the wait for the client is over. mu is held.
func (l *lines) endOutage() {
	if l.waits {
		l.waits = false
		l.page.Back(time.Since(l.since))
	}
}

// setTimer sets the time at which the session ends as things are. mu is held.
func (l *lines) setTimer() {
	if l.timer != nil {
		l.timer.Stop()
	}
	if len(l.lost) == 0 || l.over {
		return
	}
	l.until = l.since.Add(l.grace)
	if end := l.last.Add(closedGrace); l.isGone() && end.Before(l.until) {
		l.until = end // counted from the last: a client that gives up all for the silence of one closes them late
	}
	l.page.Lost(l.since, l.until)
	l.timer = time.AfterFunc(time.Until(l.until), l.giveUp)
}

// isGone says whether the client most likely is not there any more. mu is held.
func (l *lines) isGone() bool { return l.closed() || l.unheard() }

// closed says whether the peer's kernel has closed all connections, as it does when a program ends without a farewell:
// in order, or with a reset where the program had not read all. What only breaks connections closes none of them in
// order; of a session in its youth nobody can tell. mu is held.
func (l *lines) closed() bool {
	inOrder := len(l.all) == 1 && l.since.Sub(l.began) < youth
	for line, r := range l.all {
		switch why := l.lost[line]; {
		case errors.Is(why, io.EOF), errors.Is(why, unix.EPIPE): // sent to behind the end: else the kernel says ECONNRESET
			inOrder = true
		case errors.Is(why, unix.ECONNRESET), r.IsOver():
		default:
			return false
		}
	}
	return inOrder
}

// unheard says whether the client has never said anything: it may not have got the welcome. mu is held.
func (l *lines) unheard() bool {
	main := l.all[transport.LineMain]
	return main != nil && main.Received() == 0
}

// giveUp ends the session: its client has not come back.
func (l *lines) giveUp() {
	l.mu.Lock()
	var ends []func()
	if len(l.lost) > 0 && !time.Now().Before(l.until) { // else it has come back just now, and may be lost again
		if !l.isGone() {
			l.gaveUp = &awayError{l.grace, cmp.Or(l.lost[transport.LineMain], errLineLost)}
		}
		l.over = true
		l.endOutage()
		for line, r := range l.all {
			why := cmp.Or(l.lost[line], l.lost[transport.LineMain], errLineLost)
			ends = append(ends, func() { r.Fail(why) })
		}
	}
	l.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// awayError is a client that has not come back.
type awayError struct {
	grace time.Duration
	why   error // it was lost
}

func (e *awayError) Error() string {
	return fmt.Sprintf("the client has not come back within %v (--grace); its connection was lost: %v", e.grace, e.why)
}

// ending is the error of a session whose executor gives one: that its client has not come back is more than what the
// executor saw of it. With a nil receiver it is the executor's.
func (l *lines) ending(err error) error {
	if l == nil || err == nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.gaveUp, err)
}

var errLineLost = errors.New("the client has not come back to one of the session's connections")

// join attaches another socket, and first says how much was received. Of two the client uses the one that it made last,
// whatever order they come in: it has given the other up, and what it had received then is no news any more.
func (l *lines) join(info *joinInfo, c net.Conn) error {
	line := info.Line
	l.mu.Lock()
	r, order := l.all[line], l.joined[line]
	stale := r != nil && info.Epoch <= order.newest
	if r != nil && !stale {
		order.newest = info.Epoch
	}
	l.mu.Unlock()
	switch {
	case r == nil:
		return errors.Join(fmt.Errorf("the session has no connection %d", line), c.Close())
	case stale:
		return c.Close()
	}
	r.Lose(transport.ErrReplaced) // whoever still sends on the old socket stops
	order.turn.Lock()             // one that comes soon after another waits until that is attached
	defer order.turn.Unlock()
	l.mu.Lock()
	stale = info.Epoch < order.newest // which waits for its turn
	l.mu.Unlock()
	if stale {
		return c.Close()
	}
	got, err := r.Detach()
	if err != nil {
		return errors.Join(err, c.Close())
	}
	if err := sayResumes(c, got); err != nil {
		l.isLost(line, err)
		return c.Close()
	}
	l.isBack(line) // before it may be lost again
	before := r.Replayed()
	err = r.Attach(c, info.Received)
	l.page.Add(metrics.Replayed, int(r.Replayed()-before))
	if err != nil {
		l.isLost(line, err)
	}
	return err
}

// sayResumes says first on another socket how much was received.
func sayResumes(c net.Conn, received uint64) error {
	_ = c.SetWriteDeadline(time.Now().Add(attachTimeout))
	if _, err := c.Write(transport.Resumes(received)); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}
