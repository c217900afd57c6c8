package ptx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const header = ".version 8.5\n.target sm_90\n.address_size 64\n"

// threads runs a kernel k(out) of text and returns the word that each thread stored at out + 4·its number in the grid.
func threads(t *testing.T, text string, grid, block uint32) []uint32 {
	t.Helper()
	words, err := tryThreads(t, text, grid, block, nil)
	if err != nil {
		t.Fatal(err)
	}
	return words
}

func tryThreads(t *testing.T, text string, grid, block uint32, set func(*Grid)) ([]uint32, error) {
	t.Helper()
	mod, err := Parse([]byte(header + text))
	if err != nil {
		t.Fatal(err)
	}
	m := newMemory(t)
	out, _ := m.alloc(uint64(4*grid*block) + 4096)
	e := mod.Entry("k")
	g := &Grid{Kernel: e, GridDim: [3]uint32{grid, 1, 1}, BlockDim: [3]uint32{block, 1, 1}, Mem: m, Params: pack(e, out),
		Globals: m.loadGlobals(mod), MaxInstructions: 50e6}
	if set != nil {
		set(g)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = g.Run(ctx)
	words := make([]uint32, grid*block)
	for i := range words {
		words[i] = m.word(out + uint64(4*i))
	}
	return words, err
}

// kernel is k(out) with usual registers; code leaves its result in %r0.
func kernel(code string) string {
	return `.visible .entry k(.param .u64 out) {
	.reg .b32 %r<32>; .reg .b64 %l<16>, %out; .reg .pred %p<8>; .reg .b32 %t, %g, %n;
	ld.param.u64 %out, [out];
	mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %g, %ctaid.x;
	mad.lo.u32 %g, %g, %n, %t; mad.wide.u32 %out, %g, 4, %out;
	mov.u32 %r0, 0;
` + code + "\n\tst.global.u32 [%out], %r0;\n\tret;\n}\n"
}

func expect(t *testing.T, got []uint32, want func(i uint32) uint32) {
	t.Helper()
	for i, v := range got {
		if w := want(uint32(i)); v != w {
			t.Fatalf("thread %d has %#x, not %#x", i, v, w)
		}
	}
}

func collatz(n uint32) (steps uint32) {
	for ; n != 1; steps++ {
		if n%2 == 0 {
			n /= 2
		} else {
			n = 3*n + 1
		}
	}
	return steps
}

func fib(n uint32) uint32 {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

const fibText = `.func (.param .b32 ret) fib(.param .b32 n) {
	.reg .b32 %r<8>; .reg .pred %p;
	ld.param.u32 %r1, [n];
	setp.lt.u32 %p, %r1, 2;
	@!%p bra deeper;
	st.param.b32 [ret], %r1;
	ret;
deeper:
	sub.u32 %r2, %r1, 1;
	{ .param .b32 a; .param .b32 r;
	st.param.b32 [a], %r2;
	call.uni (r), fib, (a);
	ld.param.b32 %r3, [r]; }
	sub.u32 %r2, %r1, 2;
	{ .param .b32 a; .param .b32 r;
	st.param.b32 [a], %r2;
	call.uni (r), fib, (a);
	ld.param.b32 %r4, [r]; }
	add.u32 %r5, %r3, %r4;
	st.param.b32 [ret], %r5;
	ret;
}
`

func TestControlFlow(t *testing.T) {
	for name, c := range map[string]struct {
		before, code string
		want         func(i uint32) uint32
	}{
		"loop of different lengths": {"", `
	add.u32 %r1, %t, 1;
top: setp.eq.u32 %p1, %r1, 1;
	@%p1 bra done;
	and.b32 %r2, %r1, 1;
	setp.eq.u32 %p2, %r2, 0;
	@%p2 bra even;
	mad.lo.u32 %r1, %r1, 3, 1;
	bra next;
even: shr.u32 %r1, %r1, 1;
next: add.u32 %r0, %r0, 1;
	bra.uni top;
done:`, func(i uint32) uint32 { return collatz(i + 1) }},
		"nested branches that meet again": {"", `
	and.b32 %r1, %t, 3;
	setp.lt.u32 %p1, %r1, 2;
	@%p1 bra a;
	setp.eq.u32 %p2, %r1, 2;
	@%p2 bra b;
	mov.u32 %r0, 30; bra c;
b:	mov.u32 %r0, 20;
c:	add.u32 %r0, %r0, 1; bra d;
a:	mov.u32 %r0, 10;
d:	activemask.b32 %r5; popc.b32 %r5, %r5; mad.lo.u32 %r0, %r5, 100, %r0;`,
			func(i uint32) uint32 { return 3200 + []uint32{10, 10, 21, 31}[i%4] }},
		"early exit": {"", `
	st.global.u32 [%out], 7;
	and.b32 %r1, %t, 1;
	setp.eq.u32 %p1, %r1, 0;
	@%p1 exit;
	activemask.b32 %r0;`, func(i uint32) uint32 {
			if i%2 == 0 {
				return 7
			}
			return 0xaaaaaaaa
		}},
		"jump table": {"", `
	and.b32 %r1, %t, 3;
list: .branchtargets l0, l1, l2, l3;
	brx.idx %r1, list;
l3:	add.u32 %r0, %r0, 8;
l2:	add.u32 %r0, %r0, 4; bra end;
l1:	add.u32 %r0, %r0, 2;
l0:	add.u32 %r0, %r0, 1;
end:`, func(i uint32) uint32 { return []uint32{1, 3, 4, 12}[i%4] }},
		"scopes hide outer names": {"", `
	mov.u32 %r1, 5;
	{ .reg .b32 %r1; mov.u32 %r1, 9; { .reg .b32 %r1; mov.u32 %r1, 11; bra l; l: } bra l; l: add.u32 %r0, %r0, %r1; }
	add.u32 %r0, %r0, %r1;`, func(uint32) uint32 { return 14 }},
		"recursive calls of different depth": {fibText, `
	{ .param .b32 a; .param .b32 r;
	and.b32 %r1, %t, 7;
	st.param.b32 [a+0], %r1;
	call (r), fib, (a);
	ld.param.b32 %r0, [r+0]; }`, func(i uint32) uint32 { return fib(i % 8) }},
		"call with registers under a guard": {`.func (.reg .b32 %res) twice(.reg .b32 %x) { add.u32 %res, %x, %x; ret.uni; }
`, `
	mov.u32 %r0, 1;
	setp.gt.u32 %p1, %t, 9;
	@%p1 call (%r0), twice, (%t);`, func(i uint32) uint32 {
			if i > 9 {
				return 2 * i
			}
			return 1
		}},
		"calls through pointers of a table": {`.func (.param .b32 r) f1(.param .b32 a) { .reg .b32 %x; ld.param.b32 %x, [a];
			add.u32 %x, %x, 100; st.param.b32 [r], %x; ret; }
.func (.param .b32 r) f2(.param .b32 a) { .reg .b32 %x; ld.param.b32 %x, [a]; mul.lo.u32 %x, %x, 3;
	st.param.b32 [r], %x; ret; }
.global .align 8 .u64 table[2] = {f1, f2};
`, `
	and.b32 %r1, %t, 1;
	mov.u64 %l1, table;
	mad.wide.u32 %l1, %r1, 8, %l1;
	ld.global.u64 %l2, [%l1];
	{ .param .b32 a; .param .b32 r; st.param.b32 [a], %t;
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
	call (r), %l2, (a), proto;
	ld.param.b32 %r0, [r]; }`, func(i uint32) uint32 {
			if i%2 == 0 {
				return i + 100
			}
			return 3 * i
		}},
		"local arrays of caller and callee": {`.func (.param .b32 r) f(.param .b64 p) {
	.local .align 8 .b8 buf[16]; .reg .b64 %l<4>; .reg .b32 %r<4>;
	ld.param.u64 %l1, [p]; ld.u32 %r1, [%l1+4];
	mov.u64 %l2, buf; cvta.local.u64 %l3, %l2;
	st.u32 [%l3+4], 77; add.u32 %r1, %r1, 1; st.local.u32 [%l2], %r1;
	ld.u32 %r2, [%l3]; st.param.b32 [r], %r2; ret; }
`, `
	.local .align 8 .b8 mine[8];
	mov.u64 %l1, mine; cvta.local.u64 %l2, %l1;
	st.local.u32 [%l1+4], %t;
	{ .param .b64 a; .param .b32 r; st.param.b64 [a], %l2;
	call.uni (r), f, (a); ld.param.b32 %r0, [r]; }
	ld.local.u32 %r1, [%l1+4]; mad.lo.u32 %r0, %r1, 1000, %r0;`, func(i uint32) uint32 { return i*1000 + i + 1 }},
		"kernel parameters by address": {"", `
	mov.b64 %l1, out; ld.param.u64 %l2, [%l1]; cvta.param.u64 %l3, %l1; ld.u64 %l4, [%l3];
	setp.eq.u64 %p1, %l2, %l4; selp.b32 %r0, 1, 0, %p1;`, func(uint32) uint32 { return 1 }},
		"special registers": {"", `
	mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mov.u32 %r3, %nwarpid; mov.u32 %r4, WARP_SZ;
	mad.lo.u32 %r0, %r2, %r4, %r1; mad.lo.u32 %r0, %r3, 1000, %r0;
	mov.u32 %r5, %lanemask_lt; mov.u32 %r6, %lanemask_ge; xor.b32 %r5, %r5, %r6; add.u32 %r5, %r5, 1;
		add.u32 %r0, %r0, %r5;`,
			func(i uint32) uint32 { return 2000 + i }},
		"spin lock inside a warp": {".global .u32 lock;\n.global .u32 count;\n", `
top: atom.global.cas.b32 %r1, [lock], 0, 1;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra top;
	ld.volatile.global.u32 %r0, [count]; add.u32 %r2, %r0, 1; st.volatile.global.u32 [count], %r2;
	membar.gl;
	atom.global.exch.b32 %r3, [lock], 0;
	setp.lt.u32 %p1, %r0, 64; selp.u32 %r0, 1, 0, %p1;`, func(uint32) uint32 { return 1 }},
	} {
		t.Run(name, func(t *testing.T) { expect(t, threads(t, c.before+kernel(c.code), 1, 64), c.want) })
	}
}

func TestWarpOperations(t *testing.T) {
	for name, c := range map[string]struct {
		code string
		want func(i uint32) uint32
	}{
		"shuffle up": {"shfl.sync.up.b32 %r0|%p1, %t, 2, 0, -1; @!%p1 mov.u32 %r0, 99;", func(i uint32) uint32 {
			if i < 2 {
				return 99
			}
			return i - 2
		}},
		"shuffle down in halves": {"shfl.sync.down.b32 %r0, %t, 3, 0x100f, -1;", func(i uint32) uint32 {
			if i%16+3 > 15 {
				return i
			}
			return i + 3
		}},
		"shuffle by index in groups of 8": {"shfl.sync.idx.b32 %r0, %t, 5, 0x181f, -1;",
			func(i uint32) uint32 { return i&^7 | 5 }},
		"butterfly onto its own source": {"mov.u32 %r0, %t; shfl.sync.bfly.b32 %r0, %r0, 1, 31, 0xffffffff;",
			func(i uint32) uint32 { return i ^ 1 }},
		"ballot": {"and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 1; vote.sync.ballot.b32 %r0, %p1, -1;",
			func(uint32) uint32 { return 0x22222222 }},
		"votes": {`setp.lt.u32 %p1, %t, 31; vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, %p1, -1;
			vote.sync.uni.pred %p4, %p1, -1;
	selp.u32 %r0, 1, 0, %p2; selp.u32 %r1, 2, 0, %p3; selp.u32 %r2, 4, 0, %p4; add.u32 %r0, %r0, %r1;
		add.u32 %r0, %r0, %r2;`, func(uint32) uint32 { return 2 }},
		"match any": {"and.b32 %r1, %t, 1; match.any.sync.b32 %r0, %r1, -1;",
			func(i uint32) uint32 { return 0x55555555 << (i & 1) }},
		"match all": {"match.all.sync.b32 %r0|%p1, %n, -1; @!%p1 mov.u32 %r0, 1; match.all.sync.b32 %r1|%p1, %t, -1; " +
			"@%p1 mov.u32 %r0, 2;", func(uint32) uint32 { return 0xffffffff }},
		"redux": {"redux.sync.add.s32 %r0, %t, -1; redux.sync.max.u32 %r1, %t, -1; mad.lo.u32 %r0, %r1, 1000, %r0;",
			func(uint32) uint32 { return 31000 + 496 }},
		"elect": {"elect.sync %r1|%p1, 0xfffffff0; selp.u32 %r0, 1, 0, %p1;",
			func(i uint32) uint32 { return map[bool]uint32{true: 1}[i == 0] }},
		// The lanes of a mask wait for each other although they come by different ways and the others are gone.
		"shuffle among lanes that part": {`
	setp.lt.u32 %p1, %t, 16;
	@!%p1 bra other;
	mov.u32 %r2, 5;
loop: sub.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra loop;
	bra both;
other: setp.gt.u32 %p3, %t, 29; @%p3 bra end;
both: shfl.sync.idx.b32 %r0, %t, 20, 31, 0x3fffffff;
end:`, func(i uint32) uint32 {
			if i > 29 {
				return 0
			}
			return 20
		}},
		"groups with masks of their own": {`
	and.b32 %r1, %t, 3; match.any.sync.b32 %r2, %r1, -1;
	redux.sync.add.u32 %r0, %t, %r2;`, func(i uint32) uint32 { return 8*(i&3) + 4*(0+1+2+3+4+5+6+7) }},
		"warp barrier on both sides": {`
	.shared .b32 box[32]; mov.u32 %r1, box; mad.lo.u32 %r1, %t, 4, %r1; xor.b32 %r2, %r1, 64;
	st.shared.u32 [%r1], %t;
	setp.lt.u32 %p1, %t, 16; @%p1 bra low;
	bar.warp.sync -1; ld.shared.u32 %r0, [%r2]; bra end;
low: bar.warp.sync -1; ld.shared.u32 %r0, [%r2];
end:`, func(i uint32) uint32 { return i ^ 16 }},
		"exited lanes are not waited for": {"setp.gt.u32 %p1, %t, 7; @%p1 ret; vote.sync.ballot.b32 %r0, 1, -1;",
			func(i uint32) uint32 {
				if i > 7 {
					return 0
				}
				return 0xff
			}},
	} {
		t.Run(name, func(t *testing.T) { expect(t, threads(t, kernel(c.code), 1, 32), c.want) })
	}
}

func TestBarriers(t *testing.T) {
	for name, c := range map[string]struct {
		block uint32
		code  string
		want  func(i uint32) uint32
	}{
		"reversal through shared memory, several times": {200, `
	.shared .align 4 .b8 buf[1024];
	mov.u32 %r1, buf; mad.lo.u32 %r2, %t, 4, %r1; sub.u32 %r3, 199, %t; mad.lo.u32 %r3, %r3, 4, %r1;
	mov.u32 %r0, %t; mov.u32 %r4, 5;
top: st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r0, [%r3]; bar.sync 0;
	sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra top;`, func(i uint32) uint32 { return 199 - i }},
		"reductions over the block": {96, `
	setp.lt.u32 %p1, %t, 50;
	barrier.sync.aligned 1;
	bar.red.popc.u32 %r0, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, !%p1;
	@%p2 add.u32 %r0, %r0, 1000; @%p3 add.u32 %r0, %r0, 100;`, func(uint32) uint32 { return 150 }},
		"threads that have returned are not waited for": {96, `
	setp.gt.u32 %p1, %t, 40; @%p1 ret; bar.sync 0; mov.u32 %r0, 1;`, func(i uint32) uint32 {
			if i > 40 {
				return 0
			}
			return 1
		}},
		"a part of a warp arrives at another place": {32, `
	setp.lt.u32 %p1, %t, 9; @%p1 bra low; bar.sync 0; mov.u32 %r0, 1; bra end; low: bar.sync 0; mov.u32 %r0, 2;
		end:`, func(i uint32) uint32 {
			if i < 9 {
				return 2
			}
			return 1
		}},
		"producer and consumer warps": {128, `
	.shared .u32 slot; .reg .b32 %w; shr.u32 %w, %t, 5;
	setp.lt.u32 %p1, %t, 32; @!%p1 bra consumer;
	setp.eq.u32 %p2, %t, 0; @%p2 st.shared.u32 [slot], 42;
	bar.arrive 3, 64; bra end;
consumer: setp.ne.u32 %p3, %w, 1; @%p3 bra end;
	bar.sync 3, 64; ld.shared.u32 %r0, [slot];
end:`, func(i uint32) uint32 {
			if i/32 == 1 {
				return 42
			}
			return 0
		}},
		"waiting for another warp by polling": {64, `
	.shared .u32 flag; setp.gt.u32 %p1, %t, 31; @%p1 bra second;
wait: nanosleep.u32 20; ld.volatile.shared.u32 %r0, [flag]; setp.eq.u32 %p2, %r0, 0; @%p2 bra wait; bra end;
second: st.volatile.shared.u32 [flag], 5; mov.u32 %r0, 6;
end:`, func(i uint32) uint32 { return 5 + i/32 }},
	} {
		t.Run(name, func(t *testing.T) { expect(t, threads(t, kernel(c.code), 1, c.block), c.want) })
	}
}

// TestBlocksWait: a block that waits for one that comes later in the grid does not keep it from starting.
func TestBlocksWait(t *testing.T) {
	text := ".global .u32 arrived;\n" + kernel(`
	setp.ne.u32 %p1, %t, 0; @%p1 bra end;
	red.release.gpu.global.add.u32 [arrived], 1;
top: ld.acquire.gpu.global.u32 %r1, [arrived]; mov.u32 %r2, %nctaid.x; setp.lt.u32 %p2, %r1, %r2; @%p2 bra top;
end: bar.sync 0; mov.u32 %r0, 1;`)
	for _, cooperative := range []bool{false, true} {
		for _, workers := range []int{1, 3} {
			got, err := tryThreads(t, text, 20, 64, func(g *Grid) { g.Cooperative, g.Workers = cooperative, workers })
			if err != nil {
				t.Fatalf("cooperative %v, %d workers: %v", cooperative, workers, err)
			}
			expect(t, got, func(uint32) uint32 { return 1 })
		}
	}
}

func TestAtomics(t *testing.T) {
	for _, c := range []struct {
		op    string // on [%l1], which every thread carries out
		init  uint64
		want  uint64
		bytes int
	}{
		{"red%s.add.u32 [%%l1], 3;", 10, 10 + 3*256, 4},
		{"red%s.add.u64 [%%l1], 0x100000000;", 1, 256<<32 + 1, 8},
		{"cvt.rn.f32.u32 %%r1, %%t; red%s.add.f32 [%%l1], %%r1;", F(0.5), F(0.5 + 255*128), 4},
		{"cvt.rn.f64.u32 %%l2, %%t; red%s.add.f64 [%%l1], %%l2;", D(0.5), D(0.5 + 255*128), 8},
		{"atom%s.min.s32 %%r1, [%%l1], -4;", 10, neg(4), 4},
		{"atom%s.max.u32 %%r1, [%%l1], %%t;", 10, 255, 4},
		{"atom%s.max.s64 %%l2, [%%l1], 77;", 10, 77, 8},
		{"shl.b32 %%r1, 1, %%t; atom%s.or.b32 %%r2, [%%l1], %%r1;", 0, 0xffffffff, 4},
		{"atom%s.and.b32 %%r2, [%%l1], 0xf0;", 0xff, 0xf0, 4},
		{"atom%s.xor.b64 %%l2, [%%l1], 0xf0;", 0xff, 0xff, 8},
		{"atom%s.inc.u32 %%r2, [%%l1], 99;", 0, 56, 4},
		{"atom%s.dec.u32 %%r2, [%%l1], 99;", 0, 44, 4},
		{"atom%s.exch.b32 %%r2, [%%l1], 5;", 0, 5, 4},
		{"atom%s.cas.b64 %%l2, [%%l1], 0, 9;", 0, 9, 8},
		{"{ .reg .b16 %%h; .reg .b64 %%a; add.u64 %%a, %%l1, 2; mov.u16 %%h, 0x3c00; atom%s.add.noftz.f16 %%h, [%%a], %%h; }",
			5, 0x5c000005, 4},
		{"mov.u32 %%r1, 0x3c004000; atom%s.add.noftz.f16x2 %%r2, [%%l1], %%r1;", 0, 0x5c006000, 4},
	} {
		for _, space := range []string{".global", ".shared", ""} {
			op := fmt.Sprintf(c.op, space)
			addr := "mov.u64 %l1, cell;"
			if space == ".shared" {
				addr = "mov.u64 %l1, box;"
			}
			text := ".global .align 8 .b8 cell[8];\n" + kernel(fmt.Sprintf(`
	.shared .align 8 .b8 box[8];
	%s mov.u64 %%l5, %#x;
	setp.eq.u32 %%p1, %%t, 0; @%%p1 st%s.u64 [%%l1], %%l5; bar.sync 0;
	%s
	bar.sync 0; ld%s.u64 %%l5, [%%l1]; mov.u64 %%l6, %#x; setp.eq.u64 %%p1, %%l5, %%l6; selp.u32 %%r0, 1, 0, %%p1;
	@!%%p1 cvt.u32.u64 %%r0, %%l5;`, addr, c.init, space, op, space, c.want))
			t.Run(op, func(t *testing.T) { expect(t, threads(t, text, 1, 256), func(uint32) uint32 { return 1 }) })
		}
	}
}

func TestMemoryAccesses(t *testing.T) {
	for name, c := range map[string]struct {
		before, code string
		want         func(i uint32) uint32
	}{
		"vectors and signs": {".global .align 16 .b8 src[16] = {1, 255, 3, 0, 5, 0, 0, 0, 6, 0, 0, 0, 250};\n", `
	.reg .b16 %h<4>;
	ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [src]; add.u32 %r0, %r2, %r3; add.u32 %r0, %r0, %r4;
	ld.global.v2.s8 {%h1, %h2}, [src]; cvt.s32.s16 %r5, %h2; add.s32 %r0, %r0, %r5;
	ld.global.s8 %r6, [src+12]; add.s32 %r0, %r0, %r6;`, func(uint32) uint32 { return 5 + 6 + 250 - 1 - 6 }},
		"generic addresses of shared memory": {".shared .align 8 .b8 s[512];\n", `
	mov.u64 %l1, s; cvta.shared.u64 %l2, %l1; mad.wide.u32 %l3, %t, 8, %l2;
	st.u32 [%l3+4], %t; cvta.to.shared.u64 %l4, %l3; ld.shared.u32 %r0, [%l4+4];
	isspacep.shared %p1, %l3; isspacep.global %p2, %l3; @!%p1 mov.u32 %r0, 999;
		@%p2 mov.u32 %r0, 998;`, func(i uint32) uint32 { return i }},
		"dynamic shared memory lies behind the static one": {
			".extern .shared .align 16 .b8 dyn[];\n.shared .b32 fixed[3];\n", `
	mov.u32 %r1, dyn; mov.u32 %r2, fixed; mov.u32 %r3, %dynamic_smem_size; sub.u32 %r0, %r1, %r2;
		mad.lo.u32 %r0, %r3, 100, %r0;`,
			func(uint32) uint32 { return 25600 + 16 }},
		"addresses as initial values": {".global .u32 a[4] = {1, 2, 3, 4};\n" +
			".global .align 8 .u64 p[2] = {generic(a)+8, a};\n.const .align 4 .f32 f[2] = {1.5, 0f40000000};\n", `
	ld.global.u64 %l1, [p]; ld.u32 %r0, [%l1]; ld.global.u64 %l2, [p+8]; ld.global.u32 %r1, [%l2+4];
		mad.lo.u32 %r0, %r0, 10, %r1;
	ld.const.f32 %r2, [f]; ld.const.f32 %r3, [f+4]; add.f32 %r2, %r2, %r3; cvt.rni.s32.f32 %r2, %r2;
		add.u32 %r0, %r0, %r2;`,
			func(uint32) uint32 { return 32 + 4 }},
		"elements of arrays": {".global .u32 a[4] = {1, 2, 3, 40};\n.global .v2 .u32 v[2] = {{5, 6}, {7, 8}};\n", `
	.shared .align 16 .b8 d[256]; .local .u32 n[2]; .reg .u64 %at;
	mov.u64 %at, d[0]; mad.wide.u32 %at, %t, 4, %at; st.shared.u32 [%at], %t; ld.shared.u32 %r0, [%at];
	ld.global.u32 %r1, a[3]; mov.u64 %l1, a[1]; ld.global.u32 %r2, [%l1]; ld.global.u32 %r3, v[1];
	st.local.u32 n[1], %r1; ld.local.u32 %r4, [n+4]; mov.u64 %l2, d[5]; mov.u64 %l1, d; sub.u64 %l2, %l2, %l1;
	add.u32 %r0, %r0, %r4; mad.lo.u32 %r0, %r2, 1000, %r0; mad.lo.u32 %r0, %r3, 10000, %r0;
	cvt.u32.u64 %r5, %l2; mad.lo.u32 %r0, %r5, 100000, %r0;`,
			func(i uint32) uint32 { return 572040 + i }},
		"nested initial values": {".global .align 4 .b8 m[2][3] = {{1, 2}, {3}};\n", `
	ld.global.u32 %r1, [m]; ld.global.u16 %r2, [m+4]; mad.lo.u32 %r0, %r2, 16, 0;
		add.u32 %r0, %r0, %r1;`, func(uint32) uint32 { return 0x03000201 }},
		"asynchronous copy": {".global .align 16 .u32 src[4] = {1, 2, 3, 4};\n", `
	.shared .align 16 .b8 d[1024]; mov.u32 %r1, d; mad.lo.u32 %r1, %t, 16, %r1; mov.u64 %l1, src;
	cp.async.ca.shared.global [%r1], [%l1], 16, 8; cp.async.commit_group; cp.async.wait_group 0;
	ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1]; add.u32 %r0, %r2, %r3;
		mad.lo.u32 %r0, %r4, 100, %r0;`, func(uint32) uint32 { return 3 }},
		"negative offsets in 32-bit addresses": {"", `
	.shared .align 4 .b8 d[1024]; mov.u32 %r1, d; mad.lo.u32 %r1, %t, 4, %r1; st.shared.u32 [%r1], %t; add.u32 %r1, %r1, 8;
	ld.shared.u32 %r0, [%r1+-8];`, func(i uint32) uint32 { return i }},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tryThreads(t, c.before+kernel(c.code), 1, 32, func(g *Grid) { g.SharedBytes = 256 })
			must(t, err)
			expect(t, got, c.want)
		})
	}
}

func TestFaults(t *testing.T) {
	assert := `.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 fn, .param .b64 s);
.global .align 1 .b8 msg[6] = {120, 32, 62, 32, 48, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.global .align 1 .b8 fun[2] = {102, 0};
`
	for name, c := range map[string]struct {
		before, code string
		kind         FaultKind
		thread       uint32
		text         string
	}{
		"trap": {"", "setp.eq.u32 %p1, %t, 33; @%p1 trap;", Trap, 33, "trap"},
		"shared bounds": {"", "setp.eq.u32 %p1, %t, 2; mov.u32 %r1, 4096; @%p1 ld.shared.u32 %r0, [%r1];", IllegalAddress,
			2, "shared memory"},
		"local bounds": {"", ".local .b32 x[2]; mov.u64 %l1, x; ld.local.u32 %r0, [%l1+4096];", IllegalAddress, 0,
			"local memory"},
		"misaligned": {"", "mov.u64 %l1, 0x10000004; setp.eq.u32 %p1, %t, 3; @%p1 ld.global.u64 %l2, [%l1];", Misaligned,
			3, "misaligned"},
		"bad pointer": {"", "mov.u64 %l1, 12345; pr: .callprototype _ (); call %l1, (), pr;", InvalidPC, 0, "pointer"},
		"endless call": {".func f() { .local .b32 x[64]; call f; ret; }\n", "call f;", IllegalAddress, 0,
			"stack overflow"},
		"endless loop":    {"", "x: bra x;", Timeout, 0, "budget"},
		"barrier of none": {"", "setp.lt.u32 %p1, %t, 32; @%p1 bar.sync 1, 96;", Deadlock, 0, "deadlock"},
		"assertion": {assert, `setp.ne.u32 %p1, %t, 5; @%p1 bra end; { .param .b64 a; .param .b64 b; .param .b32 c;
			.param .b64 d; .param .b64 e;
	mov.u64 %l1, msg; cvta.global.u64 %l1, %l1; st.param.b64 [a], %l1; mov.u64 %l1, file; st.param.b64 [b], %l1;
		st.param.b32 [c], 17;
	mov.u64 %l1, fun; st.param.b64 [d], %l1; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e);
		} end:`, Assert, 5, "a.cu:17: f: assertion `x > 0` failed"},
		"brx": {"", "mov.u32 %r1, 9; l: .branchtargets x; brx.idx %r1, l; x:", InvalidPC, 0, "targets"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryThreads(t, c.before+kernel(c.code), 1, 64, func(g *Grid) { g.MaxInstructions = 1e6 })
			var f *Fault
			if !errors.As(err, &f) || f.Kind != c.kind || f.Thread[0] != c.thread || f.Kernel != "k" ||
				!strings.Contains(f.Error(), c.text) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestPrintf(t *testing.T) {
	text := ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n" +
		".global .align 1 .b8 fmt[] = \"%d|%5.2f|%s|%llx|%c|%u|%%|%-4d|%e\\n\";\n.global .align 1 .b8 str[] = \"hi\";\n" +
		kernel(`
	.local .align 8 .b8 args[64];
	mov.u64 %l1, args; cvta.local.u64 %l2, %l1;
	st.local.u32 [%l1], -5; mov.f64 %l3, 0d400921FB54442D18; st.local.f64 [%l1+8], %l3; mov.u64 %l4, str;
		st.local.u64 [%l1+16], %l4;
	st.local.u64 [%l1+24], 0xabcdef0123; st.local.u32 [%l1+32], 90; st.local.u32 [%l1+36], -1; st.local.u32 [%l1+40], 7;
		st.local.f64 [%l1+48], %l3;
	{ .param .b64 a; .param .b64 b; .param .b32 r; mov.u64 %l5, fmt; st.param.b64 [a], %l5; st.param.b64 [b], %l2;
	call.uni (r), vprintf, (a, b); ld.param.b32 %r0, [r]; }`)
	var out bytes.Buffer
	got, err := tryThreads(t, text, 1, 2, func(g *Grid) { g.Stdout = &out })
	must(t, err)
	expect(t, got, func(uint32) uint32 { return 8 })
	const line = "-5| 3.14|hi|abcdef0123|Z|4294967295|%|7   |3.141593e+00\n"
	if out.String() != line+line {
		t.Errorf("printed %q", out.String())
	}
}

func TestInvalidLaunches(t *testing.T) {
	mod, err := Parse([]byte(header + kernel("")))
	must(t, err)
	m := newMemory(t)
	good := Grid{Kernel: mod.Entry("k"), GridDim: [3]uint32{1, 1, 1}, BlockDim: [3]uint32{1, 1, 1}, Mem: m,
		Params: make([]byte, 8)}
	out, _ := m.alloc(64)
	good.Params = pack(good.Kernel, out)
	must(t, good.Run(context.Background()))
	for name, change := range map[string]func(*Grid){
		"no kernel":     func(g *Grid) { g.Kernel = nil },
		"no memory":     func(g *Grid) { g.Mem = nil },
		"empty grid":    func(g *Grid) { g.GridDim[1] = 0 },
		"big block":     func(g *Grid) { g.BlockDim = [3]uint32{32, 32, 2} },
		"few params":    func(g *Grid) { g.Params = g.Params[:7] },
		"much shared":   func(g *Grid) { g.SharedBytes = 1 << 30 },
		"uneven groups": func(g *Grid) { g.ClusterDim = [3]uint32{2, 1, 1} },
	} {
		g := good
		change(&g)
		if err := g.Run(context.Background()); !errors.Is(err, ErrLaunch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
