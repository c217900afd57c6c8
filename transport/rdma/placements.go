package rdma

import "scuda.dev/scuda/transport/bulk"

// placement is a chunk that waits for its window or for room.
type placement[M any] struct {
	chunk  bulk.Chunk
	addr   uint64 // of the bytes
	m      M
	remote uint64
	key    uint32
	slot   bool // it goes into a slot, as the peer has no window for it
}

// target is a window that the peer was asked for.
type target[M any] struct {
	seq     uint64
	granted bool
	refused bool
	over    bool // nothing will be placed any more
	w       window
	waiting []placement[M]
}

// placements are the chunks that go to windows of the peer, and the windows that it was asked for. The link's lock
// guards them.
type placements[M any] struct {
	targets map[uint32]*target[M]
	queue   []placement[M] // have their place, and wait for room
}

// aim gives a chunk its place in the window, or has it go into a slot where there is no window; no where neither can
// be. slotBytes is the size of the peer's slots, less than 0 where there are none.
func (ps *placements[M]) aim(t *target[M], p *placement[M], slotBytes int) bool {
	if t.refused {
		p.slot = true
		return int(p.chunk.Bytes) <= slotBytes
	}
	if p.chunk.Offset > t.w.bytes || uint64(p.chunk.Bytes) > t.w.bytes-p.chunk.Offset {
		return false
	}
	p.remote, p.key = t.w.addr+p.chunk.Offset, t.w.key
	return true
}

// want notes that the peer is asked for a window.
func (ps *placements[M]) want(id uint32, seq uint64) { ps.targets[id] = &target[M]{seq: seq} }

// add takes a chunk, and says whether it may be posted now; ok is false where it has no place.
func (ps *placements[M]) add(p placement[M], slotBytes int) (now, ok bool) {
	t := ps.targets[p.chunk.ID]
	if t == nil || t.seq != p.chunk.Seq {
		return false, false
	}
	if !t.granted && !t.refused {
		t.waiting = append(t.waiting, p)
		return false, true
	}
	if !ps.aim(t, &p, slotBytes) {
		return false, false
	}
	ps.queue = append(ps.queue, p)
	return true, true
}

// asked is the window that an answer of the peer is about; nil where it is about none any more.
func (ps *placements[M]) asked(id uint32, seq uint64) *target[M] {
	if t := ps.targets[id]; t != nil && t.seq == seq && !t.granted && !t.refused {
		return t
	}
	return nil
}

// settle gives the chunks that waited for a window their places, now that the peer has answered. Those without one go
// to giveBack.
func (ps *placements[M]) settle(id uint32, t *target[M], slotBytes int, giveBack func(M)) {
	for _, p := range t.waiting {
		if ps.aim(t, &p, slotBytes) {
			ps.queue = append(ps.queue, p)
		} else {
			giveBack(p.m)
		}
	}
	if t.waiting = nil; t.over {
		delete(ps.targets, id)
	}
}

// forget ends a window; all its chunks have been added.
func (ps *placements[M]) forget(id uint32, seq uint64) {
	if t := ps.targets[id]; t != nil && t.seq == seq {
		if t.over = true; len(t.waiting) == 0 {
			delete(ps.targets, id)
		}
	}
}

// posted takes the first n chunks out of the queue.
func (ps *placements[M]) posted(n int) {
	left := copy(ps.queue, ps.queue[n:])
	clear(ps.queue[left:])
	ps.queue = ps.queue[:left]
}

// clear gives every chunk back: the path is over, and with it the windows.
func (ps *placements[M]) clear(giveBack func(M)) {
	for _, p := range ps.queue {
		giveBack(p.m)
	}
	clear(ps.queue)
	ps.queue = ps.queue[:0]
	for _, t := range ps.targets {
		for _, p := range t.waiting {
			giveBack(p.m)
		}
	}
	clear(ps.targets)
}
