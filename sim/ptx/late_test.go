package ptx

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lateHeader = ".version 8.0\n.target sm_80\n.address_size 64\n"

// TestLateBodies: of a long text the bodies are read when a kernel is first used, and give what they gave.
func TestLateBodies(t *testing.T) {
	text := sharedFunction + strings.Repeat("// a long library\n", wholeText/18+1)
	mod, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range mod.funcs {
		if fn.body == nil || fn.stmts != nil {
			t.Errorf("%s is read already", fn.name)
		}
	}
	m := newMemory(t)
	at, out := m.alloc(4)
	e := mod.Entry("first")
	g := &Grid{Kernel: e, GridDim: [3]uint32{1, 1, 1}, BlockDim: [3]uint32{1, 1, 1}, Params: pack(e, at), Mem: m}
	if err := g.Run(context.Background()); err != nil || out[0] != 6 {
		t.Error(err, out[0])
	}
	if mod.Entry("second").fn.body == nil || mod.funcs[0].body != nil || mod.funcs[0].code == nil {
		t.Error("what is read is not what was launched")
	}
}

// TestLateIsTheSame: every kernel of the texts that lie here is the same whether it is read at once or late.
func TestLateIsTheSame(t *testing.T) {
	files, err := filepath.Glob("../../testdata/kernels/*.ptx")
	more, err2 := filepath.Glob("../testdata/*.ptx")
	if files = append(files, more...); err != nil || err2 != nil || len(files) < 5 {
		t.Fatal(files, err, err2)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		now, err := parse(src, false)
		if err != nil {
			t.Fatal(file, err)
		}
		late, err := parse(src, true)
		if err != nil || len(late.Entries) != len(now.Entries) || len(late.Globals) != len(now.Globals) {
			t.Fatal(file, err)
		}
		for i, e := range late.Entries {
			want := now.Entries[i]
			if err := e.Load(); err != nil || e.SharedSize() != want.SharedSize() || e.LocalSize() != want.LocalSize() ||
				e.Registers() != want.Registers() || e.ParamSize != want.ParamSize || len(e.fn.code) != len(want.fn.code) &&
				want.Load() == nil {
				t.Error(file, e.Name, err)
			}
		}
	}
}

// TestLateErrors: an error is found when its kernel is first used, each time, and others are not concerned.
func TestLateErrors(t *testing.T) {
	mod, err := parse([]byte(lateHeader+`.entry good() { ret; }
.func broken() { bra nowhere; }
.entry calls() { call broken, (); ret; }
.entry unknown() { /* } */ vadd4.u32.u32.u32 %r, %r, %r, %r; }
.entry shares() { .shared .b32 s[8]; .reg .b32 %r; mov.b32 %r, s; ret; }
`), true)
	if err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string]int{"good": 0, "calls": 5, "unknown": 7, "shares": 0} {
		for range 2 {
			e, found := errors.AsType[*Error](mod.Entry(name).Load())
			if found != (line != 0) || found && e.Line != line {
				t.Error(name, e)
			}
		}
	}
	if n := mod.Entry("shares").SharedSize(); n != 32 {
		t.Error("shared memory:", n)
	}
	for _, text := range []string{".entry a() { ", ".entry a() { /* ", `.entry a() { "`, ".entry a() { } }"} {
		_, late := parse([]byte(lateHeader+text), true)
		_, now := parse([]byte(lateHeader+text), false)
		if late == nil || now == nil || late.Error() != now.Error() {
			t.Error(text, late, now)
		}
	}
}

// TestLateGlobals: a body that declares variables of the module is read at once, for they need memory.
func TestLateGlobals(t *testing.T) {
	for _, declaration := range []string{".global .b32 v = 7;", ".const .b32 v = 7;", "{.global .b32 v = 7;}"} {
		mod, err := parse([]byte(lateHeader+".entry a() { .reg .f32 %f; "+declaration+" ret; }\n"+
			".entry b() { .reg .b64 %l; .reg .b32 %r; mov.b64 %l, 0; ld.global.b32 %r, [%l]; ret; }"), true)
		if err != nil || len(mod.Globals) != 1 || mod.Entry("a").fn.body != nil || mod.Entry("b").fn.body == nil ||
			mod.Entry("a").Load() != nil {
			t.Error(declaration, err)
		}
	}
}
