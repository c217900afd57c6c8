package ptx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

var videoCases = []opCase{
	{"vadd.s32.u32.s32.sat %r0, %r1.b0, %r2.h0;", 'r', 0x123456ff, 0x1234fffe, 0, 253},
	{"vsub.s32.s32.u32.sat %r0, %r1.h1, %r2.h1;", 'r', 0x80000000, 0xffff0000, 0, neg(0x8000 + 0xffff)},
	{"vsub.u32.u32.u32.sat %r0, %r1, %r2;", 'r', 1, 2, 0, 0},
	{"vabsdiff.s32.s32.s32.sat %r0.h0, %r1.b0, %r2.b2, %r3;", 'r', 0x80, 0x7f0000, 0xabcd1234, 0xabcd00ff},
	{"vmin.s32.s32.s32.sat.add %r0, %r1, %r2, %r3;", 'r', neg(5), 3, 100, 95},
	{"vmax.u32.s32.s32 %r0, %r1, %r2;", 'r', neg(5), neg(7), 0, neg(5)},
	{"vshr.u32.u32.u32.clamp.add %r0, %r1, %r2, %r3;", 'r', 0xf0000000, 28, 100, 115},
	{"vshr.u32.u32.u32.clamp.add %r0, %r1, 8, 0;", 'r', 0xf00000ff, 0, 0, 0xf00000},
	{"vshr.u32.u32.u32.clamp %r0, %r1, %r2;", 'r', m1, 32, 0, 0},
	{"vshr.u32.u32.u32.clamp %r0, %r1, %r2;", 'r', m1, m1, 0, 0},
	{"vshr.s32.s32.u32.clamp %r0, %r1, %r2;", 'r', 0x80000000, 77, 0, m1},
	{"vshr.u32.u32.u32.wrap %r0, %r1, %r2.h1;", 'r', 0x80000000, 33 << 16, 0, 0x40000000},
	{"vshl.u32.u32.u32.clamp %r0, %r1, %r2;", 'r', m1, 32, 0, 0},
	{"vshl.u32.u32.u32.sat.clamp %r0, %r1, %r2;", 'r', m1, 32, 0, m1},
	{"vshl.s32.s32.u32.sat.clamp %r0, %r1, %r2;", 'r', 0x80000000, 32, 0, 0x80000000},
	{"vset.s32.u32.lt %r0, %r1, %r2;", 'r', neg(1), 0, 0, 1},
	{"vset.u32.u32.ne %r0.b3, %r1, %r2.h1, %r3;", 'r', 5, 5, 0xaabbccdd, 0x01bbccdd},
	{"vmad.s32.s32.u32.sat %r0, %r1, %r2, -%r3;", 'r', neg(3), 5, 7, neg(22)},
	{"vmad.s32.u32.u32.sat %r0, -%r1, %r2, %r3;", 'r', m1, m1, 7, 0x80000000},
	{"vmad.u32.u32.u32.shr15 %r0, %r1.h0, %r2.h0, %r3;", 'r', 0xffff, 0xffff, 1 << 15, 0x1fffd},
	{"vmad.u32.u32.u32.po.sat %r0, %r1, %r2, %r3;", 'r', m1, m1, m1, m1},
	{"vmad.u32.u32.u32.po.shr7 %r0, %r1, %r2, %r3;", 'r', 100, 1, 27, 1},
}

func TestVideoErrors(t *testing.T) {
	for _, c := range []struct {
		code, want string
		unknown    bool
	}{
		{"vadd.u32.u32.u32 %r0, %r1, %r2, %r3;", "3 operands", false},
		{"vadd.u32.u32.u32 %r0.b0, %r1, %r2;", "4 operands", false},
		{"vadd.u32.u32.u32.min %r0, %r1, %r2;", "4 operands", false},
		{"vadd.u32.u32.u32.min %r0.h1, %r1, %r2, %r3;", "cannot both be", false},
		{"vadd.u32.u32.u32 %r0.b4, %r1, %r2, %r3;", "must be a register", false},
		{"vadd.u32.u32.u32 %r0, %r1.b4, %r2;", ".b4 is not supported", true},
		{"vadd.u32.u32.u32 %r0, -%r1, %r2;", "not possible here", false},
		{"vadd.u32.u32.u64 %r0, %r1, %r2;", ".u32 or .s32", true},
		{"vadd.u32.u32 %r0, %r1, %r2;", ".u32 or .s32", true},
		{"vshr.u32.u32.u32 %r0, %r1, %r2;", ".clamp or .wrap", true},
		{"vshr.u32.u32.s32.wrap %r0, %r1, %r2;", "vshr", true},
		{"vset.u32.u32 %r0, %r1, %r2;", "comparison", true},
		{"vset.u32.u32.eq.sat %r0, %r1, %r2;", ".sat", true},
		{"vmad.s32.s32.s32 %r0, -%r1, %r2, -%r3;", "can be negated", false},
		{"vmad.s32.s32.s32.po %r0, %r1, %r2, -%r3;", "can be negated", false},
		{"vmad.s32.s32.s32 -%r0, %r1, %r2, %r3;", "must be a register", false},
		{"add.s32 %r0, -%r1, %r2;", "not possible here", false},
		{"@%p1 mov.u32 %r0, -nobody;", "not possible here", false},
	} {
		_, err := Parse([]byte(opModule(c.code, 'r')))
		if !errors.Is(err, ErrSyntax) || errors.Is(err, ErrUnsupported) != c.unknown ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.code, err)
		}
	}
}

// videoForm is a random instruction and what it means, by whole numbers without a bound.
type videoForm struct {
	op, second, sel, mode  string
	types                  [3]string // of the destination, a and b
	parts                  [2]string
	sat, po, minusP, minus bool
	shift                  uint
}

func pickOf(r *rand.Rand, list ...string) string { return list[r.IntN(len(list))] }

func newVideoForm(r *rand.Rand) *videoForm {
	f := &videoForm{op: pickOf(r, "vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vset", "vmad")}
	for k := range f.types {
		f.types[k] = pickOf(r, "u32", "s32")
	}
	for k := range f.parts {
		f.parts[k] = pickOf(r, "", "", "b0", "b1", "b2", "b3", "h0", "h1")
	}
	f.sat = r.IntN(2) == 0
	switch f.op {
	case "vmad":
		f.shift = []uint{0, 7, 15}[r.IntN(3)]
		switch r.IntN(4) {
		case 0:
			f.po = true
		case 1:
			f.minusP = true
		case 2:
			f.minus = true
		}
		return f
	case "vset":
		f.types[0], f.sat, f.mode = "u32", false, pickOf(r, "eq", "ne", "lt", "le", "gt", "ge")
	case "vshl", "vshr":
		f.types[2], f.mode = "u32", pickOf(r, "clamp", "wrap")
	}
	switch r.IntN(3) {
	case 0:
		f.second = pickOf(r, "add", "min", "max")
	case 1:
		f.sel = pickOf(r, "b0", "b1", "b2", "b3", "h0", "h1")
	}
	return f
}

func (f *videoForm) String() string {
	dot := func(s string) string {
		if s == "" {
			return ""
		}
		return "." + s
	}
	types := f.types[:]
	if f.op == "vset" {
		types = types[1:]
	}
	s := f.op + "." + strings.Join(types, ".")
	if f.po {
		s += ".po"
	}
	if f.sat {
		s += ".sat"
	}
	if f.shift > 0 {
		s += fmt.Sprintf(".shr%d", f.shift)
	}
	sign := map[bool]string{true: "-"}
	s += dot(f.mode) + dot(f.second) + " %d" + dot(f.sel) + ", " + sign[f.minusP] + "%a" + dot(f.parts[0]) + ", %b" +
		dot(f.parts[1])
	if f.op == "vmad" || f.second != "" || f.sel != "" {
		s += ", " + sign[f.minus] + "%c"
	}
	return s + ";"
}

func two(n uint) *big.Int { return new(big.Int).Lsh(big.NewInt(1), n) }

// field says where a selector's part begins and how many bits it has.
func field(sel string) (at, n uint) {
	switch {
	case sel == "":
		return 0, 32
	case sel[0] == 'b':
		return 8 * uint(sel[1]-'0'), 8
	}
	return 16 * uint(sel[1]-'0'), 16
}

// number reads a part of a word as a number of a type.
func number(word uint32, sel, ty string) *big.Int {
	at, n := field(sel)
	v := new(big.Int).Mod(new(big.Int).Div(big.NewInt(int64(word)), two(at)), two(n))
	if ty == "s32" && v.Cmp(two(n-1)) >= 0 {
		v.Sub(v, two(n))
	}
	return v
}

func limit(v *big.Int, n uint, ty string) *big.Int {
	low, high := new(big.Int), new(big.Int).Sub(two(n), big.NewInt(1))
	if ty == "s32" {
		low, high = new(big.Int).Neg(two(n-1)), new(big.Int).Sub(two(n-1), big.NewInt(1))
	}
	if v.Cmp(low) < 0 {
		return low
	}
	if v.Cmp(high) > 0 {
		return high
	}
	return v
}

func word(v *big.Int) uint32 { return uint32(new(big.Int).Mod(v, two(32)).Uint64()) }

func (f *videoForm) value(a, b, c uint32) uint32 {
	x, y := number(a, f.parts[0], f.types[1]), number(b, f.parts[1], f.types[2])
	v := new(big.Int)
	switch f.op {
	case "vadd":
		v.Add(x, y)
	case "vsub":
		v.Sub(x, y)
	case "vabsdiff":
		v.Abs(v.Sub(x, y))
	case "vmin":
		if v = x; x.Cmp(y) > 0 {
			v = y
		}
	case "vmax":
		if v = x; x.Cmp(y) < 0 {
			v = y
		}
	case "vshl", "vshr":
		n := uint(y.Uint64())
		if f.mode == "wrap" {
			n %= 32
		}
		n = min(n, 32)
		if v.Mul(x, two(n)); f.op == "vshr" {
			v.Div(x, two(n)) // rounds down
		}
	case "vset":
		less := x.Cmp(y)
		if map[string]bool{"eq": less == 0, "ne": less != 0, "lt": less < 0, "le": less <= 0, "gt": less > 0,
			"ge": less >= 0}[f.mode] {
			v.SetInt64(1)
		}
	case "vmad":
		ty := "u32"
		if f.types[1] == "s32" || f.types[2] == "s32" || f.minusP || f.minus {
			ty = "s32"
		}
		z := number(c, "", ty)
		if v.Mul(x, y); f.minusP {
			v.Neg(v)
		}
		if f.minus {
			v.Sub(v, z)
		} else {
			v.Add(v, z)
		}
		if f.po {
			v.Add(v, big.NewInt(1))
		}
		if v.Div(v, two(f.shift)); f.sat {
			v = limit(v, 32, ty)
		}
		return word(v)
	}
	at, n := field(f.sel)
	if f.sat {
		v = limit(v, n, f.types[0])
	}
	if f.sel != "" {
		keep := (two(n).Uint64() - 1) << at
		return c&^uint32(keep) | uint32(uint64(word(v))<<at&keep)
	}
	v, z := number(word(v), "", f.types[0]), number(c, "", f.types[0])
	switch less := v.Cmp(z); {
	case f.second == "add":
		v.Add(v, z)
	case f.second == "min" && less > 0, f.second == "max" && less < 0:
		v = z
	}
	return word(v)
}

// TestVideo compares random forms on random words, and on words at whose sides signs and ranges change, with the model.
func TestVideo(t *testing.T) {
	const forms, sets = 1200, 256 // in eight warps
	r := rand.New(rand.NewPCG(21, 1))
	edges := []uint32{0, 1, 31, 32, 33, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0x80808080,
		0x7f807fff, 0xfffffffe, 0xffffffff}
	m := newMemory(t)
	in, inputs := m.alloc(sets * 12)
	out, results := m.alloc(forms * sets * 4)
	for k := range sets * 3 {
		v := r.Uint32()
		if r.IntN(2) == 0 {
			v = edges[r.IntN(len(edges))]
		}
		binary.LittleEndian.PutUint32(inputs[4*k:], v)
	}
	var text strings.Builder
	text.WriteString(`.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {
	.reg .b32 %a, %b, %c, %d, %t; .reg .b64 %p, %q;
	ld.param.u64 %p, [in]; ld.param.u64 %q, [out];
	mov.u32 %t, %tid.x; mad.wide.u32 %p, %t, 12, %p; mad.wide.u32 %q, %t, 4, %q;
	ld.global.b32 %a, [%p]; ld.global.b32 %b, [%p+4]; ld.global.b32 %c, [%p+8];
`)
	list := make([]*videoForm, forms)
	for k := range list {
		list[k] = newVideoForm(r)
		fmt.Fprintf(&text, "%s st.global.b32 [%%q+%d], %%d;\n", list[k], k*sets*4)
	}
	text.WriteString("ret;\n}\n")
	mod, err := Parse([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	e := mod.Entry("k")
	g := &Grid{Kernel: e, GridDim: [3]uint32{1, 1, 1}, BlockDim: [3]uint32{sets, 1, 1}, Mem: m, Params: pack(e, in, out)}
	if err := g.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for k, f := range list {
		for s := range sets {
			a, b := binary.LittleEndian.Uint32(inputs[12*s:]), binary.LittleEndian.Uint32(inputs[12*s+4:])
			c := binary.LittleEndian.Uint32(inputs[12*s+8:])
			got, want := binary.LittleEndian.Uint32(results[4*(k*sets+s):]), f.value(a, b, c)
			if got != want {
				t.Errorf("%s of %#x %#x %#x: %#x, not %#x", f, a, b, c, got, want)
				wrong++
				break
			}
		}
		if wrong > 20 {
			t.Fatal("and so on")
		}
	}
}
