package ptx

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// FuzzParse: no text may crash the parser or make it take more than its length allows, and what it accepts must run
// without harm: ended by its budget, a fault, or itself.
func FuzzParse(f *testing.F) {
	src, err := os.ReadFile("../../testdata/kernels/kernels.ptx")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(src)
	for _, cases := range [][]opCase{integerCases, conversionCases, floatCases} {
		for _, c := range cases {
			f.Add([]byte(opModule(c.code, c.dst)))
		}
	}
	f.Add([]byte(header + fibText + kernel("list: .branchtargets a, b; brx.idx %t, list; a: b: bar.sync 0;")))
	f.Add([]byte(header + ".global .align 8 .u64 t[2][2] = {{f, 1}, {2}};\n.func f() { ret; }\n" +
		kernel("p: .callprototype _ (); call %l1, (), p; shfl.sync.idx.b32 %r0|%p1, %t, 1, 31, -1;")))
	f.Add([]byte(header +
		kernel("wmma.load.a.sync.aligned.row.m8n8k32.global.s4 {%r0}, [%l1], 32; "+
			"wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {%r0, %r1}, {%r0}, {%r1}, {%r0, %r1};"+
			"wmma.store.d.sync.aligned.col.m8n8k32.global.s32 [%l1], {%r0, %r1}, %r1;")))
	f.Add([]byte(header +
		".file 1 \"a.cu\"\n.section .debug_str { .b8 1, 2 }\n.global .f32 x[] = {0f3F800000, -1.5};\n.alias g, f;\n"))
	for _, c := range clusterCases {
		f.Add([]byte(header + clusterText(c.code)))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		m, err := Parse(src)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Line < 1 {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		mem := newMemory(t)
		globals := map[string]uint64{}
		for _, g := range m.Globals {
			if uint64(len(g.Init)) > g.Size {
				t.Fatalf("%s: %d initial bytes for %d", g.Name, len(g.Init), g.Size)
			}
			for _, r := range g.Relocs {
				if m.Global(r.Symbol) == nil || r.Offset+uint64(r.Size) > uint64(len(g.Init)) {
					t.Fatalf("%s: relocation %+v", g.Name, r)
				}
			}
			globals[g.Name] = memoryBase
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, e := range m.Entries {
			g := &Grid{
				Kernel: e, GridDim: [3]uint32{2, 1, 1}, BlockDim: [3]uint32{40, 1, 1}, Params: make([]byte, e.ParamSize), Mem: mem,
				Globals: globals, MaxInstructions: 1000, Workers: 1}
			var fault *Fault
			if err := g.Run(ctx); err != nil && !errors.As(err, &fault) && !errors.Is(err, ErrLaunch) {
				t.Fatal(err)
			}
		}
	})
}
