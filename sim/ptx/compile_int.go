package ptx

import (
	"maps"
	"math"
	"math/bits"
)

// handlers compile the instructions by their first name. The files compile_*.go fill it.
var handlers = map[string]handler{}

func init() {
	maps.Copy(handlers, map[string]handler{
		"mov": hMov, "add": hAdd, "sub": hSub, "mul": hMul, "mad": hMad, "mul24": hMul24, "mad24": hMul24, "div": hDiv,
		"rem": hDiv,
		"and": hLogic, "or": hLogic, "xor": hLogic, "not": hNot, "cnot": hNot, "shl": hShift, "shr": hShift, "shf": hFunnel,
		"bfe": hBitField, "bfi": hBitField, "bfind": hBitCount, "brev": hBitCount, "clz": hBitCount, "popc": hBitCount,
		"fns": hFns, "bmsk": hBmsk, "szext": hBmsk, "prmt": hPrmt, "lop3": hLop3, "sad": hSad, "dp4a": hDot, "dp2a": hDot,
		"addc": hCarry, "subc": hCarry, "madc": hMadc,
		"setp": hSetp, "set": hSet, "selp": hSelp, "slct": hSlct,
	})
}

func mask(n int) uint64 {
	if n >= 64 {
		return math.MaxUint64
	}
	return 1<<n - 1
}

// extend cuts a value to a type and extends it.
func extend(t typ) func(uint64) uint64 {
	switch n := 64 - t.bits(); {
	case t.signed():
		return func(x uint64) uint64 { return uint64(int64(x<<n) >> n) }
	case n == 0:
		return func(x uint64) uint64 { return x }
	default:
		return func(x uint64) uint64 { return x << n >> n }
	}
}

// clamp limits a signed value to a signed type.
func clamp(x int64, n int) int64 {
	hi := int64(1)<<(n-1) - 1
	return min(max(x, -hi-1), hi)
}

func hAdd(i *ins) error {
	if i.take(".cc") {
		i.mods = append([]string{".cc"}, i.mods...)
		return hCarry(i)
	}
	t := peekType(i)
	if t.float() || t.half() {
		return hFloatAdd(i)
	}
	sat := i.take(".sat")
	t = i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	neg := i.s.op == "sub"
	switch {
	case sat && t == tS32:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			b := int64(int32(y))
			if neg {
				b = -b
			}
			return uint64(clamp(int64(int32(x))+b, 32))
		}))
	case t == tU16x2 || t == tS16x2:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			if neg {
				return uint64(uint16(x)-uint16(y)) | uint64(uint16(x>>16)-uint16(y>>16))<<16
			}
			return uint64(uint16(x)+uint16(y)) | uint64(uint16(x>>16)+uint16(y>>16))<<16
		}))
	case !t.isInt() || sat:
		return i.unsupported("")
	case neg:
		i.emit(opSub(d, s[0], s[1]))
	default:
		i.emit(opAdd(d, s[0], s[1]))
	}
	return nil
}

func hSub(i *ins) error { return hAdd(i) }

// peekType is the type that typ will take.
func peekType(i *ins) typ {
	for _, m := range i.mods {
		if t := typeByName[m]; t != tNone {
			return t
		}
	}
	return tNone
}

func mulHi(t typ, x, y uint64) uint64 {
	e := extend(t)
	x, y = e(x), e(y)
	hi, lo := bits.Mul64(x, y)
	if t.signed() {
		if int64(x) < 0 {
			hi -= y
		}
		if int64(y) < 0 {
			hi -= x
		}
	}
	if n := t.bits(); n < 64 {
		return lo >> n
	}
	return hi
}

func hMul(i *ins) error {
	if t := peekType(i); t.float() || t.half() {
		return hFloatMul(i)
	}
	part := i.oneOf(".lo", ".hi", ".wide")
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	switch {
	case !t.isInt():
		return i.unsupported("")
	case part == ".lo":
		i.emit(opMul(d, s[0], s[1]))
	case part == ".hi":
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return mulHi(t, x, y) }))
	case part == ".wide" && t.bits() < 64:
		switch t {
		case tU16:
			i.emit(opMulWide[uint16](d, s[0], s[1]))
		case tS16:
			i.emit(opMulWide[int16](d, s[0], s[1]))
		case tU32:
			i.emit(opMulWide[uint32](d, s[0], s[1]))
		case tS32:
			i.emit(opMulWide[int32](d, s[0], s[1]))
		}
	default:
		return i.unsupported("")
	}
	return nil
}

func hMad(i *ins) error {
	if peekType(i).float() {
		return hFma(i)
	}
	if i.take(".cc") {
		return madCarry(i, true)
	}
	part, sat := i.oneOf(".lo", ".hi", ".wide"), i.take(".sat")
	t := i.typ()
	d, s, err := i.dstAnd(t, 3)
	if err != nil {
		return err
	}
	switch {
	case !t.isInt() || sat && !(part == ".hi" && t == tS32):
		return i.unsupported("")
	case part == ".lo":
		i.emit(opMad(d, s[0], s[1], s[2]))
	case part == ".hi":
		i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 {
			if sat {
				return uint64(clamp(int64(int32(mulHi(t, x, y)))+int64(int32(z)), 32))
			}
			return mulHi(t, x, y) + z
		}))
	case part == ".wide" && t.bits() < 64:
		switch t {
		case tU16:
			i.emit(opMadWide[uint16](d, s[0], s[1], s[2]))
		case tS16:
			i.emit(opMadWide[int16](d, s[0], s[1], s[2]))
		case tU32:
			i.emit(opMadWide[uint32](d, s[0], s[1], s[2]))
		case tS32:
			i.emit(opMadWide[int32](d, s[0], s[1], s[2]))
		}
	default:
		return i.unsupported("")
	}
	return nil
}

// hMul24 multiplies the low 24 bits; the low or the high 32 bits of the 48-bit product are the result.
func hMul24(i *ins) error {
	hi := i.oneOf(".lo", ".hi") == ".hi"
	t := i.typ()
	n := 2
	if i.s.op == "mad24" {
		n = 3
	}
	d, s, err := i.dstAnd(t, n)
	if err != nil {
		return err
	}
	if t != tU32 && t != tS32 {
		return i.unsupported("")
	}
	cut := func(x uint64) int64 {
		if t == tS32 {
			return int64(x<<40) >> 40
		}
		return int64(x & 0xffffff)
	}
	mul := func(x, y uint64) uint64 {
		p := cut(x) * cut(y)
		if hi {
			p >>= 16
		}
		return uint64(p)
	}
	if n == 3 {
		i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 { return mul(x, y) + z }))
	} else {
		i.emit(bin(d, s[0], s[1], mul))
	}
	return nil
}

// hDiv is division and remainder; what the hardware leaves open for a divisor of zero is all ones, and the dividend.
func hDiv(i *ins) error {
	if t := peekType(i); t.float() && i.s.op == "div" {
		return hFloatDiv(i)
	}
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	if !t.isInt() {
		return i.unsupported("")
	}
	e := extend(t)
	rem, signed := i.s.op == "rem", t.signed()
	i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
		x, y = e(x), e(y)
		switch {
		case y == 0 && rem:
			return x
		case y == 0:
			return math.MaxUint64
		case signed && rem:
			return uint64(int64(x) % int64(y))
		case signed:
			return uint64(int64(x) / int64(y))
		case rem:
			return x % y
		}
		return x / y
	}))
	return nil
}

func hSad(i *ins) error {
	t := i.typ()
	d, s, err := i.dstAnd(t, 3)
	if err != nil {
		return err
	}
	if !t.isInt() {
		return i.unsupported("")
	}
	e := extend(t)
	i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 {
		x, y = e(x), e(y)
		if t.signed() && int64(x) < int64(y) || !t.signed() && x < y {
			x, y = y, x
		}
		return x - y + z
	}))
	return nil
}

// hDot is dp4a and dp2a: products of bytes, or of halves with bytes, summed.
func hDot(i *ins) error {
	two := i.s.op == "dp2a"
	hi := two && i.oneOf(".lo", ".hi") == ".hi"
	ta, tb := i.typ(), i.typ()
	d, s, err := i.dstAnd(tB32, 3)
	if err != nil {
		return err
	}
	if ta != tU32 && ta != tS32 || tb != tU32 && tb != tS32 {
		return i.unsupported("")
	}
	part := func(x uint64, n, at int, signed bool) uint64 {
		x = x >> (n * at) << (64 - n)
		if signed {
			return uint64(int64(x) >> (64 - n))
		}
		return x >> (64 - n)
	}
	i.emit(tri(d, s[0], s[1], s[2], func(x, y, sum uint64) uint64 {
		if two {
			for k := range 2 {
				at := k
				if hi {
					at += 2
				}
				sum += part(x, 16, k, ta == tS32) * part(y, 8, at, tb == tS32)
			}
			return sum
		}
		for k := range 4 {
			sum += part(x, 8, k, ta == tS32) * part(y, 8, k, tb == tS32)
		}
		return sum
	}))
	return nil
}
