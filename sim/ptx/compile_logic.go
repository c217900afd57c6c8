package ptx

import (
	"math"
	"math/bits"
)

func hLogic(i *ins) error {
	t := i.typ()
	if t == tPred {
		return predLogic(i)
	}
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	if !t.isBits() {
		return i.unsupported("")
	}
	switch i.s.op {
	case "and":
		i.emit(opAnd(d, s[0], s[1]))
	case "or":
		i.emit(opOr(d, s[0], s[1]))
	default:
		i.emit(opXor(d, s[0], s[1]))
	}
	return nil
}

func predLogic(i *ins) error {
	d, s, err := i.predicates(2)
	if err != nil {
		return err
	}
	a, b := s[0], s[1]
	switch i.s.op {
	case "and":
		i.emit(func(w *warp, m uint32) { w.setPred(d, m, w.guard(a)&w.guard(b)) })
	case "or":
		i.emit(func(w *warp, m uint32) { w.setPred(d, m, w.guard(a)|w.guard(b)) })
	default:
		i.emit(func(w *warp, m uint32) { w.setPred(d, m, w.guard(a)^w.guard(b)) })
	}
	return nil
}

func hNot(i *ins) error {
	t := i.typ()
	if t == tPred && i.s.op == "not" {
		return movPred(i, true)
	}
	d, s, err := i.dstAnd(t, 1)
	if err != nil {
		return err
	}
	if !t.isBits() {
		return i.unsupported("")
	}
	if i.s.op == "not" {
		i.emit(un(d, s[0], func(x uint64) uint64 { return ^x }))
		return nil
	}
	e := extend(t)
	i.emit(un(d, s[0], func(x uint64) uint64 {
		if e(x) == 0 {
			return 1
		}
		return 0
	}))
	return nil
}

func movPred(i *ins, not bool) error {
	d, s, err := i.predicates(1)
	if err != nil {
		return err
	}
	a := s[0]
	a.not = a.not != not
	i.emit(func(w *warp, m uint32) { w.setPred(d, m, w.guard(a)) })
	return nil
}

// hShift: amounts above the width count as the width.
func hShift(i *ins) error {
	t := i.typ()
	d, s, err := i.operands(t, tU32)
	if err != nil {
		return err
	}
	a, b := s[0], s[1]
	n := uint32(t.bits())
	if n < 16 || n > 64 || t.float() {
		return i.unsupported("")
	}
	e := extend(t)
	switch {
	case i.s.op == "shl":
		i.emit(bin(d, a, b, func(x, y uint64) uint64 {
			if uint32(y) >= n {
				return 0
			}
			return x << (y & 63)
		}))
	case t.signed():
		i.emit(bin(d, a, b, func(x, y uint64) uint64 { return uint64(int64(e(x)) >> min(uint32(y), 63)) }))
	default:
		i.emit(bin(d, a, b, func(x, y uint64) uint64 { return e(x) >> uint32(y) }))
	}
	return nil
}

func hFunnel(i *ins) error {
	left := i.oneOf(".l", ".r") == ".l"
	wrap := i.oneOf(".wrap", ".clamp") == ".wrap"
	t := i.typ()
	d, s, err := i.dstAnd(t, 3)
	if err != nil {
		return err
	}
	if t != tB32 {
		return i.unsupported("")
	}
	i.emit(tri(d, s[0], s[1], s[2], func(lo, hi, c uint64) uint64 {
		n := uint32(c)
		if wrap {
			n &= 31
		} else {
			n = min(n, 32)
		}
		v := hi<<32 | lo&math.MaxUint32
		if left {
			return v << n >> 32
		}
		return v >> n
	}))
	return nil
}

func hBitField(i *ins) error {
	t := i.typ()
	if t.bits() < 32 {
		return i.unsupported("")
	}
	n := t.bits()
	if i.s.op == "bfe" {
		d, s, err := i.dstAnd(t, 3)
		if err != nil {
			return err
		}
		if !t.isInt() {
			return i.unsupported("")
		}
		e := extend(t)
		i.emit(tri(d, s[0], s[1], s[2], func(x, b, c uint64) uint64 {
			at, size := int(b&0xff), int(c&0xff)
			if size == 0 {
				return 0
			}
			x = e(x)
			if t.signed() {
				// Positions beyond the value repeat its sign, and so does the field's own top bit.
				v := int64(x) >> min(at, 63)
				if size < 64 {
					top := min(at+size-1, n-1)
					v &= int64(mask(size))
					if x>>top&1 != 0 {
						v |= ^int64(mask(min(size, max(top-at+1, 0))))
					}
				}
				return uint64(v)
			}
			return x >> at & mask(size)
		}))
		return nil
	}
	d, s, err := i.dstAnd(t, 4)
	if err != nil {
		return err
	}
	if !t.isBits() {
		return i.unsupported("")
	}
	i.emit(func(w *warp, m uint32) {
		d, a, b, c, l := w.r(d), w.r(s[0]), w.r(s[1]), w.r(s[2]), w.r(s[3])
		for ; m != 0; m &= m - 1 {
			k := lane(m)
			at, size := int(c[k]&0xff), int(l[k]&0xff)
			if at >= n {
				d[k] = b[k]
				continue
			}
			field := mask(size) << at
			d[k] = b[k]&^field | a[k]<<at&field
		}
	})
	return nil
}

func hBitCount(i *ins) error {
	amount := i.take(".shiftamt")
	t := i.typ()
	d, s, err := i.dstAnd(t, 1)
	if err != nil {
		return err
	}
	n := t.bits()
	if n != 32 && n != 64 || t.float() {
		return i.unsupported("")
	}
	e := extend(t)
	zero := extend([]typ{tU32, tU64}[n/64])
	var f func(uint64) uint64
	switch i.s.op {
	case "popc":
		f = func(x uint64) uint64 { return uint64(bits.OnesCount64(zero(x))) }
	case "clz":
		f = func(x uint64) uint64 { return uint64(bits.LeadingZeros64(zero(x)) - 64 + n) }
	case "brev":
		f = func(x uint64) uint64 { return bits.Reverse64(x) >> (64 - n) }
	case "bfind":
		f = func(x uint64) uint64 {
			x = e(x)
			if t.signed() && int64(x) < 0 {
				x = ^x
			}
			x = zero(x)
			if x == 0 {
				return math.MaxUint32
			}
			k := bits.Len64(x) - 1
			if amount {
				k = n - 1 - k
			}
			return uint64(k)
		}
	}
	i.emit(un(d, s[0], f))
	return nil
}

// hFns finds the n-th set bit from a place on, upward or downward.
func hFns(i *ins) error {
	if t := i.typ(); t != tB32 {
		return i.unsupported("")
	}
	d, s, err := i.dstAnd(tB32, 3)
	if err != nil {
		return err
	}
	i.emit(tri(d, s[0], s[1], s[2], func(x, base, off uint64) uint64 {
		v, at, n := uint32(x), int(uint32(base)), int(int32(off))
		step, need := 1, n
		switch {
		case n == 0:
			if at < lanes && v>>at&1 != 0 {
				return uint64(at)
			}
			return math.MaxUint32
		case n < 0:
			step, need = -1, -n
		}
		for ; at >= 0 && at < lanes; at += step {
			if v>>at&1 != 0 {
				if need--; need == 0 {
					return uint64(at)
				}
			}
		}
		return math.MaxUint32
	}))
	return nil
}

// hBmsk is bmsk, which makes a mask of bits, and szext, which extends from a bit position.
func hBmsk(i *ins) error {
	wrap := i.oneOf(".clamp", ".wrap") == ".wrap"
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	amount := func(y uint64) uint64 {
		if wrap {
			return y & 31
		}
		return min(y&math.MaxUint32, 32)
	}
	switch {
	case i.s.op == "bmsk" && t == tB32:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return mask(int(amount(y))) << amount(x) }))
	case i.s.op == "szext" && (t == tU32 || t == tS32):
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			n := amount(y)
			if n == 0 {
				return 0
			}
			if t == tS32 {
				return uint64(int64(x<<(64-n)) >> (64 - n))
			}
			return x << (64 - n) >> (64 - n)
		}))
	default:
		return i.unsupported("")
	}
	return nil
}

func hPrmt(i *ins) error {
	mode := ""
	if i.take(".b32") {
		mode = i.oneOf(".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
	} else {
		return i.unsupported("")
	}
	d, s, err := i.dstAnd(tB32, 3)
	if err != nil {
		return err
	}
	i.emit(tri(d, s[0], s[1], s[2], func(a, b, c uint64) uint64 {
		v := b<<32 | a&math.MaxUint32
		var r uint64
		for k := range uint64(4) {
			sel := c >> (4 * k)
			at := c & 3
			switch mode {
			case "":
				at = sel & 7
			case ".f4e":
				at = (at + k) & 7
			case ".b4e":
				at = (at - k) & 7
			case ".rc8":
			case ".ecl":
				at = max(at, k)
			case ".ecr":
				at = min(at, k)
			case ".rc16":
				at = (c&1)*2 + k&1
			}
			x := v >> (8 * at) & 0xff
			if mode == "" && sel&8 != 0 {
				x = uint64(uint8(int8(x) >> 7))
			}
			r |= x << (8 * k)
		}
		return r
	}))
	return nil
}

func hLop3(i *ins) error {
	if i.oneOf(".and", ".or") != "" {
		return i.unsupported("")
	}
	if !i.take(".b32") || len(i.s.args) != 5 || i.s.args[4].kind != oInt {
		return i.unsupported("")
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	s, err := i.srcs(tB32, 1, 3)
	if err != nil {
		return err
	}
	table := i.s.args[4].val
	i.emit(tri(d, s[0], s[1], s[2], func(a, b, c uint64) uint64 {
		var r uint64
		for k := range 8 {
			if table>>k&1 == 0 {
				continue
			}
			x, y, z := a, b, c
			if k&4 == 0 {
				x = ^x
			}
			if k&2 == 0 {
				y = ^y
			}
			if k&1 == 0 {
				z = ^z
			}
			r |= x & y & z
		}
		return r
	}))
	return nil
}
