package ptx

import (
	"maps"
	"math"
)

func init() {
	maps.Copy(handlers, map[string]handler{
		"fma": hFma, "neg": hSign, "abs": hSign, "min": hMinMax, "max": hMinMax, "copysign": hCopysign, "testp": hTestp,
		"sqrt": hRoot, "rcp": hRoot, "rsqrt": hApprox, "sin": hApprox, "cos": hApprox, "ex2": hApprox, "lg2": hApprox,
		"tanh": hApprox,
	})
}

func (i *ins) rounding() rounding {
	switch i.oneOf(".rn", ".rz", ".rm", ".rp") {
	case ".rz":
		return rz
	case ".rm":
		return rm
	case ".rp":
		return rp
	}
	return rn
}

// refine adds flushing and saturation, as asked for, to a function of n floats of type t.
type refine struct{ ftz, sat, relu bool }

func (i *ins) refinement() refine { return refine{i.take(".ftz"), i.take(".sat"), i.take(".relu")} }

// format is the one to which a result of type t is rounded.
func (r refine) format(t typ) *format {
	switch {
	case r.ftz && t == tF32:
		return fmtF32Flush
	case r.ftz && (t == tF16 || t == tF16x2):
		return fmtF16Flush
	}
	return fmtNames[t]
}

func (r refine) in(t typ, x uint64) uint64 {
	if r.ftz && t == tF32 {
		return flush32(x)
	}
	return x
}

func (r refine) out(t typ, x uint64) uint64 {
	if t == tF32 {
		if r.ftz {
			x = flush32(x)
		}
		if r.sat {
			x = sat32(x)
		}
	} else if t == tF64 && r.sat {
		x = sat64(x)
	} else if r.sat && (t == tF16 || t == tBF16) {
		x = satSmall(x, t)
	}
	return x
}

func satSmall(x uint64, t typ) uint64 {
	switch v := fromSmall(x, t); {
	case !(v > 0):
		return 0
	case v > 1:
		return roundTo(1, fmtNames[t], rn)
	}
	return x
}

// small carries a function over to 16-bit floats and pairs of them.
func (r refine) small(t typ, f func(a, b, c float64) uint64) func(x, y, z uint64) uint64 {
	fm := r.format(t)
	one := func(x, y, z uint64) uint64 {
		if r.ftz {
			x, y, z = flushSmall(x, fm), flushSmall(y, fm), flushSmall(z, fm)
		}
		v := f(fromSmall(x, t), fromSmall(y, t), fromSmall(z, t))
		if r.ftz {
			v = flushSmall(v, fm)
		}
		if r.relu && v != fm.nan && v>>15 != 0 {
			v = 0
		}
		if r.sat {
			v = satSmall(v, t)
		}
		return v
	}
	if !t.packed() {
		return one
	}
	return func(x, y, z uint64) uint64 {
		return one(x, y, z)&0xffff | one(x>>16, y>>16, z>>16)<<16
	}
}

func flushSmall(x uint64, f *format) uint64 {
	if x&f.inf == 0 {
		return x & 0x8000
	}
	return x
}

func hFloatAdd(i *ins) error {
	mode, r := i.rounding(), i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	sub := i.s.op == "sub"
	if t.half() {
		fm := fmtNames[t]
		f := r.small(t, func(a, b, _ float64) uint64 {
			if sub {
				b = -b
			}
			return sumSmall(a, b, fm, mode)
		})
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return f(x, y, 0) }))
		return nil
	}
	plain := mode == rn && !r.sat // sums below the normal numbers are exact: flushing them asks no more of the rounding
	switch {
	case t == tF32 && plain && !r.ftz:
		var negate uint32
		if sub {
			negate = 1 << 31
		}
		i.emit(addF32(d, s[0], s[1], negate))
	case t == tF32 && plain && !sub:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return flush32(put32(f32(flush32(x)) + f32(flush32(y)))) }))
	case t == tF32 && plain:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return flush32(put32(f32(flush32(x)) - f32(flush32(y)))) }))
	case t == tF32:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			a, b := float64(f32(r.in(tF32, x))), float64(f32(r.in(tF32, y)))
			if sub {
				b = -b
			}
			return r.out(tF32, sumSmall(a, b, fmtF32, mode))
		}))
	case plain && sub:
		i.emit(bin(d, s[0], s[1], subF64))
	case plain:
		i.emit(bin(d, s[0], s[1], addF64))
	default:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			b := f64(y)
			if sub {
				b = -b
			}
			return r.out(tF64, math.Float64bits(add64(f64(x), b, mode)))
		}))
	}
	return nil
}

// addF32 adds b, its sign changed by negate (the sign bit or 0).
//
//go:noinline
func addF32(d, a, b int, negate uint32) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = put32(f32(a[i]) + math.Float32frombits(uint32(b[i])^negate))
			}
		}
	}
}

//go:noinline
func mulF32(d, a, b int) execFn {
	return func(w *warp, m uint32) {
		d, a, b := w.r(d), w.r(a), w.r(b)
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = put32(f32(a[i]) * f32(b[i]))
			}
		}
	}
}

//go:noinline
func fmaF32(d, a, b, c int) execFn {
	return func(w *warp, m uint32) {
		d, a, b, c := w.r(d), w.r(a), w.r(b), w.r(c)
		for i := range d {
			if m>>i&1 != 0 {
				// fma32, by hand.
				p, z := float64(f32(a[i]))*float64(f32(b[i])), float64(f32(c[i]))
				s := p + z
				if !roundsOnce(s) && inexact(p, z, s) {
					d[i] = sumSmall(p, z, fmtF32, rn)
				} else {
					d[i] = put32(float32(s))
				}
			}
		}
	}
}

func addF64(x, y uint64) uint64    { return math.Float64bits(f64(x) + f64(y)) }
func subF64(x, y uint64) uint64    { return math.Float64bits(f64(x) - f64(y)) }
func mulF64(x, y uint64) uint64    { return math.Float64bits(f64(x) * f64(y)) }
func fmaF64(x, y, z uint64) uint64 { return math.Float64bits(math.FMA(f64(x), f64(y), f64(z))) }

func hFloatMul(i *ins) error {
	mode, r := i.rounding(), i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	switch {
	case t.half():
		fm := r.format(t)
		f := r.small(t, func(a, b, _ float64) uint64 { return roundTo(a*b, fm, mode) })
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return f(x, y, 0) }))
	case t == tF32 && mode == rn && !r.sat && !r.ftz:
		i.emit(mulF32(d, s[0], s[1]))
	case t == tF32 && mode == rn && !r.sat:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			a, b := f32(flush32(x)), f32(flush32(y))
			v := flush32(put32(a * b))
			if v&math.MaxInt32 == minNormal32 {
				return roundTo(float64(a)*float64(b), fmtF32Flush, rn)
			}
			return v
		}))
	case t == tF32:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			return r.out(tF32, roundTo(float64(f32(r.in(tF32, x)))*float64(f32(r.in(tF32, y))), r.format(tF32), mode))
		}))
	case mode == rn && !r.sat:
		i.emit(bin(d, s[0], s[1], mulF64))
	default:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			return r.out(tF64, math.Float64bits(mul64(f64(x), f64(y), mode)))
		}))
	}
	return nil
}

func hFma(i *ins) error {
	mode, r := i.rounding(), i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 3)
	if err != nil {
		return err
	}
	switch {
	case t.half():
		fm := r.format(t)
		i.emit(tri(d, s[0], s[1], s[2], r.small(t, func(a, b, c float64) uint64 { return sumSmall(a*b, c, fm, mode) })))
	case t == tF32 && mode == rn && !r.sat && !r.ftz:
		i.emit(fmaF32(d, s[0], s[1], s[2]))
	case t == tF32 && mode == rn && !r.sat:
		i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 {
			a, b, c := f32(flush32(x)), f32(flush32(y)), f32(flush32(z))
			v := flush32(put32(fma32(a, b, c)))
			if v&math.MaxInt32 == minNormal32 {
				return sumSmall(float64(a)*float64(b), float64(c), fmtF32Flush, rn)
			}
			return v
		}))
	case t == tF32:
		i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 {
			p := float64(f32(r.in(t, x))) * float64(f32(r.in(t, y)))
			return r.out(t, sumSmall(p, float64(f32(r.in(t, z))), r.format(t), mode))
		}))
	case t == tF64 && mode == rn && !r.sat:
		i.emit(tri(d, s[0], s[1], s[2], fmaF64))
	case t == tF64:
		i.emit(tri(d, s[0], s[1], s[2], func(x, y, z uint64) uint64 {
			return r.out(t, math.Float64bits(fma64(f64(x), f64(y), f64(z), mode)))
		}))
	default:
		return i.unsupported("")
	}
	return nil
}

// hFloatDiv: .approx and .full are within their documented bounds because they are rounded like .rn.
func hFloatDiv(i *ins) error {
	i.drop(".approx", ".full")
	mode, r := i.rounding(), i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	switch t {
	case tF32:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 {
			a, b := f32(r.in(t, x)), f32(r.in(t, y))
			if mode == rn && !r.ftz {
				return r.out(t, put32(a/b))
			}
			return r.out(t, quoSmall(float64(a), float64(b), r.format(t), mode))
		}))
	case tF64:
		i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return math.Float64bits(quo64(f64(x), f64(y), mode)) }))
	default:
		return i.unsupported("")
	}
	return nil
}

func hRoot(i *ins) error {
	i.drop(".approx")
	mode, r := i.rounding(), i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 1)
	if err != nil {
		return err
	}
	root := i.s.op == "sqrt"
	switch t {
	case tF32:
		i.emit(un(d, s[0], func(x uint64) uint64 {
			a := float64(f32(r.in(t, x)))
			if root {
				return r.out(t, sqrtSmall(a, fmtF32, mode))
			}
			return r.out(t, quoSmall(1, a, r.format(t), mode))
		}))
	case tF64:
		i.emit(un(d, s[0], func(x uint64) uint64 {
			if root {
				return math.Float64bits(sqrt64(f64(x), mode))
			}
			return math.Float64bits(quo64(1, f64(x), mode))
		}))
	default:
		return i.unsupported("")
	}
	return nil
}

var approximations = map[string]func(float64) float64{
	"rsqrt": func(x float64) float64 { return 1 / math.Sqrt(x) },
	"sin":   math.Sin, "cos": math.Cos, "ex2": math.Exp2, "lg2": math.Log2, "tanh": math.Tanh,
}

// hApprox computes what the hardware approximates as well as doubles allow.
func hApprox(i *ins) error {
	i.drop(".approx")
	r := i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 1)
	if err != nil {
		return err
	}
	f := approximations[i.s.op]
	switch {
	case t == tF32:
		i.emit(un(d, s[0], func(x uint64) uint64 { return r.out(t, roundTo(f(float64(f32(r.in(t, x)))), fmtF32, rn)) }))
	case t == tF64 && i.s.op == "rsqrt":
		i.emit(un(d, s[0], func(x uint64) uint64 { return math.Float64bits(f(f64(x))) }))
	case t.half() && (i.s.op == "ex2" || i.s.op == "tanh"):
		fm := fmtNames[t]
		g := r.small(t, func(a, _, _ float64) uint64 { return roundTo(f(a), fm, rn) })
		i.emit(un(d, s[0], func(x uint64) uint64 { return g(x, 0, 0) }))
	default:
		return i.unsupported("")
	}
	return nil
}

// hSign is neg and abs of all types.
func hSign(i *ins) error {
	r := i.refinement()
	t := i.typ()
	d, s, err := i.dstAnd(t, 1)
	if err != nil {
		return err
	}
	neg := i.s.op == "neg"
	if t.isInt() {
		e := extend(t)
		i.emit(un(d, s[0], func(x uint64) uint64 {
			if neg || int64(e(x)) < 0 {
				return -x
			}
			return x
		}))
		return nil
	}
	if !t.float() && !t.half() {
		return i.unsupported("")
	}
	if t.half() {
		fm := fmtNames[t]
		one := func(x uint64) uint64 {
			if r.ftz {
				x = flushSmall(x, fm)
			}
			switch {
			case x&0x7fff > fm.inf:
				return fm.nan
			case neg:
				return x ^ 0x8000
			}
			return x &^ 0x8000
		}
		i.emit(un(d, s[0], func(x uint64) uint64 { return one(x&0xffff) | one(x>>16&0xffff)<<16 }))
		return nil
	}
	sign := uint64(1) << (t.bits() - 1)
	if !r.ftz {
		i.emit(opSign(d, s[0], sign, neg))
		return nil
	}
	i.emit(un(d, s[0], func(x uint64) uint64 {
		x = r.in(t, x)
		if neg {
			return x ^ sign
		}
		return x &^ sign
	}))
	return nil
}

// opSign changes the bits of sign, or clears them.
//
//go:noinline
func opSign(d, a int, sign uint64, neg bool) execFn {
	clear, flip := sign, uint64(0)
	if neg {
		clear, flip = 0, sign
	}
	return func(w *warp, m uint32) {
		d, a := w.r(d), w.r(a)
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = a[i]&^clear ^ flip
			}
		}
	}
}

func hCopysign(i *ins) error {
	t := i.typ()
	d, s, err := i.dstAnd(t, 2)
	if err != nil {
		return err
	}
	if t != tF32 && t != tF64 {
		return i.unsupported("")
	}
	sign := uint64(1) << (t.bits() - 1)
	i.emit(bin(d, s[0], s[1], func(x, y uint64) uint64 { return y&^sign | x&sign }))
	return nil
}

func hTestp(i *ins) error {
	what := i.oneOf(".finite", ".infinite", ".number", ".notanumber", ".normal", ".subnormal")
	t := i.typ()
	if err := i.args(2); err != nil {
		return err
	}
	p, err := i.predDst(&i.s.args[0])
	if err != nil {
		return err
	}
	a, err := i.src(&i.s.args[1], t)
	if err != nil {
		return err
	}
	if what == "" || t != tF32 && t != tF64 {
		return i.unsupported("")
	}
	fm := fmtNames[t]
	i.emit(func(w *warp, m uint32) {
		var v uint32
		a := w.r(a)
		for k := m; k != 0; k &= k - 1 {
			l := lane(k)
			exp, frac := a[l]&fm.inf, a[l]&(1<<fm.mant-1)
			var yes bool
			switch what {
			case ".finite":
				yes = exp != fm.inf
			case ".infinite":
				yes = exp == fm.inf && frac == 0
			case ".number":
				yes = exp != fm.inf || frac == 0
			case ".notanumber":
				yes = exp == fm.inf && frac != 0
			case ".normal":
				yes = exp != fm.inf && (exp != 0 || frac == 0) // zeros count as normal
			case ".subnormal":
				yes = exp == 0 && frac != 0
			}
			if yes {
				v |= 1 << l
			}
		}
		w.setPred(p, m, v)
	})
	return nil
}
