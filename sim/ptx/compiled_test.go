package ptx

import (
	"bufio"
	"fmt"
	"os"
	"testing"
)

// TestCompiledFunctions runs what clang made of testdata/compiled/functions.h, with and without optimisation, and
// compares with what the same C functions give on the host.
func TestCompiledFunctions(t *testing.T) {
	f, err := os.Open("testdata/compiled/functions.want")
	must(t, err)
	defer f.Close()
	want := map[string][]uint32{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var name string
		var v uint32
		if _, err := fmt.Sscanf(s.Text(), "%s %x", &name, &v); err != nil {
			t.Fatal(err)
		}
		want[name] = append(want[name], v)
	}
	if len(want) != 10 {
		t.Fatalf("%d functions", len(want))
	}
	for _, level := range []string{"O0", "O2"} {
		src, err := os.ReadFile("testdata/compiled/functions-" + level + ".ptx")
		must(t, err)
		mod, err := Parse(src)
		must(t, err)
		for name, values := range want {
			t.Run(level+"/"+name, func(t *testing.T) {
				m := newMemory(t)
				out, _ := m.alloc(4 * 256)
				must(t, run(t, m, mod, "k_"+name, [3]uint32{4, 1, 1}, [3]uint32{64, 1, 1}, 0, out, 12345))
				for i, v := range values {
					if got := m.word(out + uint64(4*i)); got != v {
						t.Fatalf("of %d: %#x, not %#x", i, got, v)
					}
				}
			})
		}
	}
}
