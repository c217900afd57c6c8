package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// sender sends the commands of the ring, and the bytes that belong to them, over the main connection.
//
// Locks: whoever holds the sender's own lock may write to the connection; it guards all that is not atomic. A thread
// that finds no room in the connection reads answers meanwhile, and so takes the reader's place under it. again, turn
// and what is in shared are atomic.
type sender struct {
	mutex
	head   uint64      // how much of the ring has been sent
	own    uint64      // how many commands of the core itself
	turn   uint32      // futex: counts finished bulk transfers
	again  atomic.Bool // the sender has to look at the ring though its tail has not moved
	header [transport.FrameHeaderSize]byte
	bufs   [3][]byte

	ring    []byte // mapped twice in a row
	mask    uint64
	ready   uint64 // so much of it needs no page fault any more; run's
	conn    transport.Conn
	shared  *Shared
	reader  *reader
	bulk    *transfers
	traffic *traffic
	heart   *heart
	owner   owner
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
	for i := 0; s.shared.lost() == 0; i++ {
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
		if now.Sub(worked) < awaited && s.reader.taken() {
			idle = now
		}
		if now.Sub(idle) < spin {
			nap(i)
			continue
		}
		atomic.StoreUint32(&s.shared.Asleep, 1)
		if atomic.LoadUint64(&s.shared.Tail) == seen && !s.again.Load() && s.shared.lost() == 0 {
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
	for s.shared.lost() == 0 && s.TryLock() {
		stuck, err := s.drain(end)
		s.Unlock()
		if err != nil {
			s.owner.broken(err)
			return
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
// data; then stuck is true. The lock is held.
func (s *sender) drain(want uint64) (stuck bool, err error) {
	for {
		tail := atomic.LoadUint64(&s.shared.Tail)
		if tail == s.head || s.head >= want {
			return false, nil
		}
		end, err := s.scan(tail)
		if err != nil {
			return false, err
		}
		if end == s.head {
			return true, nil
		}
		if err := s.sendRing(end); err != nil {
			return false, err
		}
	}
}

// scan finds how far the ring may be sent in one frame.
func (s *sender) scan(tail uint64) (uint64, error) {
	end := s.head
	for end < tail && end-s.head < maxFrameFromRing {
		size, flags := s.command(end)
		if size < transport.CommandHeaderSize || size%8 != 0 || size > transport.MaxCommand || size > tail-end {
			return 0, fmt.Errorf(
				"the program's command ring is damaged (a command of %d bytes at %d); did the program write over it?", size, end)
		}
		if flags&transport.FlagBulk != 0 {
			break
		}
		end += size
	}
	return end, nil
}

func (s *sender) command(at uint64) (size uint64, flags transport.CommandFlags) {
	b := s.ring[at&s.mask:]
	return uint64(binary.LittleEndian.Uint32(b)), transport.CommandFlags(binary.LittleEndian.Uint16(b[6:]))
}

// sendRing sends the ring up to end as one frame and gives the front its room back.
func (s *sender) sendRing(end uint64) error {
	s.heart.stir()
	start := s.head & s.mask
	if err := s.sendFrame(s.ring[start : start+end-s.head]); err != nil {
		return err
	}
	s.head = end
	atomic.StoreUint64(&s.shared.Head, end)
	if atomic.LoadUint32(&s.shared.Starved) != 0 {
		atomic.StoreUint32(&s.shared.Starved, 0)
		futexWake(&s.shared.Starved)
	}
	return nil
}

func (s *sender) sendFrame(commands []byte) error {
	header := transport.FrameHeader{Len: uint32(len(commands))}.Append(s.header[:0])
	s.bufs[0], s.bufs[1] = header, commands
	return s.write(s.bufs[:2])
}

// write sends all of bufs, which it uses up. The lock is held.
func (s *sender) write(bufs [][]byte) error {
	for len(bufs) > 0 {
		if len(bufs[0]) == 0 {
			bufs = bufs[1:]
			continue
		}
		n, err := s.conn.Send(bufs)
		if errors.Is(err, transport.ErrAgain) {
			if err := s.awaitRoom(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		s.traffic.sent.Add(uint64(n))
		for i := range bufs {
			k := min(n, len(bufs[i]))
			bufs[i] = bufs[i][k:]
			n -= k
		}
	}
	return nil
}

var padding [8]byte

// writeBulk sends data straight from the program's memory, padded.
func (s *sender) writeBulk(data []byte) error {
	pad := transport.Pad(len(data)) - len(data)
	for len(data) > 0 {
		s.bufs[0] = data
		n, err := s.conn.Send(s.bufs[:1])
		if errors.Is(err, transport.ErrAgain) {
			if err := s.awaitRoom(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		s.traffic.sent.Add(uint64(n))
		data = data[n:]
	}
	s.bufs[0] = padding[:pad]
	return s.write(s.bufs[:1])
}

// awaitRoom waits until the connection takes more bytes. As the server may be unable to read on before it has got rid
// of an answer, answers are read meanwhile, unless somebody else does.
func (s *sender) awaitRoom() error {
	if lost := s.shared.lost(); lost != 0 {
		return errEnded
	}
	s.heart.writers.Add(1)
	defer s.heart.writers.Add(-1)
	if !s.reader.tryRead() {
		_, err := s.conn.Wait(transport.Writable, otherReaderPause)
		return err
	}
	defer s.reader.endRead()
	ev, err := s.conn.Wait(transport.Readable|transport.Writable, -1)
	if err == nil && ev&transport.Readable != 0 {
		err = s.reader.readAvailable()
	}
	return err
}

// sendBulk sends the ring up to end, where a bulk command ends, and then data, or gives the upload that is on its way.
func (s *sender) sendBulk(end uint64, data []byte) *upload {
	s.Lock()
	up, err := s.takeTurn(end, data)
	s.Unlock()
	if err != nil {
		s.owner.broken(err)
	} else {
		s.flush(end)
	}
	return up
}

// takeTurn sends a bulk command and its data when it is the first in the ring. The lock is held, and let go in between.
func (s *sender) takeTurn(end uint64, data []byte) (*upload, error) {
	for {
		if s.shared.lost() != 0 {
			return nil, errEnded
		}
		stuck, err := s.drain(toTail)
		if err != nil {
			return nil, err
		}
		if !stuck {
			return nil, fmt.Errorf("no bulk command ends at %d of the command ring", end)
		}
		if size, _ := s.command(s.head); s.head+size == end {
			break
		}
		// Another thread's bulk command comes first.
		turn := atomic.LoadUint32(&s.turn)
		s.Unlock()
		futexWait(&s.turn, turn, 0)
		s.Lock()
	}
	up := s.sendBeside(data)
	err := s.sendRing(end)
	if err == nil && up == nil {
		err = s.writeBulk(data)
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
func (s *sender) sendBeside(data []byte) *upload {
	head := s.ring[s.head&s.mask:]
	if len(data) < bulk.MinTransfer || binary.LittleEndian.Uint16(head[4:]) != wire.OpCopyH2D {
		return nil
	}
	up := s.bulk.add(s.head, data)
	if up != nil {
		flags := binary.LittleEndian.Uint16(head[6:])
		binary.LittleEndian.PutUint16(head[6:], flags|uint16(transport.FlagTransfer))
	}
	return up
}

// own builds a command of the core itself.
func own(op uint16, flags transport.CommandFlags, payload []byte) []byte {
	size := transport.CommandHeaderSize + transport.Pad(len(payload))
	b := make([]byte, 0, size)
	b = transport.CommandHeader{Size: uint32(size), Op: op, Flags: flags, Thread: transport.CoreThread}.Append(b)
	return append(b, payload...)[:size]
}

// number gives a command of the core itself its number. The lock is held.
func (s *sender) number(command []byte) uint64 {
	s.own++
	binary.LittleEndian.PutUint64(command[8:], s.own)
	return s.own
}

// sendOwn sends a command of the core itself between those of the ring, and numbers it; numbered, if not nil, is told
// the number before the command is on its way.
func (s *sender) sendOwn(command, bulk []byte, numbered func(uint64)) error {
	s.heart.stir()
	s.Lock()
	n := s.number(command)
	if numbered != nil {
		numbered(n)
	}
	err := s.sendFrame(command)
	if err == nil && bulk != nil {
		err = s.writeBulk(bulk)
	}
	s.Unlock()
	if err == nil {
		s.flush(0)
	}
	return err
}

// sendRest sends what is pending, or gives up at the deadline.
func (s *sender) sendRest(deadline time.Time) {
	watch := time.AfterFunc(time.Until(deadline), s.conn.Shutdown)
	defer watch.Stop()
	for i := 0; !s.TryLock(); i++ {
		if time.Now().After(deadline) {
			return
		}
		nap(i)
	}
	_, err := s.drain(toTail)
	s.Unlock()
	if err == nil {
		_ = s.sendOwn(own(wire.OpBye, 0, make([]byte, 8)), nil, nil)
	}
}

// release wakes whoever sleeps for room or a turn, and the sender, after the end of the session.
func (s *sender) release() {
	atomic.StoreUint32(&s.shared.Starved, 0)
	futexWake(&s.shared.Starved)
	atomic.StoreUint32(&s.shared.Asleep, 0)
	futexWake(&s.shared.Asleep)
	atomic.AddUint32(&s.turn, 1)
	futexWake(&s.turn)
}
