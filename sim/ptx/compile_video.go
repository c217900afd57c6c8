package ptx

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

func init() {
	maps.Copy(handlers, map[string]handler{
		"vadd": hVideo, "vsub": hVideo, "vabsdiff": hVideo, "vmin": hVideo, "vmax": hVideo, "vshl": hVideo, "vshr": hVideo,
		"vset": hVideo, "vmad": hVmad,
	})
}

// part is what a selector behind a register means.
type part struct{ at, bits int }

var parts = map[string]part{"": {0, 32}, ".b0": {0, 8}, ".b1": {8, 8}, ".b2": {16, 8}, ".b3": {24, 8},
	".h0": {0, 16}, ".h1": {16, 16}}

// widen makes the function that takes a part out of a register and extends it by the sign of t, to more bits than any
// first operation needs.
func (p part) widen(t typ) func(uint64) int64 {
	left, right := 64-p.at-p.bits, 64-p.bits
	if t.signed() {
		return func(x uint64) int64 { return int64(x<<left) >> right }
	}
	return func(x uint64) int64 { return int64(x << left >> right) }
}

// saturate limits a value to those that the part can have as a t.
func (p part) saturate(t typ, v int64) int64 {
	if t.signed() {
		return clamp(v, p.bits)
	}
	return min(max(v, 0), int64(mask(p.bits)))
}

// videoTypes takes n types away, of which the instructions have two.
func (i *ins) videoTypes(n int) ([]typ, error) {
	list := make([]typ, n)
	for k := range list {
		if list[k] = i.typ(); list[k] != tU32 && list[k] != tS32 {
			return nil, i.unsupported(": its types must be .u32 or .s32")
		}
	}
	return list, nil
}

// selected parts an operand from its selector; what is wrong with another suffix, src and dst say.
func selected(o *operand) (operand, part) {
	plain := *o
	p, known := parts[o.comp]
	if o.kind != oName || !known {
		return plain, parts[""]
	}
	plain.comp = ""
	return plain, p
}

// videoSource resolves a or b.
func (i *ins) videoSource(o *operand, t typ) (int, func(uint64) int64, error) {
	plain, p := selected(o)
	off, err := i.src(&plain, t)
	return off, p.widen(t), err
}

// hVideo is all of them but vmad: a first operation, whose result is saturated if that is asked for, then a second one
// with c, or a place in c for as much of the result as fits there. Without saturation the second operation sees the
// result's 32 bits as a value of the destination's type, as it sees c.
func hVideo(i *ins) error {
	sat, second := i.take(".sat"), i.oneOf(".add", ".min", ".max")
	first, err := videoOperation(i)
	if err != nil {
		return err
	}
	var types []typ
	if i.s.op == "vset" {
		types, err = i.videoTypes(2)
		types = slices.Concat([]typ{tU32}, types)
	} else {
		types, err = i.videoTypes(3)
	}
	if err != nil {
		return err
	}
	shift := i.s.op == "vshl" || i.s.op == "vshr"
	if shift && types[2] != tU32 || i.s.op == "vset" && sat {
		return i.unsupported("")
	}
	n := 3
	if second != "" || len(i.s.args) > 0 && i.s.args[0].comp != "" {
		n = 4
	}
	if err := i.args(n); err != nil {
		return err
	}
	to, place := selected(&i.s.args[0])
	merge := place.bits < 32
	if merge && second != "" {
		return i.errorf("a place in c and a second operation cannot both be")
	}
	a, wa, err := i.videoSource(&i.s.args[1], types[1])
	if err != nil {
		return err
	}
	b, wb, err := i.videoSource(&i.s.args[2], types[2])
	if err != nil {
		return err
	}
	c := i.constant(0)
	if n == 4 {
		if c, err = i.src(&i.s.args[3], types[0]); err != nil {
			return err
		}
	}
	d, err := i.dst(&to)
	if err != nil {
		return err
	}
	word := parts[""].widen(types[0])
	i.emit(tri(d, a, b, c, func(x, y, z uint64) uint64 {
		v := first(wa(x), wb(y))
		if sat {
			v = place.saturate(types[0], v)
		}
		r := uint64(v)
		switch second {
		case ".add":
			r += z
		case ".min":
			r = uint64(min(word(r), word(z)))
		case ".max":
			r = uint64(max(word(r), word(z)))
		}
		if merge {
			field := mask(place.bits)
			r = z&^(field<<place.at) | r&field<<place.at
		}
		return r
	}))
	return nil
}

func videoOperation(i *ins) (func(x, y int64) int64, error) {
	switch i.s.op {
	case "vadd":
		return func(x, y int64) int64 { return x + y }, nil
	case "vsub":
		return func(x, y int64) int64 { return x - y }, nil
	case "vabsdiff":
		return func(x, y int64) int64 { return max(x-y, y-x) }, nil
	case "vmin":
		return func(x, y int64) int64 { return min(x, y) }, nil
	case "vmax":
		return func(x, y int64) int64 { return max(x, y) }, nil
	case "vset":
		return videoComparison(i)
	}
	mode := i.oneOf(".clamp", ".wrap")
	if mode == "" {
		return nil, i.unsupported(": it needs .clamp or .wrap")
	}
	amount := func(y int64) int64 {
		if mode == ".wrap" {
			return y & 31
		}
		return min(y, 32)
	}
	if i.s.op == "vshr" {
		return func(x, y int64) int64 { return x >> amount(y) }, nil
	}
	return func(x, y int64) int64 {
		n := amount(y)
		if n == 32 {
			x = min(x, 1) // what is saturated is as much too large, and stays within 64 bits
		}
		return x << n
	}, nil
}

func videoComparison(i *ins) (func(x, y int64) int64, error) {
	var holds func(x, y int64) bool
	switch i.oneOf(".eq", ".ne", ".lt", ".le", ".gt", ".ge") {
	case ".eq":
		holds = func(x, y int64) bool { return x == y }
	case ".ne":
		holds = func(x, y int64) bool { return x != y }
	case ".lt":
		holds = func(x, y int64) bool { return x < y }
	case ".le":
		holds = func(x, y int64) bool { return x <= y }
	case ".gt":
		holds = func(x, y int64) bool { return x > y }
	case ".ge":
		holds = func(x, y int64) bool { return x >= y }
	default:
		return nil, i.unsupported(": it needs a comparison")
	}
	return func(x, y int64) int64 {
		if holds(x, y) {
			return 1
		}
		return 0
	}, nil
}

// hVmad multiplies, adds, shifts right and saturates. The result is signed if a factor is, or if the product or c is
// negated; the type of the destination has no say. The product of two words and its sign take more than 64 bits.
func hVmad(i *ins) error {
	po, sat := i.take(".po"), i.take(".sat")
	shift := map[string]int{"": 0, ".shr7": 7, ".shr15": 15}[i.oneOf(".shr7", ".shr15")]
	types, err := i.videoTypes(3)
	if err != nil {
		return err
	}
	if err := i.args(4); err != nil {
		return err
	}
	var plain [4]*operand
	var minus [4]bool
	for k := range plain {
		if plain[k] = &i.s.args[k]; plain[k].kind == oMinus {
			plain[k], minus[k] = &plain[k].list[0], true
		}
	}
	product, minusC := minus[1] != minus[2], minus[3]
	if po && (minus[1] || minus[2] || minusC) || product && minusC {
		return i.errorf("the product or c can be negated, and neither with .po")
	}
	a, wa, err := i.videoSource(plain[1], types[1])
	if err != nil {
		return err
	}
	b, wb, err := i.videoSource(plain[2], types[2])
	if err != nil {
		return err
	}
	t := tU32
	if types[1].signed() || types[2].signed() || product || minusC {
		t = tS32
	}
	c, err := i.src(plain[3], t)
	if err != nil {
		return err
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	word := parts[""].widen(t)
	var one uint64
	if po || product || minusC {
		one = 1
	}
	i.emit(tri(d, a, b, c, func(x, y, z uint64) uint64 {
		p, q := uint64(wa(x)), uint64(wb(y))
		hi, lo := mulHi(tS64, p, q), p*q
		if product {
			hi, lo = ^hi, ^lo
		}
		v := word(z)
		if minusC {
			v = ^v
		}
		lo, carry := bits.Add64(lo, uint64(v), one)
		hi += uint64(v>>63) + carry
		lo = lo>>shift | hi<<(64-shift)
		if hi = uint64(int64(hi) >> shift); !sat {
			return lo
		}
		// Values that 64 bits cannot hold saturate as the largest that they can.
		switch {
		case int64(hi) < 0 && (hi != math.MaxUint64 || int64(lo) >= 0):
			return uint64(parts[""].saturate(t, math.MinInt64))
		case int64(hi) >= 0 && (hi != 0 || int64(lo) < 0):
			return uint64(parts[""].saturate(t, math.MaxInt64))
		}
		return uint64(parts[""].saturate(t, int64(lo)))
	}))
	return nil
}
