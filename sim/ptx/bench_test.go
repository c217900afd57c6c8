package ptx

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Lane instructions a second is what counts; each benchmark reports it.
func benchmark(b *testing.B, kernel string, grid, block [3]uint32, shared uint32, perThread float64,
	args func(m *memory) []any) {
	benchmarkOf(b, kernels(b), newMemory(b), kernel, grid, block, shared, perThread, args)
}

func benchmarkOf(b *testing.B, mod *Module, m *memory, kernel string, grid, block [3]uint32, shared uint32,
	perThread float64, args func(m *memory) []any) {
	e := mod.Entry(kernel)
	g := &Grid{Kernel: e, GridDim: grid, BlockDim: block, SharedBytes: shared, Params: pack(e, args(m)...), Mem: m,
		Globals: m.loadGlobals(mod), Workers: 1}
	b.ResetTimer()
	begin := processorTime(b)
	for range b.N {
		if err := g.Run(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	threads := float64(grid[0]*grid[1]*grid[2]) * float64(block[0]*block[1]*block[2])
	b.ReportMetric(threads*perThread*float64(b.N)/(processorTime(b)-begin)/1e6, "Mlane/s")
}

// processorTime that the process has used, in seconds: what a core does, whoever else uses it meanwhile.
func processorTime(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkStraight is the yardstick: straight integer and float code, as compilers write it, in a loop.
func BenchmarkStraight(b *testing.B) {
	for _, c := range []struct{ name, code string }{
		{"integer", "add.u32 %r1, %r1, %r2; mad.lo.u32 %r2, %r1, %r3, %r2; xor.b32 %r3, %r1, %r2; shl.b32 %r4, %r3, 3; " +
			"shr.u32 %r5, %r2, 7;" +
			"and.b32 %r4, %r4, %r5; sub.u32 %r1, %r1, %r4; or.b32 %r3, %r3, 1; " +
			"mul.lo.s32 %r2, %r2, %r3; max.s32 %r5, %r1, %r5;"},
		{"float", "fma.rn.f32 %f1, %f1, 0f3F000000, %f2; mul.f32 %f4, %f1, %f3; add.f32 %f5, %f4, %f2; " +
			"sub.f32 %f6, %f5, %f1; fma.rn.f32 %f3, %f6, 0f3C000000, 0f3F800000;" +
			"max.f32 %f7, %f6, %f3; neg.f32 %f8, %f7; mul.f32 %f4, %f8, 0f3F000000;"},
		{"double", "fma.rn.f64 %d1, %d1, 0d3FE0000000000000, %d2; mul.f64 %d4, %d1, %d3; add.f64 %d5, %d4, %d1; " +
			"sub.f64 %d6, %d5, %d2;"},
		{"mixed", "mad.lo.u32 %r1, %r1, 1664525, 1013904223; shr.u32 %r2, %r1, 8; cvt.rn.f32.u32 %f1, %r2; " +
			"fma.rn.f32 %f2, %f1, 0f33800000, %f2;" +
			"add.u32 %r3, %r3, %r2; xor.b32 %r3, %r3, %r1; mul.f32 %f2, %f2, 0f3F000000; add.f32 %f3, %f3, %f2;"},
	} {
		b.Run(c.name, func(b *testing.B) {
			const unroll, rounds = 16, 64
			body := strings.Repeat(c.code+"\n", unroll)
			m, err := Parse([]byte(header + ".visible .entry k(.param .u64 p) { .reg .pred %p; .reg .b32 %i; " +
				".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .b64 %a<2>;\n" +
				"mov.u32 %r1, %tid.x; mov.u32 %r2, 77; mov.u32 %r3, 3; mov.u32 %r5, 5; cvt.rn.f32.u32 %f1, %r1; " +
				"mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f3F000000;\n" +
				"cvt.rn.f64.u32 %d1, %r1; mov.f64 %d2, 0d3FF0000000000000; mov.f64 %d3, 0d3FE0000000000000;\n" +
				"mov.u32 %i, 0; again:\n" + body + "add.u32 %i, %i, 1; setp.ne.u32 %p, %i, " + fmt.Sprint(rounds) +
				"; @%p bra again;\n" +
				"ld.param.u64 %a0, [p]; st.global.b32 [%a0], %r1; st.global.f32 [%a0], %f1; st.global.f64 [%a0], %d1; ret; }\n"))
			if err != nil {
				b.Fatal(err)
			}
			perThread := float64(rounds * (unroll*strings.Count(c.code, ";") + 3))
			benchmarkOf(b, m, newMemory(b), "k", [3]uint32{16, 1, 1}, [3]uint32{256, 1, 1}, 0, perThread, func(m *memory) []any {
				out, _ := m.alloc(8)
				return []any{out}
			})
		})
	}
}

func BenchmarkMatmul(b *testing.B) {
	const n = 128
	benchmark(b, "matmul_tiled", [3]uint32{8, 8, 1}, [3]uint32{16, 16, 1}, 0, 35+8*73, func(m *memory) []any {
		c, _ := m.alloc(4 * n * n)
		return []any{m.floats(randomFloats(n*n, 1)), m.floats(randomFloats(n*n, 2)), c, n}
	})
}

func BenchmarkSaxpy(b *testing.B) {
	const n = 1 << 20
	benchmark(b, "saxpy", [3]uint32{16, 1, 1}, [3]uint32{256, 1, 1}, 0, n/4096*10, func(m *memory) []any {
		return []any{float32(2), m.floats(make([]float32, n)), m.floats(make([]float32, n)), n}
	})
}

func BenchmarkVectorAdd(b *testing.B) {
	const n = 1 << 18
	benchmark(b, "vector_add", [3]uint32{n / 256, 1, 1}, [3]uint32{256, 1, 1}, 0, 21, func(m *memory) []any {
		c, _ := m.alloc(4 * n)
		return []any{m.floats(make([]float32, n)), m.floats(make([]float32, n)), c, n}
	})
}

func BenchmarkMathMix(b *testing.B) {
	const n = 1 << 16
	benchmark(b, "math_mix", [3]uint32{n / 256, 1, 1}, [3]uint32{256, 1, 1}, 0, 190, func(m *memory) []any {
		y, _ := m.alloc(4 * n)
		return []any{m.floats(randomFloats(n, 1)), y, n}
	})
}
