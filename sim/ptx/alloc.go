package ptx

import (
	"math/bits"
	"slices"
)

// Compilers number the registers of PTX without end, so a function is compiled twice: the first time to learn which
// register is used where, the second time with registers whose lives do not overlap in one place. That keeps the frames
// of large kernels within the caches, and its by-product is the number of registers a thread needs.

// access is what one instruction does to registers, by the symbols' provisional numbers.
type access struct{ uses, defs []int32 }

// The analysis of one function may take so much memory, and that of a text so much time, in words.
const (
	maxLiveness = 1 << 23
	maxVisits   = 1 << 29
)

type liveness struct {
	fn      *function
	acc     []access
	words   int
	starts  []int32 // of basic blocks
	blockOf []int32
	in      [][]uint64
}

// successors lists where an instruction goes on.
func successors(fn *function, pc int32) []int32 {
	in := &fn.code[pc]
	var next []int32
	switch in.kind {
	case kBranch:
		next = append(next, in.target)
	case kBranchIndex:
		next = append(next, in.aux.(*indexInfo).targets...)
	case kExit, kReturn:
	default:
		return append(next, pc+1)
	}
	if in.guard >= 0 {
		next = append(next, pc+1)
	}
	return next
}

// analyse finds the registers that live at the beginning of each basic block. It gives up on what is too large.
func analyse(fn *function, acc []access, registers int, b *budget) *liveness {
	n := int32(len(fn.code))
	lead := make([]bool, n+1)
	lead[0] = true
	for pc := range n {
		switch fn.code[pc].kind {
		case kBranch, kBranchIndex, kExit, kReturn:
			lead[pc+1] = true
			for _, s := range successors(fn, pc) {
				lead[s] = true
			}
		}
	}
	lv := &liveness{fn: fn, acc: acc, words: (registers + 63) / 64, blockOf: make([]int32, n+1)}
	for pc := range n {
		if lead[pc] {
			lv.starts = append(lv.starts, pc)
		}
		lv.blockOf[pc] = int32(len(lv.starts) - 1)
	}
	if len(lv.starts)*lv.words > maxLiveness {
		return nil
	}
	lv.in = make([][]uint64, len(lv.starts))
	for b := range lv.in {
		lv.in[b] = make([]uint64, lv.words)
	}
	live := make([]uint64, lv.words)
	for changed := true; changed; {
		changed = false
		if b.visits -= len(lv.starts)*lv.words + len(acc); b.visits < 0 {
			return nil
		}
		for b := range slices.Backward(lv.starts) {
			lv.out(b, live)
			lv.walk(b, live, nil)
			if !slices.Equal(live, lv.in[b]) {
				copy(lv.in[b], live)
				changed = true
			}
		}
	}
	return lv
}

func (lv *liveness) end(b int) int32 {
	if b+1 < len(lv.starts) {
		return lv.starts[b+1]
	}
	return int32(len(lv.fn.code))
}

// out sets live to what lives at the end of a block.
func (lv *liveness) out(b int, live []uint64) {
	clear(live)
	last := lv.end(b) - 1
	for _, s := range successors(lv.fn, last) {
		if int(s) == len(lv.fn.code) {
			continue
		}
		for k, w := range lv.in[lv.blockOf[s]] {
			live[k] |= w
		}
	}
}

// walk goes through a block backwards; visit sees what lives before each instruction.
func (lv *liveness) walk(b int, live []uint64, visit func(pc int32)) {
	for pc := lv.end(b) - 1; pc >= lv.starts[b]; pc-- {
		a := &lv.acc[pc]
		if lv.fn.code[pc].guard < 0 {
			for _, r := range a.defs {
				live[r/64] &^= 1 << (r % 64)
			}
		}
		for _, r := range a.uses {
			live[r/64] |= 1 << (r % 64)
		}
		if visit != nil {
			visit(pc)
		}
	}
}

// allocate gives the registers of a function their places and returns how many there are. widths are the registers'
// sizes in 32-bit units, of which pressure is the largest number that live at once.
func allocate(fn *function, acc []access, widths []int, entering []int32, b *budget) (places []int, count,
	pressure int) {
	lv := analyse(fn, acc, len(widths), b)
	places = make([]int, len(widths))
	if lv == nil {
		for r := range places {
			places[r] = r
			pressure += widths[r]
		}
		return places, len(places), pressure
	}
	// Each register's life as the range of instructions in which it occurs or lives.
	first, last := make([]int32, len(widths)), make([]int32, len(widths))
	for r := range first {
		first[r], last[r] = int32(len(fn.code)), -1
	}
	touch := func(r, pc int32) {
		first[r], last[r] = min(first[r], pc), max(last[r], pc)
	}
	for _, r := range entering {
		touch(r, 0)
	}
	live := make([]uint64, lv.words)
	each := func(pc int32) {
		for k, w := range live {
			for ; w != 0; w &= w - 1 {
				touch(int32(k*64+bits.TrailingZeros64(w)), pc)
			}
		}
	}
	for b := range lv.starts {
		lv.out(b, live)
		each(lv.end(b) - 1)
		lv.walk(b, live, nil)
		each(lv.starts[b])
		for pc := lv.starts[b]; pc < lv.end(b); pc++ {
			for _, r := range acc[pc].uses {
				touch(r, pc)
			}
			for _, r := range acc[pc].defs {
				touch(r, pc)
			}
		}
	}
	return assign(fn, first, last, widths)
}

// assign is a linear scan over the lives.
func assign(fn *function, first, last []int32, widths []int) (places []int, count, pressure int) {
	places = make([]int, len(widths))
	order := make([]int32, 0, len(widths))
	for r := range widths {
		if last[r] >= 0 {
			order = append(order, int32(r))
		}
	}
	slices.SortFunc(order, func(a, b int32) int { return int(first[a]) - int(first[b]) })
	ends := make([][]int32, len(fn.code)+1) // registers by the instruction after their last
	var free []int
	now, weight := int32(0), 0
	for _, r := range order {
		for ; now <= first[r]; now++ {
			for _, dead := range ends[now] {
				free = append(free, places[dead])
				weight -= widths[dead]
			}
		}
		if k := len(free) - 1; k >= 0 {
			places[r] = free[k]
			free = free[:k]
		} else {
			places[r] = count
			count++
		}
		weight += widths[r]
		pressure = max(pressure, weight)
		ends[last[r]+1] = append(ends[last[r]+1], r)
	}
	return places, count, pressure
}
