package rdma

import (
	"fmt"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/ring"
	"scuda.dev/scuda/verbs"
)

// The buffer is the memory of a side that usually needs none, since it sends from the program's memory and receives
// there. What cannot be registered, because that is more than may be locked or not memory of the kind, goes through it.

const partBytes = transport.MaxChunk

// makeBuffer maps the buffer; it is pinned as long as there is a path.
func (l *Link[M]) makeBuffer(bytes int) (err error) {
	half := bytes / 2 / partBytes * partBytes
	if half == 0 {
		return nil
	}
	if l.buffer, err = mapMemory(2 * half); err != nil {
		return err
	}
	l.layBuffer(half)
	return nil
}

// layBuffer uses so many bytes of each half.
func (l *Link[M]) layBuffer(half int) {
	middle := len(l.buffer) / 2
	l.cfg.Slots, l.cfg.SlotBytes, l.cfg.Source = Mapped(l.buffer[:half]), partBytes, Mapped(l.buffer[middle:middle+half])
	l.spareParts = l.spareParts[:0]
	for i := range half / partBytes {
		l.spareParts = append(l.spareParts, uint32(i))
	}
}

// halveBuffer makes do with less memory, or none, when the first path cannot have that. It says no where there is none
// to do without.
func (l *Link[M]) halveBuffer(why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peer != nil || l.cfg.Source.Bytes == 0 || l.buffer == nil {
		return false
	}
	half := int(l.cfg.Source.Bytes) / 2 / partBytes * partBytes
	l.layBuffer(half)
	if half == 0 {
		l.log.Info("RDMA goes without a buffer for memory that cannot be registered", "error", why)
		l.cfg.SlotBytes = 0
		_ = unmapMemory(l.buffer)
		l.buffer = nil
	}
	return true
}

// freeBuffer unmaps the buffer; there is no path any more that uses it.
func (l *Link[M]) freeBuffer() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.copying > 0 {
		l.moved.Wait()
	}
	if l.buffer != nil {
		_ = unmapMemory(l.buffer)
		l.buffer = nil
	}
}

// takePart copies a chunk into a free piece of the buffer and says where it lies. mu is held, and let go meanwhile.
func (l *Link[M]) takePart(data []byte) (part uint32, addr uint64) {
	last := len(l.spareParts) - 1
	part = l.spareParts[last]
	l.spareParts = l.spareParts[:last]
	mem := l.buffer[len(l.buffer)/2+int(part)*partBytes:]
	l.copying++
	l.mu.Unlock()
	copy(mem, data)
	l.mu.Lock()
	if l.copying--; l.copying == 0 {
		l.moved.Broadcast()
	}
	return part, address(mem)
}

// freePart ends the use of a piece of the buffer. mu is held.
func (l *Link[M]) freePart(part uint32) {
	if part != ring.NoSlot {
		l.spareParts = append(l.spareParts, part)
		l.moved.Broadcast()
	}
}

// deliver copies what has arrived in the buffer to where it belongs.
func (l *Link[M]) deliver(h *header) {
	slot := l.buffer[int(h.slot)*partBytes:][:h.chunk.Bytes]
	dst := l.cfg.Handler.Memory(h.chunk.ID, h.chunk.Offset+uint64(len(slot)))
	if h.chunk.Offset > uint64(len(dst)) || uint64(len(slot)) > uint64(len(dst))-h.chunk.Offset {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.conn; c != nil {
			c.cancel(fmt.Errorf("%w: %d bytes at %d of transfer %d, which has %d", ring.ErrProtocol, len(slot), h.chunk.Offset,
				h.chunk.ID, len(dst)))
		}
		return
	}
	copy(dst[h.chunk.Offset:], slot)
	l.Release(h.slot)
	l.cfg.Handler.Placed(h.chunk)
}

// measuringMemory gives memory from which to write when a path is measured.
func (l *Link[M]) measuringMemory(c *conn, bytes int) (mem []byte, r region, free func(), err error) {
	if l.buffer != nil {
		middle := len(l.buffer) / 2
		return l.buffer[middle:][:bytes], region{c, c.sourceMR, true}, func() {}, nil
	}
	if mem, err = mapMemory(bytes); err != nil {
		return nil, region{}, nil, err
	}
	if r, err = c.register(nil, mem, verbs.Access(0), l.cfg.Stats); err != nil {
		_ = unmapMemory(mem)
		return nil, region{}, nil, err
	}
	return mem, r, func() { r.release(); _ = unmapMemory(mem) }, nil
}
