package handle

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scuda.dev/scuda/api/cuda"
)

const (
	clientBase = 0x10000
	serverBase = 0x80000
)

func table(t interface{ Fatal(...any) }, clientSlots, serverSlots uint64) *Table {
	tab, err := New(Region{clientBase, clientSlots}, Region{serverBase, serverSlots})
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestGarbage(t *testing.T) {
	tab := table(t, 8, 8)
	if err := tab.New(cuda.KindEvent, clientBase+64, 0xabc, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind   cuda.Kind
		client uint64
		ok     bool
	}{
		{cuda.KindEvent, clientBase + 64, true},
		{cuda.KindStream, clientBase + 64, false},
		{cuda.KindNone, clientBase + 64, false},
		{cuda.KindEvent, clientBase, false},
		{cuda.KindNone, clientBase, false},
		{cuda.KindEvent, clientBase + 65, false},
		{cuda.KindEvent, clientBase + 8*64, false},
		{cuda.KindEvent, clientBase - 64, false},
		{cuda.KindEvent, serverBase, false},
		{cuda.KindEvent, 0, false},
		{cuda.KindEvent, 1, false},
		{cuda.KindEvent, ^uint64(0), false},
		{cuda.KindEvent, ^uint64(63), false},
	} {
		real, ok := tab.Real(c.kind, c.client)
		if ok != c.ok || ok && real != 0xabc {
			t.Errorf("%v %#x: %#x, %v", c.kind, c.client, real, ok)
		}
		if !c.ok {
			tab.Delete(c.kind, c.client)
		}
	}
	if tab.Len() != 1 {
		t.Error("a garbage handle deleted something")
	}
	for _, client := range []uint64{0, clientBase + 64, clientBase + 1, clientBase + 8*64, serverBase, ^uint64(0)} {
		if err := tab.New(cuda.KindEvent, client, 1, 0); !errors.Is(err, ErrHandle) {
			t.Errorf("New at %#x: %v", client, err)
		}
	}
}

func TestRebind(t *testing.T) {
	tab := table(t, 8, 8)
	tab.Rebind(clientBase, 5) // nothing is there
	if tab.Len() != 0 {
		t.Error("rebinding made a handle")
	}
	if err := tab.New(cuda.KindEvent, clientBase, 1, 0); err != nil {
		t.Fatal(err)
	}
	tab.Rebind(clientBase, 2)
	if real, ok := tab.Real(cuda.KindEvent, clientBase); !ok || real != 2 {
		t.Errorf("stands for %d, %v", real, ok)
	}
	if c, ok := tab.Find(cuda.KindEvent, 2); !ok || c != clientBase {
		t.Errorf("the new object is %#x, %v", c, ok)
	}
	if c, ok := tab.Find(cuda.KindEvent, 1); ok {
		t.Errorf("the old object is still %#x", c)
	}
}

func TestRegions(t *testing.T) {
	for _, c := range []struct{ client, server Region }{
		{Region{1, 8}, Region{serverBase, 8}},
		{Region{clientBase, MaxSlots + 1}, Region{serverBase << 20, 8}},
		{Region{^uint64(63), 2}, Region{serverBase, 8}},
		{Region{clientBase, 8}, Region{clientBase + 7*64, 8}},
	} {
		if _, err := New(c.client, c.server); !errors.Is(err, ErrHandle) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestKernelAsFunction(t *testing.T) {
	tab := table(t, 8, 8)
	if err := tab.New(cuda.KindKernel, clientBase, 5, 0); err != nil {
		t.Fatal(err)
	}
	if v, ok := tab.Real(cuda.KindFunction, clientBase); !ok || v != 5 {
		t.Error("a kernel does not stand for a function")
	}
	if _, ok := tab.Real(cuda.KindModule, clientBase); ok {
		t.Error("a kernel stands for a module")
	}
}

func TestMint(t *testing.T) {
	tab := table(t, 8, 2)
	a := tab.Client(cuda.KindGraphNode, 100, 0)
	b := tab.Client(cuda.KindGraphNode, 200, 0)
	if a != serverBase || b != serverBase+64 || tab.Client(cuda.KindGraphNode, 100, 0) != a ||
		tab.Client(cuda.KindEvent, 0, 0) != 0 {
		t.Errorf("%#x %#x", a, b)
	}
	if c := tab.Client(cuda.KindEvent, 100, 0); c != 0 {
		t.Errorf("a full region gave %#x", c)
	}
	tab.Delete(cuda.KindGraphNode, a)
	if c := tab.Client(cuda.KindEvent, 300, 0); c != a {
		t.Errorf("the freed slot is not used again: %#x", c)
	}
	if c, ok := tab.Find(cuda.KindEvent, 300); !ok || c != a {
		t.Error("Find")
	}
}

func TestCascade(t *testing.T) {
	tab := table(t, 64, 64)
	h := func(i uint64) uint64 { return clientBase + i*SlotBytes }
	for _, c := range []struct {
		kind      cuda.Kind
		i, parent uint64
	}{
		{cuda.KindContext, 1, 0}, {cuda.KindStream, 2, 1}, {cuda.KindModule, 3, 1}, {cuda.KindFunction, 4, 3},
		{cuda.KindLibrary, 5, 1}, {cuda.KindKernel, 6, 5}, {cuda.KindGraph, 7, 2}, {cuda.KindGraphNode, 8, 7},
		{cuda.KindGraph, 9, 8}, {cuda.KindGraphNode, 10, 9},
		{cuda.KindGraphExec, 11, 7},
	} {
		parent := uint64(0)
		if c.parent != 0 {
			parent = h(c.parent)
		}
		if err := tab.New(c.kind, h(c.i), c.i, parent); err != nil {
			t.Fatal(err)
		}
	}
	sibling := tab.Client(cuda.KindGraphNode, 99, h(8)) // a dependency of node 8 lies in its graph
	if tab.Parent(sibling) != h(7) {
		t.Errorf("owner of the sibling is %#x", tab.Parent(sibling))
	}
	live := func() (out []uint64) {
		for i := range uint64(12) {
			if tab.Kind(h(i)) != cuda.KindNone {
				out = append(out, i)
			}
		}
		return out
	}
	tab.Delete(cuda.KindGraphNode, h(8))
	if want := []uint64{1, 2, 3, 4, 5, 6, 7, 11}; !slices.Equal(live(), want) || tab.Kind(sibling) != cuda.KindGraphNode {
		t.Errorf("after the node: %v", live())
	}
	tab.Delete(cuda.KindGraph, h(7))
	if want := []uint64{1, 2, 3, 4, 5, 6, 11}; !slices.Equal(live(), want) || tab.Kind(sibling) != cuda.KindNone {
		t.Errorf("after the graph: %v", live())
	}
}

// The table agrees with a plain model whatever is done to it.
// A function of a kernel lies in a context: it ends with whichever ends first.
func TestTie(t *testing.T) {
	context, library, kernel, function :=
		uint64(clientBase+64), uint64(clientBase+128), uint64(clientBase+192), uint64(clientBase+256)
	for _, c := range []struct {
		kind cuda.Kind
		ends uint64
		left int
	}{{cuda.KindContext, context, 2}, {cuda.KindLibrary, library, 1}, {cuda.KindKernel, kernel, 2}} {
		tab := table(t, 8, 8)
		for kind, h := range map[cuda.Kind]uint64{cuda.KindContext: context, cuda.KindLibrary: library} {
			if err := tab.New(kind, h, uint64(kind), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(tab.New(cuda.KindKernel, kernel, 7, library),
			tab.New(cuda.KindFunction, function, 8, kernel)); err != nil {
			t.Fatal(err)
		}
		tab.Tie(function, context)
		tab.Tie(function, 12345) // nothing
		tab.Delete(c.kind, c.ends)
		if tab.Len() != c.left || tab.Kind(function) != cuda.KindNone {
			t.Errorf("after the end of the %v: %d handles, the function is %v", c.kind, tab.Len(), tab.Kind(function))
		}
		for kind, h := range map[cuda.Kind]uint64{cuda.KindContext: context, cuda.KindLibrary: library} {
			tab.Delete(kind, h)
		}
		if tab.Len() != 0 {
			t.Errorf("after the end of everything: %d handles", tab.Len())
		}
	}
}

func TestModel(t *testing.T) {
	kinds := []cuda.Kind{cuda.KindContext, cuda.KindModule, cuda.KindFunction, cuda.KindEvent}
	type object struct {
		kind         cuda.Kind
		real, parent uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		tab := table(t, 16, 4)
		model := map[uint64]object{}
		kind := rapid.SampledFrom(kinds)
		anyHandle := rapid.Custom(func(t *rapid.T) uint64 {
			return rapid.SampledFrom([]uint64{clientBase, serverBase}).Draw(t, "region") +
				rapid.Uint64Range(0, 17).Draw(t, "slot")*SlotBytes
		})
		// drop removes an object and, as long as that changes something, those whose owner is gone.
		drop := func(c uint64) {
			delete(model, c)
			for again := true; again; {
				again = false
				for child, o := range model {
					if _, ok := model[o.parent]; o.parent != 0 && !ok {
						delete(model, child)
						again = true
					}
				}
			}
		}
		owner := func(k cuda.Kind, parent uint64) uint64 {
			p, ok := model[parent]
			if ok && slices.Contains(owners[k], p.kind) {
				return parent
			}
			return 0
		}
		newest := uint64(0) // driver values are unique while their object lives
		t.Repeat(map[string]func(*rapid.T){
			"new": func(t *rapid.T) {
				k, c, parent := kind.Draw(t, "kind"), anyHandle.Draw(t, "handle"), anyHandle.Draw(t, "parent")
				_, used := model[c]
				bad := used || c < clientBase || c >= clientBase+16*SlotBytes
				newest++
				if err := tab.New(k, c, newest, parent); (err != nil) != bad {
					t.Fatalf("New(%#x): %v", c, err)
				}
				if !bad {
					model[c] = object{k, newest, owner(k, parent)}
				}
			},
			"mint": func(t *rapid.T) {
				k, parent := kind.Draw(t, "kind"), anyHandle.Draw(t, "parent")
				minted := 0
				for c := range maps.Keys(model) {
					if c >= serverBase {
						minted++
					}
				}
				newest++
				c := tab.Client(k, newest, parent)
				if (c == 0) != (minted == 4) {
					t.Fatalf("minted %#x with %d of 4 in use", c, minted)
				}
				if _, used := model[c]; used {
					t.Fatalf("minted %#x twice", c)
				}
				if c != 0 {
					model[c] = object{k, newest, owner(k, parent)}
				}
			},
			"delete": func(t *rapid.T) {
				k, c := kind.Draw(t, "kind"), anyHandle.Draw(t, "handle")
				tab.Delete(k, c)
				if model[c].kind == k {
					drop(c)
				}
			},
			"": func(t *rapid.T) {
				if tab.Len() != len(model) {
					t.Fatalf("%d live, want %d", tab.Len(), len(model))
				}
				seen := 0
				for _, k := range kinds {
					tab.Each(k, func(c, real uint64) {
						seen++
						if o := model[c]; o.kind != k || o.real != real {
							t.Fatalf("Each: %#x is %+v", c, o)
						}
					})
				}
				if seen != len(model) {
					t.Fatalf("Each gave %d of %d", seen, len(model))
				}
				for c, o := range model {
					if v, ok := tab.Real(o.kind, c); !ok || v != o.real || tab.Client(o.kind, o.real, 0) != c ||
						tab.Parent(c) != o.parent {
						t.Fatalf("%#x: %#x %v", c, v, ok)
					}
				}
			},
		})
	})
}
