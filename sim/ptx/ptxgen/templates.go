package main

// Templates of instructions, by the class of their result: r and d are 32 and 64-bit, h 16-bit registers, f and e
// floats, q predicates. "<a|b>" is a choice, "$" the result; the capital letters are operands: R, L (64 bits), H, F, E
// registers or constants, S a shift amount, P and V bit positions in 32 and 64 bits, I a byte, Q a predicate, N one
// that may be negated, and T, U scratch registers of 32 and 64 bits. "~" in front asks for NaNs to be made equal, where
// PTX leaves their bits open. What ptxas of CUDA 13.0 gets wrong is not here: set with a float as its result, testp
// under a guard, constant bit positions beyond the value, bit fields of 64 bits at positions over 255.
var templates = map[byte][]string{
	'r': {
		"<add|sub|mul.lo>.<s32|u32> $, R, R;", "<add|sub>.sat.s32 $, R, R;", "mul.hi.<s32|u32> $, R, R;",
		"mul24.<lo|hi>.<s32|u32> $, R, R;", "mad.<lo|hi>.<s32|u32> $, R, R, R;", "mad.hi.sat.s32 $, R, R, R;",
		"mad24.<lo|hi>.<s32|u32> $, R, R, R;",
		"mul.wide.<s16|u16> $, H, H;", "mad.wide.<s16|u16> $, H, H, R;", "sad.<s32|u32> $, R, R, R;",
		"<and|or|xor>.b32 $, R, R;", "not.b32 $, R;", "cnot.b32 $, R;", "shl.b32 $, R, S;", "shr.<u32|s32|b32> $, R, S;",
		"shf.<l|r>.<wrap|clamp>.b32 $, R, R, S;", "<min|max>.<s32|u32> $, R, R;", "<abs|neg>.s32 $, R;",
		"<popc|clz|brev>.b32 $, R;", "<popc|clz>.b64 $, L;", "bfind<|.shiftamt>.<u32|s32> $, R;",
		"bfind<|.shiftamt>.<u64|s64> $, L;",
		"bfe.<u32|s32> $, R, P, P;", "bfi.b32 $, R, R, P, P;", "prmt.b32 $, R, R, R;",
		"prmt.b32.<f4e|b4e|rc8|ecl|ecr|rc16> $, R, R, R;",
		"lop3.b32 $, R, R, R, I;", "dp4a.<u32|s32>.<u32|s32> $, R, R, R;", "dp2a.<lo|hi>.<u32|s32>.<u32|s32> $, R, R, R;",
		"bmsk.<clamp|wrap>.b32 $, S, S;", "szext.<clamp|wrap>.<u32|s32> $, R, S;", "selp.b32 $, R, R, Q;",
		"slct.b32.s32 $, R, R, R;",
		"slct.b32.f32 $, R, R, F;", "set.<eq|ne|lt|le|gt|ge>.<u32|s32>.<u32|s32> $, R, R;",
		"set.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan><|.ftz>.u32.f32 $, F, F;", "set.<lt|geu>.s32.f64 $, E, E;",
		"cvt.<s32|u32>.<s8|u8|s16|u16> $, H;", "cvt.sat.<s8|u8|s16|u16>.<s32|u32> $, R;", "cvt.sat.<s32|u32>.<s64|u64> $, L;",
		"cvt.u32.u64 $, L;",
		"cvt.<rni|rzi|rmi|rpi><|.ftz>.<s32|u32>.f32 $, F;", "cvt.<rni|rzi|rmi|rpi>.<s32|u32>.f64 $, E;",
		"mov.b32 $, {HH, HH};", "mov.b32 $, F;",
		"add.<u16x2|s16x2> $, RR, RR;", "<min|max>.<u16x2|s16x2> $, RR, RR;", "cvt.pack.sat.<u16|s16>.s32 $, R, R;",
		"cvt.pack.sat.<u8|s8>.s32.b32 $, R, R, R;",
		"cvt.<rn|rz><|.relu>.<f16x2|bf16x2>.f32 $, F, F;", "<add|sub|mul>.f16x2 $, RR, RR;",
		"fma.rn<|.relu>.<f16x2|bf16x2> $, RR, RR, RR;", "<min|max><|.NaN>.f16x2 $, RR, RR;",
		"or.b32 T, R, 1; <div|rem>.u32 $, R, T;", "and.b32 T, R, 0x7fffffff; or.b32 T, T, 1; <div|rem>.s32 $, R, T;",
		"add.cc.<u32|s32> T, R, R; addc.<u32|s32> $, R, R;", "sub.cc.u32 T, R, R; subc.u32 $, R, R;",
		"mad.lo.cc.u32 T, R, R, R; madc.hi.u32 $, R, R, R;",
	},
	'd': {
		"<add|sub|mul.lo>.<s64|u64> $, L, L;", "mul.hi.<s64|u64> $, L, L;", "mad.<lo|hi>.<s64|u64> $, L, L, L;",
		"mul.wide.<s32|u32> $, R, R;", "mad.wide.<s32|u32> $, R, R, L;", "<and|or|xor>.b64 $, L, L;", "not.b64 $, L;",
		"cnot.b64 $, L;",
		"shl.b64 $, L, S;", "shr.<u64|s64> $, L, S;", "<min|max>.<s64|u64> $, L, L;", "<abs|neg>.s64 $, L;", "brev.b64 $, L;",
		"bfe.<u64|s64> $, L, V, V;", "and.b32 T, R, 0xff; bfe.<u64|s64> $, L, <T, V|V, T>;", "bfi.b64 $, L, L, V, V;",
		"and.b32 T, R, 0xff; bfi.b64 $, L, L, <T, V|V, T>;", "selp.b64 $, L, L, Q;", "sad.<s64|u64> $, L, L, L;",
		"cvt.<s64|u64>.<s32|u32> $, R;", "cvt.<s64|u64>.<s8|u8|s16|u16> $, H;", "cvt.sat.<s64.u64|u64.s64> $, L;",
		"cvt.<rni|rzi|rmi|rpi><|.ftz>.<s64|u64>.f32 $, F;", "cvt.<rni|rzi|rmi|rpi>.<s64|u64>.f64 $, E;",
		"mov.b64 $, {RR, RR};", "mov.b64 $, E;",
		"or.b64 U, L, 1; <div|rem>.u64 $, L, U;", "and.b64 U, L, 0x7fffffffffffffff; or.b64 U, U, 1; <div|rem>.s64 $, L, U;",
	},
	'h': {
		"<add|sub|mul.lo|mul.hi>.<s16|u16> $, H, H;", "mad.lo.<s16|u16> $, H, H, H;", "<min|max>.<s16|u16> $, H, H;",
		"<and|or|xor>.b16 $, H, H;", "not.b16 $, H;",
		"shl.b16 $, H, S;", "shr.<u16|s16> $, H, S;", "<abs|neg>.s16 $, H;", "selp.b16 $, H, H, Q;",
		"cvt.<s16|u16>.<s32|u32> $, R;", "cvt.sat.<s16|u16>.<s32|u32> $, R;",
		"cvt.<rn|rz>.<f16|bf16>.f32 $, F;", "<add|sub|mul><|.ftz|.sat>.f16 $, HH, HH;",
		"fma.rn<|.ftz|.sat|.relu>.f16 $, HH, HH, HH;",
		"fma.rn<|.relu>.bf16 $, HH, HH, HH;", "cvt.<rn|rz>.f16.<s32|u32> $, R;", "cvt.<rni|rzi|rmi|rpi>.<s16|u16>.f16 $, HH;",
		"cvt.<rni|rzi>.<s16|u16>.f32 $, F;",
	},
	'f': {
		"<add|sub|mul>.<rn|rz|rm|rp><|.ftz><|.sat>.f32 $, F, F;", "fma.<rn|rz|rm|rp><|.ftz><|.sat>.f32 $, F, F, F;",
		"<add|sub|mul>.rn.f32 $, F, F;", "fma.rn.f32 $, F, F, F;",
		"div.<rn|rz|rm|rp><|.ftz>.f32 $, F, F;", "<sqrt|rcp>.<rn|rz|rm|rp><|.ftz>.f32 $, F;",
		"<min|max><|.ftz><|.NaN>.f32 $, F, F;",
		"~<abs|neg><|.ftz>.f32 $, F;", "~copysign.f32 $, F, F;", "cvt.<rn|rz|rm|rp>.f32.<s32|u32> $, R;",
		"cvt.<rn|rz|rm|rp>.f32.<s64|u64> $, L;",
		"cvt.<rn|rz|rm|rp><|.ftz><|.sat>.f32.f64 $, E;", "~cvt.<rni|rzi|rmi|rpi><|.ftz><|.sat>.f32.f32 $, F;",
		"cvt.f32.f16 $, HH;", "mov.b32 $, R;",
		"selp.f32 $, F, F, Q;", "slct.f32.s32 $, F, F, R;",
	},
	'e': {
		"~<add|sub|mul|div>.<rn|rz|rm|rp>.f64 $, E, E;", "~fma.<rn|rz|rm|rp>.f64 $, E, E, E;",
		"~<sqrt|rcp>.<rn|rz|rm|rp>.f64 $, E;", "~<add|mul>.rn.f64 $, E, E;", "~fma.rn.f64 $, E, E, E;",
		"~<min|max>.f64 $, E, E;", "~<abs|neg>.f64 $, E;", "~copysign.f64 $, E, E;", "~cvt<|.ftz>.f64.f32 $, F;",
		"cvt.<rn|rz|rm|rp>.f64.<s32|u32> $, R;",
		"cvt.<rn|rz|rm|rp>.f64.<s64|u64> $, L;", "~cvt.<rni|rzi|rmi|rpi>.f64.f64 $, E;", "mov.b64 $, L;",
		"selp.f64 $, E, E, Q;",
	},
	'q': {
		"setp.<eq|ne|lt|le|gt|ge>.<s32|u32> $, R, R;", "setp.<lo|ls|hi|hs>.u32 $, R, R;",
		"setp.<eq|ne|lt|le|gt|ge>.<and|or|xor>.<s32|u32> $, R, R, N;",
		"setp.<eq|ne|lt|le|gt|ge>.<s64|u64> $, L, L;", "setp.<eq|lt|ge>.<s16|u16> $, H, H;",
		"setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan><|.ftz>.f32 $, F, F;",
		"setp.<lt|geu|neu>.<and|or|xor><|.ftz>.f32 $, F, F, N;",
		"setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.f64 $, E, E;", "setp.<lt|ge|neu>.f16 $, HH, HH;",
		"<and|or|xor>.pred $, Q, Q;", "not.pred $, Q;",
		"testp.<finite|infinite|number|notanumber|normal|subnormal>.f32 $, F;",
		"testp.<finite|infinite|number|notanumber|normal|subnormal>.f64 $, E;",
	},
}

// whole are instructions of whole warps, for places that all threads reach.
var whole = map[byte][]string{
	'r': {
		"shfl.sync.<up|down|bfly|idx>.b32 $, RR, R, C, -1;",
		"shfl.sync.<up|down|bfly|idx>.b32 $, RR, S, <0|31|0x1f|0x1003|0x181f|0x1c07>, -1;",
		"vote.sync.ballot.b32 $, N, -1;", "and.b32 T, R, 3; match.any.sync.b32 $, T, -1;",
		"and.b64 U, L, 1; match.any.sync.b64 $, U, -1;",
		"redux.sync.<add|min|max>.<s32|u32> $, RR, -1;", "redux.sync.<and|or|xor>.b32 $, RR, -1;",
		"barrier.red.popc.u32 $, 0, N;",
		"barrier.sync 0; st.shared.b32 [%mine], RR; barrier.sync 0; ld.shared.b32 $, [%theirs];",
		"barrier.sync 0; st.shared.v2.b16 [%mine], {HH, HH}; barrier.sync 0; ld.shared.<b32|u8|s8|u16|s16> $, [%theirs];",
		"and.b32 T, R, 1; match.all.sync.b32 $|%q5, T, -1;",
	},
	'q': {"vote.sync.<all|any|uni>.pred $, N, -1;", "barrier.red.<and|or>.pred $, 0, N;"},
}

// partial are instructions of the lanes that took a branch, whose mask %mask has and whose first lane is %first.
var partial = map[byte][]string{
	'r': {
		"shfl.sync.idx.b32 $, RR, %first, 31, %mask;", "vote.sync.ballot.b32 $, N, %mask;",
		"and.b32 T, R, 3; match.any.sync.b32 $, T, %mask;",
		"redux.sync.<add|min|max>.<s32|u32> $, RR, %mask;", "redux.sync.<and|or|xor>.b32 $, RR, %mask;",
	},
	'q': {"vote.sync.<all|any|uni>.pred $, N, %mask;"},
}

// private are accesses to memory that only one thread uses; shared ones have one operation a word, in any order the
// same.
var private = map[byte][]string{
	'r': {
		"atom.global.<add|min|max|inc|dec>.u32 $, [%own], R;", "atom.global.<min|max>.s32 $, [%own], R;",
		"atom.global.<and|or|xor|exch>.b32 $, [%own], R;", "atom.global.cas.b32 $, [%own], R, R;",
		"st.shared.b32 [%mine2], RR; atom.shared.<add|max|inc|dec>.u32 $, [%mine2], R;",
		"st.local.b32 [%loc], RR; ld.local.<u8|s8|u16|s16|b32> $, [%loc];",
		"st.local.v2.b16 [%loc+8], {HH, HH}; ld.local.b32 $, [%loc+8];", "ld.local.<u8|s8> $, [%loc+<0|1|2|3|9|10>];",
		"st.global.b32 [%own+4], RR; ld.global.<u8|s8|u16|s16|b32> $, [%own+4];", "ld.global.v2.b32 {T, $}, [%own];",
	},
	'd': {"atom.global.<add|min|max>.u64 $, [%own+8], L;", "atom.global.<min|max>.s64 $, [%own+8], L;",
		"atom.global.<and|or|xor|exch>.b64 $, [%own+8], L;", "atom.global.cas.b64 $, [%own+8], L, L;"},
}

var sharedWords = []string{
	"<red|atom>.global.add.u32 *[%all], R;", "<red|atom>.global.min.s32 *[%all+4], R;",
	"<red|atom>.global.max.u32 *[%all+8], R;", "<red|atom>.global.and.b32 *[%all+12], R;",
	"<red|atom>.global.or.b32 *[%all+16], R;", "<red|atom>.global.xor.b32 *[%all+20], R;",
	"<red|atom>.global.inc.u32 *[%all+24], 1000;", "<red|atom>.global.min.u32 *[%all+28], R;",
	"<red|atom>.global.add.u64 *[%all+32], L;", "<red|atom>.global.min.s64 *[%all+40], L;",
	"<red|atom>.global.max.u64 *[%all+48], L;", "<red|atom>.global.xor.b64 *[%all+56], L;",
}

// functions are called by programs.
const functions = `.func (.param .b32 ret) mix(.param .b32 a, .param .b64 b)
{
	.reg .b32 %r<4>; .reg .b64 %d<2>;
	ld.param.b32 %r0, [a]; ld.param.b64 %d0, [b];
	mov.b64 {%r1, %r2}, %d0; xor.b32 %r0, %r0, %r1; mad.lo.u32 %r0, %r0, 0x01000193, %r2;
	st.param.b32 [ret], %r0; ret;
}
.func (.reg .b32 ret) depth(.reg .b32 n)
{
	.reg .pred %p; .reg .b32 %m;
	setp.eq.u32 %p, n, 0; mov.u32 ret, 1; @%p ret;
	sub.u32 %m, n, 1; call (ret), depth, (%m); mad.lo.u32 ret, ret, 3, n; ret;
}
`

// rare are instructions that only the edge kernels have.
var rare = map[byte][]string{
	'r': {
		"cvt.rn<|.relu>.f16x2.<e4m3x2|e5m2x2> $, HH;", "<add|sub|mul>.bf16x2 $, RR, RR;",
		"<min|max><|.NaN><|.xorsign.abs>.<f16x2|bf16x2> $, RR, RR;", "<abs|neg>.<f16x2|bf16x2> $, RR;",
		"set.<eq|ne|lt|leu|nan>.u32.<f16|bf16> $, HH, HH;", "set.<eq|lt|leu>.<f16x2|u32>.f16x2 $, RR, RR;",
		"fma.rn.<ftz|sat|ftz.sat|ftz.relu>.f16x2 $, RR, RR, RR;", "<add|sub|mul>.<ftz|sat|ftz.sat>.f16x2 $, RR, RR;",
		"cvt.rna.tf32.f32 $, F;", "<min|max>.relu.<s32|s16x2> $, RR, RR;",
		"cvt.<rni|rzi|rmi|rpi>.<s32|u32>.<f16|bf16> $, HH;", "fns.b32 $, RR, 5, <1|2|-1|0>;",
		"mad.hi.cc.s32 T, R, R, R; madc.lo.u32 $, R, R, R;", "add.cc.u32 T, R, R; addc.cc.u32 T, R, R; addc.u32 $, R, R;",
		"sub.cc.s32 T, R, R; subc.cc.s32 T, R, R; subc.s32 $, T, R;",
		"cvt.<rn|rz>.satfinite.relu.<f16x2|bf16x2>.f32 $, F, F;", "set.<lt|ge>.<and|or|xor>.u32.s32 $, R, R, N;",
		"shf.<l|r>.<wrap|clamp>.b32 $, R, R, R;",
		"<vadd|vsub|vabsdiff|vmin|vmax>.<u32|s32>.<u32|s32>.<u32|s32><|.sat> $, RR, RR;",
		"<vadd|vsub|vmax>.<u32|s32>.<u32|s32>.s32<|.sat>.<add|min|max> $, RR, RR, RR;",
		"<vadd|vabsdiff>.<u32|s32>.<u32|s32>.s32<|.sat> $.<b1|b3|h1>, RR.<b0|h0>, RR.<b3|h1>, RR;",
		"<vshl|vshr>.<u32|s32>.<u32|s32>.u32<|.sat>.<clamp|wrap> $, RR, RR<|.b0>;",
		"<vshl|vshr>.<u32|s32>.<u32|s32>.u32.<clamp|wrap>.<add|min|max> $, RR, RR.b0, RR;",
		"vset.<u32|s32>.<u32|s32>.<eq|ne|lt|le|gt|ge> $, RR, RR;", "vset.u32.s32.<lt|ge>.<add|min|max> $, RR, RR, RR;",
		"vset.u32.s32.ne $.<b0|b2|h0>, RR.<b1|h1>, RR, RR;", "vmad.u32.u32.u32<|.po><|.sat><|.shr7|.shr15> $, RR, RR, RR;",
		"vmad.s32.<u32.s32|s32.u32|s32.s32><|.po><|.sat><|.shr7|.shr15> $, RR<|.b0|.h1>, RR<|.b3|.h0>, RR;",
		"vmad.s32.<u32.u32|u32.s32|s32.s32><|.sat><|.shr7|.shr15> $, <-RR, RR, RR|RR, -RR, RR|RR, RR, -RR>;",
	},
	'd': {
		"add.cc.u64 U, L, L; addc.u64 $, L, L;", "sub.cc.u64 U, L, L; subc.u64 $, L, L;",
		"mad.lo.cc.u64 U, L, L, L; madc.hi.u64 $, L, L, L;", "cvt.<rni|rzi|rmi|rpi>.<s64|u64>.<f16|bf16> $, HH;",
		"shl.b64 $, L, R;", "shr.<u64|s64|b64> $, L, R;", "slct.u64.s32 $, L, L, R;",
	},
	'h': {
		"<add|sub|mul>.bf16 $, HH, HH;", "<min|max><|.ftz><|.NaN><|.xorsign.abs>.f16 $, HH, HH;",
		"<min|max><|.NaN><|.xorsign.abs>.bf16 $, HH, HH;", "<abs|neg>.<f16|bf16> $, HH;",
		"cvt.<rni|rzi|rmi|rpi>.<f16.f16|bf16.bf16> $, HH;", "cvt.rn.bf16.f16 $, HH;", "cvt.rn.f16.bf16 $, HH;",
		"cvt.<rn|rz|rm|rp>.<f16|bf16>.<s64|u64> $, L;", "cvt.<rn|rz|rm|rp>.bf16.<s32|u32> $, R;",
		"cvt.<rn|rz|rm|rp>.<f16|bf16>.f64 $, E;", "cvt.<rn|rz|rm|rp><|.sat>.f16.<s16|u16> $, H;",
		"cvt.rn.satfinite<|.relu>.<e4m3x2|e5m2x2>.f32 $, F, F;", "cvt.rn.satfinite<|.relu>.<e4m3x2|e5m2x2>.f16x2 $, RR;",
		"cvt.<rni|rzi|rmi|rpi>.<s8|u8>.f32 $, F;", "cvt.<rni|rzi|rmi|rpi>.<s8|u8>.f64 $, E;",
		"cvt.<s16.s8|u16.u8|s16.u8|u16.s8> $, H;", "cvt.sat.<s8|u8>.<s16|u16> $, H;",
		"fma.rn.ftz.<sat|relu>.f16 $, HH, HH, HH;",
		"set.<eq|lt|nan>.<f16.f16|bf16.bf16> $, HH, HH;", "mad.hi.<s16|u16> $, H, H, H;", "sad.<s16|u16> $, H, H, H;",
		"cvt.<rn|rz><|.relu>.<f16|bf16>.f32 $, F;",
	},
	'f': {
		"~cvt.f32.bf16 $, HH;", "<min|max><|.ftz><|.NaN>.xorsign.abs.f32 $, F, F;",
		"cvt.<rn|rz|rm|rp><|.sat>.f32.<s8|u8|s16|u16> $, H;", "slct<|.ftz>.f32.f32 $, F, F, F;", "cvt.ftz.f32.f32 $, F;",
		"cvt.sat.f32.f32 $, F;",
	},
	'e': {"~cvt.f64.<f16|bf16> $, HH;", "cvt.<rn|rz>.f64.<s8|u8|s16|u16> $, H;", "slct.f64.f32 $, E, E, F;",
		"slct.f64.s32 $, E, E, R;"},
	'q': {
		"setp.<eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan>.<f16|bf16> $, HH, HH;",
		"setp.<lt|neu>.<and|or|xor>.<f16|bf16> $, HH, HH, N;", "setp.<lt|geu>.<f16x2|bf16x2> $|%go, RR, RR;",
		"setp.<eq|ne>.b16 $, H, H;", "setp.<eq|ne>.b32 $, R, R;", "setp.<eq|ne>.b64 $, L, L;",
		"setp.<eq|lt|ge>.ftz.f16 $, HH, HH;",
	},
}
