package ptx

import (
	"context"
	"errors"
	"sync"
	"testing"
)

const sharedFunction = `.version 8.0
.target sm_80
.address_size 64
.func (.reg .u32 %out) twice(.reg .u32 %in) { add.u32 %out, %in, %in; ret; }
.entry first(.param .u64 p) {
	.reg .b32 %r<4>; .reg .b64 %l;
	ld.param.u64 %l, [p]; mov.u32 %r0, 3; call (%r1), twice, (%r0); st.global.u32 [%l], %r1; ret;
}
.entry second(.param .u64 p) {
	.reg .b32 %r<4>; .reg .b64 %l;
	ld.param.u64 %l, [p]; mov.u32 %r0, 4; call (%r1), twice, (%r0); st.global.u32 [%l], %r1; ret;
}
.entry third() { .reg .b32 %r; mov.u32 %r, 0; ret; }
`

// TestCompiledWhenUsed: what nobody launches has no code, and launches at once compile a function once.
func TestCompiledWhenUsed(t *testing.T) {
	mod, err := Parse([]byte(sharedFunction))
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range mod.funcs {
		if fn.code != nil || fn.slots != 0 {
			t.Errorf("%s is compiled already", fn.name)
		}
	}
	m := newMemory(t)
	var all sync.WaitGroup
	for range 4 {
		for i, name := range []string{"first", "second"} {
			at, out := m.alloc(4)
			all.Go(func() {
				e := mod.Entry(name)
				g := &Grid{Kernel: e, GridDim: [3]uint32{1, 1, 1}, BlockDim: [3]uint32{1, 1, 1}, Params: pack(e, at), Mem: m}
				if err := g.Run(context.Background()); err != nil || out[0] != byte(6+2*i) || e.Registers() < 8 {
					t.Error(name, err, out[0], e.Registers())
				}
			})
		}
	}
	all.Wait()
	if mod.Entry("third").fn.code != nil || mod.Entry("first").fn.stmts != nil {
		t.Error("what is compiled is not what was launched")
	}
}

// TestFirstError: functions are checked at once, and the error is the first one's in the text.
func TestFirstError(t *testing.T) {
	text := ".version 8.0\n.target sm_80\n.address_size 64\n"
	for _, name := range []string{"a", "b", "c", "d"} {
		text += ".entry " + name + "() { bra " + name + "_is_missing; }\n"
	}
	for range 20 {
		_, err := Parse([]byte(text))
		if e, found := errors.AsType[*Error](err); !found || e.Line != 4 {
			t.Fatal(err)
		}
	}
}
