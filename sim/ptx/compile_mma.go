package ptx

import (
	"fmt"
	"maps"
	"math"
)

func init() {
	maps.Copy(handlers, map[string]handler{
		"mma": hMma, "ldmatrix": hMatrixMove, "stmatrix": hMatrixMove, "movmatrix": hMovMatrix,
	})
}

// mmaType is a type of matrix elements.
type mmaType struct {
	bits  int
	float func(uint64) float64
	whole func(uint64) int64
}

func whole(n int, signed bool) func(uint64) int64 {
	return func(x uint64) int64 {
		if signed {
			return int64(x<<(64-n)) >> (64 - n)
		}
		return int64(x << (64 - n) >> (64 - n))
	}
}

var mmaTypes = map[string]mmaType{
	".f16":  {bits: 16, float: func(x uint64) float64 { return fromF16(x & 0xffff) }},
	".bf16": {bits: 16, float: func(x uint64) float64 { return fromBF16(x & 0xffff) }},
	// The lower bits of a tf32 operand are not looked at.
	".tf32": {bits: 32, float: func(x uint64) float64 { return float64(f32(x &^ 0x1fff)) }},
	".f64":  {bits: 64, float: f64},
	".e4m3": {bits: 8, float: func(x uint64) float64 { return fromFP8(x&0xff, true) }},
	".e5m2": {bits: 8, float: func(x uint64) float64 { return fromFP8(x&0xff, false) }},
	".u8":   {bits: 8, whole: whole(8, false)},
	".s8":   {bits: 8, whole: whole(8, true)},
	".u4":   {bits: 4, whole: whole(4, false)},
	".s4":   {bits: 4, whole: whole(4, true)},
}

// mmaShapes lists the values of k with which a type of A is multiplied, m and n being 16 and 8, or 8 and 8.
var mmaShapes = map[string]map[string]int{
	".m16n8k4":  {".tf32": 4, ".f64": 4},
	".m16n8k8":  {".f16": 8, ".bf16": 8, ".tf32": 8, ".f64": 8},
	".m16n8k16": {".f16": 16, ".bf16": 16, ".f64": 16, ".u8": 16, ".s8": 16, ".e4m3": 16, ".e5m2": 16},
	".m16n8k32": {".u8": 32, ".s8": 32, ".u4": 32, ".s4": 32, ".e4m3": 32, ".e5m2": 32},
	".m16n8k64": {".u4": 64, ".s4": 64},
	".m8n8k4":   {".f64": 4},
	".m8n8k16":  {".u8": 16, ".s8": 16},
	".m8n8k32":  {".u4": 32, ".s4": 32},
}

// mma is one matrix product D = A·B + C of a warp. The fragments of all types follow one pattern: with e elements in a
// register, a lane holds e neighbours along k of the row (of A) or the column (of B) lane/4, from k = lane%4·e on;
// further registers are 8 rows down, then 4·e further along k. C and D have two neighbours a lane.
type mma struct {
	m, k       int
	a, b       mmaType
	acc        typ // of C and D: f16, f32, f64, s32
	accD       typ
	sat        bool
	ra, rb, rc []int
	rd         []int
}

func (i *ins) mmaTypes() (*mma, error) {
	shape := ""
	var list []string
	var order string
	x := &mma{sat: i.take(".satfinite")}
	for _, mod := range i.mods {
		switch {
		case mmaShapes[mod] != nil:
			shape = mod
		case mod == ".row" || mod == ".col":
			order += mod
		default:
			list = append(list, mod)
		}
	}
	if shape == "" || order != ".row.col" || len(list) != 4 {
		return nil, i.unsupported("")
	}
	k, known := mmaShapes[shape][list[1]]
	var okA, okB bool
	x.a, okA = mmaTypes[list[1]]
	x.b, okB = mmaTypes[list[2]]
	x.k, x.m = k, 16
	if shape[2] == '8' {
		x.m = 8
	}
	x.accD, x.acc = typeByName[list[0]], typeByName[list[3]]
	sameKind := list[1] == list[2] || x.a.bits == x.b.bits && x.a.bits <= 8
	if !known || !okA || !okB || !sameKind || (x.a.whole == nil) != (x.b.whole == nil) {
		return nil, i.unsupported("")
	}
	good := x.acc == tF32 && x.accD == tF32 || x.a.bits < 32 && (x.acc == tF16 || x.acc == tF32) &&
		(x.accD == tF16 || x.accD == tF32) && list[1] != ".bf16"
	switch {
	case x.a.whole != nil:
		good = x.acc == tS32 && x.accD == tS32
	case list[1] == ".f64":
		good = x.acc == tF64 && x.accD == tF64
	}
	if !good || x.sat && x.a.whole == nil {
		return nil, i.unsupported("")
	}
	i.mods = nil
	return x, nil
}

// registers gives the number of registers of a fragment with so many elements.
func mmaRegisters(elements, bits int) int { return max(elements*bits/lanes/max(bits, 32), 1) }

func hMma(i *ins) error {
	if !i.take(".sync") || !i.take(".aligned") {
		return i.unsupported("")
	}
	i.drop(".rn")
	x, err := i.mmaTypes()
	if err != nil {
		return err
	}
	if err := i.args(4); err != nil {
		return err
	}
	args := i.s.args
	if x.rd, err = i.elements(&args[0], i.dst); err != nil {
		return err
	}
	src := func(t typ) func(o *operand) (int, error) { return func(o *operand) (int, error) { return i.src(o, t) } }
	if x.ra, err = i.elements(&args[1], src(tB32)); err != nil {
		return err
	}
	if x.rb, err = i.elements(&args[2], src(tB32)); err != nil {
		return err
	}
	if x.rc, err = i.elements(&args[3], src(x.acc)); err != nil {
		return err
	}
	for _, f := range []struct {
		name      string
		got, need int
	}{
		{"D", len(x.rd), mmaRegisters(x.m*8, x.accD.bits())}, {"A", len(x.ra), mmaRegisters(x.m*x.k, x.a.bits)},
		{"B", len(x.rb), mmaRegisters(8*x.k, x.b.bits)}, {"C", len(x.rc), mmaRegisters(x.m*8, x.acc.bits())},
	} {
		if f.got != f.need {
			return i.errorf("%s takes %d registers, not %d", f.name, f.need, f.got)
		}
	}
	run := x.runFloat
	if x.a.whole != nil {
		run = x.runInt
	}
	return i.warpWide(true, &operand{kind: oInt, val: math.MaxUint32}, run)
}

// each visits the elements of a fragment of A or B: row along m or n, at along k.
func each(w *warp, regs []int, bits, rows int, visit func(row, at int, v uint64)) {
	e := max(32/bits, 1)
	down := rows / 8
	for r, off := range regs {
		reg := w.r(off)
		for l, v := range reg {
			row, at := l/4+8*(r%down), l%4*e+r/down*4*e
			for k := range e {
				visit(row, at+k, v>>(k*bits))
			}
		}
	}
}

// accumulator finds the place of an element of C or D: the register, the lane and the bits it is shifted by.
func (x *mma) accumulator(t typ, regs []int, row, col int) (off, shift int) {
	l := row%8*4 + col/2
	n := row/8*2 + col%2
	if t == tF16 {
		return regs[n/2] + l, 16 * (n % 2)
	}
	return regs[n] + l, 0
}

func (x *mma) runFloat(w *warp, m uint32) {
	var a [16][16]float64
	var b [8][16]float64
	if x.k > 16 {
		x.runLong(w, m)
		return
	}
	each(w, x.ra, x.a.bits, x.m, func(row, at int, v uint64) { a[row][at] = x.a.float(v) })
	each(w, x.rb, x.b.bits, 8, func(row, at int, v uint64) { b[row][at] = x.b.float(v) })
	x.results(w, m, func(row, col int, c float64) float64 {
		ra, rb := &a[row], &b[col]
		if x.acc == tF64 {
			for k := range x.k {
				c = math.FMA(ra[k], rb[k], c)
			}
			return c
		}
		var sum float64
		for k := range x.k {
			sum += ra[k] * rb[k]
		}
		return sum + c
	})
}

// runLong is the product of 8-bit floats, of which there are 32 along k.
func (x *mma) runLong(w *warp, m uint32) {
	var a [16][32]float64
	var b [8][32]float64
	each(w, x.ra, x.a.bits, x.m, func(row, at int, v uint64) { a[row][at] = x.a.float(v) })
	each(w, x.rb, x.b.bits, 8, func(row, at int, v uint64) { b[row][at] = x.b.float(v) })
	x.results(w, m, func(row, col int, c float64) float64 {
		var sum float64
		for k := range x.k {
			sum += a[row][k] * b[col][k]
		}
		return sum + c
	})
}

// results computes all elements of D. Sums of floats are exact but for the rounding of doubles, and rounded once: the
// hardware keeps fewer bits, so its results may differ in the last places.
func (x *mma) results(w *warp, m uint32, f func(row, col int, c float64) float64) {
	var out [16][8]uint64
	for row := range x.m {
		for col := range 8 {
			off, shift := x.accumulator(x.acc, x.rc, row, col)
			out[row][col] = roundTo(f(row, col, fromSmall(w.regs[off]>>shift, x.acc)), fmtNames[x.accD], rn)
		}
	}
	x.store(w, m, &out)
}

// store writes D, after all of C was read because they may be the same registers.
func (x *mma) store(w *warp, m uint32, out *[16][8]uint64) {
	for row := range x.m {
		for col := range 8 {
			off, shift := x.accumulator(x.accD, x.rd, row, col)
			if m>>(off%lanes)&1 == 0 {
				continue
			}
			if shift != 0 {
				w.regs[off] |= out[row][col] << shift
			} else {
				w.regs[off] = out[row][col]
			}
		}
	}
}

func (x *mma) runInt(w *warp, m uint32) {
	var a [16][64]int64
	var b [8][64]int64
	each(w, x.ra, x.a.bits, x.m, func(row, at int, v uint64) { a[row][at] = x.a.whole(v) })
	each(w, x.rb, x.b.bits, 8, func(row, at int, v uint64) { b[row][at] = x.b.whole(v) })
	var out [16][8]uint64
	for row := range x.m {
		for col := range 8 {
			off, _ := x.accumulator(x.acc, x.rc, row, col)
			sum := int64(int32(w.regs[off]))
			for k := range x.k {
				sum += a[row][k] * b[col][k]
			}
			if x.sat {
				sum = clamp(sum, 32)
			}
			out[row][col] = uint64(uint32(sum))
		}
	}
	x.store(w, m, &out)
}

// hMatrixMove is ldmatrix and stmatrix: up to four 8x8 matrices of 16-bit elements, whose rows' addresses the lanes
// give in turn.
func hMatrixMove(i *ins) error {
	load := i.s.op == "ldmatrix"
	if !i.take(".sync") || !i.take(".aligned") || !i.take(".m8n8") {
		return i.unsupported("")
	}
	count := map[string]int{".x1": 1, ".x2": 2, ".x4": 4}[i.oneOf(".x1", ".x2", ".x4")]
	trans := i.take(".trans")
	sp, _ := i.space()
	t := i.typ()
	if count == 0 || t != tB16 || sp != msShared && sp != msGeneric {
		return i.unsupported("")
	}
	regs, at, err := i.transfer(load, tB32, count)
	if err != nil {
		return err
	}
	a, err := i.address(at, sp)
	if err != nil {
		return err
	}
	run := func(w *warp, m uint32) {
		base := *w.r(a.base)
		for k, off := range regs {
			reg := w.r(off)
			for row := range 8 {
				l := 8*k + row
				b := w.at(a.space, l, (base[l]+a.off)&a.cut, 16, !load)
				if b == nil {
					return
				}
				for col := range 8 {
					r, c := row, col
					if trans {
						r, c = col, row
					}
					l, shift := 4*r+c/2, 16*(c%2)
					switch {
					case !load:
						writeInt(b[2*col:], 2, reg[l]>>shift)
					case m>>l&1 == 0:
					default:
						reg[l] = reg[l]&math.MaxUint32&^(0xffff<<shift) | readInt(b[2*col:], 2)<<shift
					}
				}
			}
		}
	}
	return i.warpWide(true, &operand{kind: oInt, val: math.MaxUint32}, run)
}

// hMovMatrix transposes an 8x8 matrix of 16-bit elements that lies in the lanes' registers.
func hMovMatrix(i *ins) error {
	if !i.take(".sync") || !i.take(".aligned") || !i.take(".m8n8") || !i.take(".trans") || i.typ() != tB16 {
		return i.unsupported("")
	}
	d, s, err := i.dstAnd(tB32, 1)
	if err != nil {
		return err
	}
	return i.warpWide(true, &operand{kind: oInt, val: math.MaxUint32}, func(w *warp, m uint32) {
		a := *w.r(s[0])
		for r := w.r(d); m != 0; m &= m - 1 {
			l := lane(m)
			var v uint64
			for k := range 2 {
				row, col := l%4*2+k, l/4
				v |= a[4*row+col/2] >> (16 * (col % 2)) & 0xffff << (16 * k)
			}
			r[l] = v
		}
	})
}

// hCvtPack saturates two numbers to a narrow type and packs them; with bytes or less, in front of what a third operand
// holds.
func hCvtPack(i *ins) error {
	if !i.take(".sat") || len(i.mods) < 2 || i.mods[1] != ".s32" {
		return i.unsupported("")
	}
	var n int
	var letter byte
	if _, err := fmt.Sscanf(i.mods[0], ".%c%d", &letter, &n); err != nil || letter != 'u' && letter != 's' ||
		n != 2 && n != 4 && n != 8 && n != 16 {
		return i.unsupported("")
	}
	i.mods = i.mods[2:]
	signed := letter == 's'
	sources := 2
	if n < 16 {
		if !i.take(".b32") {
			return i.unsupported("")
		}
		sources = 3
	}
	d, s, err := i.dstAnd(tS32, sources)
	if err != nil {
		return err
	}
	cut := func(x uint64) uint64 {
		v := int64(int32(x))
		if signed {
			return uint64(clamp(v, n)) & mask(n)
		}
		return uint64(min(max(v, 0), int64(mask(n))))
	}
	if sources == 2 {
		i.emit(bin(d, s[0], s[1], func(a, b uint64) uint64 { return cut(a)<<n | cut(b) }))
	} else {
		i.emit(tri(d, s[0], s[1], s[2],
			func(a, b, c uint64) uint64 { return (c<<(2*n) | cut(a)<<n | cut(b)) & math.MaxUint32 }))
	}
	return nil
}
