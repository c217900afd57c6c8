package server

import "time"

// ending is why the server ends a session. The first reason counts.
type ending struct {
	reason string // for the log
	said   string // to the client, before
	how    string // the metrics' word; "": killed
}

// kill ends a session that goes on for too long.
func (x *session) kill() {
	x.ending.CompareAndSwap(nil, &ending{reason: "the server shuts down"})
	x.proc.kill()
}

// farewell is how long a session that has to end may still tell its client why.
const farewell = 500 * time.Millisecond

// end tells a session's client why it ends, and ends it. It does not wait for that.
func (s *supervisor) end(x *session, e *ending) {
	if !x.ending.CompareAndSwap(nil, e) {
		return
	}
	s.handlers.Go(func() {
		_ = x.proc.line.Send(msgNotice, noticeInfo{e.said, true}, -1)
		select {
		case <-x.proc.exited:
		case <-time.After(farewell):
			x.proc.kill()
		}
	})
}
