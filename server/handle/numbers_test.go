package handle

import (
	"testing"

	"pgregory.net/rapid"

	"scuda.dev/scuda/api/cuda"
)

func TestNumbers(t *testing.T) {
	tab := table(t, 8, 8)
	graph := uint64(clientBase + 64)
	if err := tab.New(cuda.KindGraph, graph, 1, 0); err != nil {
		t.Fatal(err)
	}
	tab.Give(cuda.KindTexObject, 7, 0)
	tab.Give(cuda.KindGraphConditionalHandle, 7, graph)
	tab.Give(cuda.KindGraphConditionalHandle, 8, graph)
	tab.Give(cuda.KindGraphConditionalHandle, 9, 12345) // no handle: it has no parent
	tab.Take(cuda.KindGraphConditionalHandle, 8)
	tab.Delete(cuda.KindGraph, graph)
	for _, c := range []struct {
		kind  cuda.Kind
		value uint64
		want  bool
	}{
		{cuda.KindTexObject, 7, true}, {cuda.KindSurfObject, 7, false}, {cuda.KindTexObject, 0, false},
		{cuda.KindGraphConditionalHandle, 7, false}, {cuda.KindGraphConditionalHandle, 8, false},
		{cuda.KindGraphConditionalHandle, 9, true},
	} {
		if got := tab.Holds(c.kind, c.value); got != c.want {
			t.Errorf("%v %d: %v", c.kind, c.value, got)
		}
	}
	if len(tab.numbered) != 0 {
		t.Errorf("%d parents are left", len(tab.numbered))
	}
}

// A number is held as often as it was given and not taken.
func TestNumbersAreCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := table(t, 8, 8)
		count := map[uint64]int{}
		value := rapid.Uint64Range(0, 3)
		t.Repeat(map[string]func(*rapid.T){
			"give": func(t *rapid.T) {
				v := value.Draw(t, "value")
				tab.Give(cuda.KindTexObject, v, 0)
				count[v]++
			},
			"take": func(t *rapid.T) {
				v := value.Draw(t, "value")
				tab.Take(cuda.KindTexObject, v)
				count[v] = max(0, count[v]-1)
			},
			"": func(t *rapid.T) {
				for v := range uint64(4) {
					if tab.Holds(cuda.KindTexObject, v) != (count[v] > 0) {
						t.Fatalf("%d was given %d times", v, count[v])
					}
				}
			},
		})
	})
}
