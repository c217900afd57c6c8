package ptx

import (
	"context"
	"testing"
)

// Lane instructions a second is what counts; each benchmark reports it.
func benchmark(b *testing.B, kernel string, grid, block [3]uint32, shared uint32, perThread float64, args func(m *memory) []any) {
	mod, m := kernels(b), newMemory(b)
	e := mod.Entry(kernel)
	g := &Grid{Kernel: e, GridDim: grid, BlockDim: block, SharedBytes: shared, Params: pack(e, args(m)...), Mem: m,
		Globals: m.loadGlobals(mod), Workers: 1}
	b.ResetTimer()
	for range b.N {
		if err := g.Run(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	threads := float64(grid[0]*grid[1]*grid[2]) * float64(block[0]*block[1]*block[2])
	b.ReportMetric(threads*perThread*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mlane/s")
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
