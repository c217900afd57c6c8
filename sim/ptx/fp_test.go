package ptx

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

var modes = map[rounding]big.RoundingMode{rn: big.ToNearestEven, rz: big.ToZero, rm: big.ToNegativeInf,
	rp: big.ToPositiveInf}

// reference rounds an exact value to a format by arithmetic on integers, independently of roundSig.
func reference(v *big.Float, f *format, mode rounding) uint64 {
	neg := v.Signbit()
	var sign uint64
	if neg {
		sign = 1 << f.sign
	}
	if v.Sign() == 0 {
		return sign
	}
	exp := max(v.MantExp(nil)-1, f.emin) // of the unit's leading bit
	scaled := new(big.Float).SetMantExp(new(big.Float).SetPrec(9000).Abs(v), f.mant-exp)
	n, _ := scaled.Int(nil)
	rest := new(big.Float).Sub(scaled, new(big.Float).SetPrec(9000).SetInt(n))
	half := rest.Cmp(big.NewFloat(0.5))
	up := false
	switch mode {
	case rn:
		up = half > 0 || half == 0 && n.Bit(0) == 1
	case rm:
		up = neg && rest.Sign() > 0
	case rp:
		up = !neg && rest.Sign() > 0
	}
	q := n.Uint64()
	if up {
		q++
	}
	bits := uint64(exp-f.emin)<<f.mant + q
	if exp-f.emin > 1<<12 || bits >= f.inf {
		bits = f.inf
		if mode == rz || mode == rm && !neg || mode == rp && neg {
			bits--
		}
	}
	return sign | bits
}

// sample gives floats of a format whose sums, products and quotients hit its edges.
func sample(r *rand.Rand, f *format) uint64 {
	v := r.Uint64() & (1<<(f.sign+1) - 1)
	switch r.IntN(6) {
	case 0:
		v &^= 1<<(f.mant-1) - 1 // few bits
	case 1:
		v &^= f.inf // subnormal
	case 2:
		v |= 1<<f.mant - 1
	case 3:
		v = v&^f.inf | f.inf/2&^(1<<f.mant-1)
	}
	if v&f.inf == f.inf {
		v &^= 1 << f.mant
	}
	return v
}

func TestRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, f := range []struct {
		f *format
		t typ
	}{{fmtF32, tF32}, {fmtF16, tF16}, {fmtBF16, tBF16}} {
		for range 6000 {
			x, y, z := sample(r, f.f), sample(r, f.f), sample(r, f.f)
			a, b, c := fromSmall(x, f.t), fromSmall(y, f.t), fromSmall(z, f.t)
			for mode := range modes {
				sum := exact(a)
				sum.Add(sum, exact(b))
				if sum.Sign() != 0 {
					check(t, "add", f.t, mode, sumSmall(a, b, f.f, mode), reference(sum, f.f, mode), a, b, 0)
				}
				p := exact(a)
				p.Mul(p, exact(b))
				check(t, "mul", f.t, mode, roundTo(a*b, f.f, mode), reference(p, f.f, mode), a, b, 0)
				p.Add(p, exact(c))
				if p.Sign() != 0 {
					want := reference(p, f.f, mode)
					check(t, "fma", f.t, mode, sumSmall(a*b, c, f.f, mode), want, a, b, c)
					if f.t == tF32 && mode == rn {
						check(t, "fma32", f.t, mode, uint64(math.Float32bits(fma32(f32(x), f32(y), f32(z)))), want, a, b, c)
					}
				}
				if b != 0 && a != 0 {
					q := new(big.Float).SetPrec(400).Quo(exact(a), exact(b))
					check(t, "div", f.t, mode, quoSmall(a, b, f.f, mode), reference(q, f.f, mode), a, b, 0)
				}
				if a > 0 {
					q := new(big.Float).SetPrec(400).Sqrt(exact(a).SetPrec(400))
					check(t, "sqrt", f.t, mode, sqrtSmall(a, f.f, mode), reference(q, f.f, mode), a, 0, 0)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

func check(t *testing.T, op string, ty typ, mode rounding, got, want uint64, a, b, c float64) {
	t.Helper()
	if got != want {
		t.Errorf("%s%v mode %d of %x %x %x: %#x, not %#x", op, ty, mode, a, b, c, got, want)
	}
}

func TestRounding64(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for range 600 {
		a, b, c := f64(sample(r, fmtF64)), f64(sample(r, fmtF64)), f64(sample(r, fmtF64))
		for mode := range modes {
			p := exact(a)
			p.Mul(p, exact(b))
			if p.Sign() != 0 {
				check(t, "mul", tF64, mode, math.Float64bits(mul64(a, b, mode)), reference(p, fmtF64, mode), a, b, 0)
			}
			p.Add(p, exact(c))
			if p.Sign() != 0 {
				check(t, "fma", tF64, mode, math.Float64bits(fma64(a, b, c, mode)), reference(p, fmtF64, mode), a, b, c)
			}
			sum := exact(a)
			sum.Add(sum, exact(b))
			if sum.Sign() != 0 {
				check(t, "add", tF64, mode, math.Float64bits(add64(a, b, mode)), reference(sum, fmtF64, mode), a, b, 0)
			}
			if a != 0 && b != 0 {
				q := new(big.Float).SetPrec(3000).Quo(exact(a), exact(b))
				check(t, "div", tF64, mode, math.Float64bits(quo64(a, b, mode)), reference(q, fmtF64, mode), a, b, 0)
			}
			if a > 0 {
				q := new(big.Float).SetPrec(3000).Sqrt(exact(a).SetPrec(3000))
				check(t, "sqrt", tF64, mode, math.Float64bits(sqrt64(a, mode)), reference(q, fmtF64, mode), a, 0, 0)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestFP8 converts every value there and back.
func TestFP8(t *testing.T) {
	for x := range uint64(256) {
		for _, e4m3 := range []bool{true, false} {
			f := fmtE5M2
			if e4m3 {
				f = fmtE4M3
			}
			v := fromFP8(x, e4m3)
			if v != v || math.IsInf(v, 0) {
				continue
			}
			if got := toFP8(v, f); got != x {
				t.Errorf("e4m3 %v: %#x is %v and comes back as %#x", e4m3, x, v, got)
			}
		}
	}
	for v, want := range map[float64]uint64{448: 0x7e, 464: 0x7e, 1e9: 0x7e, -1e9: 0xfe, 1.0625: 0x38, 1.1875: 0x3a} {
		if got := toFP8(v, fmtE4M3); got != want {
			t.Errorf("%v as e4m3 is %#x, not %#x", v, got, want)
		}
	}
}

// TestFlush: whether a result is flushed depends on it before it is rounded to the fewer bits of a subnormal number, as
// on an H200.
func TestFlush(t *testing.T) {
	const least = 0x1p-126
	for _, c := range []struct {
		x    float64
		mode rounding
		want uint64
	}{
		{least, rn, minNormal32},
		{least * (1 - 0x1p-24), rn, 0}, // 24 bits hold it
		{least * (1 - 0x1p-24), rp, 0},
		{least * (1 - 0x1p-46), rn, minNormal32},
		{least * (1 - 0x1p-46), rz, 0},
		{least * (1 - 0x1p-23 + 0x1p-46), rp, 0},
		{-least * (1 - 0x1p-23 + 0x1p-46), rm, 1 << 31},
		{-least * (1 - 0x1p-46), rm, 1<<31 | minNormal32},
		{least / 2, rp, 0},
		{0x1p-200, rp, 0},
		{-0x1p-149, rn, 1 << 31},
	} {
		if got := roundTo(c.x, fmtF32Flush, c.mode); got != c.want {
			t.Errorf("%x in mode %d gives %#x, not %#x", c.x, c.mode, got, c.want)
		}
	}
}
