package ptx

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// The tests here run the kernels of sim/testdata, which clang made of C for this project, against the same algorithms
// in Go.

func sampleModule(t *testing.T, name string) *Module {
	t.Helper()
	src, err := os.ReadFile("../testdata/" + name + ".ptx")
	must(t, err)
	m, err := Parse(src)
	must(t, err)
	return m
}

func dim(n ...int) [3]uint32 {
	d := [3]uint32{1, 1, 1}
	for i, v := range n {
		d[i] = uint32(v)
	}
	return d
}

func (m *memory) words(v []uint32) uint64 {
	addr, b := m.alloc(uint64(4 * len(v)))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], x)
	}
	return addr
}

func randomWords(n int, seed uint64, below uint32) []uint32 {
	r := rand.New(rand.NewPCG(seed, 2))
	v := make([]uint32, n)
	for i := range v {
		v[i] = r.Uint32N(below)
	}
	return v
}

func TestSampleReduction(t *testing.T) {
	mod := sampleModule(t, "reduction")
	for _, n := range []int{1, 1000, 50000} {
		m := newMemory(t)
		x := randomWords(n, 1, math.MaxUint32)
		var want uint32
		for _, v := range x {
			want += v
		}
		out, _ := m.alloc(4)
		must(t, run(t, m, mod, "sum", dim(7), dim(192), 0, m.words(x), out, n))
		if got := m.word(out); got != want {
			t.Errorf("the sum of %d is %d, not %d", n, got, want)
		}
	}
}

func TestSampleScan(t *testing.T) {
	mod := sampleModule(t, "scan")
	const n = 5000
	m := newMemory(t)
	x := randomWords(n, 2, 1000)
	y, _ := m.alloc(4 * n)
	sums, _ := m.alloc(4 * 32)
	const blocks = (n + 255) / 256
	must(t, run(t, m, mod, "scan_block", dim(blocks), dim(256), 0, m.words(x), y, sums, n))
	must(t, run(t, m, mod, "scan_add", dim(blocks), dim(256), 0, y, sums, n))
	var want uint32
	for i, v := range x {
		want += v
		if got := m.word(y + uint64(4*i)); got != want {
			t.Fatalf("up to %d: %d, not %d", i, got, want)
		}
	}
}

func TestSampleMatmul(t *testing.T) {
	mod := sampleModule(t, "matmul")
	const n = 37
	m := newMemory(t)
	r := rand.New(rand.NewPCG(3, 3))
	matrix := func() ([]float64, uint64) {
		addr, b := m.alloc(8 * n * n)
		v := make([]float64, n*n)
		for i := range v {
			v[i] = r.NormFloat64()
			binary.LittleEndian.PutUint64(b[8*i:], math.Float64bits(v[i]))
		}
		return v, addr
	}
	a, pa := matrix()
	b, pb := matrix()
	pc, c := m.alloc(8 * n * n)
	must(t, run(t, m, mod, "matmul", dim((n+7)/8, (n+7)/8), dim(8, 8), 0, pa, pb, pc, n))
	for i := range n {
		for j := range n {
			var want float64
			for k := range n {
				want = math.FMA(a[i*n+k], b[k*n+j], want)
			}
			if got := math.Float64frombits(binary.LittleEndian.Uint64(c[8*(i*n+j):])); got != want {
				t.Fatalf("element %d,%d is %v, not %v", i, j, got, want)
			}
		}
	}
}

func TestSampleHistogram(t *testing.T) {
	mod := sampleModule(t, "histogram")
	const n = 30000
	m := newMemory(t)
	addr, b := m.alloc(n)
	var want [256]uint32
	for i, v := range randomWords(n, 4, 200) {
		b[i] = byte(v)
		want[v]++
	}
	counts, _ := m.alloc(1024)
	must(t, run(t, m, mod, "histogram", dim(6), dim(160), 0, addr, counts, n))
	for i, w := range want {
		if got := m.word(counts + uint64(4*i)); got != w {
			t.Errorf("%d of %d, not %d", got, i, w)
		}
	}
}

func TestSampleSort(t *testing.T) {
	mod := sampleModule(t, "sort")
	const n = 4096
	m := newMemory(t)
	keys := randomWords(n, 5, 1500) // many are equal: their values decide
	x, b := m.alloc(8 * n)
	want := make([]uint64, n)
	for i, k := range keys {
		binary.LittleEndian.PutUint32(b[8*i:], k)
		binary.LittleEndian.PutUint32(b[8*i+4:], uint32(i))
		want[i] = uint64(k)<<32 | uint64(i)
	}
	slices.Sort(want)
	must(t, run(t, m, mod, "sort_block", dim(n/512), dim(256), 0, x))
	for k := 1024; k <= n; k *= 2 {
		for j := k / 2; j > 0; j /= 2 {
			must(t, run(t, m, mod, "sort_step", dim(n/128), dim(128), 0, x, k, j))
		}
	}
	for i, w := range want {
		if got := uint64(m.word(x+uint64(8*i)))<<32 | uint64(m.word(x+uint64(8*i+4))); got != w {
			t.Fatalf("item %d is %#x, not %#x", i, got, w)
		}
	}
}

func TestSampleBodies(t *testing.T) {
	mod := sampleModule(t, "nbody")
	const n, dt = 100, 0.01
	m := newMemory(t)
	pos, speed := randomFloats(4*n, 6), randomFloats(4*n, 7)
	to, _ := m.alloc(16 * n)
	ps := m.floats(speed)
	must(t, run(t, m, mod, "nbody", dim((n+63)/64), dim(64), 0, m.floats(pos), to, ps, n, float32(dt)))
	fma := fma32
	for i := range n {
		var acc [3]float32
		for k := range (n + 63) / 64 * 64 {
			var d [3]float32
			var mass float32
			for x := range 3 {
				var there float32
				if k < n {
					there, mass = pos[4*k+x], pos[4*k+3]
				}
				d[x] = there - pos[4*i+x]
			}
			s := fma(d[0], d[0], fma(d[1], d[1], fma(d[2], d[2], 0.01)))
			r := 1 / float32(math.Sqrt(float64(s)))
			w := mass * r
			w *= r
			w *= r
			for x := range 3 {
				acc[x] = fma(w, d[x], acc[x])
			}
		}
		for x := range 3 {
			v := fma(acc[x], dt, speed[4*i+x])
			p := fma(v, dt, pos[4*i+x])
			if got := m.float(ps + uint64(16*i+4*x)); got != v {
				t.Fatalf("speed %d of body %d is %v, not %v", x, i, got, v)
			}
			if got := m.float(to + uint64(16*i+4*x)); got != p {
				t.Fatalf("place %d of body %d is %v, not %v", x, i, got, p)
			}
		}
	}
}

func TestSampleLife(t *testing.T) {
	mod := sampleModule(t, "life")
	const w, h = 75, 40
	m := newMemory(t)
	a, now := m.alloc(w * h)
	b, next := m.alloc(w * h)
	for i, v := range randomWords(w*h, 8, 3) {
		now[i] = byte(v & 1)
	}
	cells := slices.Clone(now)
	for range 10 {
		must(t, run(t, m, mod, "life", dim(3, h), dim(32), 0, a, b, w, h))
		want := make([]byte, w*h)
		for y := range h {
			for x := range w {
				n := 0
				for dy := h - 1; dy <= h+1; dy++ {
					for dx := w - 1; dx <= w+1; dx++ {
						if dx != w || dy != h {
							n += int(cells[(y+dy)%h*w+(x+dx)%w])
						}
					}
				}
				if n == 3 || n == 2 && cells[y*w+x] == 1 {
					want[y*w+x] = 1
				}
			}
		}
		if !slices.Equal(next, want) {
			t.Fatal("a generation is wrong")
		}
		cells = want
		a, b, now, next = b, a, next, now
	}
}
