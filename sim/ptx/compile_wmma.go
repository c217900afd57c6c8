package ptx

import (
	"math"
	"math/bits"
	"slices"
)

func init() { handlers["wmma"] = hWmma }

// wmmaSizes are m, n and k of a shape, wmmaShapes the shapes of a type of A and B.
var (
	wmmaSizes = map[string][3]int{
		".m16n16k16": {16, 16, 16}, ".m32n8k16": {32, 8, 16}, ".m8n32k16": {8, 32, 16}, ".m16n16k8": {16, 16, 8},
		".m8n8k4":  {8, 8, 4},
		".m8n8k32": {8, 8, 32}, ".m8n8k128": {8, 8, 128},
	}
	wmmaShapes = map[string][]string{
		".f16": {".m16n16k16", ".m32n8k16", ".m8n32k16"}, ".bf16": {".m16n16k16", ".m32n8k16", ".m8n32k16"},
		".u8": {".m16n16k16", ".m32n8k16", ".m8n32k16"}, ".s8": {".m16n16k16", ".m32n8k16", ".m8n32k16"},
		".tf32": {".m16n16k8"}, ".f64": {".m8n8k4"}, ".u4": {".m8n8k32"}, ".s4": {".m8n8k32"}, ".b1": {".m8n8k128"},
	}
	wmmaBit = mmaType{bits: 1, whole: whole(1, false)}
	// wmmaSums are the types of C and D for a type of A and B.
	wmmaSums = map[string][]string{
		".f16": {".f16", ".f32"}, ".bf16": {".f32"}, ".tf32": {".f32"}, ".f64": {".f64"},
		".u8": {".s32"}, ".s8": {".s32"}, ".u4": {".s32"}, ".s4": {".s32"}, ".b1": {".s32"},
	}
)

// wmmaFragment is how a matrix lies in the registers of a warp. PTX leaves that open; here it is as for mma (see
// there), of which a large product is several. B lies as its transpose.
type wmmaFragment struct {
	rows, cols int
	bits       int
	pack       int // neighbours in a row that a lane has
	registers  int
	across     bool // blocks follow each other along the row first
}

// newFragment describes part 'a', 'b' or 'c' (and d) of a product.
func newFragment(part byte, size [3]int, name string, bits int) *wmmaFragment {
	m, n, k := size[0], size[1], size[2]
	f := &wmmaFragment{rows: m, cols: k, bits: bits, pack: max(32/bits, 1)}
	switch part {
	case 'b':
		f.rows, f.across = n, true
	case 'c':
		f.cols, f.pack = n, 2
	}
	f.registers = f.rows * f.cols / lanes / f.each()
	if part != 'c' && name == ".f16" {
		f.registers = 8 // with some elements more than once
	}
	return f
}

// each is the number of elements in a register.
func (f *wmmaFragment) each() int { return max(32/f.bits, 1) }

// place tells which element a lane's i-th one is.
func (f *wmmaFragment) place(l, i int) (row, col int) {
	i %= f.rows * f.cols / lanes
	block, down, along := i/f.pack, f.rows/8, f.cols/(4*f.pack)
	r, c := block%down, block/down
	if f.across {
		r, c = block/along, block%along
	}
	return l/4 + 8*r, l%4*f.pack + i%f.pack + 4*f.pack*c
}

// visit goes through the elements in the registers.
func (f *wmmaFragment) visit(w *warp, regs []int, see func(row, col int, v uint64)) {
	e := f.each()
	for k, off := range regs {
		for l, v := range w.r(off) {
			for j := range e {
				row, col := f.place(l, k*e+j)
				see(row, col, v>>(j*f.bits)&mask(f.bits))
			}
		}
	}
}

func hWmma(i *ins) error {
	if !i.take(".sync") || !i.take(".aligned") {
		return i.unsupported("")
	}
	switch i.oneOf(".load", ".store", ".mma") {
	case ".load":
		return i.wmmaMove(false)
	case ".store":
		return i.wmmaMove(true)
	case ".mma":
		return i.wmmaProduct()
	}
	return i.unsupported("")
}

func wmmaElement(name string) (mmaType, bool) {
	if name == ".b1" {
		return wmmaBit, true
	}
	t, ok := mmaTypes[name]
	return t, ok
}

// wmmaMove is wmma.load and wmma.store.
func (i *ins) wmmaMove(store bool) error {
	part := i.oneOf(".a", ".b", ".c", ".d")
	layout := i.oneOf(".row", ".col")
	sp, _ := i.space()
	if len(i.mods) != 2 || part == "" || layout == "" || store != (part == ".d") ||
		sp != msGlobal && sp != msShared && sp != msGeneric {
		return i.unsupported("")
	}
	shape, name := i.mods[0], i.mods[1]
	i.mods = nil
	var f *wmmaFragment
	if part == ".a" || part == ".b" {
		t, known := wmmaElement(name)
		if !known || !slices.Contains(wmmaShapes[name], shape) || t.bits < 8 && (part == ".a") != (layout == ".row") {
			return i.unsupported("")
		}
		f = newFragment(part[1], wmmaSizes[shape], name, t.bits)
	} else {
		ok := false
		for in, sums := range wmmaSums {
			ok = ok || slices.Contains(sums, name) && slices.Contains(wmmaShapes[in], shape)
		}
		if !ok {
			return i.unsupported("")
		}
		f = newFragment('c', wmmaSizes[shape], name, typeByName[name].bits())
	}
	args := i.s.args
	if len(args) != 2 && len(args) != 3 {
		return i.errorf("2 or 3 operands are needed")
	}
	at, list := &args[1], &args[0]
	get := i.dst
	if store {
		at, list = list, at
		get = func(o *operand) (int, error) { return i.src(o, tB32) }
		if f.bits == 64 {
			get = func(o *operand) (int, error) { return i.src(o, tB64) }
		}
	}
	regs, err := i.elements(list, get)
	if err != nil {
		return err
	}
	if len(regs) != f.registers {
		return i.errorf("%d registers are needed, not %d", f.registers, len(regs))
	}
	a, err := i.address(at, sp)
	if err != nil {
		return err
	}
	alongRow := (layout == ".row") != (part == ".b")
	stride := i.constant(uint64(f.rows))
	if alongRow {
		stride = i.constant(uint64(f.cols))
	}
	if len(args) == 3 {
		if stride, err = i.src(&args[2], tU32); err != nil {
			return err
		}
	}
	return i.warpWide(true, &operand{kind: oInt, val: math.MaxUint32}, f.move(a, regs, stride, alongRow, store))
}

func (f *wmmaFragment) move(a address, regs []int, stride int, alongRow, store bool) execFn {
	// Elements of less than a byte are moved with their neighbours.
	n, e := f.bits/8, f.each()
	if f.bits < 8 {
		n, e = 4, 1
	}
	return func(w *warp, m uint32) {
		base, strides := *w.r(a.base), *w.r(stride)
		for k, off := range regs {
			reg := w.r(off)
			for rest := m; rest != 0; rest &= rest - 1 {
				l := lane(rest)
				var v uint64
				for j := range e {
					row, col := f.place(l, k*f.each()+j)
					if !alongRow {
						row, col = col, row
					}
					index := uint64(row)*uint64(uint32(strides[l])) + uint64(col)
					b := w.at(a.space, l, (base[l]+a.off+index*uint64(f.bits)/8)&a.cut, n, store)
					switch {
					case b == nil:
						return
					case store:
						writeInt(b, n, reg[l]>>(j*f.bits))
					default:
						v |= readInt(b, n) << (j * f.bits)
					}
				}
				if !store {
					reg[l] = v
				}
			}
		}
	}
}

// wmmaProduct is wmma.mma: D = A·B + C.
func (i *ins) wmmaProduct() error {
	bit := i.oneOf(".xor", ".and")
	if bit != "" && !i.take(".popc") {
		return i.unsupported("")
	}
	sat := i.take(".satfinite")
	i.drop(".rn")
	var layouts, types []string
	shape := ""
	for _, mod := range i.mods {
		switch {
		case mod == ".row" || mod == ".col":
			layouts = append(layouts, mod)
		case wmmaSizes[mod] != [3]int{}:
			shape = mod
		default:
			types = append(types, mod)
		}
	}
	if len(types) == 2 {
		types = []string{types[0], ".f16", ".f16", types[1]}
	}
	if len(types) != 4 || len(layouts) != 2 || types[1] != types[2] || !slices.Contains(wmmaShapes[types[1]], shape) {
		return i.unsupported("")
	}
	in, _ := wmmaElement(types[1])
	sums := wmmaSums[types[1]]
	if !slices.Contains(sums, types[0]) || !slices.Contains(sums, types[3]) || sat && (in.whole == nil || in.bits == 1) ||
		(bit != "") != (in.bits == 1) {
		return i.unsupported("")
	}
	if in.bits < 8 && (layouts[0] != ".row" || layouts[1] != ".col") {
		return i.unsupported("")
	}
	i.mods = nil
	if err := i.args(4); err != nil {
		return err
	}
	accD, accC := typeByName[types[0]], typeByName[types[3]]
	size := wmmaSizes[shape]
	p := &wmmaProduct{in: in, accD: accD, accC: accC, sat: sat, bit: bit,
		d: newFragment('c', size, types[0], accD.bits()), a: newFragment('a', size, types[1], in.bits),
		b: newFragment('b', size, types[1], in.bits), c: newFragment('c', size, types[3], accC.bits())}
	word := tB32
	if in.bits == 64 {
		word = tB64
	}
	src := func(t typ) func(o *operand) (int, error) { return func(o *operand) (int, error) { return i.src(o, t) } }
	for k, part := range []struct {
		name string
		regs *[]int
		f    *wmmaFragment
		get  func(*operand) (int, error)
	}{{"D", &p.rd, p.d, i.dst}, {"A", &p.ra, p.a, src(word)}, {"B", &p.rb, p.b, src(word)}, {"C", &p.rc, p.c, src(accC)}} {
		regs, err := i.elements(&i.s.args[k], part.get)
		if err != nil {
			return err
		}
		if len(regs) != part.f.registers {
			return i.errorf("%s takes %d registers, not %d", part.name, part.f.registers, len(regs))
		}
		*part.regs = regs
	}
	run := p.runFloat
	if in.whole != nil {
		run = p.runInt
	}
	return i.warpWide(true, &operand{kind: oInt, val: math.MaxUint32}, run)
}

// wmmaProduct is one product of a warp.
type wmmaProduct struct {
	in             mmaType
	accC, accD     typ
	sat            bool
	bit            string // ".xor" or ".and" of single bits
	a, b, c, d     *wmmaFragment
	ra, rb, rc, rd []int
}

// runFloat sums as mma does (see results there).
func (p *wmmaProduct) runFloat(w *warp, m uint32) {
	var a, b [32][16]float64
	var out [32][32]uint64
	p.a.visit(w, p.ra, func(row, col int, v uint64) { a[row][col] = p.in.float(v) })
	p.b.visit(w, p.rb, func(row, col int, v uint64) { b[row][col] = p.in.float(v) })
	p.c.visit(w, p.rc, func(row, col int, v uint64) {
		c := fromSmall(v, p.accC)
		if p.accD == tF64 {
			for k := range p.a.cols {
				c = math.FMA(a[row][k], b[col][k], c)
			}
			out[row][col] = math.Float64bits(c)
			return
		}
		var sum float64
		for k := range p.a.cols {
			sum += a[row][k] * b[col][k]
		}
		out[row][col] = roundTo(c+sum, fmtNames[p.accD], rn)
	})
	p.store(w, m, &out)
}

func (p *wmmaProduct) runInt(w *warp, m uint32) {
	var a, b [32][128]int64
	var out [32][32]uint64
	p.a.visit(w, p.ra, func(row, col int, v uint64) { a[row][col] = p.in.whole(v) })
	p.b.visit(w, p.rb, func(row, col int, v uint64) { b[row][col] = p.in.whole(v) })
	p.c.visit(w, p.rc, func(row, col int, v uint64) {
		sum := int64(int32(v))
		for k := range p.a.cols {
			x, y := a[row][k], b[col][k]
			if p.bit == ".xor" {
				sum += x ^ y
			} else {
				sum += x * y
			}
		}
		if p.sat {
			sum = clamp(sum, 32)
		}
		out[row][col] = uint64(uint32(sum))
	})
	p.store(w, m, &out)
}

func (p *wmmaProduct) store(w *warp, m uint32, out *[32][32]uint64) {
	e := p.d.each()
	for k, off := range p.rd {
		r := w.r(off)
		for rest := m; rest != 0; rest &= rest - 1 {
			l := bits.TrailingZeros32(rest)
			var v uint64
			for j := range e {
				row, col := p.d.place(l, k*e+j)
				v |= out[row][col] << (j * p.d.bits)
			}
			r[l] = v
		}
	}
}
