package ptx

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"
)

// memory is one mapped region, outside the Go heap so that the race detector leaves kernels' races alone.
type memory struct {
	bytes []byte
	used  uint64
}

const memoryBase = 0x10000000

func newMemory(t testing.TB) *memory {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, 16<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return &memory{bytes: b}
}

func (m *memory) Region(addr uint64) (Region, bool) {
	if addr < memoryBase || addr >= memoryBase+uint64(len(m.bytes)) {
		return Region{}, false
	}
	return Region{Start: memoryBase, Bytes: m.bytes}, true
}

func (m *memory) alloc(n uint64) (addr uint64, b []byte) {
	at := alignUp(m.used, 256)
	m.used = at + n
	return memoryBase + at, m.bytes[at : at+n : at+n]
}

// loadGlobals places the module's variables as a driver would.
func (m *memory) loadGlobals(mod *Module) map[string]uint64 {
	addrs := map[string]uint64{}
	bytes := map[string][]byte{}
	for _, g := range mod.Globals {
		addrs[g.Name], bytes[g.Name] = m.alloc(g.Size)
		copy(bytes[g.Name], g.Init)
	}
	for _, g := range mod.Globals {
		for _, r := range g.Relocs {
			writeInt(bytes[g.Name][r.Offset:], r.Size, addrs[r.Symbol]+uint64(r.Addend))
		}
	}
	return addrs
}

func (m *memory) floats(v []float32) uint64 {
	addr, b := m.alloc(uint64(4 * len(v)))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	return addr
}

func (m *memory) word(addr uint64) uint32 {
	return binary.LittleEndian.Uint32(m.bytes[addr-memoryBase:])
}

func (m *memory) float(addr uint64) float32 { return math.Float32frombits(m.word(addr)) }

// pack lays parameters out: uint64, uint32, int32, float32, uint16 and byte slices.
func pack(e *Entry, args ...any) []byte {
	p := make([]byte, e.ParamSize)
	for i, a := range args {
		at := e.Params[i].Offset
		switch v := a.(type) {
		case uint64:
			binary.LittleEndian.PutUint64(p[at:], v)
		case int:
			binary.LittleEndian.PutUint32(p[at:], uint32(v))
		case uint16:
			binary.LittleEndian.PutUint16(p[at:], v)
		case float32:
			binary.LittleEndian.PutUint32(p[at:], math.Float32bits(v))
		case []byte:
			copy(p[at:], v)
		default:
			panic("pack: unknown type")
		}
	}
	return p
}

func kernels(t testing.TB) *Module {
	t.Helper()
	src, err := os.ReadFile("../../testdata/kernels/kernels.ptx")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func run(t testing.TB, m *memory, mod *Module, kernel string, grid, block [3]uint32, shared uint32, args ...any) error {
	t.Helper()
	e := mod.Entry(kernel)
	if e == nil {
		t.Fatalf("no kernel %s", kernel)
	}
	g := &Grid{Kernel: e, GridDim: grid, BlockDim: block, SharedBytes: shared, Params: pack(e, args...), Mem: m,
		Globals: m.loadGlobals(mod), MaxInstructions: 1 << 32}
	return g.Run(context.Background())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func randomFloats(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = r.Float32()*20 - 10
	}
	return v
}

func TestModuleDescription(t *testing.T) {
	m := kernels(t)
	if m.Version != "9.0" || m.Target != "sm_90" || m.AddressSize != 64 {
		t.Errorf("version %q target %q address size %d", m.Version, m.Target, m.AddressSize)
	}
	if len(m.Entries) != 12 {
		t.Errorf("%d entries", len(m.Entries))
	}
	e := m.Entry("struct_arg")
	if len(e.Params) != 4 || e.Params[0].Size != 528 || e.Params[1].Offset != 528 || e.ParamSize != 552 {
		t.Errorf("parameters of struct_arg: %+v", e.Params)
	}
	if s := m.Entry("matmul_tiled").SharedSize(); s != 2*1088 {
		t.Errorf("shared memory of matmul_tiled: %d", s)
	}
	if l := m.Entry("math_mix").LocalSize(); l != 28 {
		t.Errorf("local memory of math_mix: %d", l)
	}
	if g := m.Global("managed_counter"); g == nil || !g.Managed || g.Size != 4 || g.Init[0] != 5 {
		t.Errorf("managed_counter: %+v", g)
	}
	if g := m.Global("coeff"); g == nil || g.Space != SpaceConst || g.Size != 32 || len(g.Init) != 32 || g.Managed {
		t.Errorf("coeff: %+v", g)
	}
}

func TestVectorAdd(t *testing.T) {
	mod := kernels(t)
	for _, n := range []int{1, 31, 256, 1000, 4099} {
		m := newMemory(t)
		a, b := randomFloats(n, 1), randomFloats(n, 2)
		pc, _ := m.alloc(uint64(4*n + 4))
		must(t, run(t, m, mod, "vector_add", [3]uint32{uint32(n+127) / 128, 1, 1}, [3]uint32{128, 1, 1}, 0, m.floats(a),
			m.floats(b), pc, n))
		for i := range a {
			if got := m.float(pc + uint64(4*i)); got != a[i]+b[i] {
				t.Fatalf("n %d: element %d is %v, not %v", n, i, got, a[i]+b[i])
			}
		}
		if m.word(pc+uint64(4*n)) != 0 {
			t.Errorf("n %d: written beyond the end", n)
		}
	}
}

func TestSaxpy(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	const n = 5000
	x, y := randomFloats(n, 1), randomFloats(n, 2)
	py := m.floats(y)
	must(t, run(t, m, mod, "saxpy", [3]uint32{3, 1, 1}, [3]uint32{96, 1, 1}, 0, float32(2.5), m.floats(x), py, n))
	for i := range x {
		want := float32(math.FMA(2.5, float64(x[i]), float64(y[i])))
		if got := m.float(py + uint64(4*i)); got != want {
			t.Fatalf("element %d is %v, not %v", i, got, want)
		}
	}
}

func TestReductions(t *testing.T) {
	mod := kernels(t)
	const n = 10000
	x := make([]float32, n)
	var sum float64
	for i := range x {
		x[i] = float32(i%7) - 2
		sum += float64(x[i])
	}
	m := newMemory(t)
	out, _ := m.alloc(4)
	must(t, run(t, m, mod, "reduce_sum", [3]uint32{8, 1, 1}, [3]uint32{256, 1, 1}, 1024, m.floats(x), out, n))
	if got := m.float(out); float64(got) != sum {
		t.Errorf("reduce_sum gives %v, not %v", got, sum)
	}
	ints, b := m.alloc(4 * n)
	want := 0
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i-300))
		want += i - 300
	}
	out2, _ := m.alloc(4)
	must(t, run(t, m, mod, "warp_sum", [3]uint32{(n + 255) / 256, 1, 1}, [3]uint32{256, 1, 1}, 0, ints, out2, n))
	if got := int(int32(m.word(out2))); got != want {
		t.Errorf("warp_sum gives %d, not %d", got, want)
	}
}

func TestMatmul(t *testing.T) {
	mod := kernels(t)
	for _, n := range []int{16, 33, 50} {
		m := newMemory(t)
		a, b := randomFloats(n*n, 3), randomFloats(n*n, 4)
		pc, _ := m.alloc(uint64(4 * n * n))
		g := uint32(n+15) / 16
		must(t, run(t, m, mod, "matmul_tiled", [3]uint32{g, g, 1}, [3]uint32{16, 16, 1}, 0, m.floats(a), m.floats(b), pc, n))
		for r := range n {
			for c := range n {
				var want float32
				for k := range n {
					want = float32(math.FMA(float64(a[r*n+k]), float64(b[k*n+c]), float64(want)))
				}
				if got := m.float(pc + uint64(4*(r*n+c))); math.Abs(float64(got-want)) > 1e-4*max(1, math.Abs(float64(want))) {
					t.Fatalf("n %d: element %d,%d is %v, not %v", n, r, c, got, want)
				}
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	const n = 20000
	addr, b := m.alloc(n)
	var want [256]uint32
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.IntN(256) & r.IntN(256))
		want[b[i]]++
	}
	h, _ := m.alloc(1024)
	must(t, run(t, m, mod, "histogram256", [3]uint32{5, 1, 1}, [3]uint32{192, 1, 1}, 0, addr, h, n))
	for i, w := range want {
		if got := m.word(h + uint64(4*i)); got != w {
			t.Errorf("bin %d: %d, not %d", i, got, w)
		}
	}
}

func TestHalfAxpy(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	const n = 512
	xa, x := m.alloc(2 * n)
	ya, y := m.alloc(2 * n)
	r := rand.New(rand.NewPCG(5, 2))
	var want [n]uint64
	a := roundTo(1.2998046875, fmtF16, rn)
	for i := range n {
		hx, hy := roundTo(r.NormFloat64(), fmtF16, rn), roundTo(r.NormFloat64()*3, fmtF16, rn)
		binary.LittleEndian.PutUint16(x[2*i:], uint16(hx))
		binary.LittleEndian.PutUint16(y[2*i:], uint16(hy))
		want[i] = roundTo(math.FMA(fromF16(a), fromF16(hx), fromF16(hy)), fmtF16, rn)
	}
	must(t, run(t, m, mod, "half_axpy", [3]uint32{4, 1, 1}, [3]uint32{128, 1, 1}, 0, uint16(a), xa, ya, n))
	for i := range n {
		if got := uint64(binary.LittleEndian.Uint16(y[2*i:])); got != want[i] {
			t.Fatalf("element %d is %#x, not %#x", i, got, want[i])
		}
	}
}

func TestMathMix(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	x := randomFloats(1000, 9)
	// The largest take the slow reduction of sin with its table and local memory.
	x = append(x, 0, 1, -1, 1e-30, 123456, -3e7, 1e20)
	py, _ := m.alloc(uint64(4 * len(x)))
	must(t, run(t, m, mod, "math_mix", [3]uint32{8, 1, 1}, [3]uint32{128, 1, 1}, 0, m.floats(x), py, len(x)))
	for i, v := range x {
		d := float64(v)
		abs := math.Abs(d)
		want := math.Sin(d) + math.Exp(-d*d)*math.Sqrt(abs) + math.Log(1+abs)/(1+math.Pow(abs, 1.5))
		if got := float64(m.float(py + uint64(4*i))); math.Abs(got-want) > 2e-6*max(1, math.Abs(want)) {
			t.Errorf("of %v: %v, not %v", v, got, want)
		}
	}
}

func TestFaultKernel(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	for _, c := range []struct {
		addr uint64
		kind FaultKind
	}{{0, IllegalAddress}, {0xdead0000, IllegalAddress}, {memoryBase + 2, Misaligned}, {memoryBase - 4, IllegalAddress},
		{memoryBase + 16<<20, IllegalAddress}, {SharedWindow - 4, IllegalAddress}} {
		err := run(t, m, mod, "fault", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, c.addr)
		var f *Fault
		if !errors.As(err, &f) || f.Kind != c.kind || f.Kernel != "fault" || f.Addr != c.addr || !f.Write || f.Size != 4 ||
			f.Line == 0 {
			t.Errorf("store to %#x: %v", c.addr, err)
		}
	}
	if err := run(t, m, mod, "fault", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, uint64(memoryBase)); err != nil {
		t.Error(err)
	}
}

func TestSpin(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	begin := time.Now()
	must(t, run(t, m, mod, "spin", [3]uint32{2, 1, 1}, [3]uint32{32, 1, 1}, 0, uint64(20e6)))
	if took := time.Since(begin); took < 20*time.Millisecond {
		t.Errorf("20 million cycles at 1 GHz took %v", took)
	}
}

func TestSpinCancelled(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	e := mod.Entry("spin")
	g := &Grid{Kernel: e, GridDim: [3]uint32{200, 1, 1}, BlockDim: [3]uint32{64, 1, 1}, Params: pack(e, uint64(1<<62)),
		Mem: m, Globals: m.loadGlobals(mod)}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := g.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cancelled grid returns %v", err)
	}
	g.MaxInstructions = 100000
	var f *Fault
	if err := g.Run(context.Background()); !errors.As(err, &f) || f.Kind != Timeout {
		t.Errorf("a grid beyond its budget returns %v", err)
	}
}

func TestStructArg(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	big := make([]byte, 528)
	for i := range 64 {
		binary.LittleEndian.PutUint32(big[4*i:], uint32(i*i))
		binary.LittleEndian.PutUint32(big[256+4*i:], math.Float32bits(float32(i)/3))
	}
	copy(big[512:], "hello, world!")
	o, _ := m.alloc(256)
	f, _ := m.alloc(256)
	c, text := m.alloc(13)
	must(t, run(t, m, mod, "struct_arg", [3]uint32{1, 1, 1}, [3]uint32{96, 1, 1}, 0, big, o, f, c))
	for i := range 64 {
		if m.word(o+uint64(4*i)) != uint32(i*i) || m.float(f+uint64(4*i)) != float32(i)/3 {
			t.Fatalf("element %d: %d %v", i, m.word(o+uint64(4*i)), m.float(f+uint64(4*i)))
		}
	}
	if string(text) != "hello, world!" {
		t.Errorf("text %q", text)
	}
}

func TestGlobals(t *testing.T) {
	mod, m := kernels(t), newMemory(t)
	out, _ := m.alloc(12)
	e := mod.Entry("globals")
	g := &Grid{Kernel: e, GridDim: [3]uint32{1, 1, 1}, BlockDim: [3]uint32{1, 1, 1}, Params: pack(e, out), Mem: m,
		Globals: m.loadGlobals(mod)}
	for i := range uint32(3) {
		must(t, g.Run(context.Background()))
		if a, b, c := m.word(out), m.word(out+4), m.word(out+8); a != 7+i || b != 1 || c != 5+i {
			t.Errorf("run %d: %d %d %d", i, a, b, c)
		}
	}
	g.Globals = nil
	if err := g.Run(context.Background()); !errors.Is(err, ErrLaunch) {
		t.Errorf("without addresses of variables: %v", err)
	}
}
