package ptx

import (
	"maps"
	"math"
	"math/bits"
)

func init() {
	maps.Copy(handlers, map[string]handler{
		"shfl": hShuffle, "vote": hVote, "match": hMatch, "activemask": hActive, "redux": hRedux, "elect": hElect,
	})
}

// warpWide adds an instruction whose lanes wait for those of a mask, or one of the old kind without a mask.
func (i *ins) warpWide(sync bool, maskOperand *operand, run execFn) error {
	if !sync {
		i.emit(run)
		return nil
	}
	m, err := i.src(maskOperand, tB32)
	if err != nil {
		return err
	}
	i.add(instr{kind: kWarpSync, run: run, aux: &syncInfo{mask: m}})
	return nil
}

func hWarpBarrier(i *ins) error {
	if !i.take(".sync") {
		return i.unsupported("")
	}
	if err := i.args(1); err != nil {
		return err
	}
	return i.warpWide(true, &i.s.args[0], nil)
}

func hActive(i *ins) error {
	if i.typ() != tB32 {
		return i.unsupported("")
	}
	if err := i.args(1); err != nil {
		return err
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	i.emit(func(w *warp, m uint32) { put(w, d, m, uint64(m)) })
	return nil
}

// put writes one value for all lanes of m.
func put(w *warp, d int, m uint32, v uint64) {
	for r := w.r(d); m != 0; m &= m - 1 {
		r[lane(m)] = v
	}
}

func hShuffle(i *ins) error {
	sync := i.take(".sync")
	mode := i.oneOf(".up", ".down", ".bfly", ".idx")
	t := i.typ()
	n := 4
	if sync {
		n = 5
	}
	if err := i.args(n); err != nil {
		return err
	}
	if mode == "" || t != tB32 {
		return i.unsupported("")
	}
	args := i.s.args
	d, p, err := i.dstPair(&args[0])
	if err != nil {
		return err
	}
	s, err := i.srcs(tB32, 1, 3)
	if err != nil {
		return err
	}
	run := func(w *warp, m uint32) {
		d, a, b, c := w.r(d), *w.r(s[0]), w.r(s[1]), w.r(s[2])
		var valid uint32
		for k := m; k != 0; k &= k - 1 {
			l := lane(k)
			by, limit, seg := int(b[l]&31), int(c[l]&31), int(c[l]>>8&31)
			first := l & seg
			last := first | limit&^seg
			var from int
			var ok bool
			switch mode {
			case ".up":
				from = l - by
				ok = from >= last
			case ".down":
				from = l + by
				ok = from <= last
			case ".bfly":
				from = l ^ by
				ok = from <= last
			default:
				from = first | by&^seg
				ok = from <= last
			}
			if ok {
				valid |= 1 << l
			} else {
				from = l
			}
			d[l] = a[from&31]
		}
		if p >= 0 {
			w.setPred(p, m, valid)
		}
	}
	return i.warpWide(sync, &args[len(args)-1], run)
}

func hVote(i *ins) error {
	sync := i.take(".sync")
	mode := i.oneOf(".all", ".any", ".uni", ".ballot")
	t := i.typ()
	n := 2
	if sync {
		n = 3
	}
	if err := i.args(n); err != nil {
		return err
	}
	p, err := i.pred(&i.s.args[1])
	if err != nil {
		return err
	}
	var run execFn
	switch {
	case mode == ".ballot" && t == tB32:
		d, err := i.dst(&i.s.args[0])
		if err != nil {
			return err
		}
		run = func(w *warp, m uint32) { put(w, d, m, uint64(w.guard(p)&m)) }
	case mode != "" && mode != ".ballot" && t == tPred:
		d, err := i.predDst(&i.s.args[0])
		if err != nil {
			return err
		}
		run = func(w *warp, m uint32) {
			v := w.guard(p) & m
			yes := mode != ".any" && v == m || mode == ".any" && v != 0 || mode == ".uni" && v == 0
			if yes {
				w.setPred(d, m, full)
			} else {
				w.setPred(d, m, 0)
			}
		}
	default:
		return i.unsupported("")
	}
	return i.warpWide(sync, &i.s.args[n-1], run)
}

func hMatch(i *ins) error {
	mode := i.oneOf(".any", ".all")
	sync := i.take(".sync")
	t := i.typ()
	if err := i.args(3); err != nil {
		return err
	}
	if mode == "" || !sync || t != tB32 && t != tB64 {
		return i.unsupported("")
	}
	args := i.s.args
	d, p, err := i.dstPair(&args[0])
	if err != nil {
		return err
	}
	a, err := i.src(&args[1], t)
	if err != nil {
		return err
	}
	cut := mask(t.bits())
	return i.warpWide(true, &args[2], func(w *warp, m uint32) {
		d, a := w.r(d), *w.r(a)
		same := func(v uint64) (group uint32) {
			for k := m; k != 0; k &= k - 1 {
				if l := lane(k); a[l]&cut == v {
					group |= 1 << l
				}
			}
			return group
		}
		if mode == ".all" {
			yes := same(a[lane(m)]&cut) == m
			v, q := uint32(0), uint32(0)
			if yes {
				v, q = m, full
			}
			for k := m; k != 0; k &= k - 1 {
				d[lane(k)] = uint64(v)
			}
			if p >= 0 {
				w.setPred(p, m, q)
			}
			return
		}
		for rest := m; rest != 0; {
			group := same(a[lane(rest)] & cut)
			for k := group; k != 0; k &= k - 1 {
				d[lane(k)] = uint64(group)
			}
			rest &^= group
		}
	})
}

func hRedux(i *ins) error {
	sync := i.take(".sync")
	op := i.oneOf(".add", ".min", ".max", ".and", ".or", ".xor")
	t := i.typ()
	f := atomicOp(op, t)
	bitwise := op == ".and" || op == ".or" || op == ".xor"
	if !sync || f == nil || bitwise != (t == tB32) || !bitwise && t != tU32 && t != tS32 {
		return i.unsupported("")
	}
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	return i.warpWide(true, &i.s.args[2], func(w *warp, m uint32) {
		a := w.r(s[0])
		v := a[lane(m)]
		for k := m & (m - 1); k != 0; k &= k - 1 {
			v = f(v, a[lane(k)], 0)
		}
		put(w, d, m, v&math.MaxUint32)
	})
}

func hElect(i *ins) error {
	sync := i.take(".sync")
	if err := i.args(2); err != nil {
		return err
	}
	args := i.s.args
	if !sync || args[0].pair == nil {
		return i.unsupported("")
	}
	d, p, err := i.dstPair(&args[0])
	if err != nil {
		return err
	}
	return i.warpWide(true, &args[1], func(w *warp, m uint32) {
		leader := bits.TrailingZeros32(m)
		put(w, d, m, uint64(leader))
		w.setPred(p, m, 1<<leader)
	})
}
