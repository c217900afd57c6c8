package ptx

import (
	"math"
	"math/bits"
	"time"
)

// clocks are the registers that change while a kernel runs.
var clocks = map[string]func(r *gridRun) uint64{
	"%clock64":        func(r *gridRun) uint64 { return r.cycles() },
	"%clock":          func(r *gridRun) uint64 { return r.cycles() & math.MaxUint32 },
	"%clock_hi":       func(r *gridRun) uint64 { return r.cycles() >> 32 },
	"%globaltimer":    func(*gridRun) uint64 { return uint64(time.Now().UnixNano()) },
	"%globaltimer_lo": func(*gridRun) uint64 { return uint64(time.Now().UnixNano()) & math.MaxUint32 },
	"%globaltimer_hi": func(*gridRun) uint64 { return uint64(time.Now().UnixNano()) >> 32 },
}

func (r *gridRun) cycles() uint64 {
	rate := r.grid.ClockKHz
	if rate == 0 {
		rate = 1e6
	}
	ns := uint64(time.Since(r.started))
	hi, lo := bits.Mul64(ns, rate)
	q, _ := bits.Div64(hi%1e6, lo, 1e6)
	return q
}

func hMov(i *ins) error {
	t := i.typ()
	if t == tPred {
		if len(i.s.args) == 2 && i.s.args[1].name == explicitCluster {
			return movExplicitCluster(i)
		}
		return movPred(i, false)
	}
	if err := i.args(2); err != nil {
		return err
	}
	to, from := &i.s.args[0], &i.s.args[1]
	if t.bits() < 16 || t.bits() > 64 {
		return i.unsupported("")
	}
	switch {
	case from.kind == oVec:
		return movPack(i, t)
	case to.kind == oVec:
		return movUnpack(i, t)
	}
	d, err := i.dst(to)
	if err != nil {
		return err
	}
	if clock := clocks[from.name]; clock != nil && from.kind == oName {
		i.emit(func(w *warp, m uint32) {
			v := clock(w.blk.run)
			for d := w.r(d); m != 0; m &= m - 1 {
				d[lane(m)] = v
			}
		})
		return nil
	}
	a, err := i.src(from, t)
	if err != nil {
		return err
	}
	i.emit(opMove(d, a))
	return nil
}

// explicitCluster is the only special register that is a predicate.
const explicitCluster = "%is_explicit_cluster"

func movExplicitCluster(i *ins) error {
	p, err := i.predDst(&i.s.args[0])
	if err != nil {
		return err
	}
	i.emit(func(w *warp, m uint32) {
		var v uint32
		if w.blk.run.explicit {
			v = full
		}
		w.setPred(p, m, v)
	})
	return nil
}

func movPack(i *ins, t typ) error {
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	list := i.s.args[1].list
	if len(list) != 2 && len(list) != 4 || t.bits()/len(list) < 8 {
		return i.unsupported("")
	}
	part := t.bits() / len(list)
	src := make([]int, len(list))
	for k := range list {
		if src[k], err = i.src(&list[k], tB64); err != nil {
			return err
		}
	}
	i.emit(func(w *warp, m uint32) {
		d := w.r(d)
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			var v uint64
			for k, s := range src {
				v |= w.regs[s+l] & mask(part) << (part * k)
			}
			d[l] = v
		}
	})
	return nil
}

func movUnpack(i *ins, t typ) error {
	a, err := i.src(&i.s.args[1], t)
	if err != nil {
		return err
	}
	list := i.s.args[0].list
	if len(list) != 2 && len(list) != 4 || t.bits()/len(list) < 8 {
		return i.unsupported("")
	}
	part := t.bits() / len(list)
	dst := make([]int, len(list))
	for k := range list {
		if dst[k], err = i.dst(&list[k]); err != nil {
			return err
		}
	}
	i.emit(func(w *warp, m uint32) {
		a := w.r(a)
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			v := a[l]
			for k, d := range dst {
				w.regs[d+l] = v >> (part * k) & mask(part)
			}
		}
	})
	return nil
}

// hCarry is add.cc, addc, sub.cc and subc: one carry flag a lane. A subtraction is the addition of the complement plus
// one, so it leaves the flag clear when it borrows.
func hCarry(i *ins) error {
	out := i.take(".cc")
	sub := i.s.op == "sub" || i.s.op == "subc"
	in := i.s.op == "addc" || i.s.op == "subc"
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	if !t.isInt() || t.bits() < 32 {
		return i.unsupported("")
	}
	n := t.bits()
	i.emit(func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(s[0]), w.r(s[1])
		for ; m != 0; m &= m - 1 {
			k := lane(m)
			var c uint64
			if in {
				c = uint64(w.cc >> k & 1)
			}
			x, y := a[k]&mask(n), b[k]&mask(n)
			var v, carry uint64
			if sub {
				if in {
					c ^= 1
				}
				v, carry = bits.Sub64(x, y, c)
				carry ^= 1
			} else {
				v, carry = bits.Add64(x, y, c)
				if n == 32 {
					carry = v >> 32
				}
			}
			d[k] = v
			if out {
				w.cc = w.cc&^(1<<k) | uint32(carry)<<k
			}
		}
	})
	return nil
}

func hMadc(i *ins) error { return madCarry(i, i.take(".cc")) }

// madCarry is mad.cc and madc.
func madCarry(i *ins, out bool) error {
	in := i.s.op == "madc"
	hi := i.oneOf(".lo", ".hi") == ".hi"
	t := i.typ()
	d, s, err := i.dstAnd(t, 3)
	if err != nil {
		return err
	}
	if !t.isInt() || t.bits() < 32 {
		return i.unsupported("")
	}
	n := t.bits()
	i.emit(func(w *warp, m uint32) {
		d, a, b, z := w.r(d), w.r(s[0]), w.r(s[1]), w.r(s[2])
		for ; m != 0; m &= m - 1 {
			k := lane(m)
			var c uint64
			if in {
				c = uint64(w.cc >> k & 1)
			}
			p := a[k] * b[k]
			if hi {
				p = mulHi(t, a[k], b[k])
			}
			v, carry := bits.Add64(p&mask(n), z[k]&mask(n), c)
			if n == 32 {
				carry = v >> 32
			}
			d[k] = v
			if out {
				w.cc = w.cc&^(1<<k) | uint32(carry)<<k
			}
		}
	})
	return nil
}

var compareOps = []string{".eq", ".ne", ".lt", ".le", ".gt", ".ge", ".lo", ".ls", ".hi", ".hs",
	".equ", ".neu", ".ltu", ".leu", ".gtu", ".geu", ".num", ".nan"}

// compare resolves a comparison of two operands of type t.
func (i *ins) compare(t typ, op string, x, y *operand, ftz bool) (comparison, error) {
	a, err := i.src(x, t)
	if err != nil {
		return nil, err
	}
	b, err := i.src(y, t)
	if err != nil {
		return nil, err
	}
	var cmp comparison
	if op != "" {
		op = op[1:]
		switch {
		case t.float():
			get := func(x uint64) float64 { return fromSmall(x, t) }
			if t == tF32 {
				get = func(x uint64) float64 { return float64(f32(x)) }
				if ftz {
					get = func(x uint64) float64 { return float64(f32(flush32(x))) }
				}
			}
			if ftz && t == tF16 {
				get = func(x uint64) float64 { return fromF16(flushSmall(x&0xffff, fmtF16)) }
			}
			cmp = compareFloat(op, a, b, get)
		default:
			cmp = intComparison(t, op, a, b)
		}
	}
	if cmp == nil {
		return nil, i.unsupported("")
	}
	return cmp, nil
}

func combine(op string, a, b uint32) uint32 {
	switch op {
	case ".and":
		return a & b
	case ".or":
		return a | b
	case ".xor":
		return a ^ b
	}
	return a
}

func hSetp(i *ins) error {
	op := i.oneOf(compareOps...)
	logic := i.oneOf(".and", ".or", ".xor")
	ftz := i.take(".ftz")
	t := i.typ()
	n := 3
	if logic != "" {
		n = 4
	}
	if err := i.args(n); err != nil {
		return err
	}
	if t == tF16x2 || t == tBF16x2 {
		return setpPacked(i, t, op, logic)
	}
	cmp, err := i.compare(t, op, &i.s.args[1], &i.s.args[2], ftz)
	if err != nil {
		return err
	}
	p, err := i.predDst(withoutPair(&i.s.args[0]))
	if err != nil {
		return err
	}
	var c predRef
	if logic != "" {
		if c, err = i.pred(&i.s.args[3]); err != nil {
			return err
		}
	}
	if pair := i.s.args[0].pair; pair != nil {
		q, err := i.predDst(pair)
		if err != nil {
			return err
		}
		i.emit(func(w *warp, m uint32) {
			v := cmp(w, m)
			g := w.guard(c)
			w.setPred(p, m, combine(logic, v, g))
			w.setPred(q, m, combine(logic, ^v, g))
		})
		return nil
	}
	if logic == "" {
		i.emit(func(w *warp, m uint32) { w.preds[p] = w.preds[p]&^m | cmp(w, m) })
		return nil
	}
	i.emit(func(w *warp, m uint32) { w.setPred(p, m, combine(logic, cmp(w, m), w.guard(c))) })
	return nil
}

func withoutPair(o *operand) *operand {
	c := *o
	c.pair = nil
	return &c
}

// setpPacked compares both halves: the low one goes to p, the high one to q.
func setpPacked(i *ins, t typ, op, logic string) error {
	pair := i.s.args[0].pair
	if pair == nil || op == "" {
		return i.unsupported("")
	}
	p, err := i.predDst(withoutPair(&i.s.args[0]))
	if err != nil {
		return err
	}
	q, err := i.predDst(pair)
	if err != nil {
		return err
	}
	s, err := i.srcs(t, 1, 2)
	if err != nil {
		return err
	}
	lo := compareFloat(op[1:], s[0], s[1], func(x uint64) float64 { return fromSmall(x, t) })
	hi := compareFloat(op[1:], s[0], s[1], func(x uint64) float64 { return fromSmall(x>>16, t) })
	if lo == nil {
		return i.unsupported("")
	}
	var c predRef
	if logic != "" {
		if c, err = i.pred(&i.s.args[3]); err != nil {
			return err
		}
	}
	i.emit(func(w *warp, m uint32) {
		a, b, g := lo(w, m), hi(w, m), w.guard(c)
		w.setPred(p, m, combine(logic, a, g))
		w.setPred(q, m, combine(logic, b, g))
	})
	return nil
}

// hSet writes all ones or 1.0 where a comparison holds.
func hSet(i *ins) error {
	op := i.oneOf(compareOps...)
	logic := i.oneOf(".and", ".or", ".xor")
	ftz := i.take(".ftz")
	to, t := i.typ(), i.typ()
	n := 3
	if logic != "" {
		n = 4
	}
	if err := i.args(n); err != nil {
		return err
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	if to.packed() || t.packed() {
		return setPacked(i, to, t, op, d, logic)
	}
	cmp, err := i.compare(t, op, &i.s.args[1], &i.s.args[2], ftz)
	if err != nil {
		return err
	}
	var c predRef
	if logic != "" {
		if c, err = i.pred(&i.s.args[3]); err != nil {
			return err
		}
	}
	yes := uint64(math.MaxUint64)
	switch to {
	case tF32, tF16, tBF16:
		yes = roundTo(1, fmtNames[to], rn)
	case tU32, tS32, tU16, tS16:
	default:
		return i.unsupported("")
	}
	i.emit(func(w *warp, m uint32) {
		v := cmp(w, m)
		if logic != "" {
			v = combine(logic, v, w.guard(c))
		}
		for d := w.r(d); m != 0; m &= m - 1 {
			k := lane(m)
			d[k] = 0
			if v>>k&1 != 0 {
				d[k] = yes
			}
		}
	})
	return nil
}

func setPacked(i *ins, to, t typ, op string, d int, logic string) error {
	s, err := i.srcs(t, 1, 2)
	if err != nil {
		return err
	}
	if op == "" || logic != "" || t != tF16x2 && t != tBF16x2 {
		return i.unsupported("")
	}
	lo := compareFloat(op[1:], s[0], s[1], func(x uint64) float64 { return fromSmall(x, t) })
	hi := compareFloat(op[1:], s[0], s[1], func(x uint64) float64 { return fromSmall(x>>16, t) })
	yes := uint64(0xffff)
	if to == t {
		yes = roundTo(1, fmtNames[to], rn)
	} else if to != tU32 && to != tS32 {
		return i.unsupported("")
	}
	if lo == nil {
		return i.unsupported("")
	}
	i.emit(func(w *warp, m uint32) {
		a, b := lo(w, m), hi(w, m)
		for d := w.r(d); m != 0; m &= m - 1 {
			k := lane(m)
			d[k] = uint64(a>>k&1)*yes | uint64(b>>k&1)*yes<<16
		}
	})
	return nil
}

func hSelp(i *ins) error {
	t := i.typ()
	if err := i.args(4); err != nil {
		return err
	}
	if t == tPred || t.packed() || t.bits() < 16 || t.bits() > 64 {
		return i.unsupported("")
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	s, err := i.srcs(t, 1, 2)
	if err != nil {
		return err
	}
	p, err := i.pred(&i.s.args[3])
	if err != nil {
		return err
	}
	i.emit(opSel(d, s[0], s[1], p))
	return nil
}

// hSlct selects by the sign of its last operand.
func hSlct(i *ins) error {
	ftz := i.take(".ftz")
	t, by := i.typ(), i.typ()
	if err := i.args(4); err != nil {
		return err
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	s, err := i.srcs(t, 1, 2)
	if err != nil {
		return err
	}
	c, err := i.src(&i.s.args[3], by)
	if err != nil {
		return err
	}
	if by != tF32 && by != tS32 {
		return i.unsupported("")
	}
	i.emit(tri(d, s[0], s[1], c, func(a, b, c uint64) uint64 {
		if by == tF32 {
			if ftz {
				c = flush32(c)
			}
			if f32(c) >= 0 {
				return a
			}
			return b
		}
		if int32(c) >= 0 {
			return a
		}
		return b
	}))
	return nil
}
