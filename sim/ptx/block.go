package ptx

import "math/bits"

// block is one thread block while it runs. A single goroutine runs all its warps in turn.
type block struct {
	run    *gridRun
	wk     *worker
	id     [3]uint32
	flat   uint64
	group  *cluster
	rank   uint32 // in the cluster
	base   uint64 // where its shared memory begins
	warps  []warp
	shared []byte
	bars   [16]barrier
	live   int  // threads that have not exited
	exited bool // since the barriers were looked at
}

type barrier struct {
	arrived int
	count   int // that complete it, 0: all threads that live
	waiters []waiter
	popc    int
	and, or bool
}

type waiter struct {
	w *warp
	s *split
}

func (b *block) thread(flat int) [3]uint32 {
	d := b.run.grid.BlockDim
	t := uint32(flat)
	return [3]uint32{t % d[0], t / d[0] % d[1], t / d[0] / d[1]}
}

// start makes the block the one at a place in the grid.
func (b *block) start(id [3]uint32) {
	g := b.run.grid
	b.id = id
	b.flat = uint64(id[0]) + uint64(g.GridDim[0])*(uint64(id[1])+uint64(g.GridDim[1])*uint64(id[2]))
	b.live = b.run.threads
	b.exited = false
	clear(b.shared)
	for i := range b.bars {
		b.bars[i] = barrier{waiters: b.bars[i].waiters[:0]}
	}
	fn := g.Kernel.fn
	for i := range b.warps {
		w := &b.warps[i]
		w.blk, w.index, w.fault, w.cc, w.rotate, w.arrived = b, i, nil, 0, false, 0
		w.live = full
		if rest := b.run.threads - i*lanes; rest < lanes {
			w.live = 1<<rest - 1
		}
		clear(w.local)
		w.growLocal(fn.local)
		w.splits = w.splits[:0]
		w.root = w.newFrame(fn, 0)
		w.addSplit(w.live, 0, w.root, ready)
	}
}

// warpSlice is how many instructions a warp executes before the next one of its block gets a turn.
const warpSlice = 4096

// step executes up to n instructions. Of what it did it returns the number; the block is done when live is 0. Blocks of
// a larger cluster may have nothing to do.
func (b *block) step(n int) (used int, fault *Fault) {
	for used < n && b.live > 0 {
		ran, yielded, did := 0, 0, 0
		for i := range b.warps {
			w := &b.warps[i]
			if len(w.splits) == 0 {
				continue
			}
			k := w.run(warpSlice)
			if w.fault != nil {
				return used + did + k, w.fault
			}
			if b.exited {
				b.exited = false
				b.recheck()
			}
			if k > 0 {
				ran++
				did += k
				if w.yielded {
					yielded++
				}
			}
		}
		used += did
		if did == 0 {
			if len(b.group.blocks) > 1 {
				return used, nil
			}
			return used, b.stuck(Deadlock)
		}
		if ran == yielded {
			break
		}
	}
	if b.live == 0 {
		for i := range b.warps {
			b.warps[i].recycle()
		}
	}
	return used, nil
}

// recycle keeps the frame of the kernel itself for the next block.
func (w *warp) recycle() {
	for i := range w.free {
		w.free[i].parent = nil
	}
	if w.root != nil {
		w.free = append(w.free, w.root)
		w.root = nil
	}
}

// stuck describes a block that does not go on by a thread of it.
func (b *block) stuck(kind FaultKind) *Fault {
	for i := range b.warps {
		w := &b.warps[i]
		if len(w.splits) > 0 {
			s := w.splits[0]
			w.line = s.frame.fn.code[s.pc].line
			w.setFault(bits.TrailingZeros32(s.mask), &Fault{Kind: kind})
			return w.fault
		}
	}
	return &Fault{Kind: kind, Kernel: b.run.grid.Kernel.Name, Block: b.id}
}

func (w *warp) barrier(s *split, in *instr, m uint32) {
	info := in.aux.(*barrierInfo)
	lead := bits.TrailingZeros32(m)
	id := uint64(uint32(w.r(info.id)[lead]))
	if id >= uint64(len(w.blk.bars)) {
		w.setFault(lead, &Fault{Kind: Trap, Message: "barrier number above 15"})
		return
	}
	bar := &w.blk.bars[id]
	if rest := s.mask &^ m; rest != 0 {
		w.addSplit(rest, s.pc+1, s.frame, ready)
		s.mask = m
	}
	n := bits.OnesCount32(m)
	if info.count >= 0 {
		bar.count = int(uint32(w.r(info.count)[lead]))
		if bar.count == 0 || bar.count%lanes != 0 {
			w.setFault(lead, &Fault{Kind: Trap, Message: "the thread count of a barrier is no multiple of 32"})
			return
		}
		if m == w.live {
			n = lanes // counts of threads are counts of warps
		}
	}
	if len(bar.waiters) == 0 && bar.arrived == 0 {
		bar.popc, bar.and, bar.or = 0, true, false
	}
	bar.arrived += n
	if info.reduce != "" {
		v := w.guard(info.pred) & m
		bar.popc += bits.OnesCount32(v)
		bar.and = bar.and && v == m
		bar.or = bar.or || v != 0
	}
	if info.arrive {
		s.pc++
	} else {
		s.state = atBarrier
		bar.waiters = append(bar.waiters, waiter{w, s})
	}
	w.blk.complete(bar)
}

// complete releases a barrier whose threads are all there.
func (b *block) complete(bar *barrier) {
	need := bar.count
	if need == 0 {
		need = b.live
	}
	if bar.arrived == 0 || bar.arrived < need {
		return
	}
	for _, wt := range bar.waiters {
		s := wt.s
		info := s.frame.fn.code[s.pc].aux.(*barrierInfo)
		switch info.reduce {
		case "popc":
			d := (*[lanes]uint64)(s.frame.regs[info.dst:])
			for m := s.mask; m != 0; m &= m - 1 {
				d[bits.TrailingZeros32(m)] = uint64(bar.popc)
			}
		case "and", "or":
			v := uint32(0)
			if info.reduce == "and" && bar.and || info.reduce == "or" && bar.or {
				v = full
			}
			s.frame.preds[info.dst] = s.frame.preds[info.dst]&^s.mask | v&s.mask
		}
		s.state = ready
		s.pc++
	}
	*bar = barrier{waiters: bar.waiters[:0]}
}

// recheck looks at barriers that wait for threads which have exited meanwhile.
func (b *block) recheck() {
	for i := range b.bars {
		if b.bars[i].arrived > 0 && b.bars[i].count == 0 {
			b.complete(&b.bars[i])
		}
	}
	b.group.complete()
}
