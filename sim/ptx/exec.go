package ptx

import (
	"math"
	"math/bits"
	"slices"
)

const (
	lanes = 32
	full  = ^uint32(0)
)

// execFn carries out one instruction for the lanes of m.
type execFn func(w *warp, m uint32)

type instrKind uint8

const (
	kPlain instrKind = iota
	kMem             // may fault
	kBranch
	kBranchIndex
	kExit
	kReturn
	kCall
	kBarrier
	kClusterWait
	kWarpSync // waits for the lanes of a mask
	kYield    // gives other warps a turn
)

// instr is one decoded instruction.
type instr struct {
	run    execFn
	kind   instrKind
	not    bool  // the guard is negated
	guard  int32 // predicate, -1 for none
	target int32
	line   int32
	aux    any // *callInfo, *barrierInfo, *indexInfo, *syncInfo
}

type indexInfo struct {
	index   int
	targets []int32
}

type syncInfo struct{ mask int }

type barrierInfo struct {
	id, count int // register offsets, -1: none
	arrive    bool
	reduce    string // "", "popc", "and", "or"
	pred      predRef
	dst       int // register or predicate
}

type predRef struct {
	index int
	not   bool
}

// frame is one activation of a function by some lanes of a warp.
type frame struct {
	fn     *function
	regs   []uint64
	preds  []uint32
	params []byte // lane after lane
	base   uint64 // of its local variables
	parent *frame
	call   *callInfo
	ret    int32 // where parent goes on
	depth  int
	splits int // that run in it
}

type splitState uint8

const (
	ready      splitState = iota
	atBarrier             // until the block releases it
	atWarpSync            // until the lanes it needs have come
)

// split is a set of lanes of one warp that run together.
type split struct {
	mask  uint32
	pc    int32
	state splitState
	frame *frame
	stamp uint64 // when it ran last
}

type warp struct {
	// What instructions use: the frame of the running split.
	regs  []uint64
	preds []uint32
	frame *frame
	exec  uint32 // lanes of the running split
	line  int32

	blk   *block
	index int
	live  uint32 // lanes that have not exited
	// arrived are the lanes that have come to the cluster's barrier since it opened last.
	arrived uint32
	cc      uint32 // carry flags
	local   []byte // lane after lane
	stride  uint64 // local bytes of a lane
	splits  []*split
	cur     *split
	clock   uint64 // counts picks
	rotate  bool
	// yielded says that the last run ended at an instruction that gives up its turn.
	yielded bool
	root    *frame // of the kernel
	fault   *Fault
	free    []*frame
	spare   []*split
}

func (w *warp) r(off int) *[lanes]uint64 { return (*[lanes]uint64)(w.regs[off:]) }

func (w *warp) guard(p predRef) uint32 {
	v := w.preds[p.index]
	if p.not {
		return ^v
	}
	return v
}

func (w *warp) setPred(index int, m, v uint32) {
	w.preds[index] = w.preds[index]&^m | v&m
}

func (w *warp) enter(s *split) {
	f := s.frame
	w.cur, w.frame, w.regs, w.preds = s, f, f.regs, f.preds
}

func (w *warp) addSplit(mask uint32, pc int32, f *frame, st splitState) {
	var s *split
	if n := len(w.spare); n > 0 {
		s = w.spare[n-1]
		w.spare = w.spare[:n-1]
	} else {
		s = new(split)
	}
	*s = split{mask: mask, pc: pc, frame: f, state: st, stamp: w.clock}
	f.splits++
	w.splits = append(w.splits, s)
}

// drop forgets the i-th split; its lanes went elsewhere.
func (w *warp) drop(i int) {
	s := w.splits[i]
	s.frame.splits--
	last := len(w.splits) - 1
	w.splits[i] = w.splits[last]
	w.splits = w.splits[:last]
	w.spare = append(w.spare, s)
}

func (w *warp) dropCurrent() {
	for i, s := range w.splits {
		if s == w.cur {
			w.drop(i)
			return
		}
	}
}

// satisfied says whether a split at a warp-wide instruction has all lanes that at least one of its masks names.
func (w *warp) satisfied(s *split) bool {
	info := s.frame.fn.code[s.pc].aux.(*syncInfo)
	masks := s.frame.regs[info.mask:]
	for m := s.mask; m != 0; m &= m - 1 {
		if need := uint32(masks[bits.TrailingZeros32(m)]) & w.live; need&^s.mask == 0 {
			return true
		}
	}
	return false
}

// releaseWarpBarrier lets lanes go that wait in bar.warp.sync, which may be at different places, when all are there.
func (w *warp) releaseWarpBarrier() {
	waits := func(s *split) bool { return s.state == atWarpSync && s.frame.fn.code[s.pc].run == nil }
	arrived := uint32(0)
	for _, s := range w.splits {
		if waits(s) {
			arrived |= s.mask
		}
	}
	if arrived == 0 {
		return
	}
	for _, s := range slices.Clip(w.splits) {
		if !waits(s) {
			continue
		}
		masks := s.frame.regs[s.frame.fn.code[s.pc].aux.(*syncInfo).mask:]
		released := uint32(0)
		for m := s.mask; m != 0; m &= m - 1 {
			if l := lane(m); uint32(masks[l])&w.live&^arrived == 0 {
				released |= 1 << l
			}
		}
		if released == s.mask {
			s.state = ready
			s.pc++
		} else if released != 0 {
			s.mask &^= released
			w.addSplit(released, s.pc+1, s.frame, ready)
		}
	}
}

// pick joins splits that have met and returns the one to run and the place where it may meet another one. The split
// that is deepest in calls and then earliest in the text comes first, so that the others need not wait long to be
// joined.
func (w *warp) pick() (*split, int32) {
	w.clock++
	if len(w.splits) == 1 {
		s := w.splits[0]
		if s.state == ready || s.state == atWarpSync && w.satisfied(s) {
			s.state = ready
			return s, math.MaxInt32
		}
		return nil, 0
	}
	for i := 0; i < len(w.splits); i++ { // drop makes the list shorter
		a := w.splits[i]
		if a.state == atBarrier {
			continue
		}
		for j := len(w.splits) - 1; j > i; j-- {
			if b := w.splits[j]; b.state != atBarrier && b.pc == a.pc && b.frame == a.frame {
				a.mask |= b.mask
				if b.state == ready {
					a.state = ready
				}
				w.drop(j)
			}
		}
	}
	w.releaseWarpBarrier()
	var best *split
	for _, s := range w.splits {
		if s.state == atBarrier || s.state == atWarpSync && !w.satisfied(s) {
			continue
		}
		s.state = ready
		if best == nil || w.before(s, best) {
			best = s
		}
	}
	w.rotate = false
	if best == nil {
		return nil, 0
	}
	limit := int32(math.MaxInt32)
	for _, s := range w.splits {
		if s != best && s.state != atBarrier && s.frame == best.frame && s.pc > best.pc {
			limit = min(limit, s.pc)
		}
	}
	return best, limit
}

func (w *warp) before(a, b *split) bool {
	if w.rotate && a.stamp != b.stamp {
		return a.stamp < b.stamp
	}
	if a.frame.depth != b.frame.depth {
		return a.frame.depth > b.frame.depth
	}
	return a.pc < b.pc
}

// divergedSlice is how long a part of a warp runs before another part gets a turn, in instructions.
const divergedSlice = 8192

// run executes up to n instructions and returns how many it did: fewer than n when all lanes wait or have exited.
func (w *warp) run(n int) int {
	done := 0
	w.yielded = false
	for done < n && len(w.splits) > 0 {
		s, limit := w.pick()
		if s == nil {
			break
		}
		budget := n - done
		if len(w.splits) > 1 {
			budget = min(budget, divergedSlice)
		}
		s.stamp = w.clock
		w.enter(s)
		used, yield := w.execute(s, limit, budget)
		done += used
		if used == budget || yield {
			w.rotate = true
		}
		if yield {
			w.yielded = true
		}
		if w.fault != nil || yield {
			break
		}
	}
	return done
}

// execute runs one split until it ends, parts, waits, reaches limit or has done budget instructions.
func (w *warp) execute(s *split, limit int32, budget int) (used int, yield bool) {
	code := s.frame.fn.code
	pc := s.pc
	mask := s.mask
	w.exec = mask
	preds := w.preds
	for used < budget && pc < limit {
		in := &code[pc]
		used++
		m := mask
		if in.guard >= 0 {
			p := preds[in.guard]
			if in.not {
				p = ^p
			}
			if m &= p; m == 0 {
				pc++
				continue
			}
		}
		switch in.kind {
		case kPlain:
			in.run(w, m)
			pc++
		case kMem:
			w.line = in.line
			in.run(w, m)
			if w.fault != nil {
				s.pc = pc
				return used, false
			}
			pc++
		case kBranch:
			if m == mask {
				pc = in.target
				continue
			}
			s.mask, s.pc = mask&^m, pc+1
			w.addSplit(m, in.target, s.frame, ready)
			return used, false
		default:
			s.pc = pc
			w.line = in.line
			again := w.control(s, in, m)
			if w.fault != nil || !again {
				return used, in.kind == kYield
			}
			pc = s.pc
			if s.frame != w.frame || mask != s.mask {
				return used, false
			}
		}
	}
	s.pc = pc
	return used, false
}

// control carries out what changes the set of splits. It reports whether s goes on at s.pc.
func (w *warp) control(s *split, in *instr, m uint32) bool {
	pc := s.pc
	switch in.kind {
	case kYield:
		if in.run != nil {
			in.run(w, m)
		}
		s.pc++
		return false
	case kWarpSync:
		return w.warpSync(s, in, m)
	case kBranchIndex:
		info := in.aux.(*indexInfo)
		idx := w.r(info.index)
		if rest := s.mask &^ m; rest != 0 {
			w.addSplit(rest, pc+1, s.frame, ready)
		}
		for first := true; m != 0; first = false {
			lead := bits.TrailingZeros32(m)
			v := uint32(idx[lead])
			group := uint32(0)
			for k := m; k != 0; k &= k - 1 {
				if i := bits.TrailingZeros32(k); uint32(idx[i]) == v {
					group |= 1 << i
				}
			}
			m &^= group
			if v >= uint32(len(info.targets)) {
				w.setFault(lead, &Fault{Kind: InvalidPC, Message: "brx.idx beyond its list of targets"})
				return false
			}
			if first {
				s.mask, s.pc = group, info.targets[v]
			} else {
				w.addSplit(group, info.targets[v], s.frame, ready)
			}
		}
		return false
	case kExit:
		w.exit(s, m)
		return false
	case kReturn:
		if s.frame.parent == nil {
			w.exit(s, m)
			return false
		}
		w.ret(s, m)
		return false
	case kCall:
		w.call(s, in, m)
		return false
	case kBarrier:
		w.barrier(s, in, m)
		return false
	case kClusterWait:
		return w.clusterWait(s, m)
	}
	return false
}

func (w *warp) exit(s *split, m uint32) {
	w.live &^= m
	w.blk.live -= bits.OnesCount32(m)
	w.blk.exited = true
	if m == s.mask {
		w.dropCurrent()
		return
	}
	s.mask &^= m
	s.pc++
}

// warpSync runs an instruction that waits for the lanes of a mask, for each group of lanes that is complete. Lanes that
// are here but whose guard is false have passed the instruction and are not waited for.
func (w *warp) warpSync(s *split, in *instr, m uint32) bool {
	masks := w.r(in.aux.(*syncInfo).mask)
	pc := s.pc
	missing := uint32(0)
	for rest := m; rest != 0; {
		want := uint32(masks[bits.TrailingZeros32(rest)])
		group := uint32(0)
		for k := rest; k != 0; k &= k - 1 {
			if i := bits.TrailingZeros32(k); uint32(masks[i]) == want {
				group |= 1 << i
			}
		}
		rest &^= group
		if want&w.live&^s.mask != 0 {
			missing |= group
			continue
		}
		if in.run != nil {
			in.run(w, group)
		}
	}
	s.pc = pc + 1
	if missing == 0 {
		return true
	}
	if missing == s.mask {
		s.pc, s.state = pc, atWarpSync
		return false
	}
	s.mask &^= missing
	w.addSplit(missing, pc, s.frame, atWarpSync)
	return false
}

func (w *warp) setFault(lane int, f *Fault) {
	if w.fault != nil {
		return
	}
	f.Line = int(w.line)
	b := w.blk
	f.Block = b.id
	f.Thread = b.thread(w.index*lanes + lane)
	f.Kernel = b.run.grid.Kernel.Name
	w.fault = f
}
