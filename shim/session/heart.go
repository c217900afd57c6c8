package session

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
)

// heart notices a server that does not answer, whatever thread waits for it. Each [transport.Beat] its thread looks
// whether there was a sign of life. If there was none, and something is waited for or was asked meanwhile, it asks for
// one (the command ping, one at a time), and after [transport.SilentBeats] without one the session is over. It counts
// beats and no time, so that a process that was stopped does not take itself for forsaken. While the program asks for
// nothing, and the server has nothing to ask on the callback connection, the thread sleeps.
type heart struct {
	every   time.Duration
	over    uint32        // futex: 1 when the session has ended
	resting uint32        // futex: 1 while the thread sleeps until something is asked
	active  atomic.Bool   // something was asked since the last beat
	writers atomic.Int32  // threads that wait until the connection takes more bytes
	chunks  atomic.Bool   // whoever reads the main connection waits for bytes of another one
	heard   atomic.Uint64 // messages so far
	pinged  uint64        // the number of the ping that was sent last
	ponged  atomic.Uint64 // and of the last one that was answered

	pulse
}

// stir is called when the program asks for something.
func (h *heart) stir() {
	if !h.active.Load() {
		h.active.Store(true)
	}
	if atomic.LoadUint32(&h.resting) != 0 && atomic.CompareAndSwapUint32(&h.resting, 1, 0) {
		futexWake(&h.resting)
	}
}

// signs of life of a server.
type signs struct {
	messages, bytes uint64
	// Something has come, and the thread that reads has not got to it; or the program's memory, from which bytes are
	// being sent, is slow.
	unread bool
}

// pulse judges them.
type pulse struct {
	seen   signs // at the last sign of life
	silent int   // beats since then in which something was waited for
}

// least is how many bytes are a sign of life though no message has come to its end: more than the answers to some
// pings, which may be swallowed by a message that said it was longer.
const least = 4096

type verdict int

const (
	fine verdict = iota
	ask
	gone
)

// beat is called with what there is at a beat, and whether something is waited for.
func (p *pulse) beat(now signs, awaited bool) verdict {
	if now.unread || now.messages != p.seen.messages || now.bytes-p.seen.bytes >= least || !awaited {
		p.seen, p.silent = now, 0
		return fine
	}
	if p.silent++; p.silent >= transport.SilentBeats {
		return gone
	}
	return ask
}

// soon is when a program that calls is prepared for its end in the middle of a call. Servers count on it ("youth" in
// server/lines.go).
const soon = 250 * time.Millisecond

var errSilent = errors.New("the server has given no sign of life for a quarter of a minute (its machine, the " +
	"network or its worker does not answer, or something that it sent was lost)")

// beats is the heart's thread.
func beats(s *Session) {
	runtime.LockOSThread()
	h := &s.heart
	if s.returns != nil {
		prepare(s)
	}
	for s.lost() == 0 {
		futexWait(&h.over, 0, h.every)
		if s.lost() != 0 {
			return
		}
		if s.reader.tryRead() {
			err := s.reader.readAvailable()
			s.reader.endRead()
			if err != nil {
				s.fail(err)
				return
			}
		}
		if s.callback.beat() == gone && !s.returns.renew(transport.LineCallback, s.callback.heard.Load(), errCallbackSilent) {
			s.fail(errCallbackSilent)
			return
		}
		active := h.active.Swap(false)
		if s.returns.away() { // somebody tries to come back
			h.pulse, s.callback.pulse = pulse{}, pulse{}
			continue
		}
		awaited := isAwaited(s)
		switch h.beat(signsOf(s), awaited || active) {
		case gone:
			if !s.returns.renew(transport.LineMain, h.heard.Load(), errSilent) {
				s.fail(errSilent)
				return
			}
		case ask:
			ping(s)
		case fine:
			if !awaited && !active && !s.callback.inUse() {
				h.rest(s)
			}
		}
	}
}

// prepare opens the callback connection for a program that lives for a moment and calls.
func prepare(s *Session) {
	for h := &s.heart; s.lost() == 0; h.rest(s) {
		futexWait(&h.over, 0, min(soon, h.every))
		if h.active.Load() {
			s.callback.foresee()
			return
		}
	}
}

// rest sleeps until something is asked.
func (h *heart) rest(s *Session) {
	atomic.StoreUint32(&h.resting, 1)
	for !h.active.Load() && s.lost() == 0 && atomic.LoadUint32(&h.resting) != 0 {
		futexWait(&h.resting, 1, 0)
	}
	atomic.StoreUint32(&h.resting, 0)
}

// isAwaited says whether a thread waits for the server.
func isAwaited(s *Session) bool {
	if s.heart.writers.Load() > 0 || s.registered.pending.Load() > 0 ||
		s.heart.ponged.Load() != atomic.LoadUint64(&s.heart.pinged) {
		return true
	}
	s.calls.Lock()
	defer s.calls.Unlock()
	return s.calls.waiting != nil
}

// signsOf gathers the signs of life.
func signsOf(s *Session) signs {
	now := signs{messages: s.heart.heard.Load() + uint64(s.bulk.arrivals.Chunks()) + s.RDMA.SentChunks.Load()}
	b := &s.bulk
	b.mu.Lock()
	fds := []int{s.conn.FD()}
	for _, c := range b.conns {
		fd := c.tcp.Line.FD()
		fds = append(fds, fd)
		now.unread = now.unread || c.tcp.Sending() && transport.Unsent(fd) == 0
	}
	b.mu.Unlock()
	for _, fd := range fds {
		t := transport.TrafficOf(fd)
		now.bytes += t.Received + t.Acknowledged
	}
	now.unread = now.unread || !s.heart.chunks.Load() && transport.Unread(s.conn.FD()) > 0
	return now
}

// ping asks the server for a sign of life, unless it owes one or cannot be written to.
func ping(s *Session) {
	h := &s.heart
	if h.ponged.Load() != h.pinged {
		return
	}
	if s.send.ping(&s.out, func(number uint64) { atomic.StoreUint64(&h.pinged, number) }) != nil {
		h.stir() // the next beat reads why
	}
}

// end ends the heart with the session.
func (h *heart) end() {
	atomic.StoreUint32(&h.over, 1)
	futexWake(&h.over)
	atomic.StoreUint32(&h.resting, 0)
	futexWake(&h.resting)
}

// answered notes the answer to a ping, or (0) another sign of life.
func (h *heart) answered(number uint64) error {
	if number != 0 && number != atomic.LoadUint64(&h.pinged) {
		return protocol("the answer to the ping %d, which was not the last one", number)
	}
	if number != 0 {
		h.ponged.Store(number)
	}
	return nil
}
