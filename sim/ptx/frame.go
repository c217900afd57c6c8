package ptx

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// callInfo is a call's side of the matter.
type callInfo struct {
	target  *function // nil for a call through a pointer
	pointer int       // register of it
	rets    []actual
	args    []actual
}

// actual is an argument or the place of a result in the caller: a register or call parameter memory.
type actual struct {
	reg  int      // -1: memory
	pred *predRef // a predicate, and nothing else
	off  uint64
	size uint64
}

type special uint8

const (
	spTidX special = iota
	spTidY
	spTidZ
	spCtaidX
	spCtaidY
	spCtaidZ
	spLane
	spWarp
	spLaneEq
	spLaneLe
	spLaneLt
	spLaneGe
	spLaneGt
	spClusterX
	spClusterY
	spClusterZ
	spInClusterX
	spInClusterY
	spInClusterZ
	spRankInCluster
	spSM
)

type initKind uint8

const (
	initValue   initKind = iota // val
	initGlobal                  // address of global sym plus val
	initShared                  // offset of v plus val
	initSpecial                 // val is the special
	initLocal                   // val is an offset
	initUniform                 // val is a uniform
)

// initSlot is a register that has its value from the start: constants, addresses and special registers.
type initSlot struct {
	off  int
	kind initKind
	val  uint64
	sym  string
	v    *variable
}

// template is a function's initial registers in one launch.
type template struct {
	uniform []struct {
		off int
		val uint64
	}
	special []initSlot
}

func fill(d *[lanes]uint64, v uint64) {
	for i := range d {
		d[i] = v
	}
}

func (w *warp) newFrame(fn *function, base uint64) *frame {
	var f *frame
	for i, v := range slices.Backward(w.free) {
		if v.fn == fn {
			f = v
			w.free = append(w.free[:i], w.free[i+1:]...)
			break
		}
	}
	if f == nil {
		f = &frame{fn: fn, regs: make([]uint64, fn.slots*lanes), preds: make([]uint32, fn.preds),
			params: make([]byte, fn.params*lanes)}
		for _, u := range w.blk.run.templates[fn].uniform {
			fill((*[lanes]uint64)(f.regs[u.off:]), u.val)
		}
	} else {
		// Constants are as they were.
		clear(f.regs[:fn.allocated*lanes])
		clear(f.preds)
	}
	f.base, f.parent, f.call, f.depth, f.splits = base, nil, nil, 0, 0
	w.fillSpecial(f)
	return f
}

// fillSpecial sets the registers that differ between warps, blocks or activations.
func (w *warp) fillSpecial(f *frame) {
	t := w.blk.run.templates[f.fn]
	b := w.blk
	dim := b.run.grid.BlockDim
	for _, s := range t.special {
		d := (*[lanes]uint64)(f.regs[s.off:])
		first := uint32(w.index * lanes)
		sp := special(s.val)
		switch s.kind {
		case initLocal:
			fill(d, f.base+s.val)
			continue
		case initShared:
			fill(d, b.base+uint64(b.run.grid.Kernel.shared[s.v])+s.val)
			continue
		}
		switch sp {
		case spCtaidX, spCtaidY, spCtaidZ:
			fill(d, uint64(b.id[sp-spCtaidX]))
			continue
		case spWarp:
			fill(d, uint64(w.index))
			continue
		case spSM:
			fill(d, b.flat%uint64(max(b.run.grid.SMs, 1)))
			continue
		case spClusterX, spClusterY, spClusterZ:
			k := sp - spClusterX
			fill(d, uint64(b.id[k]/b.run.cluster[k]))
			continue
		case spInClusterX, spInClusterY, spInClusterZ:
			k := sp - spInClusterX
			fill(d, uint64(b.id[k]%b.run.cluster[k]))
			continue
		case spRankInCluster:
			fill(d, uint64(b.rank))
			continue
		}
		for i := range d {
			t := first + uint32(i)
			var v uint32
			switch sp {
			case spTidX:
				v = t % dim[0]
			case spTidY:
				v = t / dim[0] % dim[1]
			case spTidZ:
				v = t / dim[0] / dim[1]
			case spLane:
				v = uint32(i)
			case spLaneEq:
				v = 1 << i
			case spLaneLt:
				v = 1<<i - 1
			case spLaneLe:
				v = 2<<i - 1
			case spLaneGe:
				v = -(1 << i)
			case spLaneGt:
				v = -(2 << i)
			}
			d[i] = uint64(v)
		}
	}
}

// maxCallDepth, maxLocal and maxFrames (bytes of a warp) bound what recursion may use.
const (
	maxCallDepth = 4096
	maxFrames    = 64 << 20
)

func (w *warp) call(s *split, in *instr, m uint32) {
	info := in.aux.(*callInfo)
	pc := s.pc
	caller := s.frame
	for rest := m; rest != 0; {
		group := rest
		fn := info.target
		lead := bits.TrailingZeros32(rest)
		if fn == nil {
			ptr := w.r(info.pointer)
			group = 0
			for k := rest; k != 0; k &= k - 1 {
				if i := bits.TrailingZeros32(k); ptr[i] == ptr[lead] {
					group |= 1 << i
				}
			}
			fn = w.blk.run.grid.Kernel.module.functionAt(ptr[lead])
			if fn == nil || len(fn.sig.params) != len(info.args) || len(fn.sig.rets) != len(info.rets) {
				w.setFault(lead,
					&Fault{Kind: InvalidPC, Message: "call through a pointer that is not the address of such a function"})
				return
			}
		}
		rest &^= group
		base := alignUp(caller.base+caller.fn.local, 16)
		if caller.depth >= maxCallDepth || base+fn.local > maxLocal ||
			uint64(caller.depth+1)*(fn.params*lanes+uint64(fn.slots)*lanes*8) > maxFrames {
			w.setFault(lead, &Fault{Kind: IllegalAddress, Message: "stack overflow"})
			return
		}
		w.growLocal(base + fn.local)
		f := w.newFrame(fn, base)
		f.parent, f.call, f.ret, f.depth = caller, info, pc+1, caller.depth+1
		for i, formal := range fn.sig.params {
			pass(caller, info.args[i], f, formal, group, true)
		}
		w.addSplit(group, 0, f, ready)
		caller.splits++ // the callee holds it
	}
	if m == s.mask {
		w.dropCurrent()
		return
	}
	s.mask &^= m
	s.pc = pc + 1
}

func (w *warp) ret(s *split, m uint32) {
	f := s.frame
	parent := f.parent
	for i, formal := range f.fn.sig.rets {
		pass(parent, f.call.rets[i], f, formal, m, false)
	}
	w.addSplit(m, f.ret, parent, ready)
	if m != s.mask {
		s.mask &^= m
		s.pc++
		return
	}
	w.dropCurrent()
	if f.splits == 0 {
		parent.splits--
		w.free = append(w.free, f)
	}
}

// pass copies an argument into the callee, or a result out of it.
func pass(caller *frame, a actual, callee *frame, formal *variable, m uint32, in bool) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m)
		var outer, inner []byte
		var outerReg, innerReg *uint64
		if a.pred != nil || formal.reg != nil && formal.reg.reg == tPred {
			passPred(caller, a, callee, formal, 1<<i, in)
			continue
		}
		if a.reg >= 0 {
			outerReg = &caller.regs[a.reg+i]
		} else {
			at := uint64(i)*caller.fn.params + a.off
			outer = caller.params[at : at+a.size]
		}
		if formal.reg != nil {
			innerReg = &callee.regs[(formal.reg.slot-1)*lanes+i]
		} else {
			at := uint64(i)*callee.fn.params + formal.offset
			inner = callee.params[at : at+formal.size]
		}
		if in {
			move(innerReg, inner, outerReg, outer)
		} else {
			move(outerReg, outer, innerReg, inner)
		}
	}
}

// passPred is pass for predicates, which only match each other.
func passPred(caller *frame, a actual, callee *frame, formal *variable, m uint32, in bool) {
	if a.pred == nil || formal.reg == nil || formal.reg.reg != tPred {
		return // a call through a pointer to a function of another kind
	}
	inner := &callee.preds[formal.reg.slot-1]
	if !in {
		outer := &caller.preds[a.pred.index]
		*outer = *outer&^m | *inner&m
		return
	}
	v := caller.preds[a.pred.index]
	if a.pred.not {
		v = ^v
	}
	*inner = *inner&^m | v&m
}

func move(dreg *uint64, dst []byte, sreg *uint64, src []byte) {
	var raw [8]byte
	if sreg != nil {
		binary.LittleEndian.PutUint64(raw[:], *sreg)
		src = raw[:]
	}
	if dreg != nil {
		var v [8]byte
		copy(v[:], src)
		*dreg = binary.LittleEndian.Uint64(v[:])
		return
	}
	copy(dst, src)
}

func (w *warp) growLocal(need uint64) {
	if need <= w.stride {
		return
	}
	stride := alignUp(max(need, 2*w.stride), 16)
	grown := make([]byte, stride*lanes)
	for i := range uint64(lanes) {
		copy(grown[i*stride:], w.local[i*w.stride:(i+1)*w.stride])
	}
	w.local, w.stride = grown, stride
}

// functionAt returns the device function of a pointer's value.
func (m *Module) functionAt(ptr uint64) *function {
	i := ptr - funcWindow
	if ptr < funcWindow || i >= uint64(len(m.funcs)) || m.funcs[i].entry {
		return nil
	}
	return m.funcs[i]
}
