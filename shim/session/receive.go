package session

import (
	"errors"
	"fmt"
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
	chain  transport.Chain

	notices int // so many have come

	came int64 // when what was received last came to this machine: CLOCK_MONOTONIC, ns; 0: nobody wants to know
}

// receive takes what the connection has, with one system call, and handles it. [transport.ErrAgain] says that there was
// nothing.
func (rd *reader) receive() error {
	rd.busy.Lock()
	defer rd.busy.Unlock()
	if rd.shared.lost() != 0 {
		return errEnded
	}
	rx := &rd.rx
	if rx.r > 0 {
		rx.w = copy(rx.buf, rx.buf[rx.r:rx.w])
		rx.r = 0
	}
	if rx.inside && len(rx.sink) >= directReceive && rx.w == 0 {
		return rd.receiveInPlace(rx)
	}
	rx.bufs[0] = rx.buf[rx.w:]
	n, err := rd.conn.Recv(rx.bufs[:1])
	if err != nil {
		return err
	}
	rx.came = rd.arrived()
	rd.traffic.received.Add(uint64(n))
	rx.w += n
	return rd.parse(rx)
}

func (rd *reader) receiveInPlace(rx *receiver) error {
	rx.bufs = [2][]byte{rx.sink, rx.buf}
	n, err := rd.conn.Recv(rx.bufs[:])
	rx.bufs = [2][]byte{}
	if errors.Is(err, syscall.EFAULT) {
		rd.log.Error("a download's destination is not writable any more; was it freed before the copy was complete?",
			"transfer", rx.h.ID)
		rx.sink = nil
		return nil
	}
	if err != nil {
		return err
	}
	rx.came = rd.arrived()
	rd.traffic.received.Add(uint64(n))
	direct := min(n, len(rx.sink))
	rx.sink = rx.sink[direct:]
	rx.left -= direct
	rx.r, rx.w = 0, n-direct
	return rd.parse(rx)
}

// parse handles everything in the buffer.
func (rd *reader) parse(rx *receiver) error {
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
			if err := rd.begin(rx, h); err != nil {
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
			if err := rd.bulk.awaitChunks(h.ID, h.Aux); err != nil {
				return err
			}
		}
		rd.finish(rx)
	}
}

func protocol(format string, args ...any) error {
	return &transport.MalformedError{Detail: fmt.Sprintf(format, args...)}
}

// begin decides where a message's payload goes.
func (rd *reader) begin(rx *receiver, h transport.MessageHeader) error {
	rx.h, rx.inside, rx.sink, rx.early = h, true, nil, nil
	rx.left = transport.Pad(int(h.Len))
	if err := rx.chain.Check(&h); err != nil {
		return err
	}
	switch h.Type {
	case transport.MsgReply:
		w := rd.calls.waiter(h.ID)
		if w == nil {
			return protocol("a reply to thread %d", h.ID)
		}
		rd.calls.Lock()
		defer rd.calls.Unlock()
		if w.listed && h.Seq != w.begin {
			return protocol("a reply to command %d of thread %d, which waits for that to %d", h.Seq, h.ID, w.begin)
		}
		if w.listed {
			rx.sink = w.reply[:min(len(w.reply), int(h.Len))]
			return nil
		}
		if w.early != nil || h.Len > maxEarlyReply {
			return protocol("a reply of %d bytes that thread %d did not ask for", h.Len, h.ID)
		}
		if rd.calls.ahead += int(h.Len); rd.calls.ahead > maxEarlyReplies {
			return protocol("replies of %d bytes that nobody asked for", rd.calls.ahead)
		}
		rx.early = &early{begin: h.Seq, result: h.Result, data: make([]byte, h.Len)}
		rx.sink = rx.early.data
	case transport.MsgData:
		dst, ok := rd.registered.destination(h.ID)
		if !ok {
			return protocol("data for the unknown transfer %d", h.ID)
		}
		if h.Aux > uint64(len(dst)) || uint64(h.Len) > uint64(len(dst))-h.Aux {
			return protocol("%d bytes at %d of transfer %d, which has %d", h.Len, h.Aux, h.ID, len(dst))
		}
		rx.sink = dst[h.Aux : h.Aux+uint64(h.Len)]
		if h.ID >= transport.FirstTransfer {
			rd.shared.news()
		}
	case transport.MsgDone, transport.MsgFlushed, transport.MsgForget, transport.MsgAlive:
		if h.Len != 0 {
			return protocol("a payload of %d bytes in %v", h.Len, h.Type)
		}
		if h.Type == transport.MsgAlive {
			return rd.heart.answered(h.Seq)
		}
	case transport.MsgProgress:
		if h.Len != 0 || rd.shared.track(h.Aux) == nil {
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
func (rd *reader) finish(rx *receiver) {
	h := &rx.h
	rd.heart.heard.Add(1)
	switch h.Type {
	case transport.MsgReply:
		w := rd.calls.waiter(h.ID)
		rd.calls.Lock()
		if w.dst != nil { // the end of a download implies that of what lies before it
			rd.shared.news()
			if h.Aux == 0 && h.Result != 0 {
				rd.bulk.endWindow(h.ID)
			}
		}
		switch {
		case rx.early == nil && w.listed:
			rd.calls.complete(w, h.Result, h.Len, rx.came)
		case rx.early != nil && w.listed: // its thread came in the meantime
			rd.calls.ahead -= len(rx.early.data)
			copy(w.reply, rx.early.data)
			rd.calls.complete(w, h.Result, h.Len, rx.came)
		case rx.early != nil:
			w.early = rx.early
		}
		rd.calls.Unlock()
		rx.early = nil
	case transport.MsgDone:
		if h.Aux == 0 {
			rd.bulk.endWindow(h.ID)
		}
		rd.registered.endDownload(h.ID)
		if h.Result != 0 {
			rd.log.Debug("an asynchronous download failed", "transfer", h.ID, "result", h.Result)
		}
	case transport.MsgForget:
		rd.registered.forget(h.ID, h.Aux)
	case transport.MsgFlushed:
		rd.registered.flushed(h.Seq)
	case transport.MsgText:
		if rd.print != nil {
			rd.print(h.ID, rx.text)
		}
		rx.text = nil
	case transport.MsgProgress:
		t := rd.shared.track(h.Aux)
		if h.Result == Success {
			raise(&t.Done, h.Seq)
			rd.shared.news() // it may imply what the server has not seen or told yet: an event that this one waited for
		} else {
			raise(&t.Refused, h.Seq)
		}
	case transport.MsgNotice:
		text := string(rx.text)
		rx.text = nil
		rd.notice.Store(&notice{text: text, result: max(h.Result, 0)})
		if rx.notices++; rx.notices <= maxNotices {
			rd.log.Warn("the server says: " + text)
		}
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
