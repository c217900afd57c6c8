package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// sender sends what nobody waits for. It spins for a moment after its last work, so that a burst of commands pays no
// wake-ups; for longer while a thread waits for an answer, since it will go on then, where there are processors enough.
func (s *Session) sender() {
	runtime.LockOSThread()
	awaited, lingers := time.Duration(0), time.Duration(0)
	if runtime.NumCPU() >= manyCPUs {
		awaited, lingers = spinAwaited, linger
	}
	worked := time.Now()
	seen, idle := atomic.LoadUint64(&s.shared.Head), time.Now()
	for i := 0; s.lost() == 0; i++ {
		if tail := atomic.LoadUint64(&s.shared.Tail); tail != seen || s.send.again.Load() {
			seen = tail
			if !s.send.again.Swap(false) {
				for began := time.Now(); time.Since(began) < lingers && atomic.LoadUint64(&s.shared.Head) != tail; {
				}
			}
			s.flush(toTail)
			worked, i = time.Now(), 0
			idle = worked
			continue
		}
		now := time.Now()
		if now.Sub(worked) < awaited && atomic.LoadUint32(&s.reader.lock) != 0 {
			idle = now
		}
		if now.Sub(idle) < spin {
			nap(i)
			continue
		}
		atomic.StoreUint32(&s.shared.Asleep, 1)
		if atomic.LoadUint64(&s.shared.Tail) == seen && !s.send.again.Load() && s.lost() == 0 {
			futexWait(&s.shared.Asleep, 1, 0)
		}
		atomic.StoreUint32(&s.shared.Asleep, 0)
		idle = time.Now()
	}
}

const toTail = ^uint64(0)

// flush sends what the ring holds, unless somebody else is about to: whoever holds the send lock looks at the ring
// again after freeing it. A caller that only cares for the ring up to end leaves what came behind it to the sender,
// lest it sends for others for ever.
func (s *Session) flush(end uint64) {
	for s.lost() == 0 && s.send.TryLock() {
		stuck, err := s.drain(end)
		s.send.Unlock()
		if err != nil {
			s.broken(err)
			return
		}
		head := atomic.LoadUint64(&s.shared.Head)
		if stuck || atomic.LoadUint64(&s.shared.Tail) == head {
			return
		}
		if head >= end {
			s.wakeSender()
			return
		}
	}
}

func (s *Session) wakeSender() {
	s.send.again.Store(true)
	if atomic.CompareAndSwapUint32(&s.shared.Asleep, 1, 0) {
		futexWake(&s.shared.Asleep)
	}
}

// drain sends the ring at least up to want or its tail, or up to a bulk command, whose owner is on the way with the
// data; then stuck is true. The send lock is held.
func (s *Session) drain(want uint64) (stuck bool, err error) {
	for {
		tail := atomic.LoadUint64(&s.shared.Tail)
		if tail == s.send.head || s.send.head >= want {
			return false, nil
		}
		end, err := s.scan(tail)
		if err != nil {
			return false, err
		}
		if end == s.send.head {
			return true, nil
		}
		if err := s.sendRing(end); err != nil {
			return false, err
		}
	}
}

// scan finds how far the ring may be sent in one frame.
func (s *Session) scan(tail uint64) (uint64, error) {
	end := s.send.head
	for end < tail && end-s.send.head < maxFrameFromRing {
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

func (s *Session) command(at uint64) (size uint64, flags transport.CommandFlags) {
	b := s.ring[at&s.mask:]
	return uint64(binary.LittleEndian.Uint32(b)), transport.CommandFlags(binary.LittleEndian.Uint16(b[6:]))
}

// sendRing sends the ring up to end as one frame and gives the front its room back.
func (s *Session) sendRing(end uint64) error {
	start := s.send.head & s.mask
	if err := s.sendFrame(s.ring[start : start+end-s.send.head]); err != nil {
		return err
	}
	s.send.head = end
	atomic.StoreUint64(&s.shared.Head, end)
	if atomic.LoadUint32(&s.shared.Starved) != 0 {
		atomic.StoreUint32(&s.shared.Starved, 0)
		futexWake(&s.shared.Starved)
	}
	return nil
}

func (s *Session) sendFrame(commands []byte) error {
	header := transport.FrameHeader{Len: uint32(len(commands))}.Append(s.send.header[:0])
	s.send.bufs[0], s.send.bufs[1] = header, commands
	return s.write(s.send.bufs[:2])
}

// write sends all of bufs, which it uses up. The send lock is held.
func (s *Session) write(bufs [][]byte) error {
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
		s.sent.Add(uint64(n))
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
func (s *Session) writeBulk(data []byte) error {
	pad := transport.Pad(len(data)) - len(data)
	for len(data) > 0 {
		s.send.bufs[0] = data
		n, err := s.conn.Send(s.send.bufs[:1])
		if errors.Is(err, transport.ErrAgain) {
			if err := s.awaitRoom(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		s.sent.Add(uint64(n))
		data = data[n:]
	}
	s.send.bufs[0] = padding[:pad]
	return s.write(s.send.bufs[:1])
}

// awaitRoom waits until the connection takes more bytes. As the server may be unable to read on before it has got rid
// of an answer, answers are read meanwhile, unless somebody else does.
func (s *Session) awaitRoom() error {
	if lost := s.lost(); lost != 0 {
		return errEnded
	}
	if !s.tryRead() {
		_, err := s.conn.Wait(transport.Writable, otherReaderPause)
		return err
	}
	defer s.endRead()
	ev, err := s.conn.Wait(transport.Readable|transport.Writable, -1)
	if err == nil && ev&transport.Readable != 0 {
		err = s.readAvailable()
	}
	return err
}

// Bulk sends the ring up to end, where a bulk command ends, and then data. It returns when data may be reused.
func (s *Session) Bulk(end uint64, data []byte) int32 {
	s.wantBulk(len(data))
	s.send.Lock()
	up, err := s.sendBulk(end, data)
	s.send.Unlock()
	if err != nil {
		s.broken(err)
	} else {
		s.flush(end)
	}
	if up != nil {
		s.awaitUpload(up)
		if up.Err != nil { // whoever saw the connection break may not have come to say so yet
			s.fail(fmt.Errorf("a bulk connection broke during a copy: %w", up.Err))
		}
	}
	return s.lost()
}

// sendBulk sends a bulk command and its data, or gives the upload that is on its way.
func (s *Session) sendBulk(end uint64, data []byte) (*upload, error) {
	for {
		if s.lost() != 0 {
			return nil, errEnded
		}
		stuck, err := s.drain(toTail)
		if err != nil {
			return nil, err
		}
		if !stuck {
			return nil, fmt.Errorf("no bulk command ends at %d of the command ring", end)
		}
		if size, _ := s.command(s.send.head); s.send.head+size == end {
			break
		}
		// Another thread's bulk command comes first.
		turn := atomic.LoadUint32(&s.send.turn)
		s.send.Unlock()
		futexWait(&s.send.turn, turn, 0)
		s.send.Lock()
	}
	up := s.sendBeside(data)
	err := s.sendRing(end)
	if err == nil && up == nil {
		err = s.writeBulk(data)
	}
	if err != nil {
		return up, err
	}
	atomic.AddUint32(&s.send.turn, 1)
	futexWake(&s.send.turn)
	return up, nil
}

// sendBeside hands the data of the command at the ring's head over to the bulk connections; nil when they are not for
// it.
func (s *Session) sendBeside(data []byte) *upload {
	head := s.ring[s.send.head&s.mask:]
	if len(data) < bulk.MinTransfer || binary.LittleEndian.Uint16(head[4:]) != wire.OpCopyH2D {
		return nil
	}
	up := s.bulk.add(s.send.head, data)
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

// sendOwn sends a command of the core itself between those of the ring.
func (s *Session) sendOwn(command, bulk []byte) error {
	s.send.Lock()
	err := s.sendFrame(command)
	if err == nil && bulk != nil {
		err = s.writeBulk(bulk)
	}
	s.send.Unlock()
	if err == nil {
		s.flush(0)
	}
	return err
}

// sendRest sends what is pending, or gives up at the deadline.
func (s *Session) sendRest(deadline time.Time) {
	watch := time.AfterFunc(time.Until(deadline), s.conn.Shutdown)
	defer watch.Stop()
	for i := 0; !s.send.TryLock(); i++ {
		if time.Now().After(deadline) {
			return
		}
		nap(i)
	}
	defer s.send.Unlock()
	_, _ = s.drain(toTail)
}
