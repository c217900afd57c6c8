package session

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// sender sends the commands of the ring, each to its session, and the bytes that belong to them.
//
// Locks: whoever holds the sender's own lock may write to the main connections; it guards all that is not atomic, and
// the [outlet] of each session. A thread that finds no room in a connection reads answers meanwhile, and so takes that
// reader's place under it. again, turn and what is in shared are atomic.
type sender struct {
	mutex
	head    uint64                            // how much of the ring has been sent
	turn    uint32                            // futex: counts finished bulk transfers
	again   atomic.Bool                       // the sender has to look at the ring though its tail has not moved
	outlets []*outlet                         // by the number of their server; never changes once run has begun
	mapped  func(*Shared, *MappedUpload) bool // nil: no kernel uses pinned memory; never changes either
	upload  *MappedUpload                     // of its own, since C writes into it

	ring   []byte // mapped twice in a row
	mask   uint64
	ready  uint64 // so much of it needs no page fault any more; run's
	shared *Shared
}

// over says whether every session has ended.
func (s *sender) over() bool {
	for _, o := range s.outlets {
		if o.lost() == 0 {
			return false
		}
	}
	return true
}

// awaited says whether a thread waits for an answer.
func (s *sender) awaited() bool {
	for _, o := range s.outlets {
		if o.reader.taken() {
			return true
		}
	}
	return false
}

// fail ends a session whose connection broke, or (nil) all.
func (s *sender) fail(o *outlet, err error) {
	for _, each := range s.outlets {
		if o == nil || each == o {
			each.owner.broken(err)
		}
	}
}

// run sends what nobody waits for. It spins for a moment after its last work, so that a burst of commands pays no
// wake-ups; for longer while a thread waits for an answer, since it will go on then, where there are processors enough.
func (s *sender) run() {
	runtime.LockOSThread()
	awaited, lingers := time.Duration(0), time.Duration(0)
	if !transport.FewCPUs() {
		awaited, lingers = spinAwaited, linger
	}
	worked := time.Now()
	seen, idle := atomic.LoadUint64(&s.shared.Head), time.Now()
	for i := 0; !s.over(); i++ {
		if tail := atomic.LoadUint64(&s.shared.Tail); tail != seen || s.again.Load() {
			seen = tail
			if !s.again.Swap(false) {
				for began := time.Now(); time.Since(began) < lingers && atomic.LoadUint64(&s.shared.Head) != tail; {
				}
			}
			s.flush(toTail)
			s.populate(tail + ringAhead)
			worked, i = time.Now(), 0
			idle = worked
			continue
		}
		now := time.Now()
		if now.Sub(worked) < awaited && s.awaited() {
			idle = now
		}
		if now.Sub(idle) < spin {
			nap(i)
			continue
		}
		atomic.StoreUint32(&s.shared.Asleep, 1)
		if atomic.LoadUint64(&s.shared.Tail) == seen && !s.again.Load() && !s.over() {
			futexWait(&s.shared.Asleep, 1, 0)
		}
		atomic.StoreUint32(&s.shared.Asleep, 0)
		idle = time.Now()
	}
}

const (
	toTail    = ^uint64(0)
	ringAhead = 256 << 10 // so much of the ring is populated ahead of the program
	ringPiece = 64 << 10
)

// populate makes the ring's memory there up to a position, before the program gets to it. Memory that no program gets
// to costs nothing, and the rest nobody's time but the sender's. A kernel that cannot do it leaves it to page faults.
func (s *sender) populate(end uint64) {
	for end = min(end, s.mask+1); s.ready < end; s.ready += ringPiece {
		if unix.Madvise(s.ring[s.ready:min(s.ready+ringPiece, s.mask+1)], unix.MADV_POPULATE_WRITE) != nil {
			s.ready = s.mask + 1
			return
		}
	}
}

// flush sends what the ring holds, unless somebody else is about to: whoever holds the lock looks at the ring
// again after freeing it. A caller that only cares for the ring up to end leaves what came behind it to the sender,
// lest it sends for others for ever.
func (s *sender) flush(end uint64) {
	for !s.over() && s.TryLock() {
		stuck, o, err := s.drain(end)
		s.Unlock()
		if err != nil {
			s.fail(o, err)
			continue // other sessions go on
		}
		head := atomic.LoadUint64(&s.shared.Head)
		if stuck || atomic.LoadUint64(&s.shared.Tail) == head {
			return
		}
		if head >= end {
			s.wake()
			return
		}
	}
}

func (s *sender) wake() {
	s.again.Store(true)
	if atomic.CompareAndSwapUint32(&s.shared.Asleep, 1, 0) {
		futexWake(&s.shared.Asleep)
	}
}

// drain sends the ring at least up to want or its tail, or up to a bulk command, whose owner is on the way with the
// data; then stuck is true. An error is that of one session, or (nil) of all. The lock is held.
func (s *sender) drain(want uint64) (stuck bool, broken *outlet, err error) {
	for {
		tail := atomic.LoadUint64(&s.shared.Tail)
		if tail == s.head || s.head >= want {
			return false, nil, nil
		}
		o, end, context, err := s.scan(tail)
		if err != nil {
			return false, nil, err
		}
		if end == s.head {
			return true, nil, nil
		}
		if context != 0 {
			err = s.bringMapped(o, context, false)
		}
		if err == nil {
			err = s.sendRing(o, end)
		}
		if err != nil {
			return false, o, err
		}
	}
}

// bringMapped sends what changed of pinned memory that kernels use. Whoever wrote it before a command that lies before
// the tail which was looked at has it sent ahead of that command. The lock is held.
func (s *sender) bringMapped(o *outlet, context uint64, onlyFlags bool) (err error) {
	if s.mapped == nil || o.over() {
		return nil
	}
	u := s.upload
	*u = MappedUpload{Position: s.head, Context: context, Server: uint32(slices.Index(s.outlets, o))}
	if onlyFlags {
		u.OnlyFlags = 1
	}
	for s.mapped(s.shared, u) { // to the end: the front has a lock until then
		if err == nil {
			err = o.sendMapped(u)
		}
	}
	return err
}

// sendMapped does so between commands of the ring.
func (s *sender) sendMapped(o *outlet, context uint64, onlyFlags bool) {
	o.heart.stir()
	s.Lock()
	err := s.bringMapped(o, context, onlyFlags)
	s.Unlock()
	if err != nil {
		s.fail(o, err)
	} else {
		s.flush(0)
	}
}

// scan finds how far the ring may be sent in one frame, and to whom. context is that of the first launch for which
// pinned memory has to be brought in step, 0: there is none.
func (s *sender) scan(tail uint64) (o *outlet, end, context uint64, err error) {
	for end = s.head; end < tail && end-s.head < maxFrameFromRing; {
		c := s.command(end)
		if c.size < transport.CommandHeaderSize || c.size%8 != 0 || c.size > transport.MaxCommand || c.size > tail-end ||
			int(c.server) >= len(s.outlets) {
			return nil, 0, 0, fmt.Errorf("the program's command ring is damaged (a command of %d bytes for server %d at %d); "+
				"did the program write over it?", c.size, c.server, end)
		}
		if o == nil {
			o = s.outlets[c.server]
		}
		if o != s.outlets[c.server] || c.flags&transport.FlagBulk != 0 && !o.over() {
			break
		}
		if c.flags&flagMapped != 0 {
			context = cmp.Or(context, s.takeMapped(end))
		}
		end += c.size
	}
	return o, end, context, nil
}

// flagMapped is SCUDA_MAPPED of the front: pinned memory that kernels use has to be brought in step ahead of the
// command. Servers know nothing of it.
const flagMapped transport.CommandFlags = 1 << 15

// takeMapped takes the flag away and gives the command's context.
func (s *sender) takeMapped(at uint64) uint64 {
	b := s.ring[at&s.mask:]
	binary.LittleEndian.PutUint16(b[6:], binary.LittleEndian.Uint16(b[6:])&^uint16(flagMapped))
	return binary.LittleEndian.Uint64(b[16:])
}

// ringCommand is what the sender has to know of a command.
type ringCommand struct {
	size   uint64
	flags  transport.CommandFlags
	server uint32 // whose it is, from 0 on
}

// serverShift is where the number of a command's server stands in the thread's word of its header, which has room above
// [transport.MaxThreads]. No server is told its number.
const serverShift = 28

const _ = uint(1<<(32-serverShift) - MostSessions) // there is room for all

func (s *sender) command(at uint64) ringCommand {
	b := s.ring[at&s.mask:]
	return ringCommand{
		size:   uint64(binary.LittleEndian.Uint32(b)),
		flags:  transport.CommandFlags(binary.LittleEndian.Uint16(b[6:])),
		server: binary.LittleEndian.Uint32(b[24:]) >> serverShift,
	}
}

// sendRing sends the ring up to end as one frame to its session and gives the front its room back. What a session that
// is over does not take is passed over.
func (s *sender) sendRing(o *outlet, end uint64) (err error) {
	if len(s.outlets) > 1 {
		for at := s.head; at < end; at += s.command(at).size {
			s.ring[at&s.mask+27] &= 1<<(serverShift-24) - 1
		}
	}
	if !o.over() {
		err = o.sendCommands(s.ring[s.head&s.mask:][:end-s.head], s.head)
	}
	s.head = end
	atomic.StoreUint64(&s.shared.Head, end)
	if atomic.LoadUint32(&s.shared.Starved) != 0 {
		atomic.StoreUint32(&s.shared.Starved, 0)
		futexWake(&s.shared.Starved)
	}
	return err
}

// sendBulk sends the ring up to end, where a bulk command of a session ends, and then data, or gives the upload that is
// on its way.
func (s *sender) sendBulk(o *outlet, end uint64, data []byte) *upload {
	s.Lock()
	up, err := s.takeTurn(o, end, data)
	s.Unlock()
	if err != nil {
		s.fail(o, err)
	} else {
		s.flush(end)
	}
	return up
}

// takeTurn sends a bulk command and its data when it is the first in the ring. The lock is held, and let go in between.
func (s *sender) takeTurn(o *outlet, end uint64, data []byte) (*upload, error) {
	for {
		stuck, broken, err := s.drain(toTail)
		switch {
		case o.over():
			return nil, cmp.Or(err, errEnded)
		case err != nil && broken == nil:
			return nil, err
		case err != nil:
			s.Unlock()
			s.fail(broken, err)
			s.Lock()
			continue
		case !stuck:
			return nil, fmt.Errorf("no bulk command ends at %d of the command ring", end)
		}
		if s.head+s.command(s.head).size == end {
			break
		}
		// Another thread's bulk command comes first.
		turn := atomic.LoadUint32(&s.turn)
		s.Unlock()
		futexWait(&s.turn, turn, 0)
		s.Lock()
	}
	up := s.sendBeside(o, data)
	err := s.sendRing(o, end)
	if err == nil && up == nil {
		err = o.writeBulk(data)
	}
	if err != nil {
		return up, err
	}
	atomic.AddUint32(&s.turn, 1)
	futexWake(&s.turn)
	return up, nil
}

// sendBeside hands the data of the command at the ring's head over to the bulk connections; nil when they are not for
// it.
func (s *sender) sendBeside(o *outlet, data []byte) *upload {
	head := s.ring[s.head&s.mask:]
	if len(data) < bulk.MinTransfer || binary.LittleEndian.Uint16(head[4:]) != wire.OpCopyH2D {
		return nil
	}
	up := o.bulk.add(s.head, data)
	if up != nil {
		flags := binary.LittleEndian.Uint16(head[6:])
		binary.LittleEndian.PutUint16(head[6:], flags|uint16(transport.FlagTransfer))
	}
	return up
}

// sendOwn sends a command of the core itself to a session between those of the ring, and numbers it; numbered, if not
// nil, is told the number before the command is on its way.
func (s *sender) sendOwn(o *outlet, command, bulk []byte, numbered func(uint64)) error {
	o.heart.stir()
	s.Lock()
	n := o.number(command)
	if numbered != nil {
		numbered(n)
	}
	err := o.sendFrame(command)
	if err == nil && bulk != nil {
		err = o.writeBulk(bulk)
	}
	s.Unlock()
	if err == nil {
		s.flush(0)
	}
	return err
}

// ping sends a ping to a session, of which numbered is told the number first, unless it cannot be written to now.
func (s *sender) ping(o *outlet, numbered func(uint64)) error {
	if !s.TryLock() {
		return nil
	}
	defer s.flush(0)
	defer s.Unlock()
	if ev, err := o.conn.Wait(transport.Writable, 0); err != nil || ev == 0 {
		return nil
	}
	command := own(wire.OpPing, 0, make([]byte, 8))
	numbered(o.number(command))
	return o.sendFrame(command)
}

// sendRest sends what is pending and takes a session's leave, or gives up at the deadline.
func (s *sender) sendRest(o *outlet, deadline time.Time) {
	watch := time.AfterFunc(time.Until(deadline), o.conn.Shutdown)
	defer watch.Stop()
	for i := 0; !s.TryLock(); i++ {
		if time.Now().After(deadline) {
			return
		}
		nap(i)
	}
	_, _, err := s.drain(toTail)
	s.Unlock()
	if err == nil {
		_ = s.sendOwn(o, own(wire.OpBye, 0, make([]byte, 8)), nil, nil)
	}
}

// release wakes whoever sleeps for room or a turn, and the sender, after the end of a session. The sender passes over
// what the ring still holds for it.
func (s *sender) release() {
	s.again.Store(true)
	atomic.StoreUint32(&s.shared.Starved, 0)
	futexWake(&s.shared.Starved)
	atomic.StoreUint32(&s.shared.Asleep, 0)
	futexWake(&s.shared.Asleep)
	atomic.AddUint32(&s.turn, 1)
	futexWake(&s.turn)
}
