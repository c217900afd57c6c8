package session

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"

	"scuda.dev/scuda/transport"
)

// receiver is the state of the main connection's byte stream. Whoever holds the reader's lock owns it.
type receiver struct {
	buf  []byte
	r, w int // unread bytes are buf[r:w]

	inside bool // a header was read, its payload not yet to the end
	h      transport.MessageHeader
	sink   []byte // where the next payload bytes go; what exceeds it is dropped
	left   int    // payload and padding still to come
	early  *early
	text   []byte
	bufs   [2][]byte
}

// receive takes what the connection has, with one system call, and handles it. [transport.ErrAgain] says that there was
// nothing.
func (s *Session) receive() error {
	s.reader.busy.Lock()
	defer s.reader.busy.Unlock()
	if s.lost() != 0 {
		return errEnded
	}
	rx := &s.reader.rx
	if rx.r > 0 {
		rx.w = copy(rx.buf, rx.buf[rx.r:rx.w])
		rx.r = 0
	}
	if rx.inside && len(rx.sink) >= directReceive && rx.w == 0 {
		return s.receiveInPlace(rx)
	}
	rx.bufs[0] = rx.buf[rx.w:]
	n, err := s.conn.Recv(rx.bufs[:1])
	if err != nil {
		return err
	}
	s.received.Add(uint64(n))
	rx.w += n
	return s.parse(rx)
}

func (s *Session) receiveInPlace(rx *receiver) error {
	rx.bufs = [2][]byte{rx.sink, rx.buf}
	n, err := s.conn.Recv(rx.bufs[:])
	rx.bufs = [2][]byte{}
	if errors.Is(err, syscall.EFAULT) {
		s.log.Error("a download's destination is not writable any more; was it freed before the copy was complete?",
			"transfer", rx.h.ID)
		rx.sink = nil
		return nil
	}
	if err != nil {
		return err
	}
	s.received.Add(uint64(n))
	direct := min(n, len(rx.sink))
	rx.sink = rx.sink[direct:]
	rx.left -= direct
	rx.r, rx.w = 0, n-direct
	return s.parse(rx)
}

// parse handles everything in the buffer.
func (s *Session) parse(rx *receiver) error {
	for {
		if !rx.inside {
			h, n, err := transport.ParseMessage(rx.buf[rx.r:rx.w])
			if errors.Is(err, transport.ErrShort) {
				return nil
			}
			if err != nil {
				return err
			}
			rx.r += n
			if err := s.begin(rx, h); err != nil {
				return err
			}
		}
		n := copy(rx.sink, rx.buf[rx.r:rx.w])
		rx.sink = rx.sink[n:]
		if len(rx.sink) == 0 {
			n = min(rx.left, rx.w-rx.r)
		}
		rx.r += n
		if rx.left -= n; rx.left > 0 {
			return nil
		}
		rx.inside = false
		if h := &rx.h; h.Aux > 0 && (h.Type == transport.MsgReply || h.Type == transport.MsgDone) {
			if err := s.awaitChunks(h.ID, h.Aux); err != nil {
				return err
			}
		}
		s.finish(rx)
	}
}

func protocol(format string, args ...any) error {
	return &transport.MalformedError{Detail: fmt.Sprintf(format, args...)}
}

// begin decides where a message's payload goes.
func (s *Session) begin(rx *receiver, h transport.MessageHeader) error {
	rx.h, rx.inside, rx.sink, rx.early = h, true, nil, nil
	rx.left = transport.Pad(int(h.Len))
	switch h.Type {
	case transport.MsgReply:
		w := s.waiter(h.ID)
		if w == nil {
			return protocol("a reply to thread %d", h.ID)
		}
		// The core's own commands lie outside the ring and have no number.
		if h.ID != transport.CoreThread && h.Seq < w.least { // of a command that was answered: taken for the next one's it would give wrong data
			return protocol("a second reply to thread %d: for command %d, not %d or later", h.ID, h.Seq, w.least)
		}
		w.least = h.Seq + 1
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.listed {
			rx.sink = w.reply[:min(len(w.reply), int(h.Len))]
			return nil
		}
		if w.early != nil || h.Len > maxEarlyReply {
			return protocol("a reply of %d bytes that thread %d did not ask for", h.Len, h.ID)
		}
		rx.early = &early{result: h.Result, data: make([]byte, h.Len)}
		rx.sink = rx.early.data
	case transport.MsgData:
		dst, ok := s.destination(h.ID)
		if !ok {
			return protocol("data for the unknown transfer %d", h.ID)
		}
		if h.Aux > uint64(len(dst)) || uint64(h.Len) > uint64(len(dst))-h.Aux {
			return protocol("%d bytes at %d of transfer %d, which has %d", h.Len, h.Aux, h.ID, len(dst))
		}
		rx.sink = dst[h.Aux : h.Aux+uint64(h.Len)]
		if h.ID >= transport.FirstTransfer {
			s.news()
		}
	case transport.MsgDone, transport.MsgFlushed, transport.MsgForget:
		if h.Len != 0 {
			return protocol("a payload of %d bytes in %v", h.Len, h.Type)
		}
	case transport.MsgProgress:
		if h.Len != 0 || s.shared.track(h.Aux) == nil {
			return protocol("PROGRESS of the handle %#x with %d bytes", h.Aux, h.Len)
		}
	case transport.MsgNotice:
		rx.text = make([]byte, min(h.Len, maxNotice))
		rx.sink = rx.text
	case transport.MsgText:
		if h.Len > transport.MaxText {
			return protocol("%d bytes of text", h.Len)
		}
		rx.text = make([]byte, h.Len)
		rx.sink = rx.text
	default:
		return protocol("%v on the main connection", h.Type)
	}
	return nil
}

// finish acts on a message whose payload is complete.
func (s *Session) finish(rx *receiver) {
	h := &rx.h
	switch h.Type {
	case transport.MsgReply:
		w := s.waiter(h.ID)
		s.mu.Lock()
		if w.dst != nil { // the end of a download implies that of what lies before it
			s.news()
			if h.Aux == 0 && h.Result != 0 {
				s.endWindow(h.ID)
			}
		}
		switch {
		case rx.early == nil && w.listed:
			s.complete(w, h.Result, h.Len)
		case rx.early != nil && w.listed: // its thread came in the meantime
			copy(w.reply, rx.early.data)
			s.complete(w, h.Result, h.Len)
		case rx.early != nil:
			w.early = rx.early
		}
		s.mu.Unlock()
		rx.early = nil
	case transport.MsgDone:
		if h.Aux == 0 {
			s.endWindow(h.ID)
		}
		s.endTransfer(h.ID)
		if h.Result != 0 {
			s.log.Debug("an asynchronous download failed", "transfer", h.ID, "result", h.Result)
		}
	case transport.MsgForget:
		s.forget(h.Flags, h.Aux)
	case transport.MsgFlushed:
		s.mu.Lock()
		s.mu.flushed = max(s.mu.flushed, h.Seq)
		s.landed.Broadcast()
		s.mu.Unlock()
	case transport.MsgText:
		if s.cfg.Print != nil {
			s.cfg.Print(h.ID, rx.text)
		}
		rx.text = nil
	case transport.MsgProgress:
		t := s.shared.track(h.Aux)
		if h.Result == Success {
			raise(&t.Done, h.Seq)
			s.news() // it may imply what the server has not seen or told yet: an event that this one waited for
		} else {
			raise(&t.Refused, h.Seq)
		}
	case transport.MsgNotice:
		text := string(rx.text)
		rx.text = nil
		s.mu.Lock()
		s.mu.notice = text
		s.mu.Unlock()
		s.log.Warn("the server says: " + text)
	}
}

// raise lets *p be at least v.
func raise(p *uint64, v uint64) {
	for {
		old := atomic.LoadUint64(p)
		if old >= v || atomic.CompareAndSwapUint64(p, old, v) {
			return
		}
	}
}

// news is called before the program learns of the GPU's progress past the main connection: what it knew from there is
// no longer the last word.
func (s *Session) news() { atomic.AddUint64(&s.shared.News, 1) }

// Look sends what is pending and handles what has arrived, without waiting. Its caller asks again and again, so where
// there is nothing it lets others run for a moment: they may be what it waits for.
func (s *Session) Look() {
	if atomic.LoadUint64(&s.shared.Tail) != atomic.LoadUint64(&s.shared.Head) {
		s.flush(toTail)
	}
	if s.lost() != 0 || !s.tryRead() {
		return
	}
	err := s.receive()
	if err == nil {
		err = s.readAvailable()
	} else if errors.Is(err, transport.ErrAgain) {
		schedYield()
		err = nil
	}
	s.endRead()
	if err != nil {
		s.fail(err)
	}
}

// States of the background reader, a futex.
const (
	backgroundAwake uint32 = iota
	backgroundParked
)

// background reads while asynchronous downloads are under way and none of the program's threads leads. It waits for
// data without holding the reader's lock, so that a thread which starts to wait for a reply leads at once.
func (s *Session) background() {
	runtime.LockOSThread()
	for s.lost() == 0 {
		if atomic.LoadUint32(&s.shared.TransfersPending) == 0 {
			s.park(func() bool { return atomic.LoadUint32(&s.shared.TransfersPending) == 0 })
			continue
		}
		if _, err := s.conn.Wait(transport.Readable, -1); err != nil {
			s.fail(err)
			return
		}
		if !s.tryRead() {
			s.park(func() bool { return atomic.LoadUint32(&s.reader.lock) != 0 })
			continue
		}
		if err := s.readAvailable(); err != nil {
			s.fail(err)
		}
		s.endRead()
	}
}

// readAvailable handles what has arrived. The reader's lock is held.
func (s *Session) readAvailable() error {
	for {
		if err := s.receive(); errors.Is(err, transport.ErrAgain) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// park sleeps until it is kicked; idle is asked once more when a kick can no longer be missed.
func (s *Session) park(idle func() bool) {
	atomic.StoreUint32(&s.reader.background, backgroundParked)
	if s.lost() != 0 || !idle() {
		atomic.StoreUint32(&s.reader.background, backgroundAwake)
		return
	}
	for atomic.LoadUint32(&s.reader.background) == backgroundParked {
		futexWait(&s.reader.background, backgroundParked, 0)
	}
}

func (s *Session) kickBackground() {
	if atomic.LoadUint32(&s.shared.TransfersPending) > 0 &&
		atomic.CompareAndSwapUint32(&s.reader.background, backgroundParked, backgroundAwake) {
		futexWake(&s.reader.background)
	}
}
