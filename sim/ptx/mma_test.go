package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
)

// fragment says which element a lane's i-th value is, as the tables of the PTX manual do.
type fragment func(lane, i int) (row, col int)

// matrixProduct runs one mma on a, b and c given by their elements' bits, and returns D's.
func matrixProduct(t *testing.T, name string, fa, fb, fc fragment, bitsA, bitsC, na, nb, nc int,
	a, b, c func(row, col int) uint64) func(row, col int) uint64 {
	t.Helper()
	m := newMemory(t)
	in, raw := m.alloc(32 * 128)
	out, res := m.alloc(32 * 32)
	put := func(l, at, bits, i int, v uint64) {
		byteAt := l*128 + at + i*bits/8
		switch bits {
		case 8:
			raw[byteAt] = byte(v)
		default:
			writeInt(raw[byteAt:], bits/8, v)
		}
	}
	for l := range 32 {
		for i := range na {
			put(l, 0, bitsA, i, a(fa(l, i)))
		}
		for i := range nb {
			put(l, 64, bitsA, i, b(fb(l, i)))
		}
		for i := range nc {
			put(l, 96, bitsC, i, c(fc(l, i)))
		}
	}
	width := max(bitsA, 32)
	wa, wb := na*bitsA/width, nb*bitsA/width
	wc := nc * bitsC / max(bitsC, 32)
	var text strings.Builder
	load := func(reg string, n, bytes, at int) string {
		var list []string
		for i := range n {
			fmt.Fprintf(&text, "\tld.global.b%d %%%s%d, [%%in+%d];\n", 8*bytes, reg, i, at+i*bytes)
			list = append(list, fmt.Sprintf("%%%s%d", reg, i))
		}
		return "{" + strings.Join(list, ", ") + "}"
	}
	fmt.Fprintf(&text, "%s.visible .entry k(.param .u64 in, .param .u64 out) {\n\t.reg .b64 %%in, %%out; "+
		".reg .b32 %%t; .reg .b%d %%a<8>, %%b<8>; .reg .b%d %%c<8>;\n", header, width, max(bitsC, 32))
	text.WriteString("\tld.param.u64 %in, [in]; ld.param.u64 %out, [out]; " +
		"mov.u32 %t, %tid.x;\n\tmad.wide.u32 %in, %t, 128, %in; mad.wide.u32 %out, %t, 32, %out;\n")
	la, lb, lc := load("a", wa, width/8, 0), load("b", wb, width/8, 64), load("c", wc, max(bitsC, 32)/8, 96)
	fmt.Fprintf(&text, "\t%s %s, %s, %s, %s;\n", name, lc, la, lb, lc)
	for i := range wc {
		fmt.Fprintf(&text, "\tst.global.b%d [%%out+%d], %%c%d;\n", max(bitsC, 32), i*max(bitsC, 32)/8, i)
	}
	text.WriteString("\tret;\n}\n")
	mod, err := Parse([]byte(text.String()))
	must(t, err)
	must(t, run(t, m, mod, "k", [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}, 0, in, out))
	d := map[[2]int]uint64{}
	for l := range 32 {
		for i := range nc {
			row, col := fc(l, i)
			d[[2]int{row, col}] = readInt(res[l*32+i*bitsC/8:], bitsC/8)
		}
	}
	return func(row, col int) uint64 { return d[[2]int{row, col}] }
}

func accumulators(l, i int) (int, int) { return l/4 + i/2*8, l%4*2 + i%2 }

func half16(l, i int) (int, int) {
	row, col := l/4, l%4*2+i&1
	if i&2 != 0 {
		row += 8
	}
	if i >= 4 {
		col += 8
	}
	return row, col
}

func half16B(l, i int) (int, int) {
	row := l%4*2 + i&1
	if i >= 2 {
		row += 8
	}
	return row, l / 4
}

func small(row, col int) float64 { return float64((row*7+col*3)%11 - 5) }

func TestMatrixProducts(t *testing.T) {
	bytes32 := func(l, i int) (int, int) { // A of m16n8k32
		row, col := l/4, l%4*4+i&3
		if i&4 != 0 {
			row += 8
		}
		if i >= 8 {
			col += 16
		}
		return row, col
	}
	for _, c := range []struct {
		name         string
		fa, fb       fragment
		in, acc      typ
		k            int
		na, nb       int
		sum          float64
		bitsA, bitsC int
	}{
		{"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", half16, half16B, tF16, tF32, 16, 8, 4, 0.5, 16, 32},
		{"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", half16, half16B, tF16, tF16, 16, 8, 4, 2, 16, 16},
		{"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", half16, half16B, tBF16, tF32, 16, 8, 4, 0.25, 16, 32},
		{"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", half16, half16B, tF16, tF32, 8, 4, 2, 0.5, 16, 32},
		{"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", func(l, i int) (int, int) { return l/4 + i%2*8, l%4 + i/2*4 },
			func(l, i int) (int, int) { return l%4 + i*4, l / 4 }, tF32, tF32, 8, 4, 2, 0.5, 32, 32},
		{"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", func(l, i int) (int, int) { return l/4 + i*8, l % 4 },
			func(l, i int) (int, int) { return l % 4, l / 4 }, tF32, tF32, 4, 2, 1, 0.5, 32, 32},
		{"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", func(l, i int) (int, int) { return l / 4, l % 4 },
			func(l, i int) (int, int) { return l % 4, l / 4 }, tF64, tF64, 4, 1, 1, 0.125, 64, 64},
		{"mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", bytes32,
			func(l, i int) (int, int) { return l%4*4 + i&3 + i/4*16, l / 4 },
			tS8, tS32, 32, 16, 8, 1000, 8, 32},
		{"mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32", func(l, i int) (int, int) { return l/4 + i/4*8, l%4*4 + i&3 },
			func(l, i int) (int, int) { return l%4*4 + i, l / 4 }, tU8, tS32, 16, 8, 4, 1000, 8, 32},
		{"mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32", func(l, i int) (int, int) { return l / 4, l%4*4 + i },
			func(l, i int) (int, int) { return l%4*4 + i, l / 4 }, tS8, tS32, 16, 4, 4, 1000, 8, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			encode := func(ty typ, v float64) uint64 {
				if ty.isInt() {
					return uint64(int64(v))
				}
				return roundTo(v, fmtNames[ty], rn)
			}
			rows := 16
			if strings.Contains(c.name, ".m8n8") {
				rows = 8
			}
			unsignedA, unsignedB := strings.Contains(c.name, ".u8.s8"), strings.Contains(c.name, ".s8.u8")
			valueA := func(r, k int) float64 {
				if unsignedA {
					return small(r, k) + 200
				}
				return small(r, k)
			}
			valueB := func(k, n int) float64 {
				if unsignedB {
					return small(n, k+3) + 200
				}
				return small(n, k+3)
			}
			nc := rows / 4
			got := matrixProduct(t, c.name, c.fa, c.fb, accumulators, c.bitsA, c.bitsC, c.na, c.nb, nc,
				func(r, k int) uint64 { return encode(c.in, valueA(r, k)) },
				func(k, n int) uint64 { return encode(c.in, valueB(k, n)) },
				func(r, n int) uint64 { return encode(c.acc, c.sum+float64(r-n)) })
			for r := range rows {
				for n := range 8 {
					want := c.sum + float64(r-n)
					for k := range c.k {
						want += valueA(r, k) * valueB(k, n)
					}
					w := encode(c.acc, want) & mask(c.bitsC)
					if g := got(r, n); g != w {
						t.Fatalf("element %d,%d is %#x, not %#x", r, n, g, w)
					}
				}
			}
		})
	}
}

// TestMatrixMoves takes matrices out of shared memory and puts them back.
func TestMatrixMoves(t *testing.T) {
	const text = header + `.visible .entry k(.param .u64 out) {
	.reg .b32 %t, %a, %r<4>; .reg .b64 %out;
	.shared .align 16 .b8 tile[1024];
	ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 16, %out;
	mov.u32 %a, tile; mad.lo.u32 %a, %t, 16, %a;
	{ .reg .b32 %v<4>; mul.lo.u32 %v0, %t, 8; mad.lo.u32 %v1, %v0, 65536, 65536; add.u32 %v1, %v1, %v0;
	st.shared.b32 [%a], %v1; add.u32 %v1, %v1, 0x20002; st.shared.b32 [%a+4], %v1; add.u32 %v1, %v1, 0x20002;
		st.shared.b32 [%a+8], %v1;
	add.u32 %v1, %v1, 0x20002; st.shared.b32 [%a+12], %v1; }
	bar.sync 0;
	ldmatrix.sync.aligned.m8n8.x4MODE.shared.b16 {%r0, %r1, %r2, %r3}, [%a];
	BACK
	st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3}; ret;
}
`
	for _, c := range []struct {
		mode, back string
		want       func(l, k int) uint32 // lane's register of matrix k
	}{
		{"", "", func(l, k int) uint32 { v := uint32(64*k + 8*(l/4) + l%4*2); return v | (v+1)<<16 }},
		{".trans", "", func(l, k int) uint32 { v := uint32(64*k + 8*(l%4*2) + l/4); return v | (v+8)<<16 }},
		{".trans", "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%a+512], {%r0, %r1, %r2, %r3}; bar.sync 0; " +
			"ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%a+512];",
			func(l, k int) uint32 { v := uint32(8*l + 2*k); return v | (v+1)<<16 }},
		{"", "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r1;", func(l, k int) uint32 {
			if k == 1 {
				v := uint32(64 + 8*(l%4*2) + l/4)
				return v | (v+8)<<16
			}
			v := uint32(64*k + 8*(l/4) + l%4*2)
			return v | (v+1)<<16
		}},
	} {
		mod, err := Parse([]byte(strings.NewReplacer("MODE", c.mode, "BACK", c.back).Replace(text)))
		must(t, err)
		m := newMemory(t)
		out, res := m.alloc(32 * 16)
		must(t, run(t, m, mod, "k", [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}, 0, out))
		for l := range 32 {
			for k := range 4 {
				if got, want := binary.LittleEndian.Uint32(res[16*l+4*k:]), c.want(l, k); got != want {
					t.Fatalf("%s %s: lane %d has %#x in register %d, not %#x", c.mode, c.back, l, got, k, want)
				}
			}
		}
	}
}

// TestVectorRegisters uses whole vectors and their components by both sets of names.
func TestVectorRegisters(t *testing.T) {
	got := threads(t, kernel(`.reg .v4 .b32 v; .reg .v2 .b32 %w<3>; .reg .b64 %a; .shared .align 16 .b8 s[1024];
	mov.u64 %a, s; mad.wide.u32 %a, %t, 16, %a;
	mov.u32 v.x, %t; mov.u32 v.g, 10; mov.u32 v.z, 100; add.u32 v.a, v.x, 1000;
	st.shared.v4.b32 [%a], v; ld.shared.v2.b32 %w2, [%a+8];
	add.u32 %r0, %w2.x, %w2.g; add.u32 %r0, %r0, v.y;`), 1, 32)
	expect(t, got, func(i uint32) uint32 { return 1110 + i })
	for _, bad := range []string{".reg .v2 .b32 v; mov.u32 v.z, 1;", ".reg .v2 .b32 v, v;",
		".reg .v4 .b32 v; add.u32 %r0, v, 1;"} {
		if _, err := Parse([]byte(header + kernel(bad))); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestPredicateParameters(t *testing.T) {
	const text = `.func (.reg .pred ret) both(.reg .pred a, .reg .pred b, .reg .b32 n) {
	.reg .pred c; setp.gt.u32 c, n, 3; and.pred ret, a, b; and.pred ret, ret, c; ret; }
`
	got := threads(t, text+kernel(`setp.lt.u32 %p1, %t, 20; and.b32 %r1, %t, 1; setp.eq.u32 %p2, %r1, 0;
	call (%p3), both, (%p1, !%p2, %t); selp.u32 %r0, 7, 9, %p3;`), 1, 32)
	expect(t, got, func(i uint32) uint32 {
		if i > 3 && i < 20 && i%2 == 1 {
			return 7
		}
		return 9
	})
	for _, bad := range []string{"call (%p3), both, (%p1, %r2, %t);", "call (%r1), both, (%p1, %p2, %t);",
		"call (%p3), both, (%p1, %p2, %p0);"} {
		if _, err := Parse([]byte(header + text + kernel(bad))); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestPackedConversions(t *testing.T) {
	for _, c := range []struct {
		code string
		a, b uint64
		want uint64
	}{
		{"cvt.pack.sat.u16.s32 %r0, %r1, %r2;", neg(5), 70000, 0x0000ffff},
		{"cvt.pack.sat.s16.s32 %r0, %r1, %r2;", neg(5), 70000, 0xfffb7fff},
		{"cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, 0x1234;", 300, 7, 0x1234ff07},
		{"cvt.pack.sat.s8.s32.b32 %r0, %r1, %r2, 0x1234;", neg(300), neg(1), 0x123480ff},
		{"cvt.pack.sat.u4.s32.b32 %r0, %r1, %r2, 0x1234;", 300, 7, 0x1234f7},
	} {
		mod, err := Parse([]byte(opModule(c.code, 'r')))
		must(t, err)
		m := newMemory(t)
		out, res := m.alloc(8 * 32)
		must(t, run(t, m, mod, "k", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, out, c.a, c.b, uint64(0)))
		if got := uint64(binary.LittleEndian.Uint32(res)); got != c.want {
			t.Errorf("%s: %#x, not %#x", c.code, got, c.want)
		}
	}
}

// BenchmarkMatrixProduct counts multiplications.
func BenchmarkMatrixProduct(b *testing.B) {
	text := header + kernel(`.reg .b32 %x<8>; mov.u32 %r31, 0; loop:
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r4, %r5, %r6, %r7}, {%x0, %x1, %x2, %x3},
		{%x4, %x5}, {%r4, %r5, %r6, %r7};
	add.u32 %r31, %r31, 1; setp.lt.u32 %p1, %r31, 1000; @%p1 bra loop;`)
	mod, err := Parse([]byte(text))
	must(b, err)
	m := newMemory(b)
	out, _ := m.alloc(4 * 32)
	for b.Loop() {
		must(b, run(b, m, mod, "k", [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}, 0, out))
	}
	b.ReportMetric(float64(b.N)*1000*2048/b.Elapsed().Seconds(), "mul/s")
}

type testTexture struct{}

func (testTexture) Sample(q *TexQuery) [4]uint32 {
	if q.Integer {
		return [4]uint32{uint32(q.XI), uint32(q.YI), uint32(q.ZI), q.Layer}
	}
	f := math.Float32bits
	return [4]uint32{f(q.X), f(q.Y), f(q.Z + q.Level), uint32(q.Gather)}
}

type testSurface struct{ bytes []byte }

func (s testSurface) At(_ Geometry, _ uint32, x, y, _ int32, n int) []byte {
	if x < 0 || y < 0 || x+int32(n) > 64 || y >= 4 {
		return nil
	}
	return s.bytes[64*y+x : 64*y+x+int32(n)]
}

type testObjects struct{ surface testSurface }

func (testObjects) Texture(h uint64) Texture {
	if h != 7 {
		return nil
	}
	return testTexture{}
}

func (o testObjects) Surface(h uint64) Surface {
	if h != 8 {
		return nil
	}
	return o.surface
}

func TestTextures(t *testing.T) {
	objects := testObjects{testSurface{make([]byte, 256)}}
	for i := range objects.surface.bytes {
		objects.surface.bytes[i] = byte(i)
	}
	const start = `.reg .f32 %f<8>; mov.u64 %l1, 7; mov.u64 %l2, 8; cvt.rn.f32.u32 %f0, %t; mov.f32 %f1, 0f40000000; `
	for _, c := range []struct {
		code  string
		want  func(i uint32) uint32
		fault bool
	}{
		{"tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%l1, {%f0, %f1}]; add.f32 %f2, %f2, %f3; cvt.rni.u32.f32 %r0, %f2;",
			func(i uint32) uint32 { return i + 2 }, false},
		{"tex.level.3d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%l1, {%f1, %f1, %f0, %f0}], %f1; cvt.rni.u32.f32 %r0, %f4;",
			func(i uint32) uint32 { return i + 2 }, false},
		{"tex.1d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%l1, {%t}];", func(i uint32) uint32 { return i }, false},
		{"tex.a2d.v4.u32.s32 {%r1, %r2, %r3, %r0}, [%l1, {%t, %r9, %r9, %r9}];", func(i uint32) uint32 { return i }, false},
		{"tld4.b.2d.v4.u32.f32 {%r1, %r2, %r3, %r0}, [%l1, {%f0, %f1}];", func(i uint32) uint32 { return 2 }, false},
		{"tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%l2, {%f0, %f1}];", nil, true},
		{"mov.u32 %r1, 1; shl.b32 %r2, %t, 2; suld.b.2d.b32.zero %r0, [%l2, {%r2, %r1}];", func(i uint32) uint32 {
			if i >= 16 {
				return 0
			}
			return 0x43424140 + i*0x04040404
		}, false},
		{"mov.u32 %r1, 3; shl.b32 %r2, %t, 2; sust.b.2d.b32.zero [%l2, {%r2, %r1}], %t; " +
			"suld.b.2d.v2.b16.zero {%r0, %r3}, [%l2, {%r2, %r1}];", func(i uint32) uint32 {
			if i >= 16 {
				return 0
			}
			return i
		}, false},
		{"shl.b32 %r2, %t, 2; sust.b.2d.b32.trap [%l2, {%r2, %r2}], %t;", nil, true},
	} {
		got, err := tryThreads(t, kernel(start+c.code), 1, 32, func(g *Grid) { g.Textures = objects })
		if (err != nil) != c.fault {
			t.Errorf("%s: %v", c.code, err)
		} else if err == nil {
			expect(t, got, c.want)
		}
	}
	if _, err := tryThreads(t, kernel(start+"tex.1d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%l1, {%t}];"), 1, 1,
		nil); err == nil {
		t.Error("a launch without textures reads one")
	}
}
