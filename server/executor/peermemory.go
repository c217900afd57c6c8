package executor

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// peerMemory is what chunks go through. It is used again when the connections have ended for which it was made.
type peerMemory struct {
	mem      []byte
	arena    arena    // a part of it, for what is said to the driver: a command has the session's
	owner    *context // in which the driver has page-locked it
	all      []*slot
	up, down []*slot // of them: for what comes, and for what goes
	landing  []*slot // of them: in which chunks arrive by RDMA
}

// lock has memory for chunks page-locked, which lasts as long as the context.
func (p *peer) lock(ctx *context) bool {
	if p.mem == nil && !p.lay() {
		return false
	}
	if p.owner != nil && p.ps.contexts[p.owner.handle] == p.owner { // memory that is used again has one, too
		return true
	}
	r := p.ps.within(ctx, func() cuda.CUresult {
		return p.ps.gpu.CuMemHostRegister_v2(pointerTo(p.mem), uint64(len(p.mem)), hostPortable)
	})
	if r != cuda.CUDA_SUCCESS && r != cuda.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED {
		p.ps.log.Warn("the driver does not page-lock memory for copies between servers", "bytes", len(p.mem), "result",
			resultText(r))
		return false
	}
	p.owner = ctx
	return true
}

// peerSlots are the slots of 1 MiB for each direction, and for what comes by RDMA.
const peerSlots = 12

// lay gets memory: that of connections which have ended, or more.
func (p *peer) lay() bool {
	const rest = 128 << 10
	count := 2 * peerSlots
	if p.ps.hasRDMA() {
		count = 3 * peerSlots
	}
	slots := count * largeBytes
	if p.inherit() {
		return true
	}
	if !p.ps.pinned.take(uint64(slots + rest)) {
		return false
	}
	mem, err := mapMemory(slots + rest)
	if err != nil {
		p.ps.pinned.give(uint64(slots + rest))
		p.ps.log.Warn("there is no memory for copies between servers", "error", err)
		return false
	}
	p.mem, p.arena.mem = mem, mem[slots:]
	for i := range count {
		sl := &slot{path: i >= 2*peerSlots, index: uint32(i % peerSlots), waker: p.ps.waker}
		sl.mem = mem[i*largeBytes : (i+1)*largeBytes : (i+1)*largeBytes]
		sl.free.Store(true)
		p.all = append(p.all, sl)
	}
	p.up, p.down, p.landing = p.all[:peerSlots], p.all[peerSlots:2*peerSlots], p.all[2*peerSlots:]
	p.ps.mu.Lock()
	defer p.ps.mu.Unlock()
	p.hasMemory()
	return true
}

// inherit takes over the memory of connections that have ended, if there is some that nobody uses any more.
func (p *peer) inherit() bool {
	ps := p.ps
	ps.mu.Lock()
	defer ps.mu.Unlock()
	i := slices.IndexFunc(ps.old, func(o *peer) bool { return o.mem != nil && o.users.Load() == 0 && o.rests() })
	if i < 0 {
		return false
	}
	p.peerMemory, ps.old[i].peerMemory = ps.old[i].peerMemory, peerMemory{} // it is not looked at twice
	ps.old = slices.Delete(ps.old, i, i+1)
	p.hasMemory()
	for _, sl := range p.all {
		sl.free.Store(true)
	}
	return true
}

// release says that nobody needs what is in a slot.
func (p *peer) release(sl *slot) {
	if sl.path {
		p.via.Release(sl.index)
	} else {
		sl.free.Store(true)
	}
}

// finish frees a slot with which the GPU is through.
func (p *peer) finish(sl *slot, r cuda.CUresult) {
	rc := sl.receive
	sl.event, sl.st, sl.receive = 0, nil, nil
	p.release(sl)
	if rc == nil {
		return
	}
	if rc.landing--; rc.result == cuda.CUDA_SUCCESS {
		rc.result = r
	}
	p.ps.endLanded(rc)
}

// reclaim frees the slots with which the GPU is through.
func (p *peer) reclaim() (progress bool) {
	for _, sl := range p.all {
		if sl.event == 0 {
			continue
		}
		r := p.ps.gpu.CuEventQuery(sl.event)
		if r == cuda.CUDA_ERROR_NOT_READY {
			continue
		}
		sl.st.ctx.events = append(sl.st.ctx.events, sl.event)
		p.finish(sl, r)
		progress = true
	}
	return progress
}

// hasMemory notes that there is memory, which is kept when others take the place of the connections, as they may have
// done by now: only such peers are kept, as a client can have others take their place without end. ps.mu is held.
func (p *peer) hasMemory() {
	p.laid = true
	if p.ps.list[p.number] != p {
		p.ps.old = append(p.ps.old, p)
	}
}
