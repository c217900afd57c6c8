package session

import (
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

// reader takes what comes on the main connection: replies, downloads, and what the server says by itself. It has no
// thread of its own but for the background reader: whoever waits for a reply reads (see [reader.lead]), and others may.
//
// Locks: lock is the reader's place: whoever has it may read, and owns led. busy is held while bytes are taken, so that
// the session's end can wait until no thread's memory is written any more; it guards rx. Under busy, locks of calls, of
// registrations and of bulk transfers are taken. What else changes is atomic.
type reader struct {
	lock       uint32 // 1 while somebody reads
	sleepers   atomic.Int32
	led        int         // how often a thread has led
	times      atomic.Bool // somebody wants to know when replies come
	background uint32      // futex: see runBackground
	busy       mutex
	rx         receiver
	notice     atomic.Pointer[notice] // what the server said last

	conn       transport.Conn
	shared     shared
	log        *slog.Logger
	print      func(stream uint32, text []byte)
	calls      *calls
	registered *registrations
	bulk       *transfers
	traffic    *traffic
	heart      *heart
	owner      owner
}

// await returns when w is done: as leader, or asleep while another one leads.
func (rd *reader) await(w *waiter) {
	for atomic.LoadUint32(&w.state) != stateDone {
		if rd.lead(w) {
			continue
		}
		rd.sleepers.Add(1)
		if atomic.CompareAndSwapUint32(&w.state, stateWaiting, stateSleeping) {
			// Whoever frees the reader from now on sees that somebody sleeps; it may have been freed just before.
			if !rd.taken() {
				atomic.CompareAndSwapUint32(&w.state, stateSleeping, stateWaiting)
			} else {
				futexWait(&w.state, stateSleeping, 0)
				atomic.CompareAndSwapUint32(&w.state, stateSleeping, stateWaiting)
			}
		}
		rd.sleepers.Add(-1)
	}
}

// lead reads the connection until w is done. It returns false at once when somebody else leads.
func (rd *reader) lead(w *waiter) bool {
	if !rd.tryRead() {
		return false
	}
	defer rd.endRead()
	if rd.led++; rd.led <= calm && atomic.LoadUint32(&w.state) != stateDone {
		if _, err := rd.conn.Wait(transport.Readable, -1); err != nil {
			rd.owner.fail(err)
			return true
		}
	}
	idle := time.Now()
	for i := 0; atomic.LoadUint32(&w.state) != stateDone; i++ {
		switch err := rd.receive(); {
		case err == nil:
			idle, i = time.Now(), 0
		case !errors.Is(err, transport.ErrAgain):
			rd.owner.fail(err)
			return true // whoever failed first completes w
		case time.Since(idle) < spin:
			nap(i)
		default:
			if _, err := rd.conn.Wait(transport.Readable, -1); err != nil {
				rd.owner.fail(err)
				return true
			}
			idle = time.Now()
		}
	}
	return true
}

// keepTimes has the times kept at which replies come. Sockets have to be told so anew where a connection was lost.
func (rd *reader) keepTimes() {
	if c, ok := rd.conn.(transport.Timed); ok {
		c.KeepTimes()
	}
	rd.times.Store(true)
}

// arrived is when the bytes came to this machine that were received last; 0: nobody wants to know.
func (rd *reader) arrived() int64 {
	if !rd.times.Load() {
		return 0
	}
	since := int64(0)
	if c, ok := rd.conn.(transport.Timed); ok {
		since = int64(c.Since())
	}
	return monotonic() - since // in this order: it may only seem later than it was
}

// monotonic is CLOCK_MONOTONIC, by which the front's times are.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // which every Linux has
	return t.Nano()
}

// taken says whether somebody reads.
func (rd *reader) taken() bool { return atomic.LoadUint32(&rd.lock) != 0 }

// tryRead takes the reader's place if it is free.
func (rd *reader) tryRead() bool { return atomic.CompareAndSwapUint32(&rd.lock, 0, 1) }

// endRead passes the reader's place on: to a thread that waits for a reply, else to the background reader where it is
// needed.
func (rd *reader) endRead() {
	atomic.StoreUint32(&rd.lock, 0)
	if rd.sleepers.Load() > 0 && rd.calls.wakeOne() {
		return
	}
	rd.kick()
}

// look handles what has arrived, without waiting. Its caller asks again and again, so where there is nothing it lets
// others run for a moment: they may be what it waits for.
func (rd *reader) look() {
	if rd.shared.lost() != 0 || !rd.tryRead() {
		return
	}
	err := rd.receive()
	if err == nil {
		err = rd.readAvailable()
	} else if errors.Is(err, transport.ErrAgain) {
		schedYield()
		err = nil
	}
	rd.endRead()
	if err != nil {
		rd.owner.fail(err)
	}
}

// States of the background reader, a futex.
const (
	backgroundAwake uint32 = iota
	backgroundParked
)

// runBackground reads while asynchronous downloads are under way and none of the program's threads leads. It waits for
// data without holding the reader's lock, so that a thread which starts to wait for a reply leads at once.
func (rd *reader) runBackground() {
	runtime.LockOSThread()
	for rd.shared.lost() == 0 {
		if rd.registered.pending.Load() == 0 {
			rd.park(func() bool { return rd.registered.pending.Load() == 0 })
			continue
		}
		if _, err := rd.conn.Wait(transport.Readable, -1); err != nil {
			rd.owner.fail(err)
			return
		}
		if !rd.tryRead() {
			rd.park(func() bool { return rd.taken() })
			continue
		}
		if err := rd.readAvailable(); err != nil {
			rd.owner.fail(err)
		}
		rd.endRead()
	}
}

// readAvailable handles what has arrived. The reader's lock is held.
func (rd *reader) readAvailable() error {
	for {
		if err := rd.receive(); errors.Is(err, transport.ErrAgain) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// park sleeps until it is kicked; idle is asked once more when a kick can no longer be missed.
func (rd *reader) park(idle func() bool) {
	atomic.StoreUint32(&rd.background, backgroundParked)
	if rd.shared.lost() != 0 || !idle() {
		atomic.StoreUint32(&rd.background, backgroundAwake)
		return
	}
	for atomic.LoadUint32(&rd.background) == backgroundParked {
		futexWait(&rd.background, backgroundParked, 0)
	}
}

func (rd *reader) kick() {
	if rd.registered.pending.Load() > 0 &&
		atomic.CompareAndSwapUint32(&rd.background, backgroundParked, backgroundAwake) {
		futexWake(&rd.background)
	}
}

// lastWords reads what the server still said on the main connection before a connection broke, so that its
// reason is not lost.
func (rd *reader) lastWords() {
	deadline := time.Now().Add(lastWordsTimeout)
	for rd.shared.lost() == 0 && time.Now().Before(deadline) {
		if _, err := rd.conn.Wait(transport.Readable, time.Until(deadline)); err != nil {
			return
		}
		if !rd.tryRead() {
			schedYield() // whoever reads will see the end itself
			continue
		}
		err := rd.readAvailable()
		rd.endRead()
		if err != nil {
			rd.owner.fail(err)
			return
		}
	}
}

// release wakes the background reader after the end of the session.
func (rd *reader) release() {
	atomic.StoreUint32(&rd.background, backgroundAwake)
	futexWake(&rd.background)
}

// takeRest has what a broken socket of the main connection still brought read, for a moment.
func (rd *reader) takeRest(c *transport.Resumable) {
	for deadline := time.Now().Add(lastWordsTimeout); !c.Dry() && time.Now().Before(deadline); schedYield() {
		if rd.shared.lost() != 0 {
			return
		}
		if !rd.tryRead() { // whoever has the reader's place does it
			continue
		}
		err := rd.readAvailable()
		rd.endRead()
		if err != nil {
			rd.owner.fail(err)
			return
		}
	}
}
