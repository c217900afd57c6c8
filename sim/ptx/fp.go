package ptx

import (
	"math"
	"math/big"
	"math/bits"
)

// Floating-point arithmetic in the formats and rounding modes that Go does not have. The pattern throughout: compute
// the double nearest to the exact result and the sign of what is missing, make of both the double "rounded to odd", and
// round that once to the target. A double has enough bits more than any smaller format that nothing is rounded twice.

type rounding uint8

const (
	rn  rounding = iota // to nearest, ties to even
	rz                  // to zero
	rm                  // down
	rp                  // up
	rna                 // to nearest, ties away from zero
)

// format is a binary floating-point format with mant explicit bits; its normal numbers begin at 2^emin.
type format struct {
	mant, emin int
	inf        uint64 // bits of infinity, or of the first value beyond the largest where there is none
	sign       uint
	nan        uint64
	// numbers that are less than normal are zero: those that lie below 2^emin when rounded as if there were no emin
	flush bool
}

func (f format) flushing() *format {
	f.flush = true
	return &f
}

var (
	fmtF64      = &format{mant: 52, emin: -1022, inf: 0x7ff0000000000000, sign: 63, nan: 0xfff8000000000000}
	fmtF32      = &format{mant: 23, emin: -126, inf: 0x7f800000, sign: 31, nan: 0x7fffffff}
	fmtTF32     = &format{mant: 10, emin: -126, inf: 0x3fc00, sign: 18, nan: 0x3ffff}
	fmtF16      = &format{mant: 10, emin: -14, inf: 0x7c00, sign: 15, nan: 0x7fff}
	fmtBF16     = &format{mant: 7, emin: -126, inf: 0x7f80, sign: 15, nan: 0x7fff}
	fmtE5M2     = &format{mant: 2, emin: -14, inf: 0x7c, sign: 7, nan: 0x7f}
	fmtE4M3     = &format{mant: 3, emin: -6, inf: 0x7f, sign: 7, nan: 0x7f} // no infinity: 0x7e is 448, 0x7f is NaN
	fmtF32Flush = fmtF32.flushing()
	fmtF16Flush = fmtF16.flushing()
	fmtNames    = map[typ]*format{tF64: fmtF64, tF32: fmtF32, tF16: fmtF16, tBF16: fmtBF16, tF16x2: fmtF16,
		tBF16x2: fmtBF16, tTF32: fmtTF32}
)

// roundSig rounds sig·2^e, negative if neg, to a format.
func roundSig(neg bool, sig uint64, e int, f *format, mode rounding) uint64 {
	var sign uint64
	if neg {
		sign = 1 << f.sign
	}
	if sig == 0 {
		return sign
	}
	n := bits.Len64(sig)
	exp := e + n - 1
	shift := n - f.mant - 1
	if exp < f.emin && !f.flush {
		shift += f.emin - exp
	}
	var q uint64
	if shift <= 0 {
		q = sig << -shift
	} else {
		var rem, half uint64
		if shift <= 64 {
			if shift < 64 {
				q = sig >> shift
			}
			rem = sig & (1<<shift - 1)
			half = 1 << (shift - 1)
		} else {
			rem, half = 1, 2
		}
		up := false
		switch mode {
		case rn:
			up = rem > half || rem == half && q&1 != 0
		case rna:
			up = rem >= half
		case rm:
			up = neg && rem != 0
		case rp:
			up = !neg && rem != 0
		}
		if up {
			q++
		}
	}
	if f.flush && exp < f.emin {
		if exp == f.emin-1 && q == 2<<f.mant {
			return sign | 1<<f.mant
		}
		return sign
	}
	if exp >= f.emin {
		if exp > 2000 {
			exp = 2000
		}
		q += uint64(exp-f.emin) << f.mant
	}
	if q >= f.inf {
		q = f.inf
		if mode == rz || mode == rm && !neg || mode == rp && neg {
			q--
		}
	}
	return sign | q
}

// roundTo rounds a double to a format.
func roundTo(x float64, f *format, mode rounding) uint64 {
	b := math.Float64bits(x)
	exp := int(b >> 52 & 0x7ff)
	sig := b & (1<<52 - 1)
	neg := b>>63 != 0
	switch {
	case exp == 0x7ff && sig != 0:
		return f.nan
	case exp == 0x7ff:
		if neg {
			return f.inf | 1<<f.sign
		}
		return f.inf
	case exp == 0:
		exp = 1
	default:
		sig |= 1 << 52
	}
	return roundSig(neg, sig, exp-1075, f, mode)
}

// toOdd takes the double nearest to an exact value, and what the exact value has more, of which only the sign matters.
func toOdd(x, more float64) float64 {
	if more == 0 || x == 0 || math.IsInf(x, 0) || x != x || more != more {
		return x
	}
	b := math.Float64bits(x)
	if (more < 0) == (x > 0) {
		b--
	}
	return math.Float64frombits(b | 1)
}

// twoSum is the rounded sum and its exact error.
func twoSum(a, b float64) (s, e float64) {
	s = a + b
	bb := s - a
	return s, (a - (s - bb)) + (b - bb)
}

func f32(x uint64) float32 { return math.Float32frombits(uint32(x)) }
func f64(x uint64) float64 { return math.Float64frombits(x) }

// put32 gives a result as the GPU does: there is one NaN.
func put32(r float32) uint64 {
	if r != r {
		return 0x7fffffff
	}
	return uint64(math.Float32bits(r))
}

const minNormal32 = 0x00800000

func flush32(x uint64) uint64 {
	if x&0x7f800000 == 0 {
		return x & 0x80000000
	}
	return x
}

// sat clamps to [0, 1]; NaN becomes 0.
func sat32(x uint64) uint64 {
	v := f32(x)
	switch {
	case v >= 1:
		return 0x3f800000
	case v > 0:
		return x
	}
	return 0
}

func sat64(x uint64) uint64 {
	v := f64(x)
	switch {
	case v >= 1:
		return math.Float64bits(1)
	case v > 0:
		return x
	}
	return 0
}

// sumSmall adds two doubles that represent numbers of a smaller format (or their exact product) and rounds to that
// format.
func sumSmall(a, b float64, f *format, mode rounding) uint64 {
	s, e := twoSum(a, b)
	if s == 0 && mode == rm && (a != 0 || math.Signbit(a) != math.Signbit(b)) {
		return 1 << f.sign
	}
	return roundTo(toOdd(s, e), f, mode)
}

// roundsOnce says that rounding the double s to a float gives what rounding the exact value does of which s is the
// nearest double: s does not lie in the middle of two floats, nor where they have fewer bits.
func roundsOnce(s float64) bool {
	t := math.Float64bits(s)
	return t&0x1fffffff != 0x10000000 && (t<<1>>53 >= 1023-126 || s == 0)
}

// inexact says whether s = a + b was rounded.
func inexact(a, b, s float64) bool {
	z := s - a
	return (a-(s-z))+(b-z) != 0
}

// fma32 is a·b+c rounded once to nearest.
func fma32(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c) // exact
	s := p + z
	if !roundsOnce(s) && inexact(p, z, s) {
		return math.Float32frombits(uint32(sumSmall(p, z, fmtF32, rn)))
	}
	return float32(s)
}

// quoSmall divides numbers of a smaller format.
func quoSmall(a, b float64, f *format, mode rounding) uint64 {
	q := a / b
	rem := math.FMA(-q, b, a)
	if b < 0 {
		rem = -rem
	}
	return roundTo(toOdd(q, rem), f, mode)
}

func sqrtSmall(a float64, f *format, mode rounding) uint64 {
	q := math.Sqrt(a)
	return roundTo(toOdd(q, math.FMA(-q, q, a)), f, mode)
}

// directed64 takes the nearest double and turns it into the one a directed mode gives; cmp compares the exact value
// with it.
func directed64(x float64, cmp int, mode rounding) float64 {
	if cmp == 0 || x != x {
		return x
	}
	up := mode == rp || mode == rz && (x < 0 || x == 0 && cmp < 0)
	if math.IsInf(x, 0) {
		// An overflow: the exact value is finite and nearer to zero.
		if up == (x > 0) {
			return x
		}
		return math.Copysign(math.MaxFloat64, x)
	}
	switch {
	case up && cmp > 0:
		return math.Nextafter(x, math.Inf(1))
	case !up && cmp < 0:
		return math.Nextafter(x, math.Inf(-1))
	}
	return x
}

func finite(list ...float64) bool {
	for _, x := range list {
		if math.IsInf(x, 0) || x != x {
			return false
		}
	}
	return true
}

func exact(x float64) *big.Float { return new(big.Float).SetPrec(8192).SetFloat64(x) }

// compare compares an exact value with a double that may be infinite.
func compare(v *big.Float, x float64) int {
	if math.IsInf(x, 0) {
		if x > 0 {
			return -1
		}
		return 1
	}
	return v.Cmp(exact(x))
}

// fma64 is a·b+c in any mode.
func fma64(a, b, c float64, mode rounding) float64 {
	r := math.FMA(a, b, c)
	if mode == rn || !finite(a, b, c) {
		return r
	}
	v := exact(a)
	v.Mul(v, exact(b)).Add(v, exact(c))
	if v.Sign() == 0 {
		if mode == rm && !(math.Signbit(a) == math.Signbit(b) && !math.Signbit(c)) &&
			(a*b != 0 || math.Signbit(a*b) != math.Signbit(c)) {
			return math.Copysign(0, -1)
		}
		return r
	}
	return directed64(r, compare(v, r), mode)
}

func add64(a, b float64, mode rounding) float64 {
	if mode == rn {
		return a + b
	}
	return fma64(a, 1, b, mode)
}

func mul64(a, b float64, mode rounding) float64 {
	r := a * b
	if mode == rn || !finite(a, b) {
		return r
	}
	v := exact(a)
	v.Mul(v, exact(b))
	return directed64(r, compare(v, r), mode)
}

func quo64(a, b float64, mode rounding) float64 {
	r := a / b
	if mode == rn || !finite(a, b) || a == 0 || b == 0 {
		return r
	}
	if math.IsInf(r, 0) {
		return directed64(r, compare(exact(0), r), mode)
	}
	// The sign of a - r·b, seen from b's side, says where the exact quotient lies.
	v := exact(r)
	v.Mul(v, exact(b))
	cmp := exact(a).Cmp(v)
	if b < 0 {
		cmp = -cmp
	}
	return directed64(r, cmp, mode)
}

func sqrt64(a float64, mode rounding) float64 {
	r := math.Sqrt(a)
	if mode == rn || !finite(a, r) {
		return r
	}
	v := exact(r)
	v.Mul(v, v)
	return directed64(r, exact(a).Cmp(v), mode)
}

// The 16-bit formats as doubles, exactly.
func fromF16(x uint64) float64 {
	exp, frac := int(x>>10&31), x&0x3ff
	var v float64
	switch exp {
	case 0:
		v = float64(frac) * 0x1p-24
	case 31:
		v = math.Inf(1)
		if frac != 0 {
			return math.NaN()
		}
	default:
		v = math.Float64frombits(uint64(exp-15+1023)<<52 | frac<<42)
	}
	if x&0x8000 != 0 {
		v = -v
	}
	return v
}

func fromBF16(x uint64) float64 { return float64(math.Float32frombits(uint32(x) << 16)) }

// fromSmall is the value of a number of a format as a double.
func fromSmall(x uint64, t typ) float64 {
	switch t {
	case tF16, tF16x2:
		return fromF16(x & 0xffff)
	case tBF16, tBF16x2:
		return fromBF16(x & 0xffff)
	case tF32:
		return float64(f32(x))
	}
	return f64(x)
}

// toFP8 rounds to an 8-bit format, to its largest value where it would overflow.
func toFP8(x float64, f *format) uint64 {
	if x != x {
		return f.nan
	}
	b := roundTo(x, f, rn)
	if b&0x7f >= f.inf {
		b = b&0x80 | (f.inf - 1)
	}
	return b
}

func fromFP8(x uint64, e4m3 bool) float64 {
	mant, bias := uint(2), 15
	if e4m3 {
		mant, bias = 3, 7
	}
	exp, frac := int(x&0x7f>>mant), x&(1<<mant-1)
	var v float64
	switch {
	case e4m3 && x&0x7f == 0x7f, !e4m3 && exp == 31 && frac != 0:
		return math.NaN()
	case !e4m3 && exp == 31:
		v = math.Inf(1)
	case exp == 0:
		v = math.Ldexp(float64(frac), 1-bias-int(mant))
	default:
		v = math.Ldexp(float64(frac|1<<mant), exp-bias-int(mant))
	}
	if x&0x80 != 0 {
		v = -v
	}
	return v
}
