package ptx

import (
	"math"
	"slices"
)

func init() {
	handlers["cvt"] = hCvt
	handlers["cvta"] = hCvta
	handlers["isspacep"] = hIsspacep
}

// hCvt converts between all scalar types, and pairs of floats into packed formats.
func hCvt(i *ins) error {
	if i.take(".pack") {
		return hCvtPack(i)
	}
	round := i.oneOf(".rn", ".rz", ".rm", ".rp", ".rna", ".rni", ".rzi", ".rmi", ".rpi")
	r := i.refinement()
	satfinite := i.take(".satfinite")
	to, from := i.typ(), i.typ()
	if to == tF16x2 || to == tBF16x2 || to == tE4M3x2 || to == tE5M2x2 {
		return cvtPacked(i, round, r, satfinite, to, from)
	}
	d, s, err := i.dstAnd(from, 1)
	if err != nil {
		return err
	}
	fromFloat, toFloat := from.float(), to.float() || to == tTF32
	switch {
	case from.isInt() && to.isInt() && round == "":
		return cvtInt(i, d, s[0], to, from, r.sat)
	case fromFloat && to.isInt():
		f, err := i.toInteger(round, to, from, r.ftz)
		if err != nil {
			return err
		}
		i.emit(un(d, s[0], f))
	case from.isInt() && toFloat:
		f, err := i.fromInteger(round, to, from, r)
		if err != nil {
			return err
		}
		i.emit(un(d, s[0], f))
	case fromFloat && toFloat:
		f, err := i.floatToFloat(round, to, from, r, satfinite)
		if err != nil {
			return err
		}
		i.emit(un(d, s[0], f))
	default:
		return i.unsupported("")
	}
	return nil
}

func cvtInt(i *ins, d, a int, to, from typ, sat bool) error {
	if sat {
		ef := extend(from)
		lo, hi := int64(0), mask(to.bits())
		if to.signed() {
			hi = mask(to.bits() - 1)
			lo = -int64(hi) - 1
		}
		i.emit(un(d, a, func(x uint64) uint64 {
			x = ef(x)
			if from.signed() && int64(x) < 0 {
				return uint64(max(int64(x), lo))
			}
			return min(x, hi)
		}))
		return nil
	}
	// The value is extended from the narrower of the types, by the sign of the one it is cut to.
	t := from
	if to.bits() < from.bits() {
		t = to
	}
	switch t {
	case tU8:
		i.emit(opExtend[uint8](d, a))
	case tS8:
		i.emit(opExtend[int8](d, a))
	case tU16:
		i.emit(opExtend[uint16](d, a))
	case tS16:
		i.emit(opExtend[int16](d, a))
	case tU32:
		i.emit(opExtend[uint32](d, a))
	case tS32:
		i.emit(opExtend[int32](d, a))
	default:
		i.emit(opMove(d, a))
	}
	return nil
}

func integral(round string) func(float64) float64 {
	switch round {
	case ".rni":
		return math.RoundToEven
	case ".rzi":
		return math.Trunc
	case ".rmi":
		return math.Floor
	case ".rpi":
		return math.Ceil
	}
	return nil
}

func (i *ins) toInteger(round string, to, from typ, ftz bool) (func(uint64) uint64, error) {
	f := integral(round)
	if f == nil {
		return nil, i.errorf("a float becomes an integer by .rni, .rzi, .rmi or .rpi")
	}
	n := to.bits()
	lo, hi := 0.0, math.Ldexp(1, n)
	top := mask(n)
	if to.signed() {
		hi = math.Ldexp(1, n-1)
		lo, top = -hi, mask(n-1)
	}
	nan := uint64(0)
	if n == 64 || from == tF64 {
		nan = extend(to)(1 << (n - 1))
	}
	return func(x uint64) uint64 {
		if ftz && from == tF32 {
			x = flush32(x)
		}
		v := f(fromSmall(x, from))
		switch {
		case v != v:
			return nan
		case v >= hi:
			return top
		case v <= lo:
			if to.signed() {
				return ^top
			}
			return 0
		case to.signed():
			return uint64(int64(v))
		}
		return uint64(v)
	}, nil
}

func roundingOf(name string) (rounding, bool) {
	switch name {
	case ".rn":
		return rn, true
	case ".rz":
		return rz, true
	case ".rm":
		return rm, true
	case ".rp":
		return rp, true
	case ".rna":
		return rna, true
	}
	return rn, false
}

func (i *ins) fromInteger(round string, to, from typ, r refine) (func(uint64) uint64, error) {
	mode, ok := roundingOf(round)
	if !ok || to == tTF32 {
		return nil, i.errorf("an integer becomes a float by .rn, .rz, .rm or .rp")
	}
	e, fm, signed := extend(from), fmtNames[to], from.signed()
	if to == tF32 && mode == rn && from == tS32 && !r.sat {
		return func(x uint64) uint64 { return uint64(math.Float32bits(float32(int32(x)))) }, nil
	}
	if to == tF32 && mode == rn && from == tU32 && !r.sat {
		return func(x uint64) uint64 { return uint64(math.Float32bits(float32(uint32(x)))) }, nil
	}
	return func(x uint64) uint64 {
		x = e(x)
		neg := signed && int64(x) < 0
		if neg {
			x = -x
		}
		return r.out(to, roundSig(neg, x, 0, fm, mode))
	}, nil
}

func (i *ins) floatToFloat(round string, to, from typ, r refine, satfinite bool) (func(uint64) uint64, error) {
	fm := r.format(to)
	clampNaN := func(v uint64) uint64 {
		if r.relu && v != fm.nan && v>>fm.sign&1 != 0 {
			return 0
		}
		if satfinite && v&fm.inf == fm.inf && v != fm.nan {
			return v - 1
		}
		return v
	}
	in := func(x uint64) float64 {
		return fromSmall(r.in(from, x), from)
	}
	shift := 0
	if to == tTF32 {
		shift = 13
	}
	finish := func(v uint64) uint64 {
		return r.out(to, clampNaN(v)<<shift)
	}
	if f := integral(round); f != nil {
		return func(x uint64) uint64 { return finish(roundTo(f(in(x)), fm, rn)) }, nil
	}
	mode, ok := roundingOf(round)
	narrowing := fm.mant < fmtNames[from].mant || to == tBF16 && from == tF16
	if !ok && narrowing && from != to {
		return nil, i.errorf("a rounding modifier is needed")
	}
	if from == to && !narrowing && !ok {
		return func(x uint64) uint64 { return finish(roundTo(in(x), fm, rn)) }, nil
	}
	if from == tF64 && (to == tF32 || to.half()) && !r.sat && !r.relu {
		// The GPU keeps a NaN's sign and the upper bits of its payload here.
		quiet := uint64(1) << (fm.mant - 1)
		return func(x uint64) uint64 {
			if x&math.MaxInt64 > 0x7ff<<52 {
				return x>>63<<fm.sign | fm.inf | quiet | x>>(52-fm.mant)&(quiet-1)
			}
			return finish(roundTo(in(x), fm, mode))
		}, nil
	}
	return func(x uint64) uint64 { return finish(roundTo(in(x), fm, mode)) }, nil
}

// cvtPacked makes a pair: the first source becomes the upper half.
func cvtPacked(i *ins, round string, r refine, satfinite bool, to, from typ) error {
	mode, ok := roundingOf(round)
	fp8 := to == tE4M3x2 || to == tE5M2x2
	if from == tE4M3x2 || from == tE5M2x2 {
		if to != tF16x2 {
			return i.unsupported("")
		}
		d, s, err := i.dstAnd(from, 1)
		if err != nil {
			return err
		}
		one := func(x uint64) uint64 {
			v := roundTo(fromFP8(x, from == tE4M3x2), fmtF16, rn)
			if r.relu && v != fmtF16.nan && v>>15 != 0 {
				return 0
			}
			return v
		}
		i.emit(un(d, s[0], func(x uint64) uint64 { return one(x&0xff) | one(x>>8&0xff)<<16 }))
		return nil
	}
	if !ok {
		return i.errorf("a rounding modifier is needed")
	}
	half := func(v float64) uint64 {
		if r.relu && v <= 0 {
			v = 0
		}
		switch to {
		case tE4M3x2:
			return toFP8(v, fmtE4M3)
		case tE5M2x2:
			return toFP8(v, fmtE5M2)
		}
		fm := fmtNames[to]
		u := roundTo(v, fm, mode)
		if r.relu && u == 0x8000 {
			u = 0
		}
		if satfinite && u&0x7fff == fm.inf {
			u--
		}
		return u
	}
	switch {
	case from == tF32:
		d, s, err := i.dstAnd(from, 2)
		if err != nil {
			return err
		}
		bits := 16
		if fp8 {
			bits = 8
		}
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			return half(float64(f32(x)))<<bits | half(float64(f32(y)))
		}))
	case from == tF16x2 && fp8:
		d, s, err := i.dstAnd(from, 1)
		if err != nil {
			return err
		}
		i.emit(un(d, s[0], func(x uint64) uint64 { return half(fromF16(x>>16&0xffff))<<8 | half(fromF16(x&0xffff)) }))
	default:
		return i.unsupported("")
	}
	return nil
}

var windows = map[string]uint64{".global": 0, ".const": 0, ".shared": SharedWindow, ".shared::cta": SharedWindow,
	".shared::cluster": SharedWindow,
	".local":           LocalWindow, ".param": ParamWindow, ".param::entry": ParamWindow}

func (i *ins) window() (uint64, bool) {
	for name, base := range windows {
		if i.take(name) {
			return base, true
		}
	}
	return 0, false
}

func hCvta(i *ins) error {
	back := i.take(".to")
	base, ok := i.window()
	t := i.typ()
	if !ok || t != tU64 {
		return i.unsupported("")
	}
	d, s, err := i.operands(t)
	if err != nil {
		return err
	}
	a := s[0]
	switch {
	case base == 0:
		i.emit(opMove(d, a))
	case back:
		i.emit(opSub(d, a, i.constant(base)))
	default:
		i.emit(opAdd(d, a, i.constant(base)))
	}
	return nil
}

// hIsspacep says whether a generic address lies in a window.
func hIsspacep(i *ins) error {
	constant := i.take(".const")
	whole := slices.Contains(i.mods, ".shared::cluster") // other blocks' as well
	base, ok := i.window()
	if err := i.args(2); err != nil {
		return err
	}
	if constant || !ok {
		return i.unsupported("")
	}
	p, err := i.predDst(&i.s.args[0])
	if err != nil {
		return err
	}
	a, err := i.src(&i.s.args[1], tU64)
	if err != nil {
		return err
	}
	i.emit(func(w *warp, m uint32) {
		var v uint32
		a := w.r(a)
		for k := m; k != 0; k &= k - 1 {
			l := lane(k)
			in := a[l] >= base && a[l]-base < SharedWindow
			if in && base == SharedWindow && !whole {
				in = uint32((a[l]-base)>>clusterShift) == w.blk.rank
			}
			if in {
				v |= 1 << l
			}
		}
		w.setPred(p, m, v)
	})
	return nil
}
