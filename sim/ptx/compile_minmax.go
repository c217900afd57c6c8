package ptx

import "math"

// hMinMax: the number wins over NaN, unless .NaN asks for the opposite; -0 is less than +0.
func hMinMax(i *ins) error {
	r, nan, swap := i.refinement(), i.take(".NaN"), i.take(".xorsign")
	if swap && !i.take(".abs") {
		return i.unsupported("")
	}
	t := i.typ()
	n := 2
	if len(i.s.args) == 4 && t == tF32 {
		n = 3
	}
	d, s, err := i.dstAnd(t, n)
	if err != nil {
		return err
	}
	maxi := i.s.op == "max"
	switch {
	case t.isInt():
		i.emit(minMaxInt(d, s[0], s[1], t, maxi, r.relu))
		return nil
	case t == tU16x2 || t == tS16x2:
		i.emit(minMaxPair(d, s[0], s[1], []typ{tU16, tS16}[t-tU16x2], maxi, r.relu))
		return nil
	case !t.float() && !t.half():
		return i.unsupported("")
	}
	choose := chooser(maxi, nan, swap)
	// With .xorsign the result has the product's sign, that of NaN counted too.
	signs := func(v, x, y uint64, f *format) uint64 {
		if swap && v != f.nan {
			v |= (x ^ y) & (1 << f.sign)
		}
		return v
	}
	switch {
	case t.half():
		fm := fmtNames[t]
		f := r.small(t, func(a, b, _ float64) uint64 { return roundTo(choose(a, b), fm, rn) })
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			v := f(x, y, 0)
			return signs(v&0xffff, x, y, fm) | signs(v>>16, x>>16, y>>16, fm)<<16
		}))
	case t == tF32 && n == 3:
		i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 {
			v := choose(choose(float64(f32(r.in(t, x))), float64(f32(r.in(t, y)))), float64(f32(r.in(t, z))))
			return r.out(t, roundTo(v, fmtF32, rn))
		}))
	case t == tF32 && !r.ftz && !nan && !swap:
		i.emit(minMaxF32(d, s[0], s[1], maxi))
	case t == tF32:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			v := put32(float32(choose(float64(f32(r.in(t, x))), float64(f32(r.in(t, y))))))
			return r.out(t, signs(v, x, y, fmtF32))
		}))
	default:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return math.Float64bits(choose(f64(x), f64(y))) }))
	}
	return nil
}

// minMaxInt compares integers of type t.
func minMaxInt(d, a, b int, t typ, maxi, relu bool) execFn {
	e := extend(t)
	return bin(d, a, b, func(x, y uint64) uint64 {
		x, y = e(x), e(y)
		less := x < y
		if t.signed() {
			less = int64(x) < int64(y)
		}
		v := y
		if less != maxi {
			v = x
		}
		if relu && int64(v) < 0 {
			return 0
		}
		return v
	})
}

// minMaxPair compares two integers of 16 bits at once.
func minMaxPair(d, a, b int, half typ, maxi, relu bool) execFn {
	e := extend(half)
	return bin(d, a, b, func(x, y uint64) uint64 {
		var v uint64
		for k := 0; k < 32; k += 16 {
			a, b := int64(e(x>>k)), int64(e(y>>k))
			c := min(a, b)
			if maxi {
				c = max(a, b)
			}
			if relu {
				c = max(c, 0)
			}
			v |= uint64(uint16(c)) << k
		}
		return v
	})
}

// chooser compares floats.
func chooser(maxi, nan, swap bool) func(a, b float64) float64 {
	return func(a, b float64) float64 {
		switch {
		case a != a && b != b || nan && (a != a || b != b):
			return math.NaN()
		case a != a:
			a = b
		case b != b:
			b = a
		}
		if swap {
			a, b = math.Abs(a), math.Abs(b)
		}
		v := math.Min(a, b)
		if maxi {
			v = math.Max(a, b)
		}
		return v
	}
}

// minMaxF32 compares floats as integers that have their order.
//
//go:noinline
func minMaxF32(d, a, b int, maxi bool) execFn {
	var turn int32
	if maxi {
		turn = -1
	}
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		for i := range d {
			if m>>i&1 != 0 {
				x, y := int32(a[i]), int32(b[i])
				switch {
				case uint32(x)&0x7fffffff > 0x7f800000: // NaN
					x = y
					if uint32(y)&0x7fffffff > 0x7f800000 {
						x = 0x7fffffff
					}
				case uint32(y)&0x7fffffff > 0x7f800000:
				case (x^x>>31&0x7fffffff)^turn > (y^y>>31&0x7fffffff)^turn:
					x = y
				}
				d[i] = uint64(uint32(x))
			}
		}
	}
}
