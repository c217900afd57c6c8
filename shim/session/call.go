package session

import (
	"errors"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
)

const waiterPage = 256

// States of a waiter, a futex.
const (
	_             uint32 = iota
	stateWaiting         // its reply is due; its thread is awake
	stateSleeping        // its thread sleeps until the reply is there or it has to lead
	stateDone
)

// waiter is a thread's place for the reply to its one unanswered call.
type waiter struct {
	state      uint32
	result     int32
	length     uint32 // of the payload as sent, may exceed the buffer
	reply      []byte
	dst        []byte // of the synchronous download that the call is, if any
	early      *early
	least      uint64  // the smallest sequence number that its next reply may have; the reader's
	next, prev *waiter // among those that wait; guarded by mu
	listed     bool
}

// early is a reply that came before its thread got to wait for it: the sender may have sent the command already.
type early struct {
	result int32
	data   []byte
}

// Call is a synchronous call: its command ends at ring offset End.
type Call struct {
	End    uint64
	Thread uint32
	Result int32
	Reply  []byte // filled as far as it goes
	Length uint32 // bytes of payload that the server sent
}

// Send sends the ring up to end, of which the reply is waited for by a later Call.
func (s *Session) Send(end uint64) { s.flush(end) }

// Call sends what is pending and waits for the reply to the thread's command.
func (s *Session) Call(c *Call) {
	w := s.waiter(c.Thread)
	if w == nil {
		c.Result = InvalidValue
		return
	}
	if s.enroll(w, c.Reply) {
		s.flush(c.End)
		s.await(w)
	}
	c.Result, c.Length = w.result, w.length
	if w.dst != nil {
		s.mu.Lock()
		w.dst = nil
		s.mu.Unlock()
	}
}

// waiter gives a thread's waiter, nil when the ordinal is out of range.
func (s *Session) waiter(thread uint32) *waiter {
	if thread >= transport.MaxThreads {
		return nil
	}
	page := &s.waiters[thread/waiterPage]
	p := page.Load()
	if p == nil {
		page.CompareAndSwap(nil, new([waiterPage]waiter))
		p = page.Load()
	}
	return &p[thread%waiterPage]
}

// enroll puts w among those that wait; false when the result is there already.
func (s *Session) enroll(w *waiter, reply []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost := s.lost(); lost != 0 {
		w.result, w.length = lost, 0
		return false
	}
	w.reply = reply
	if e := w.early; e != nil {
		w.early = nil
		w.result, w.length = e.result, uint32(len(e.data))
		copy(reply, e.data)
		return false
	}
	w.next, w.prev = s.mu.waiting, nil
	if w.next != nil {
		w.next.prev = w
	}
	s.mu.waiting = w
	w.listed = true
	atomic.StoreUint32(&w.state, stateWaiting)
	return true
}

// complete gives w its result and wakes its thread. mu is held.
func (s *Session) complete(w *waiter, result int32, length uint32) {
	if w.next != nil {
		w.next.prev = w.prev
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		s.mu.waiting = w.next
	}
	w.next, w.prev, w.listed = nil, nil, false
	w.result, w.length = result, length
	if atomic.SwapUint32(&w.state, stateDone) == stateSleeping {
		futexWake(&w.state)
	}
}

// await returns when w is done: as leader, or asleep while another one leads.
func (s *Session) await(w *waiter) {
	for atomic.LoadUint32(&w.state) != stateDone {
		if s.lead(w) {
			continue
		}
		s.reader.sleepers.Add(1)
		if atomic.CompareAndSwapUint32(&w.state, stateWaiting, stateSleeping) {
			// Whoever frees the reader from now on sees that somebody sleeps; it may have been freed just before.
			if atomic.LoadUint32(&s.reader.lock) == 0 {
				atomic.CompareAndSwapUint32(&w.state, stateSleeping, stateWaiting)
			} else {
				futexWait(&w.state, stateSleeping, 0)
				atomic.CompareAndSwapUint32(&w.state, stateSleeping, stateWaiting)
			}
		}
		s.reader.sleepers.Add(-1)
	}
}

// lead reads the connection until w is done. It returns false at once when somebody else leads.
func (s *Session) lead(w *waiter) bool {
	if !s.tryRead() {
		return false
	}
	defer s.endRead()
	if s.reader.led++; s.reader.led <= calm && atomic.LoadUint32(&w.state) != stateDone {
		if _, err := s.conn.Wait(transport.Readable, -1); err != nil {
			s.fail(err)
			return true
		}
	}
	idle := time.Now()
	for i := 0; atomic.LoadUint32(&w.state) != stateDone; i++ {
		switch err := s.receive(); {
		case err == nil:
			idle, i = time.Now(), 0
		case !errors.Is(err, transport.ErrAgain):
			s.fail(err)
			return true // whoever failed first completes w
		case time.Since(idle) < spin:
			nap(i)
		default:
			if _, err := s.conn.Wait(transport.Readable, -1); err != nil {
				s.fail(err)
				return true
			}
			idle = time.Now()
		}
	}
	return true
}

func (s *Session) tryRead() bool { return atomic.CompareAndSwapUint32(&s.reader.lock, 0, 1) }

// endRead passes the reader's place on: to a thread that waits for a reply, else to the background reader where it is
// needed.
func (s *Session) endRead() {
	atomic.StoreUint32(&s.reader.lock, 0)
	if s.reader.sleepers.Load() > 0 {
		s.mu.Lock()
		for w := s.mu.waiting; w != nil; w = w.next {
			// One that is awake (perhaps busy with sending) will look at the lock by itself, but only later.
			if atomic.CompareAndSwapUint32(&w.state, stateSleeping, stateWaiting) {
				futexWake(&w.state)
				s.mu.Unlock()
				return
			}
		}
		s.mu.Unlock()
	}
	s.kickBackground()
}
