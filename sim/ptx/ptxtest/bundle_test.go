package ptxtest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/sim/ptx"
)

// TestBundles runs what lies in sim/testdata: random programs, and kernels made elsewhere with the results of a GPU.
func TestBundles(t *testing.T) {
	paths, err := filepath.Glob("../../testdata/*.bundle")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no bundles: %v", err)
	}
	m, err := NewMachine()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, path := range paths {
		b, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		mods := make([]*ptx.Module, len(b.Modules))
		for i, text := range b.Modules {
			if mods[i], err = ptx.Parse([]byte(text)); err != nil {
				t.Fatalf("%s: module %d: %v", path, i, err)
			}
		}
		wanted := 0
		for _, l := range b.Launches {
			got, err := m.Run(context.Background(), b, mods[l.Module], l)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			for i, a := range l.Args {
				if a.Want != nil {
					wanted++
				}
				if d := a.Difference(got[i]); d != "" {
					t.Errorf("%s: %s: argument %d: %s", path, l.Name, i, d)
				}
			}
		}
		if wanted < len(b.Launches) {
			t.Errorf("%s: %d launches with %d results", path, len(b.Launches), wanted)
		}
	}
}

func TestDifference(t *testing.T) {
	for _, c := range []struct {
		a    Arg
		got  []byte
		want string
	}{
		{Arg{Want: []byte{1, 2}}, []byte{1, 2}, ""},
		{Arg{Want: []byte{1, 2}}, []byte{1, 3}, "byte 1 is 0x3"},
		{Arg{Want: []byte{1, 2}}, []byte{1}, "1 bytes"},
		{Arg{Want: []byte{0, 0, 0x80, 0x3f}, Type: "f32"}, []byte{1, 0, 0x80, 0x3f}, "float 0"},
		{Arg{Want: []byte{0, 0, 0x80, 0x3f}, Type: "f32", Ulp: 2}, []byte{2, 0, 0x80, 0x3f}, ""},
		{Arg{Want: []byte{0, 0, 0x80, 0x3f}, Type: "f32", Ulp: 2}, []byte{3, 0, 0x80, 0x3f}, "float 0"},
		{Arg{Want: []byte{0, 0, 0x80, 0x3f}, Type: "f32", Tol: 0.1}, []byte{0, 0, 0x88, 0x3f}, ""},
		{Arg{Want: []byte{0, 0x3c}, Type: "f16", Tol: 0.01}, []byte{1, 0x3c}, ""},
		{Arg{Want: []byte{0, 0x3c}, Type: "f16"}, []byte{0, 0x3e}, "half 0 is 1.5, not 1"},
	} {
		if got := c.a.Difference(c.got); (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v of %v: %q", c.a, c.got, got)
		}
	}
}
