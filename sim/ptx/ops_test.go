package ptx

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
)

// opCases are single instructions (or short sequences). Before the code the three inputs stand in %r1-%r3, %l1-%l3 and
// %h1-%h3; the result is read from %r0, %l0 or %h0, whichever dst names.
type opCase struct {
	code    string
	dst     byte
	a, b, c uint64
	want    uint64
}

func F(f float32) uint64 { return uint64(math.Float32bits(f)) }
func D(f float64) uint64 { return math.Float64bits(f) }

const (
	nan32 = 0x7fffffff
	inf32 = 0x7f800000
	m1    = 0xffffffff
)

// neg is a negative number as the bits of a 32-bit register.
func neg(v int32) uint64 { return uint64(uint32(-v)) }

var integerCases = []opCase{
	{"add.s32 %r0, %r1, %r2;", 'r', 7, neg(9), 0, neg(2)},
	{"add.u64 %l0, %l1, %l2;", 'l', 1 << 63, 1<<63 + 5, 0, 5},
	{"add.s16 %h0, %h1, %h2;", 'h', 0xffff, 3, 0, 2},
	{"add.sat.s32 %r0, %r1, %r2;", 'r', 0x7fffffff, 1, 0, 0x7fffffff},
	{"sub.sat.s32 %r0, %r1, %r2;", 'r', 0x80000000, 1, 0, 0x80000000},
	{"sub.u32 %r0, %r1, 5;", 'r', 3, 0, 0, neg(2)},
	{"add.u16x2 %r0, %r1, %r2;", 'r', 0x0001ffff, 0x00020001, 0, 0x00030000},
	{"mul.lo.s32 %r0, %r1, %r2;", 'r', neg(3), 5, 0, neg(15)},
	{"mul.hi.s32 %r0, %r1, %r2;", 'r', neg(3), 5, 0, m1},
	{"mul.hi.u32 %r0, %r1, %r2;", 'r', m1, m1, 0, 0xfffffffe},
	{"mul.hi.u64 %l0, %l1, %l2;", 'l', math.MaxUint64, math.MaxUint64, 0, math.MaxUint64 - 1},
	{"mul.hi.s64 %l0, %l1, %l2;", 'l', math.MaxUint64, 7, 0, math.MaxUint64},
	{"mul.wide.s32 %l0, %r1, %r2;", 'l', neg(3), 5, 0, math.MaxUint64 - 14},
	{"mul.wide.u32 %l0, %r1, %r2;", 'l', m1, m1, 0, 0xfffffffe00000001},
	{"mul.wide.s16 %r0, %h1, %h2;", 'r', 0xfffd, 5, 0, neg(15)},
	{"mad.lo.s32 %r0, %r1, %r2, %r3;", 'r', neg(3), 5, 20, 5},
	{"mad.hi.u32 %r0, %r1, %r2, %r3;", 'r', m1, m1, 3, 1},
	{"mad.wide.u32 %l0, %r1, %r2, %l3;", 'l', m1, 2, 1 << 40, 1<<40 + 2*m1},
	{"mad.hi.sat.s32 %r0, %r1, %r2, %r3;", 'r', 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff},
	{"mul24.lo.u32 %r0, %r1, %r2;", 'r', 0xff000003, 4, 0, 12},
	{"mul24.lo.s32 %r0, %r1, %r2;", 'r', 0x00ffffff, 4, 0, neg(4)},
	{"mad24.hi.u32 %r0, %r1, %r2, %r3;", 'r', 0xffffff, 0xffffff, 1, 0xfffffe00 + 1},
	{"div.s32 %r0, %r1, %r2;", 'r', neg(7), 2, 0, neg(3)},
	{"div.u32 %r0, %r1, %r2;", 'r', neg(7), 2, 0, 0x7ffffffc},
	{"div.s64 %l0, %l1, %l2;", 'l', 1 << 63, math.MaxUint64, 0, 1 << 63},
	{"rem.s32 %r0, %r1, %r2;", 'r', neg(7), 2, 0, neg(1)},
	{"rem.u64 %l0, %l1, %l2;", 'l', 107, 10, 0, 7},
	{"div.u16 %h0, %h1, %h2;", 'h', 100, 7, 0, 14},
	{"and.b32 %r0, %r1, %r2;", 'r', 0xff00ff, 0x0ffff0, 0, 0x0f00f0},
	{"or.b64 %l0, %l1, %l2;", 'l', 1, 1 << 60, 0, 1<<60 + 1},
	{"xor.b16 %h0, %h1, %h2;", 'h', 0xff, 0xf0f, 0, 0xff0},
	{"not.b32 %r0, %r1;", 'r', 1, 0, 0, 0xfffffffe},
	{"cnot.b32 %r0, %r1;", 'r', 0, 0, 0, 1},
	{"cnot.b32 %r0, %r1;", 'r', 8, 0, 0, 0},
	{"shl.b32 %r0, %r1, %r2;", 'r', 3, 31, 0, 0x80000000},
	{"shl.b32 %r0, %r1, %r2;", 'r', 3, 32, 0, 0},
	{"shl.b64 %l0, %l1, %r2;", 'l', 3, 70, 0, 0},
	{"shl.b64 %l0, %l1, 33;", 'l', 3, 0, 0, 3 << 33},
	{"shr.u32 %r0, %r1, %r2;", 'r', 0x80000000, 31, 0, 1},
	{"shr.u32 %r0, %r1, %r2;", 'r', 0x80000000, 40, 0, 0},
	{"shr.s32 %r0, %r1, %r2;", 'r', 0x80000000, 40, 0, m1},
	{"shr.s64 %l0, %l1, %r2;", 'l', 1 << 63, 63, 0, math.MaxUint64},
	{"shr.s16 %h0, %h1, %r2;", 'h', 0x8000, 15, 0, 0xffff},
	{"shf.l.wrap.b32 %r0, %r1, %r2, %r3;", 'r', 0x80000000, 1, 33, 3},
	{"shf.r.wrap.b32 %r0, %r1, %r2, %r3;", 'r', 0x80000000, 1, 4, 0x18000000},
	{"shf.r.clamp.b32 %r0, %r1, %r2, %r3;", 'r', 0x80000000, 77, 40, 77},
	{"shf.l.clamp.b32 %r0, %r1, %r2, %r3;", 'r', 55, 77, 40, 55},
	{"bfe.u32 %r0, %r1, %r2, %r3;", 'r', 0xabcd1234, 8, 8, 0x12},
	{"bfe.s32 %r0, %r1, %r2, %r3;", 'r', 0xabcd9234, 8, 8, 0xffffff92},
	{"bfe.s32 %r0, %r1, %r2, %r3;", 'r', 0x80000000, 28, 8, 0xfffffff8},
	{"bfe.s32 %r0, %r1, %r2, %r3;", 'r', 0x80000000, 40, 8, m1},
	{"bfe.u32 %r0, %r1, %r2, %r3;", 'r', m1, 0, 0, 0},
	{"bfe.u64 %l0, %l1, %r2, %r3;", 'l', math.MaxUint64, 60, 20, 15},
	{"bfi.b32 %r0, %r1, %r2, 8, 8;", 'r', 0xab, 0x11111111, 0, 0x1111ab11},
	{"bfi.b64 %l0, %l1, %l2, 32, 32;", 'l', 0xab, 0x1111111122222222, 0, 0xab22222222},
	{"bfi.b32 %r0, %r1, %r2, 40, 8;", 'r', 0xab, 0x11111111, 0, 0x11111111},
	{"bfind.u32 %r0, %r1;", 'r', 0x10, 0, 0, 4},
	{"bfind.u32 %r0, %r1;", 'r', 0, 0, 0, m1},
	{"bfind.s32 %r0, %r1;", 'r', neg(17), 0, 0, 4},
	{"bfind.shiftamt.u32 %r0, %r1;", 'r', 0x10, 0, 0, 27},
	{"bfind.u64 %r0, %l1;", 'r', 1 << 40, 0, 0, 40},
	{"brev.b32 %r0, %r1;", 'r', 1, 0, 0, 0x80000000},
	{"brev.b64 %l0, %l1;", 'l', 2, 0, 0, 1 << 62},
	{"clz.b32 %r0, %r1;", 'r', 0, 0, 0, 32},
	{"clz.b64 %r0, %l1;", 'r', 1 << 40, 0, 0, 23},
	{"popc.b32 %r0, %r1;", 'r', 0xf0f0, 0, 0, 8},
	{"popc.b64 %r0, %l1;", 'r', math.MaxUint64, 0, 0, 64},
	{"fns.b32 %r0, %r1, 0, 3;", 'r', 0xaaaaaaaa, 0, 0, 5},
	{"fns.b32 %r0, %r1, 31, -2;", 'r', 0xaaaaaaaa, 0, 0, 29},
	{"bmsk.clamp.b32 %r0, %r1, %r2;", 'r', 4, 8, 0, 0xff0},
	{"szext.clamp.s32 %r0, %r1, %r2;", 'r', 0xf8, 8, 0, 0xfffffff8},
	{"prmt.b32 %r0, %r1, %r2, %r3;", 'r', 0x33221100, 0x77665544, 0x7531, 0x77553311},
	{"prmt.b32 %r0, %r1, %r2, 0x9876;", 'r', 0x80221180, 0x77665544, 0, 0x00ff7766},
	{"prmt.b32.f4e %r0, %r1, %r2, 1;", 'r', 0x33221100, 0x77665544, 0, 0x44332211},
	{"lop3.b32 %r0, %r1, %r2, %r3, 0xe8;", 'r', 0xf0, 0xcc, 0xaa, 0xe8},
	{"lop3.b32 %r0, %r1, %r2, %r3, 0x96;", 'r', 0xf0, 0xcc, 0xaa, 0x96},
	{"sad.s32 %r0, %r1, %r2, %r3;", 'r', neg(3), 4, 10, 17},
	{"sad.u32 %r0, %r1, %r2, %r3;", 'r', 3, 4, 10, 11},
	{"dp4a.s32.s32 %r0, %r1, %r2, %r3;", 'r', 0x01ff0203, 0x01010102, 100, 108},
	{"dp4a.u32.u32 %r0, %r1, %r2, %r3;", 'r', 0x01ff0203, 0x01010102, 100, 364},
	{"dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", 'r', 0x0002ffff, 0x01020304, 100, 102},
	{"dp2a.hi.s32.s32 %r0, %r1, %r2, %r3;", 'r', 0x0002ffff, 0x01020304, 100, 100},
	{"min.s32 %r0, %r1, %r2;", 'r', neg(3), 4, 0, neg(3)},
	{"min.u32 %r0, %r1, %r2;", 'r', neg(3), 4, 0, 4},
	{"max.s64 %l0, %l1, %l2;", 'l', math.MaxUint64, 4, 0, 4},
	{"max.relu.s32 %r0, %r1, %r2;", 'r', neg(3), neg(4), 0, 0},
	{"max.s16x2 %r0, %r1, %r2;", 'r', 0xffff0005, 0x00010004, 0, 0x00010005},
	{"neg.s32 %r0, %r1;", 'r', 5, 0, 0, neg(5)},
	{"abs.s32 %r0, %r1;", 'r', neg(5), 0, 0, 5},
	{"abs.s64 %l0, %l1;", 'l', math.MaxUint64, 0, 0, 1},
	{"add.cc.u32 %r0, %r1, %r2; addc.u32 %r0, %r3, 0;", 'r', m1, 1, 7, 8},
	{"sub.cc.u32 %r0, %r1, %r2; subc.u32 %r0, %r3, 0;", 'r', 0, 1, 7, 6},
	{"sub.cc.u32 %r0, %r1, %r2; subc.u32 %r0, %r3, 0;", 'r', 2, 1, 7, 7},
	{"sub.cc.u32 %r0, %r1, %r2; addc.u32 %r0, %r3, 0;", 'r', 0, 1, 7, 7},
	{"add.cc.u64 %l0, %l1, %l2; addc.u64 %l0, %l3, 0;", 'l', math.MaxUint64, 1, 7, 8},
	{"mad.lo.cc.u32 %r0, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, %r3;", 'r', 0x10000, 0x10001, m1, 1},
	{"mov.b64 %l0, {%r1, %r2};", 'l', 1, 2, 0, 2<<32 + 1},
	{"mov.b64 {%r0, _}, %l1;", 'r', 5<<32 + 9, 0, 0, 9},
	{"mov.b64 {_, %r0}, %l1;", 'r', 5<<32 + 9, 0, 0, 5},
	{"mov.b32 {%h0, _}, %r1;", 'h', 0x12345678, 0, 0, 0x5678},
	{"mov.b32 %r0, {%h1, %h2};", 'r', 0x1234, 0x5678, 0, 0x56781234},
	{"setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', neg(1), 0, 0, 1},
	{"setp.lt.u32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', neg(1), 0, 0, 0},
	{"setp.hi.u32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', neg(1), 0, 0, 1},
	{"setp.eq.b64 %p1|%p2, %l1, %l2; selp.b32 %r0, 1, 2, %p2;", 'r', 4, 5, 0, 1},
	{"setp.ne.s32 %p1, %r1, 0; setp.eq.and.s32 %p2, %r2, 0, !%p1; selp.b32 %r0, 1, 2, %p2;", 'r', 0, 0, 0, 1},
	{"set.gt.u32.s32 %r0, %r1, %r2;", 'r', 3, 2, 0, m1},
	{"set.gt.f32.f32 %r0, %r1, %r2;", 'r', F(3), F(2), 0, F(1)},
	{"slct.b32.s32 %r0, %r1, %r2, %r3;", 'r', 3, 2, neg(1), 2},
	{"slct.f32.f32 %r0, %r1, %r2, %r3;", 'r', F(3), F(2), F(0), F(3)},
	{"setp.ne.u32 %p1, %r1, 0; not.pred %p1, %p1; xor.pred %p2, %p1, %p3; @%p2 mov.u32 %r0, 9;", 'r', 0, 0, 0, 9},
}

var conversionCases = []opCase{
	{"cvt.s64.s32 %l0, %r1;", 'l', neg(5), 0, 0, math.MaxUint64 - 4},
	{"cvt.u64.u32 %l0, %r1;", 'l', 0xffffffff_00000000 | m1, 0, 0, m1},
	{"cvt.u32.u64 %r0, %l1;", 'r', 0x1_23456789, 0, 0, 0x23456789},
	{"cvt.s32.s8 %r0, %r1;", 'r', 0x1ff, 0, 0, m1},
	{"cvt.u32.u8 %r0, %r1;", 'r', 0x1ff, 0, 0, 0xff},
	{"cvt.u16.u32 %h0, %r1;", 'h', 0x12345, 0, 0, 0x2345},
	{"cvt.sat.s8.s32 %r0, %r1;", 'r', 300, 0, 0, 127},
	{"cvt.sat.u8.s32 %r0, %r1;", 'r', neg(3), 0, 0, 0},
	{"cvt.sat.u32.s64 %r0, %l1;", 'r', 1 << 40, 0, 0, m1},
	{"cvt.sat.s32.u32 %r0, %r1;", 'r', m1, 0, 0, 0x7fffffff},
	{"cvt.rzi.s32.f32 %r0, %r1;", 'r', F(-2.9), 0, 0, neg(2)},
	{"cvt.rmi.s32.f32 %r0, %r1;", 'r', F(-2.1), 0, 0, neg(3)},
	{"cvt.rpi.s32.f32 %r0, %r1;", 'r', F(2.1), 0, 0, 3},
	{"cvt.rni.s32.f32 %r0, %r1;", 'r', F(2.5), 0, 0, 2},
	{"cvt.rzi.s32.f32 %r0, %r1;", 'r', F(3e9), 0, 0, 0x7fffffff},
	{"cvt.rzi.s32.f32 %r0, %r1;", 'r', F(-3e9), 0, 0, 0x80000000},
	{"cvt.rzi.u32.f32 %r0, %r1;", 'r', F(-1), 0, 0, 0},
	{"cvt.rzi.u32.f32 %r0, %r1;", 'r', F(4e9), 0, 0, 4000000000},
	{"cvt.rzi.s32.f32 %r0, %r1;", 'r', nan32, 0, 0, 0},
	{"cvt.rzi.s64.f64 %l0, %l1;", 'l', D(math.NaN()), 0, 0, 1 << 63},
	{"cvt.rzi.u64.f32 %l0, %r1;", 'l', F(1 << 63), 0, 0, 1 << 63},
	{"cvt.rn.f32.s32 %r0, %r1;", 'r', 16777217, 0, 0, F(16777216)},
	{"cvt.rp.f32.s32 %r0, %r1;", 'r', 16777217, 0, 0, F(16777218)},
	{"cvt.rz.f32.u32 %r0, %r1;", 'r', m1, 0, 0, 0x4f7fffff},
	{"cvt.rn.f32.u64 %r0, %l1;", 'r', math.MaxUint64, 0, 0, F(1 << 63 * 2)},
	{"cvt.rn.f64.s64 %l0, %l1;", 'l', math.MaxUint64, 0, 0, D(-1)},
	{"cvt.rm.f64.u64 %l0, %l1;", 'l', 1<<53 + 1, 0, 0, D(1 << 53)},
	{"cvt.rn.f16.s32 %h0, %r1;", 'h', 2049, 0, 0, 0x6800},
	{"cvt.rn.f32.f64 %r0, %l1;", 'r', D(0.1), 0, 0, F(0.1)},
	{"cvt.rz.f32.f64 %r0, %l1;", 'r', D(0.1), 0, 0, 0x3dcccccc},
	{"cvt.rm.f32.f64 %r0, %l1;", 'r', D(-1e300), 0, 0, 0xff800000},
	{"cvt.rz.f32.f64 %r0, %l1;", 'r', D(-1e300), 0, 0, 0xff7fffff},
	{"cvt.f64.f32 %l0, %r1;", 'l', F(0.1), 0, 0, D(float64(float32(0.1)))},
	{"cvt.rn.f16.f32 %h0, %r1;", 'h', F(65519), 0, 0, 0x7bff},
	{"cvt.rn.f16.f32 %h0, %r1;", 'h', F(65520), 0, 0, 0x7c00},
	{"cvt.rn.satfinite.f16.f32 %h0, %r1;", 'h', F(1e6), 0, 0, 0x7bff},
	{"cvt.rn.f16.f32 %h0, %r1;", 'h', F(0x1p-25), 0, 0, 0},
	{"cvt.rn.f16.f32 %h0, %r1;", 'h', F(0x1.8p-25), 0, 0, 1},
	{"cvt.f32.f16 %r0, %h1;", 'r', 0x0001, 0, 0, F(0x1p-24)},
	{"cvt.f32.f16 %r0, %h1;", 'r', 0xfc00, 0, 0, 0xff800000},
	{"cvt.rn.bf16.f32 %h0, %r1;", 'h', F(1.00390625), 0, 0, 0x3f80},
	{"cvt.rn.bf16.f32 %h0, %r1;", 'h', F(1.01171875), 0, 0, 0x3f82},
	{"cvt.f32.bf16 %r0, %h1;", 'r', 0x3f80, 0, 0, F(1)},
	{"cvt.rn.f16x2.f32 %r0, %r1, %r2;", 'r', F(1), F(2), 0, 0x3c004000},
	{"cvt.rn.relu.bf16x2.f32 %r0, %r1, %r2;", 'r', F(-1), F(2), 0, 0x00004000},
	{"cvt.rna.tf32.f32 %r0, %r1;", 'r', 0x3f801000, 0, 0, 0x3f802000},
	{"cvt.rn.satfinite.e4m3x2.f32 %h0, %r1, %r2;", 'h', F(1), F(1000), 0, 0x387e},
	{"cvt.rn.satfinite.e5m2x2.f32 %h0, %r1, %r2;", 'h', F(1), F(-2), 0, 0x3cc0},
	{"cvt.rn.f16x2.e4m3x2 %r0, %h1;", 'r', 0x38c0, 0, 0, 0x3c00c000},
	{"cvt.rni.f32.f32 %r0, %r1;", 'r', F(-2.5), 0, 0, F(-2)},
	{"cvt.rzi.f64.f64 %l0, %l1;", 'l', D(-2.5), 0, 0, D(-2)},
	{"cvt.sat.f32.f32 %r0, %r1;", 'r', F(1.5), 0, 0, F(1)},
	{"cvt.sat.f32.f32 %r0, %r1;", 'r', nan32, 0, 0, 0},
	{"cvt.ftz.f64.f32 %l0, %r1;", 'l', 1, 0, 0, 0},
}

var floatCases = []opCase{
	{"add.f32 %r0, %r1, %r2;", 'r', F(1), F(0x1p-24), 0, F(1)},
	{"add.rp.f32 %r0, %r1, %r2;", 'r', F(1), F(0x1p-40), 0, 0x3f800001},
	{"add.rm.f32 %r0, %r1, %r2;", 'r', F(1), F(-0x1p-100), 0, 0x3f7fffff},
	{"add.rz.f32 %r0, %r1, %r2;", 'r', F(-1), F(0x1p-100), 0, 0xbf7fffff},
	{"add.rm.f32 %r0, %r1, %r2;", 'r', F(1), F(-1), 0, 0x80000000},
	{"add.ftz.f32 %r0, %r1, %r2;", 'r', 1, 1, 0, 0},
	{"add.sat.f32 %r0, %r1, %r2;", 'r', F(1), F(1), 0, F(1)},
	{"add.f32 %r0, %r1, %r2;", 'r', inf32, 0xff800000, 0, nan32},
	{"sub.f32 %r0, %r1, %r2;", 'r', F(1), F(3), 0, F(-2)},
	{"mul.f32 %r0, %r1, %r2;", 'r', F(3), F(0.1), 0, F(float32(3) * float32(0.1))},
	{"mul.rz.f32 %r0, %r1, %r2;", 'r', 0x3f800001, 0x3f800001, 0, 0x3f800002},
	{"mul.rp.f32 %r0, %r1, %r2;", 'r', 0x3f800001, 0x3f800001, 0, 0x3f800003},
	{"fma.rn.f32 %r0, %r1, %r2, %r3;", 'r', 0x3f800001, 0x3f800001, F(-1), 0x34800000}, // a tie, to even
	// The sum in double lies in the middle of two floats although the exact one does not.
	{"fma.rn.f32 %r0, %r1, %r2, %r3;", 'r', F(0x1p-40), F(0x1p-40), 0x3f800000, 0x3f800000},
	{"fma.rn.f32 %r0, %r1, %r2, %r3;", 'r', F(0x1.000002p-24), F(1 + 0x1p-23), F(1), 0x3f800001},
	{"fma.rm.f32 %r0, %r1, %r2, %r3;", 'r', F(1), F(1.5), F(0x1.800002p+23), F(12582914)},
	{"fma.rn.sat.f32 %r0, %r1, %r2, %r3;", 'r', F(2), F(2), F(2), F(1)},
	{"fma.rn.f64 %l0, %l1, %l2, %l3;", 'l', D(0.1), D(10), D(-1), D(math.FMA(0.1, 10, -1))},
	{"fma.rz.f64 %l0, %l1, %l2, %l3;", 'l', D(1), D(1), D(0x1p-80), D(1)},
	{"fma.rp.f64 %l0, %l1, %l2, %l3;", 'l', D(1), D(1), D(0x1p-80), D(math.Nextafter(1, 2))},
	{"mad.rn.f32 %r0, %r1, %r2, %r3;", 'r', F(2), F(3), F(4), F(10)},
	{"add.f64 %l0, %l1, %l2;", 'l', D(0.1), D(0.2), 0, 0x3fd3333333333334},
	{"add.rm.f64 %l0, %l1, %l2;", 'l', D(1), D(-0x1p-200), 0, D(math.Nextafter(1, 0))},
	{"mul.rp.f64 %l0, %l1, %l2;", 'l', D(1e200), D(-1e200), 0, D(-math.MaxFloat64)},
	{"mul.rm.f64 %l0, %l1, %l2;", 'l', D(1e-200), D(-1e-200), 0, D(-5e-324)},
	{"div.rn.f32 %r0, %r1, %r2;", 'r', F(1), F(3), 0, 0x3eaaaaab},
	{"div.rz.f32 %r0, %r1, %r2;", 'r', F(1), F(3), 0, 0x3eaaaaaa},
	{"div.rm.f32 %r0, %r1, %r2;", 'r', F(-1), F(3), 0, 0xbeaaaaab},
	{"div.rn.f32 %r0, %r1, %r2;", 'r', F(1), 0x80000000, 0, 0xff800000},
	{"div.full.f32 %r0, %r1, %r2;", 'r', F(7), F(2), 0, F(3.5)},
	{"div.rn.f64 %l0, %l1, %l2;", 'l', D(1), D(3), 0, 0x3fd5555555555555},
	{"div.rp.f64 %l0, %l1, %l2;", 'l', D(1), D(3), 0, 0x3fd5555555555556},
	{"rcp.rn.f32 %r0, %r1;", 'r', F(3), 0, 0, 0x3eaaaaab},
	{"rcp.approx.ftz.f32 %r0, %r1;", 'r', F(4), 0, 0, F(0.25)},
	{"rcp.rn.f64 %l0, %l1;", 'l', D(4), 0, 0, D(0.25)},
	{"sqrt.rn.f32 %r0, %r1;", 'r', F(2), 0, 0, F(float32(math.Sqrt2))},
	{"sqrt.rp.f32 %r0, %r1;", 'r', F(2), 0, 0, 0x3fb504f4},
	{"sqrt.rz.f32 %r0, %r1;", 'r', F(2), 0, 0, 0x3fb504f3},
	{"sqrt.rn.f32 %r0, %r1;", 'r', F(-2), 0, 0, nan32},
	{"sqrt.rz.f64 %l0, %l1;", 'l', D(2), 0, 0, 0x3ff6a09e667f3bcc},
	{"rsqrt.approx.f32 %r0, %r1;", 'r', F(4), 0, 0, F(0.5)},
	{"ex2.approx.f32 %r0, %r1;", 'r', F(3), 0, 0, F(8)},
	{"lg2.approx.f32 %r0, %r1;", 'r', F(8), 0, 0, F(3)},
	{"sin.approx.f32 %r0, %r1;", 'r', F(0), 0, 0, F(0)},
	{"cos.approx.f32 %r0, %r1;", 'r', F(0), 0, 0, F(1)},
	{"tanh.approx.f32 %r0, %r1;", 'r', F(100), 0, 0, F(1)},
	{"neg.f32 %r0, %r1;", 'r', F(2), 0, 0, F(-2)},
	{"abs.f64 %l0, %l1;", 'l', D(-2), 0, 0, D(2)},
	{"neg.f16x2 %r0, %r1;", 'r', 0x3c00bc00, 0, 0, 0xbc003c00},
	{"min.f32 %r0, %r1, %r2;", 'r', nan32, F(2), 0, F(2)},
	{"min.NaN.f32 %r0, %r1, %r2;", 'r', nan32, F(2), 0, nan32},
	{"max.f32 %r0, %r1, %r2;", 'r', 0x80000000, 0, 0, 0},
	{"min.xorsign.abs.f32 %r0, %r1, %r2;", 'r', F(-3), F(2), 0, F(-2)},
	{"max.f64 %l0, %l1, %l2;", 'l', D(-3), D(2), 0, D(2)},
	{"copysign.f32 %r0, %r1, %r2;", 'r', F(-3), F(2), 0, F(-2)},
	{"testp.subnormal.f32 %p1, %r1; selp.b32 %r0, 1, 0, %p1;", 'r', 5, 0, 0, 1},
	{"testp.infinite.f64 %p1, %l1; selp.b32 %r0, 1, 0, %p1;", 'r', D(math.Inf(-1)), 0, 0, 1},
	{"setp.lt.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', nan32, F(1), 0, 0},
	{"setp.ltu.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', nan32, F(1), 0, 1},
	{"setp.ne.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', nan32, F(1), 0, 0},
	{"setp.neu.f64 %p1, %l1, %l2; selp.b32 %r0, 1, 0, %p1;", 'r', D(math.NaN()), D(1), 0, 1},
	{"setp.num.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", 'r', F(1), nan32, 0, 0},
	{"setp.eq.ftz.f32 %p1, %r1, 0f00000000; selp.b32 %r0, 1, 0, %p1;", 'r', 1, 0, 0, 1},
	{"mov.f32 %r0, 0f3F800000; add.f32 %r0, %r0, 2.5;", 'r', 0, 0, 0, F(3.5)},
	{"mov.f64 %l0, 0d3FF0000000000000; add.f64 %l0, %l0, 0d4000000000000000;", 'l', 0, 0, 0, D(3)},
	{"add.f16 %h0, %h1, %h2;", 'h', 0x3c00, 0x4000, 0, 0x4200},
	{"fma.rn.f16 %h0, %h1, %h2, %h3;", 'h', 0x3c01, 0x3c01, 0xbc02, 0x0010},
	{"fma.rn.f16x2 %r0, %r1, %r2, %r3;", 'r', 0x40003c00, 0x40004000, 0x3c003c00, 0x45004200},
	{"fma.rn.relu.f16 %h0, %h1, %h2, %h3;", 'h', 0x3c00, 0xbc00, 0, 0},
	{"mul.bf16x2 %r0, %r1, %r2;", 'r', 0x40003f80, 0x40004040, 0, 0x40804040},
	{"fma.rn.bf16 %h0, %h1, %h2, %h3;", 'h', 0x3f80, 0x4000, 0x4040, 0x40a0},
	{"max.f16x2 %r0, %r1, %r2;", 'r', 0x7fff3c00, 0x3c004000, 0, 0x3c004000},
	{"ex2.approx.f16 %h0, %h1;", 'h', 0x4000, 0, 0, 0x4400},
	{"setp.gt.f16 %p1, %h1, %h2; selp.b32 %r0, 1, 0, %p1;", 'r', 0x4000, 0x3c00, 0, 1},
	{"setp.gt.f16x2 %p1|%p2, %r1, %r2; selp.b32 %r0, 1, 0, %p1; @%p2 add.u32 %r0, %r0, 2;", 'r', 0x3c004000, 0x3c003c00, 0,
		1},
}

// opModule is a kernel with the code in the middle.
func opModule(code string, dst byte) string {
	store := map[byte]string{'r': "st.global.u32 [%out], %r0;", 'l': "st.global.u64 [%out], %l0;",
		'h': "st.global.u16 [%out], %h0;"}[dst]
	return `.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c) {
	.reg .b32 %r<8>; .reg .b64 %l<8>, %out; .reg .b16 %h<8>; .reg .pred %p<4>; .reg .u32 %lane;
	ld.param.u64 %out, [out];
	ld.param.u64 %l1, [a]; ld.param.u64 %l2, [b]; ld.param.u64 %l3, [c];
	cvt.u32.u64 %r1, %l1; cvt.u32.u64 %r2, %l2; cvt.u32.u64 %r3, %l3;
	cvt.u16.u64 %h1, %l1; cvt.u16.u64 %h2, %l2; cvt.u16.u64 %h3, %l3;
	mov.u32 %r0, 0; mov.u64 %l0, 0;
	mov.u32 %lane, %tid.x; mad.wide.u32 %out, %lane, 8, %out;
	` + code + "\n\t" + store + "\n\tret;\n}\n"
}

// TestOperations runs every case with a full warp and with some lanes only: the loops for these differ.
func TestOperations(t *testing.T) {
	m := newMemory(t)
	out, b := m.alloc(8 * 32)
	for _, cases := range [][]opCase{integerCases, conversionCases, floatCases, videoCases} {
		for _, c := range cases {
			mod, err := Parse([]byte(opModule(c.code, c.dst)))
			if err != nil {
				t.Errorf("%s: %v", c.code, err)
				continue
			}
			for _, threads := range []uint32{32, 5} {
				clear(b)
				e := mod.Entry("k")
				g := &Grid{Kernel: e, GridDim: [3]uint32{1, 1, 1}, BlockDim: [3]uint32{threads, 1, 1}, Mem: m,
					Params: pack(e, out, c.a, c.b, c.c)}
				if err := g.Run(context.Background()); err != nil {
					t.Errorf("%s: %v", c.code, err)
					break
				}
				for i := range threads {
					if got := binary.LittleEndian.Uint64(b[8*i:]); got != c.want {
						t.Errorf("%s of %#x %#x %#x, %d threads: %#x, not %#x", c.code, c.a, c.b, c.c, threads, got, c.want)
						break
					}
				}
			}
		}
	}
}

// TestRefused: what is not executed is named when the text is loaded, never ignored.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ code, want string }{
		{"wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned"},
		{"mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "mma.sync"},
		{"add.wonder.s32 %r0, %r1, %r2;", ".wonder"},
		{"tex.grad.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%l1, {%r1, %r2}], {%r1, %r2}, {%r1, %r2};", ".grad"},
		{"ld.u32 %r0, [%l1, {%r1, %r2}];", "several parts"},
		{".shared .u32 d[2]; mov.u32 %r0, d[%r1];", "d[%r1]"},
		{"frobnicate.u32 %r0, %r1;", "frobnicate.u32"},
		{"mov.u32 %r0, %pm0;", "%pm0"},
		{"cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%l1, {%r1}], [%r2];",
			"cp.async.bulk.tensor"},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%l1], [%r1], 16;", "cp.reduce"},
		{"mbarrier.arrive.sometimes.b64 %l1, [%r1];", ".sometimes"},
		{"barrier.cluster.sync;", "barrier.cluster.sync"},
		{".surprise 3;", ".surprise"},
	} {
		_, err := Parse([]byte(opModule(c.code, 'r')))
		if !errors.Is(err, ErrUnsupported) || !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.code, err)
		}
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, c := range []struct{ code, want string }{
		{"add.s32 %r0, %r1;", "12:2: add.s32: 3 operands"},
		{"add.s32 %r0, %r1, zz;", "12:20: zz is not declared"},
		{"bra nowhere;", "no label"},
		{"@%r1 bra x; x:", "no predicate"},
		{"x: x: bra x;", "declared twice"},
		{"mov.u32 %r0, 99999999999999999999;", "no number"},
		{"mov.u32 %r0 %r1;", `"," is expected`},
		{"ld.param.u32 %r0, [nothing];", "nothing is not declared"},
		{"{ mov.u32 %r0, 0;", "ends inside"},
		{"setp.lt.s32 %r0, %r1, %r2;", "no predicate"},
		{"cvt.f32.f64 %r0, %l1;", "rounding modifier"},
		{"call (%r0), missing, (%r1);", "missing is not declared"},
		{"mov.u32 %r0, \"x\";", "operand is expected"},
		{"mov.u32 %r0, %r1[0];", "%r1 is no array"},
		{".shared .u32 d[2][2]; mov.u32 %r0, d[1];", "d is no array of one dimension"},
		{".shared .u32 d[2][2]; mov.u32 %r0, d[1][1];", `"," is expected`},
		{".shared .u32 d[2]; mov.u32 d[1], %r0;", "must be a register"},
		{".shared .u32 d[2]; mov.u32 %r0, d[1;", `"]" is expected`},
		{".shared .u32 d[2]; st.global.u32 d[1], %r0;", "another state space"},
		{".const .u32 fix; st.const.u32 [%l1], %r0;", "constant memory cannot be written"},
		{".const .u32 fix[2]; st.global.u32 [fix], %r0;", "constant memory cannot be written"},
		{".const .u32 fix[2]; atom.global.add.u32 %r0, fix[1], 1;", "constant memory cannot be written"},
		{"/* ", "not closed"},
		{"add.s32 %r0, %r1, #;", "unexpected character"},
	} {
		_, err := Parse([]byte(opModule(c.code, 'r')))
		var e *Error
		if !errors.As(err, &e) || e.Unsupported || e.Line == 0 || e.Col == 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.code, err)
		}
	}
}
