package ptx

import "math/bits"

// The frames into which instructions put their arithmetic. Bits of a register above its type's width are unspecified:
// whoever reads a value cuts it to the type of the instruction.
//
// The functions that make loops are not inlined: into large functions, such as the handlers, Go inlines without
// inlining further, and loops that call math.Float32frombits take twice the time.

func lane(m uint32) int { return bits.TrailingZeros32(m) & 31 }

//go:noinline
func un(d, a int, f func(uint64) uint64) execFn {
	return func(w *warp, m uint32) {
		d, a := w.r(d), w.r(a)
		if m == full {
			for i := range d {
				d[i] = f(a[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = f(a[i])
		}
	}
}

//go:noinline
func bin(d, a, b int, f func(x, y uint64) uint64) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		if m == full {
			for i := range d {
				d[i] = f(a[i], b[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = f(a[i], b[i])
		}
	}
}

//go:noinline
func tri(d, a, b, c int, f func(x, y, z uint64) uint64) execFn {
	return func(w *warp, m uint32) {
		d, a, b, c := w.r(d), w.r(a), w.r(b), w.r(c)
		if m == full {
			for i := range d {
				d[i] = f(a[i], b[i], c[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = f(a[i], b[i], c[i])
		}
	}
}

// The instructions that programs spend their time in have loops of their own.

//go:noinline
func opMove(d, a int) execFn {
	return func(w *warp, m uint32) {
		d, a := w.r(d), w.r(a)
		if m == full {
			*d = *a
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = a[i]
		}
	}
}

//go:noinline
func opAdd(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		if m == full {
			for i := range d {
				d[i] = a[i] + b[i]
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = a[i] + b[i]
		}
	}
}

//go:noinline
func opSub(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		if m == full {
			for i := range d {
				d[i] = a[i] - b[i]
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = a[i] - b[i]
		}
	}
}

//go:noinline
func opMul(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		if m == full {
			for i := range d {
				d[i] = a[i] * b[i]
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = a[i] * b[i]
		}
	}
}

//go:noinline
func opMad(d, a, b, c int) execFn {
	return func(w *warp, m uint32) {
		d, a, b, c := w.r(d), w.r(a), w.r(b), w.r(c)
		if m == full {
			for i := range d {
				d[i] = a[i]*b[i] + c[i]
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = a[i]*b[i] + c[i]
		}
	}
}

//go:noinline
func opAnd(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = a[i] & b[i]
			}
		}
	}
}

//go:noinline
func opOr(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = a[i] | b[i]
			}
		}
	}
}

//go:noinline
func opXor(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = a[i] ^ b[i]
			}
		}
	}
}

//go:noinline
func opSel(d, a, b int, p predRef) execFn {
	return func(w *warp, m uint32) {
		d, a, b, g := w.r(d), w.r(a), w.r(b), w.guard(p)
		for i := range d {
			if m&g>>i&1 != 0 {
				d[i] = a[i]
			} else if m>>i&1 != 0 {
				d[i] = b[i]
			}
		}
	}
}

type integer interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// opExtend is a conversion between integers: cut to From, then extended.
//
//go:noinline
func opExtend[From integer](d, a int) execFn {
	return func(w *warp, m uint32) {
		d, a := w.r(d), w.r(a)
		if m == full {
			for i := range d {
				d[i] = uint64(From(a[i]))
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = uint64(From(a[i]))
		}
	}
}

//go:noinline
func opMulWide[From integer](d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		if m == full {
			for i := range d {
				d[i] = uint64(From(a[i])) * uint64(From(b[i]))
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = uint64(From(a[i])) * uint64(From(b[i]))
		}
	}
}

//go:noinline
func opMadWide[From integer](d, a, b, c int) execFn {
	return func(w *warp, m uint32) {
		d, a, b, c := w.r(d), w.r(a), w.r(b), w.r(c)
		for ; m != 0; m &= m - 1 {
			i := lane(m)
			d[i] = uint64(From(a[i]))*uint64(From(b[i])) + c[i]
		}
	}
}

// comparison yields the lanes of m where it holds.
type comparison func(w *warp, m uint32) uint32

//go:noinline
func compareInt[T integer](op string, a, b int) comparison {
	switch op {
	case "eq":
		return func(w *warp, m uint32) (v uint32) {
			a, b := w.r(a), w.r(b)
			for i := range a {
				if T(a[i]) == T(b[i]) {
					v |= 1 << i
				}
			}
			return v & m
		}
	case "ne":
		return func(w *warp, m uint32) (v uint32) {
			a, b := w.r(a), w.r(b)
			for i := range a {
				if T(a[i]) != T(b[i]) {
					v |= 1 << i
				}
			}
			return v & m
		}
	case "lt", "lo":
		return func(w *warp, m uint32) (v uint32) {
			a, b := w.r(a), w.r(b)
			for i := range a {
				if T(a[i]) < T(b[i]) {
					v |= 1 << i
				}
			}
			return v & m
		}
	case "le", "ls":
		return func(w *warp, m uint32) (v uint32) {
			a, b := w.r(a), w.r(b)
			for i := range a {
				if T(a[i]) <= T(b[i]) {
					v |= 1 << i
				}
			}
			return v & m
		}
	case "gt", "hi":
		return compareInt[T]("lt", b, a)
	case "ge", "hs":
		return compareInt[T]("le", b, a)
	}
	return nil
}

func intComparison(t typ, op string, a, b int) comparison {
	switch t {
	case tU16, tB16:
		return compareInt[uint16](op, a, b)
	case tS16:
		return compareInt[int16](op, a, b)
	case tU32, tB32:
		return compareInt[uint32](op, a, b)
	case tS32:
		return compareInt[int32](op, a, b)
	case tU64, tB64:
		return compareInt[uint64](op, a, b)
	case tS64:
		return compareInt[int64](op, a, b)
	}
	return nil
}

// compareFloat knows the ordered forms, the unordered ones (which also hold for NaN), num and nan.
//
//go:noinline
func compareFloat(op string, a, b int, get func(uint64) float64) comparison {
	var f func(x, y float64) bool
	switch op {
	case "eq":
		f = func(x, y float64) bool { return x == y }
	case "ne":
		f = func(x, y float64) bool { return x < y || x > y }
	case "lt":
		f = func(x, y float64) bool { return x < y }
	case "le":
		f = func(x, y float64) bool { return x <= y }
	case "gt":
		f = func(x, y float64) bool { return x > y }
	case "ge":
		f = func(x, y float64) bool { return x >= y }
	case "equ":
		f = func(x, y float64) bool { return !(x < y || x > y) }
	case "neu":
		f = func(x, y float64) bool { return x != y }
	case "ltu":
		f = func(x, y float64) bool { return !(x >= y) }
	case "leu":
		f = func(x, y float64) bool { return !(x > y) }
	case "gtu":
		f = func(x, y float64) bool { return !(x <= y) }
	case "geu":
		f = func(x, y float64) bool { return !(x < y) }
	case "num":
		f = func(x, y float64) bool { return x == x && y == y }
	case "nan":
		f = func(x, y float64) bool { return x != x || y != y }
	default:
		return nil
	}
	return func(w *warp, m uint32) (v uint32) {
		a, b := w.r(a), w.r(b)
		for ; m != 0; m &= m - 1 {
			if i := lane(m); f(get(a[i]), get(b[i])) {
				v |= 1 << i
			}
		}
		return v
	}
}
