package rdma

import (
	"log/slog"
	"sync"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/ring"
	"scuda.dev/scuda/verbs"
)

// The buffer is the memory of a side that usually needs none, since it sends from the program's memory and receives
// there. What cannot be registered, because that is more than may be locked or not memory of the kind, goes through it.

const partBytes = transport.MaxChunk

// ownMemory is the memory that every path of a link registers: slots in which chunks arrive, and the source from which
// they are sent to windows. Both may be halves of a buffer of the link's own.
//
// Locks: the link's guards all of it once there was a path. Before, it belongs to whoever opens that one.
type ownMemory struct {
	mu    *sync.Mutex // the link's
	moved *sync.Cond  // of mu: a piece is free again, or nobody copies

	slots      Memory
	slotBytes  int // 0: there are no slots
	source     Memory
	buffer     []byte   // half of it are slots, half is copied to before it is sent; nil: there is none
	spareParts []uint32 // pieces of the sending half that are free
	copying    int      // to such pieces

	log        *slog.Logger
	complained sync.Once // of memory that cannot be registered
}

// makeBuffer maps the buffer; it is pinned as long as there is a path.
func (o *ownMemory) makeBuffer(bytes int) (err error) {
	half := bytes / 2 / partBytes * partBytes
	if half == 0 {
		return nil
	}
	if o.buffer, err = mapMemory(2 * half); err != nil {
		return err
	}
	o.layBuffer(half)
	return nil
}

// layBuffer uses so many bytes of each half.
func (o *ownMemory) layBuffer(half int) {
	middle := len(o.buffer) / 2
	o.slots, o.slotBytes, o.source = Mapped(o.buffer[:half]), partBytes, Mapped(o.buffer[middle:middle+half])
	o.spareParts = o.spareParts[:0]
	for i := range half / partBytes {
		o.spareParts = append(o.spareParts, uint32(i))
	}
}

// halveBuffer makes do with less memory, or none, when the first path cannot have that. It says no where there is none
// to do without. There was no path yet, so nothing is in use.
func (o *ownMemory) halveBuffer(why error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.source.Bytes == 0 || o.buffer == nil {
		return false
	}
	half := int(o.source.Bytes) / 2 / partBytes * partBytes
	o.layBuffer(half)
	if half == 0 {
		o.log.Info("RDMA goes without a buffer for memory that cannot be registered", "error", why)
		o.slotBytes = 0
		_ = unmapMemory(o.buffer)
		o.buffer = nil
	}
	return true
}

// freeBuffer unmaps the buffer; there is no path any more that uses it.
func (o *ownMemory) freeBuffer() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.copying > 0 {
		o.moved.Wait()
	}
	if o.buffer != nil {
		_ = unmapMemory(o.buffer)
		o.buffer = nil
	}
}

// takePart copies a chunk into a free piece of the buffer and says where it lies. mu is held, and let go meanwhile.
func (o *ownMemory) takePart(data []byte) (part uint32, addr uint64) {
	last := len(o.spareParts) - 1
	part = o.spareParts[last]
	o.spareParts = o.spareParts[:last]
	mem := o.buffer[len(o.buffer)/2+int(part)*partBytes:]
	o.copying++
	o.mu.Unlock()
	copy(mem, data)
	o.mu.Lock()
	if o.copying--; o.copying == 0 {
		o.moved.Broadcast()
	}
	return part, address(mem)
}

// freePart ends the use of a piece of the buffer. mu is held.
func (o *ownMemory) freePart(part uint32) {
	if part != ring.NoSlot {
		o.spareParts = append(o.spareParts, part)
		o.moved.Broadcast()
	}
}

// forTrial gives memory from which to write when a path is measured.
func (o *ownMemory) forTrial(c *conn, bytes int, stats *Stats) (mem []byte, r region, free func(), err error) {
	if o.buffer != nil {
		middle := len(o.buffer) / 2
		return o.buffer[middle:][:bytes], region{c, c.sourceMR, true}, func() {}, nil
	}
	if mem, err = mapMemory(bytes); err != nil {
		return nil, region{}, nil, err
	}
	if r, err = c.register(nil, mem, verbs.Access(0), stats); err != nil {
		_ = unmapMemory(mem)
		return nil, region{}, nil, err
	}
	return mem, r, func() { r.release(); _ = unmapMemory(mem) }, nil
}

// slotCount is how many slots there are.
func (o *ownMemory) slotCount() int {
	if o.slotBytes == 0 {
		return 0
	}
	return int(o.slots.Bytes) / o.slotBytes
}

// refused logs that memory of the program could not be registered.
func (o *ownMemory) refused(err error) {
	o.complained.Do(func() {
		if o.buffer != nil {
			o.log.Warn("memory of the program cannot be registered for RDMA; its copies go through a buffer", "buffer",
				len(o.buffer), "error", err)
		} else {
			o.log.Warn("memory of the program cannot be registered for RDMA; its copies go over TCP", "error", err)
		}
	})
}
