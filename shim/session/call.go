package session

import (
	"sync/atomic"

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

// calls are the program's unanswered calls, at most one a thread.
//
// Locks: its own lock guards waiting, ahead, and of each waiter all but state, which is atomic, and result and length,
// which are its thread's once it is done. A waiter's early reply is there before its thread asks. The lock is held for
// moments; the sender's may be held when it is taken, and no other is taken under it but those of RDMA's link.
type calls struct {
	mutex
	waiting *waiter // those whose replies are due
	ahead   int     // bytes of replies whose threads have not come yet
	pages   [transport.MaxThreads / waiterPage]atomic.Pointer[[waiterPage]waiter]

	shared shared
}

// waiter is a thread's place for the reply to its one unanswered call.
type waiter struct {
	state      uint32
	result     int32
	length     uint32 // of the payload as sent, may exceed the buffer
	came       int64  // when the reply came; 0: not known
	reply      []byte
	dst        []byte // of the synchronous download that the call is, if any
	early      *early
	begin      uint64  // of its command, which the reply names
	next, prev *waiter // among those that wait
	listed     bool
}

// early is a reply that came before its thread got to wait for it: the sender may have sent the command already.
type early struct {
	begin  uint64 // of the command that it names
	result int32
	data   []byte
}

// Call is a synchronous call: its command lies at the ring offsets from Begin to End.
type Call struct {
	Begin  uint64
	End    uint64
	Thread uint32
	Result int32
	Reply  []byte // filled as far as it goes
	Length uint32 // bytes of payload that the server sent

	Timed bool  // Came is of interest
	Came  int64 // when the reply came to this machine: CLOCK_MONOTONIC, ns; 0: not known
}

// Call sends what is pending and waits for the reply to the thread's command.
func (s *Session) Call(c *Call) {
	w := s.calls.waiter(c.Thread)
	if w == nil {
		c.Result = InvalidValue
		return
	}
	if c.Timed {
		s.reader.keepTimes()
	}
	wait, err := s.calls.enroll(w, c.Reply, c.Begin)
	if err != nil {
		s.fail(err)
		w.result, w.length = s.lost(), 0
	}
	if wait {
		s.send.flush(c.End)
		s.reader.await(w)
	}
	c.Result, c.Length, c.Came = w.result, w.length, w.came
	if w.dst != nil {
		s.calls.setDestination(w, nil)
	}
}

// waiter gives a thread's waiter, nil when the ordinal is out of range.
func (cs *calls) waiter(thread uint32) *waiter {
	if thread >= transport.MaxThreads {
		return nil
	}
	page := &cs.pages[thread/waiterPage]
	p := page.Load()
	if p == nil {
		page.CompareAndSwap(nil, new([waiterPage]waiter))
		p = page.Load()
	}
	return &p[thread%waiterPage]
}

// enroll puts w among those that wait; false when the result is there already. An error says that what is there is
// the result of another command.
func (cs *calls) enroll(w *waiter, reply []byte, begin uint64) (bool, error) {
	cs.Lock()
	defer cs.Unlock()
	w.came = 0
	if lost := cs.shared.lost(); lost != 0 {
		w.result, w.length = lost, 0
		return false, nil
	}
	w.reply, w.begin = reply, begin
	if e := w.early; e != nil {
		if e.begin != begin {
			return false, protocol("a reply to command %d of a thread that waits for that to %d", e.begin, begin)
		}
		w.early = nil
		cs.ahead -= len(e.data)
		w.result, w.length = e.result, uint32(len(e.data))
		copy(reply, e.data)
		return false, nil
	}
	w.next, w.prev = cs.waiting, nil
	if w.next != nil {
		w.next.prev = w
	}
	cs.waiting = w
	w.listed = true
	atomic.StoreUint32(&w.state, stateWaiting)
	return true, nil
}

// awaits notes the number of the command of the core itself whose reply w waits for.
func (cs *calls) awaits(w *waiter, number uint64) {
	cs.Lock()
	w.begin = number
	cs.Unlock()
}

// complete gives w its result, which came then, and wakes its thread. The lock is held.
func (cs *calls) complete(w *waiter, result int32, length uint32, came int64) {
	if w.next != nil {
		w.next.prev = w.prev
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		cs.waiting = w.next
	}
	w.next, w.prev, w.listed = nil, nil, false
	w.result, w.length, w.came = result, length, came
	if atomic.SwapUint32(&w.state, stateDone) == stateSleeping {
		futexWake(&w.state)
	}
}

// wakeOne wakes a thread that sleeps until its reply is there, so that it reads; false where none sleeps.
func (cs *calls) wakeOne() bool {
	cs.Lock()
	defer cs.Unlock()
	for w := cs.waiting; w != nil; w = w.next {
		// One that is awake (perhaps busy with sending) will look at the lock by itself, but only later.
		if atomic.CompareAndSwapUint32(&w.state, stateSleeping, stateWaiting) {
			futexWake(&w.state)
			return true
		}
	}
	return false
}

// setDestination says where the bytes of the synchronous download go that w's next call is; nil when it is over.
func (cs *calls) setDestination(w *waiter, dst []byte) {
	cs.Lock()
	w.dst = dst
	cs.Unlock()
}

// destination is where a thread's synchronous download goes.
func (cs *calls) destination(thread uint32) ([]byte, bool) {
	cs.Lock()
	defer cs.Unlock()
	dst := cs.waiter(thread).dst
	return dst, dst != nil
}

// release gives everybody who waits the session's last result.
func (cs *calls) release() {
	cs.Lock()
	defer cs.Unlock()
	for cs.waiting != nil {
		cs.complete(cs.waiting, cs.shared.lost(), 0, 0)
	}
}
